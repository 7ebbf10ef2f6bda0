//! [`tensorwire_decoders`]: `fabric_endpoints`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_endpoints", bytes));
