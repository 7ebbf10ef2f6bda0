//! [`tensorwire_decoders`]: `zoo_sources`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("zoo_sources", bytes));
