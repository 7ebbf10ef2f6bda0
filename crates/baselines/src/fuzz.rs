//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use crate::grpc::fuzz_tensors;
use crate::identity::{PeerIdentity, PeerToken};
use crate::messages::fuzz_heads;
use crate::ring::fuzz_fragments;

/// What says which tensor a message is.
pub fn heads(bytes: &[u8]) {
    fuzz_heads(bytes);
}

/// What stands before a fragment of a message in a ring.
pub fn fragments(bytes: &[u8]) {
    fuzz_fragments(bytes);
}

/// A call of gRPC.
pub fn tensors(bytes: &[u8]) {
    fuzz_tensors(bytes);
}

/// Who a sender says to be, with the right token or another.
pub fn identities(bytes: &[u8]) {
    let token = PeerToken([b'x'; 32]);
    if let Some((rank, life)) = token.verify(bytes) {
        assert_eq!(PeerIdentity { rank, life, token }.to_bytes(), bytes);
    }
    assert_eq!(token.is_text(bytes), token.to_text().as_bytes() == bytes);
}
