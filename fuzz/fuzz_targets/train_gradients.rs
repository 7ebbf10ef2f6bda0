//! [`tensorwire_decoders`]: `train_gradients`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("train_gradients", bytes));
