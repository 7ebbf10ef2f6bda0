//! [`tensorwire_decoders`]: `fabric_verbs_wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("fabric_verbs_wire", bytes));
