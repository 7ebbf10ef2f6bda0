//! [`tensorwire_decoders`]: `zoo_sheets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("zoo_sheets", bytes));
