//! The codec of control frames: round trips, pieces, and bytes that are none.

use proptest::prelude::*;

use super::*;

const KEY: [u8; 32] = [5; 32];

fn new_decoder() -> Decoder {
    Decoder::new(Opener::new(&KEY))
}

/// As the first frame of a connection.
fn first(frame: Frame) -> (Vec<u8>, Option<OwnedFd>) {
    frame.encode(&mut Sealer::new(&KEY))
}

/// Whatever bytes somebody sends who knows the key.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
    let tag = Sealer::new(&KEY).seal(&length, &mut bytes);
    [&length[..], &bytes, &tag].concat()
}

fn decode_all(bytes: &[u8], piece: usize) -> Result<Vec<String>, FrameError> {
    let mut decoder = new_decoder();
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
    let mut sealer = Sealer::new(&KEY);
    let bytes = samples().into_iter().flat_map(|frame| frame.encode(&mut sealer).0);
    let bytes: Vec<u8> = bytes.collect();
    for piece in [1, 2, 23, 24, 25, 1000] {
        assert_eq!(decode_all(&bytes, piece).unwrap(), wanted, "in pieces of {piece}");
    }
}

#[test]
fn descriptors_stay_with_their_frames() {
    let stdin = || Some(rustix::io::dup(std::io::stdin()).unwrap());
    let grant = Granted { fd: stdin(), key: Vec::new() };
    let (bytes, fd) = first(Frame::RegionOpened { request: 1, grant });
    let mut decoder = new_decoder();
    decoder.push(&bytes, std::iter::empty());
    assert_eq!(decoder.next().unwrap_err(), FrameError::Descriptor, "it is missing");
    let mut decoder = new_decoder();
    decoder.push(&bytes, fd.into_iter());
    let Ok(Some(Frame::RegionOpened { request: 1, grant })) = decoder.next() else {
        panic!("another frame");
    };
    assert!(grant.fd.is_some());
    let mut decoder = new_decoder();
    decoder.push(&[], std::iter::repeat_with(|| stdin().unwrap()).take(FDS_MAX + 1));
    assert_eq!(decoder.next().unwrap_err(), FrameError::Descriptor, "nobody asked for these");
}

#[test]
fn long_reasons_are_clipped() {
    let reason = "x".repeat(MESSAGE_BYTES_MAX * 2);
    let (bytes, _) = first(Frame::HandshakeRefusal { reason });
    assert!(bytes.len() < 2000);
}

#[test]
fn a_length_that_no_frame_has_is_refused_before_the_body_comes() {
    for length in [0, 11, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        assert_eq!(decode_all(&length.to_le_bytes(), 100), Err(FrameError::Length(length)));
    }
}

#[test]
fn a_frame_that_was_changed_or_comes_twice_is_refused() {
    let bytes = || first(Frame::Message { body: vec![1; 50] }).0;
    for at in LENGTH_BYTES..bytes().len() {
        let mut wrong = bytes();
        wrong[at] ^= 1;
        assert_eq!(decode_all(&wrong, 1000), Err(FrameError::Forged(Forged)), "byte {at}");
    }
    let twice = [bytes(), bytes()].concat();
    assert_eq!(decode_all(&twice, 1000), Err(FrameError::Forged(Forged)));
    let mut shorter = bytes();
    shorter[0] -= 1;
    assert_eq!(decode_all(&shorter, 1000), Err(FrameError::Forged(Forged)));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
        // the result is free; that there is one is the point
        let _ = decode_all(&bytes, piece);
    }

    /// A peer that knows the secret may say whatever it likes.
    #[test]
    fn any_bytes_of_a_peer_decode_or_fail(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u16..12, piece in 1usize..50,
    ) {
        if let Some(start) = bytes.first_chunk_mut::<3>() {
            start[..2].copy_from_slice(&kind.to_le_bytes());
            start[2] %= 2;
        }
        let _ = decode_all(&sealed(bytes), piece);
    }
}
