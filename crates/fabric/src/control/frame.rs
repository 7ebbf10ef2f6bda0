//! Control frames: a fixed little-endian header, then at most one message's worth of bytes, sealed behind their length. A
//! frame may carry one file descriptor (shm). Knows no socket; any bytes decode or fail, none panic.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::api::MESSAGE_BYTES_MAX;
use crate::region::RegionDescriptor;
use crate::seal::{Forged, Opener, Sealer, TAG_BYTES};

/// Of what is sealed, in clear and authenticated.
const LENGTH_BYTES: usize = 4;
const HEADER_BYTES: usize = 12;
/// What is sealed of the largest frame.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + MESSAGE_BYTES_MAX;
/// Descriptors that may have arrived before the frames they belong to.
const FDS_MAX: usize = 64;

/// What two fabrics tell each other beside the data.
#[derive(Debug)]
pub(crate) enum Frame {
    /// First frame of both sides.
    Attach(Attached),
    /// All of the sender's peers are attached.
    Ready,
    Message {
        body: Vec<u8>,
    },
    OpenRegion {
        request: u64,
        descriptor: RegionDescriptor,
    },
    RegionOpened {
        request: u64,
        grant: Granted,
    },
    RegionRefused {
        request: u64,
        reason: String,
    },
    Goodbye,
    GoodbyeAck,
    /// Of one queue pair, in the backend's own form (verbs).
    QueuePair {
        body: Vec<u8>,
    },
    /// The sender hangs up, because we broke its rules.
    HandshakeRefusal {
        reason: String,
    },
}

/// How a peer's data reaches this process.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// Of the arrival table.
    pub(crate) slots: u64,
    /// The arrival table itself (shm).
    pub(crate) board: Option<OwnedFd>,
    /// What only the backend reads (verbs: its queue pairs).
    pub(crate) introduction: Vec<u8>,
}

/// What lets a peer access a region.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    /// To map (shm).
    pub(crate) fd: Option<OwnedFd>,
    /// To name in requests (verbs).
    pub(crate) key: Vec<u8>,
}

/// The answer to a region request.
#[derive(Debug)]
pub(crate) enum Reply {
    Opened(Granted),
    Refused(String),
}

/// A frame that breaks the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a control frame of unknown kind {0}")]
    Kind(u16),
    #[error("a control frame of {0} bytes, which none has")]
    Length(u32),
    #[error(transparent)]
    Forged(#[from] Forged),
    #[error("a control frame of kind {kind} with a body of {bytes} bytes")]
    WrongLength { kind: u16, bytes: usize },
    #[error(
        "a control frame that lacks its file descriptor (are too many files open?), or has one too many"
    )]
    Descriptor,
}

/// Bytes and descriptors in, frames out.
#[derive(Debug)]
pub(crate) struct Decoder {
    opener: Opener,
    bytes: Vec<u8>,
    /// What is decoded of `bytes`.
    done: usize,
    fds: VecDeque<OwnedFd>,
}

impl Frame {
    /// The frame as bytes, sealed, and the descriptor to send with the first of them.
    pub(crate) fn encode(self, sealer: &mut Sealer) -> (Vec<u8>, Option<OwnedFd>) {
        let (mut bytes, fd) = self.wire();
        let (length, frame) = bytes.split_at_mut(LENGTH_BYTES);
        let tag = sealer.seal(length, frame);
        bytes.extend_from_slice(&tag);
        (bytes, fd)
    }

    fn wire(self) -> (Vec<u8>, Option<OwnedFd>) {
        match self {
            Frame::Attach(Attached { slots, board, introduction }) => {
                wire(1, slots, &introduction, board)
            }
            Frame::Ready => wire(2, 0, &[], None),
            Frame::Message { body } => wire(3, 0, &body, None),
            Frame::OpenRegion { request, descriptor } => {
                wire(4, request, &descriptor.to_bytes(), None)
            }
            Frame::RegionOpened { request, grant } => wire(5, request, &grant.key, grant.fd),
            Frame::RegionRefused { request, reason } => wire(6, request, clip(&reason), None),
            Frame::Goodbye => wire(7, 0, &[], None),
            Frame::GoodbyeAck => wire(8, 0, &[], None),
            Frame::HandshakeRefusal { reason } => wire(9, 0, clip(&reason), None),
            Frame::QueuePair { body } => wire(10, 0, &body, None),
        }
    }
}

impl Decoder {
    pub(crate) fn new(opener: Opener) -> Decoder {
        Decoder { opener, bytes: Vec::new(), done: 0, fds: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8], fds: impl Iterator<Item = OwnedFd>) {
        self.bytes.drain(..std::mem::take(&mut self.done));
        self.bytes.extend_from_slice(bytes);
        self.fds.extend(fds);
    }

    /// The next whole frame, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.fds.len() > FDS_MAX {
            return Err(FrameError::Descriptor);
        }
        let rest = &mut self.bytes[self.done..];
        let Some((clear, rest)) = rest.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*clear);
        // fits: u32 into usize on 64 bits
        let bytes = length as usize;
        if !(HEADER_BYTES..=FRAME_BYTES_MAX).contains(&bytes) {
            return Err(FrameError::Length(length));
        }
        let Some((frame, rest)) = rest.split_at_mut_checked(bytes) else {
            return Ok(None);
        };
        let Some(tag) = rest.first_chunk::<TAG_BYTES>() else {
            return Ok(None);
        };
        self.opener.open(clear, frame, tag)?;
        self.done += LENGTH_BYTES + bytes + TAG_BYTES;
        let (header, body) = frame.split_at(HEADER_BYTES);
        let kind = u16::from_le_bytes([header[0], header[1]]);
        let word = u64::from_le_bytes(std::array::from_fn(|i| header[4 + i]));
        let fd = match header[2] != 0 {
            true => Some(self.fds.pop_front().ok_or(FrameError::Descriptor)?),
            false => None,
        };
        parse(kind, word, body, fd).map(Some)
    }
}

fn parse(kind: u16, word: u64, body: &[u8], fd: Option<OwnedFd>) -> Result<Frame, FrameError> {
    let text = || String::from_utf8_lossy(clip_bytes(body)).into_owned();
    let wrong = || FrameError::WrongLength { kind, bytes: body.len() };
    let empty = |frame| {
        if body.is_empty() { Ok(frame) } else { Err(wrong()) }
    };
    if fd.is_some() && !matches!(kind, 1 | 5) {
        return Err(FrameError::Descriptor);
    }
    match kind {
        1 => Ok(Frame::Attach(Attached { slots: word, board: fd, introduction: body.to_vec() })),
        2 => empty(Frame::Ready),
        3 => Ok(Frame::Message { body: body.to_vec() }),
        4 => {
            let descriptor = RegionDescriptor::from_bytes(body).map_err(|_| wrong())?;
            Ok(Frame::OpenRegion { request: word, descriptor })
        }
        5 => {
            let grant = Granted { fd, key: body.to_vec() };
            Ok(Frame::RegionOpened { request: word, grant })
        }
        6 => Ok(Frame::RegionRefused { request: word, reason: text() }),
        7 => empty(Frame::Goodbye),
        8 => empty(Frame::GoodbyeAck),
        9 => Ok(Frame::HandshakeRefusal { reason: text() }),
        10 => Ok(Frame::QueuePair { body: body.to_vec() }),
        _ => Err(FrameError::Kind(kind)),
    }
}

/// Length u32, kind u16, has a descriptor u8, 0 u8, word u64, body.
fn wire(kind: u16, word: u64, body: &[u8], fd: Option<OwnedFd>) -> (Vec<u8>, Option<OwnedFd>) {
    let length = u32::try_from(HEADER_BYTES + body.len());
    let length = length.expect("callers keep bodies under MESSAGE_BYTES_MAX");
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + HEADER_BYTES + body.len() + TAG_BYTES);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&[u8::from(fd.is_some()), 0]);
    bytes.extend_from_slice(&word.to_le_bytes());
    bytes.extend_from_slice(body);
    (bytes, fd)
}

/// A reason is a line, not a book.
fn clip(text: &str) -> &[u8] {
    clip_bytes(text.as_bytes())
}

fn clip_bytes(text: &[u8]) -> &[u8] {
    &text[..text.len().min(1000)]
}

/// Any bytes of a stranger, and any frames of who has the key: [`crate::fuzz`]. A frame's length is one byte here.
pub fn fuzz_frames(bytes: &[u8]) {
    const KEY: [u8; 32] = [7; 32];
    let decoder = || Decoder::new(Opener::new(&KEY));
    let mut stranger = decoder();
    stranger.push(bytes, std::iter::empty());
    while let Ok(Some(_)) = stranger.next() {}

    let sealed = |frame: &[u8], sealer: &mut Sealer| {
        let (length, mut frame) = ((frame.len() as u32).to_le_bytes(), frame.to_vec());
        let tag = sealer.seal(&length, &mut frame);
        [&length[..], &frame, &tag].concat()
    };
    let (mut member, mut sealer, mut rest) = (decoder(), Sealer::new(&KEY), bytes);
    while let Some((length, behind)) = rest.split_first() {
        let (frame, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        member.push(&sealed(frame, &mut sealer), std::iter::empty());
        let Ok(Some(frame)) = member.next() else { return };
        let (wire, _) = frame.wire();
        let mut again = decoder();
        again.push(&sealed(&wire[LENGTH_BYTES..], &mut Sealer::new(&KEY)), std::iter::empty());
        let frame = again.next().expect("what we say is what we read");
        assert_eq!(frame.expect("it is whole").wire().0, wire);
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
