//! [`tensorwire_decoders`]: `launch_hosts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("launch_hosts", bytes));
