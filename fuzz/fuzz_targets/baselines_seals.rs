//! [`tensorwire_decoders`]: `baselines_seals`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("baselines_seals", bytes));
