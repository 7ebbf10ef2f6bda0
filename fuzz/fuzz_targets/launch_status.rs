//! [`tensorwire_decoders`]: `launch_status`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("launch_status", bytes));
