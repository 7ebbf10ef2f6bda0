//! [`tensorwire_decoders`]: `nn_schedules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("nn_schedules", bytes));
