//! [`tensorwire_decoders`]: `fabric_descriptors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_descriptors", bytes));
