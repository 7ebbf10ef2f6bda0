//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use crate::communicator::fuzz_notices;
use crate::group::fuzz_binds;
use crate::mail::Header;

/// What members tell each other of their vectors.
pub fn binds(bytes: &[u8]) {
    fuzz_binds(bytes);
}

/// What members of a communicator tell each other of the operations that they begin.
pub fn notices(bytes: &[u8]) {
    fuzz_notices(bytes);
}

/// What stands before the bytes of a message.
pub fn headers(bytes: &[u8]) {
    if let Some(header) = Header::from_bytes(bytes) {
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        assert!(bytes.starts_with(&header.to_bytes()));
    }
}
