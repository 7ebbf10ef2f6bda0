//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use crate::grpc::fuzz_tensors;
use crate::identity::fuzz_nonces;
use crate::messages::fuzz_heads;
use crate::ring::{fuzz_fragments, fuzz_introductions};
use crate::seals::fuzz_sealed;

/// What says which tensor a message is.
pub fn heads(bytes: &[u8]) {
    fuzz_heads(bytes);
}

/// What stands before a fragment of a message in a ring, and how a ring is introduced.
pub fn fragments(bytes: &[u8]) {
    fuzz_fragments(bytes);
    fuzz_introductions(bytes);
}

/// A call of gRPC.
pub fn tensors(bytes: &[u8]) {
    fuzz_tensors(bytes);
}

/// A sealed head, and the text of a nonce.
pub fn seals(bytes: &[u8]) {
    fuzz_sealed(bytes);
    fuzz_nonces(bytes);
}
