//! What the call carries, written by hand where `protoc` would write the same.

use bytes::Bytes;

use super::bare::fuzz_openings;

/// One tensor's bytes.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Tensor {
    /// Shared, not copied, on its way to the codec and from it.
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) content: Bytes,
}

/// It was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Done {}

/// Any bytes as a call: [`crate::fuzz`].
pub(crate) fn fuzz_tensors(bytes: &[u8]) {
    use prost::Message;
    if let Ok(tensor) = Tensor::decode(bytes) {
        assert!(tensor.content.len() <= bytes.len());
        assert_eq!(Tensor::decode(tensor.encode_to_vec().as_slice()), Ok(tensor));
    }
    fuzz_openings(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_tensor_is_on_the_wire_as_protobuf_says() {
        let tensor = Tensor { content: Bytes::from_static(b"abc") };
        // field 1, length-delimited, 3 bytes
        assert_eq!(tensor.encode_to_vec(), b"\x0a\x03abc");
        assert_eq!(Tensor::decode(&b"\x0a\x03abc"[..]).unwrap(), tensor);
        assert_eq!(Tensor::default().encode_to_vec(), b"");
        assert_eq!(Done {}.encode_to_vec(), b"");
    }
}
