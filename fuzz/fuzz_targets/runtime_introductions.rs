//! [`tensorwire_decoders`]: `runtime_introductions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("runtime_introductions", bytes));
