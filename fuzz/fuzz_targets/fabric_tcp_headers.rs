//! [`tensorwire_decoders`]: `fabric_tcp_headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_tcp_headers", bytes));
