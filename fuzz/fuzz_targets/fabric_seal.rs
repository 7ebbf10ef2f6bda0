//! [`tensorwire_decoders`]: `fabric_seal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_seal", bytes));
