//! [`tensorwire_decoders`]: `fabric_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_frames", bytes));
