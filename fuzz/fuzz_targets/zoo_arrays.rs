//! [`tensorwire_decoders`]: `zoo_arrays`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("zoo_arrays", bytes));
