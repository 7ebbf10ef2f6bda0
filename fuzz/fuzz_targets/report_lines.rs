//! [`tensorwire_decoders`]: `report_lines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("report_lines", bytes));
