//! What the call carries, written by hand where `protoc` would write the same.

use bytes::Bytes;

/// One tensor's bytes.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Tensor {
    /// Shared, not copied, on its way to the codec and from it.
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) content: Bytes,
    /// What it is, for whoever exchanges tensors.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) head: Bytes,
}

/// It was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Done {}

/// Any bytes as a call: [`crate::fuzz`].
pub(crate) fn fuzz_tensors(bytes: &[u8]) {
    use prost::Message;
    if let Ok(tensor) = Tensor::decode(bytes) {
        assert!(tensor.content.len() + tensor.head.len() <= bytes.len());
        assert_eq!(Tensor::decode(tensor.encode_to_vec().as_slice()), Ok(tensor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_tensor_is_on_the_wire_as_protobuf_says() {
        let content = Bytes::from_static(b"abc");
        let tensor = Tensor { content: content.clone(), head: Bytes::new() };
        // field 1, length-delimited, 3 bytes
        assert_eq!(tensor.encode_to_vec(), b"\x0a\x03abc");
        assert_eq!(Tensor::decode(&b"\x0a\x03abc"[..]).unwrap(), tensor);
        // field 2
        let named = Tensor { content, head: Bytes::from_static(b"z") };
        assert_eq!(named.encode_to_vec(), b"\x0a\x03abc\x12\x01z");
        assert_eq!(Done {}.encode_to_vec(), b"");
    }
}
