//! [`tensorwire_decoders`]: `launch_takeover`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("launch_takeover", bytes));
