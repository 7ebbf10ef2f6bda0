//! [`tensorwire_decoders`]: `kvstore_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("kvstore_frames", bytes));
