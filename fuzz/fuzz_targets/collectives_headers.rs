//! [`tensorwire_decoders`]: `collectives_headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("collectives_headers", bytes));
