//! [`tensorwire_decoders`]: `baselines_fragments`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("baselines_fragments", bytes));
