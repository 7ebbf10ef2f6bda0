//! The codec of control frames: round trips, pieces, and bytes that are none.

use proptest::prelude::*;

use super::*;

fn decode_all(bytes: &[u8], piece: usize) -> Result<Vec<String>, FrameError> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        decoder.push(piece, std::iter::empty());
        while let Some(frame) = decoder.next()? {
            found.push(format!("{frame:?}"));
        }
    }
    Ok(found)
}

fn samples() -> Vec<Frame> {
    let descriptor = RegionDescriptor { key: 3, bytes: 4 };
    vec![
        Frame::Attach(Attached { slots: 1 << 40, board: None, introduction: vec![7; 90] }),
        Frame::Ready,
        Frame::Message { body: vec![1, 2, 3] },
        Frame::OpenRegion { request: u64::MAX, descriptor },
        Frame::RegionOpened { request: 5, grant: Granted { fd: None, key: vec![1; 12] } },
        Frame::RegionRefused { request: 6, reason: "no".into() },
        Frame::Goodbye,
        Frame::GoodbyeAck,
        Frame::HandshakeRefusal { reason: "bad".into() },
        Frame::QueuePair { body: vec![9, 8] },
    ]
}

#[test]
fn frames_survive_the_wire_in_any_pieces() {
    let wanted: Vec<String> = samples().iter().map(|frame| format!("{frame:?}")).collect();
    let bytes: Vec<u8> = samples().into_iter().flat_map(|frame| frame.encode().0).collect();
    for piece in [1, 2, 23, 24, 25, 1000] {
        assert_eq!(decode_all(&bytes, piece).unwrap(), wanted, "in pieces of {piece}");
    }
}

#[test]
fn descriptors_stay_with_their_frames() {
    let stdin = || Some(rustix::io::dup(std::io::stdin()).unwrap());
    let (bytes, fd) =
        Frame::RegionOpened { request: 1, grant: Granted { fd: stdin(), key: Vec::new() } }
            .encode();
    let mut decoder = Decoder::default();
    decoder.push(&bytes, std::iter::empty());
    assert_eq!(decoder.next().unwrap_err(), FrameError::Descriptor, "it is missing");
    let mut decoder = Decoder::default();
    decoder.push(&bytes, fd.into_iter());
    let Ok(Some(Frame::RegionOpened { request: 1, grant })) = decoder.next() else {
        panic!("another frame");
    };
    assert!(grant.fd.is_some());
    let mut decoder = Decoder::default();
    decoder.push(&[], std::iter::repeat_with(|| stdin().unwrap()).take(FDS_MAX + 1));
    assert_eq!(decoder.next().unwrap_err(), FrameError::Descriptor, "nobody asked for these");
}

#[test]
fn long_reasons_are_clipped() {
    let reason = "x".repeat(MESSAGE_BYTES_MAX * 2);
    let (bytes, _) = Frame::HandshakeRefusal { reason }.encode();
    assert!(bytes.len() < 2000);
}

#[test]
fn a_length_over_the_limit_is_refused_before_the_body_comes() {
    let (mut bytes, _) = Frame::Message { body: Vec::new() }.encode();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode_all(&bytes, 100), Err(FrameError::TooLong(u32::MAX)));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u16..12, piece in 1usize..50,
    ) {
        if let Some(start) = bytes.first_chunk_mut::<2>() {
            *start = kind.to_le_bytes();
        }
        // the result is free; that there is one is the point
        let _ = decode_all(&bytes, piece);
    }
}
