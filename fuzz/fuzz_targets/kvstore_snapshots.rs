//! [`tensorwire_decoders`]: `kvstore_snapshots`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("kvstore_snapshots", bytes));
