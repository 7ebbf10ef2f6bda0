//! [`tensorwire_decoders`]: `kvstore_introductions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("kvstore_introductions", bytes));
