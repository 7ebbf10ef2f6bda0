//! [`tensorwire_decoders`]: `tensor_specs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("tensor_specs", bytes));
