//! [`tensorwire_decoders`]: `import_modules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("import_modules", bytes));
