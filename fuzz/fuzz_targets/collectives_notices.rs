//! [`tensorwire_decoders`]: `collectives_notices`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("collectives_notices", bytes));
