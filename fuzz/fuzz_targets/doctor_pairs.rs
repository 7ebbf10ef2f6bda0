//! [`tensorwire_decoders`]: `doctor_pairs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("doctor_pairs", bytes));
