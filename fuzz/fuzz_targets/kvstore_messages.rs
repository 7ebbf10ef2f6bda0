//! [`tensorwire_decoders`]: `kvstore_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("kvstore_messages", bytes));
