//! [`tensorwire_decoders`]: `fabric_handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_handshake", bytes));
