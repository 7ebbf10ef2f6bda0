//! [`tensorwire_decoders`]: `runtime_metadata`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("runtime_metadata", bytes));
