//! [`tensorwire_decoders`]: `launch_rendezvous`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("launch_rendezvous", bytes));
