//! [`tensorwire_decoders`]: `doctor_peers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("doctor_peers", bytes));
