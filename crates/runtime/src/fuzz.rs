//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use crate::one_sided::{fuzz_introductions, fuzz_metadata};

/// What parts tell each other before the first step.
pub fn introductions(bytes: &[u8]) {
    fuzz_introductions(bytes);
}

/// What crosses ahead of a tensor of unknown size.
pub fn metadata(bytes: &[u8]) {
    fuzz_metadata(bytes);
}
