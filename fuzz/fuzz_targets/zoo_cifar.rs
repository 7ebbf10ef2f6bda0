//! [`tensorwire_decoders`]: `zoo_cifar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorwire_decoders::call("zoo_cifar", bytes));
