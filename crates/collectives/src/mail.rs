//! Messages between members as a protocol: what is written to whom next, and where what has come belongs. Pure: no
//! memory, no peers, no clock. `tests/mail.rs` runs it between members in any order.
//!
//! What a member writes to another goes through [`SLOTS`] places of [`CHUNK_BYTES`] in the other's memory, in order. A
//! message that fits one goes at once (eager). A longer one is announced, and its bytes follow when the receiver knows
//! where they belong (rendezvous): so whoever asks for messages in another order than that of their sending is not held
//! up by a long one, and what nobody asked for yet takes [`UNASKED_MAX`] chunks of a member at most.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::ports::Handle;

/// Places for what a member writes to another: one is filled while others are on their way and emptied.
pub const SLOTS: usize = 4;
/// Bytes of a place, its header included: a write that costs more than its latency.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Bytes in front of what a chunk carries.
pub const HEADER_BYTES: usize = 32;
/// Most bytes that a chunk carries.
pub const PAYLOAD_BYTES: usize = CHUNK_BYTES - HEADER_BYTES;
/// Messages of a member that nobody asked for: with as many, it is not listened to until one is asked for.
pub const UNASKED_MAX: usize = 256;

/// A message of one member to another, by the order in which it was sent to it.
pub type MessageId = u64;

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// All of a message.
    Whole,
    /// That there is a message; its bytes follow when they are asked for.
    Announced,
    /// The next bytes of a message that was announced.
    Part,
    /// That the bytes of a message that the other announced may come.
    Wanted,
}

/// What stands in front of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: ChunkKind,
    pub message: MessageId,
    /// The user's.
    pub tag: u64,
    /// Of the message where it is whole or announced; of the chunk where it is a part.
    pub bytes: usize,
}

/// What is written next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub header: Header,
    /// What it carries: bytes of what is sent by this name.
    pub payload: Option<(Handle, Range<usize>)>,
    /// With it, that send is over.
    pub is_last: bool,
}

/// What is done with a chunk that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is for this receive, whose buffer has it from byte `at` on.
    Into { handle: Handle, at: usize, done: Option<Received> },
    /// It is kept by [`Mail::keep`], until it is asked for.
    Unasked,
    /// Nothing is left to do.
    Done,
    /// Nobody asked for enough of what this member sent: it stays where it is.
    NotYet,
}

/// What a receive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The member that sent it.
    pub from: usize,
    /// From the start of the buffer on.
    pub bytes: usize,
}

/// What a receive finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has come already, with these bytes.
    Kept { received: Received, content: Vec<u8> },
    /// Its bytes come, or it is not sent yet.
    Later,
}

/// A peer wrote what it could not have, or sent what has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    #[error(
        "it sent {bytes} bytes with tag {tag} where {room} are asked for; give the receive as many"
    )]
    TooLong { handle: Handle, tag: u64, bytes: usize, room: usize },
    #[error("a chunk of it makes no sense; do all run the same version?")]
    Garbled,
}

/// One member's end of all its mail.
#[derive(Debug)]
pub struct Mail {
    peers: Vec<Peer>,
    /// In the order in which they were asked for.
    asked: VecDeque<Asked>,
    /// In the order in which they came.
    unasked: VecDeque<Unasked>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Messages sent to it so far.
    sent: MessageId,
    /// Of its messages, those whose bytes may come.
    wanted: VecDeque<MessageId>,
    /// Messages of which it does not know yet, in the order of sending.
    queued: VecDeque<Sending>,
    /// Messages of which it does.
    announced: HashMap<MessageId, Sending>,
    /// Messages whose bytes it wants.
    going: VecDeque<Sending>,
    /// Its messages whose bytes come.
    coming: HashMap<MessageId, Coming>,
    unasked: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    handle: Handle,
    message: MessageId,
    tag: u64,
    bytes: usize,
    gone: usize,
}

#[derive(Clone, Copy, Debug)]
struct Coming {
    handle: Handle,
    bytes: usize,
    come: usize,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    handle: Handle,
    from: Option<usize>,
    tag: u64,
    room: usize,
}

#[derive(Debug)]
struct Unasked {
    from: usize,
    header: Header,
    content: Vec<u8>,
}

impl Mail {
    /// Of a group of so many.
    pub fn new(size: usize) -> Mail {
        let peers = (0..size).map(|_| Peer::default()).collect();
        Mail { peers, asked: VecDeque::new(), unasked: VecDeque::new() }
    }

    /// Sends so many bytes of what `handle` names.
    pub fn send(&mut self, handle: Handle, to: usize, tag: u64, bytes: usize) {
        let peer = &mut self.peers[to];
        let message = peer.sent;
        peer.sent += 1;
        peer.queued.push_back(Sending { handle, message, tag, bytes, gone: 0 });
    }

    /// Asks for a message of a tag that is not longer than `room`, of one member or of any.
    ///
    /// # Errors
    /// When it has come and is longer.
    pub fn receive(
        &mut self,
        handle: Handle,
        from: Option<usize>,
        tag: u64,
        room: usize,
    ) -> Result<Found, (usize, MailError)> {
        let asked = Asked { handle, from, tag, room };
        let matching = self.unasked.iter().position(|it| asked.is_for(it.from, &it.header));
        let Some(Unasked { from, header, content }) =
            matching.and_then(|at| self.unasked.remove(at))
        else {
            self.asked.push_back(asked);
            return Ok(Found::Later);
        };
        self.peers[from].unasked -= 1;
        asked.check(&header).map_err(|error| (from, error))?;
        if header.kind == ChunkKind::Whole {
            let received = Received { from, bytes: header.bytes };
            return Ok(Found::Kept { received, content });
        }
        self.want(from, handle, &header);
        Ok(Found::Later)
    }

    /// What is to be written to a member next, which is then taken for written.
    pub fn next(&mut self, to: usize) -> Option<Chunk> {
        let peer = &mut self.peers[to];
        // what others wait for to go on comes first, and then what they do not know of
        if let Some(message) = peer.wanted.pop_front() {
            let header = Header { kind: ChunkKind::Wanted, message, tag: 0, bytes: 0 };
            return Some(Chunk { header, payload: None, is_last: false });
        }
        if let Some(sending) = peer.queued.pop_front() {
            let Sending { handle, message, tag, bytes, .. } = sending;
            let is_last = bytes <= PAYLOAD_BYTES;
            let kind = if is_last { ChunkKind::Whole } else { ChunkKind::Announced };
            if !is_last {
                peer.announced.insert(message, sending);
            }
            let payload = is_last.then_some((handle, 0..bytes));
            return Some(Chunk { header: Header { kind, message, tag, bytes }, payload, is_last });
        }
        // long ones take turns
        let mut sending = peer.going.pop_front()?;
        let part = sending.gone..sending.bytes.min(sending.gone + PAYLOAD_BYTES);
        sending.gone = part.end;
        let is_last = part.end == sending.bytes;
        if !is_last {
            peer.going.push_back(sending);
        }
        let Sending { handle, message, tag, .. } = sending;
        let header = Header { kind: ChunkKind::Part, message, tag, bytes: part.len() };
        Some(Chunk { header, payload: Some((handle, part)), is_last })
    }

    /// Says what becomes of a chunk that has come.
    ///
    /// # Errors
    /// When it makes no sense, or is longer than what was asked for; then nobody asks for it any more.
    pub fn take(&mut self, from: usize, header: Header) -> Result<Delivery, MailError> {
        match header.kind {
            ChunkKind::Whole | ChunkKind::Announced => self.take_first(from, header),
            ChunkKind::Part => self.take_part(from, header),
            ChunkKind::Wanted => {
                let peer = &mut self.peers[from];
                let sending = peer.announced.remove(&header.message).ok_or(MailError::Garbled)?;
                peer.going.push_back(sending);
                Ok(Delivery::Done)
            }
        }
    }

    /// Keeps a chunk of which [`Mail::take`] said so.
    pub fn keep(&mut self, from: usize, header: Header, content: Vec<u8>) {
        self.peers[from].unasked += 1;
        self.unasked.push_back(Unasked { from, header, content });
    }

    /// The members that something is awaited of; of any, all others.
    pub fn awaits(&self, me: usize) -> (Vec<usize>, bool) {
        let is_awaited = |at: usize| {
            let Peer { queued, announced, going, coming, .. } = &self.peers[at];
            let sends = !(queued.is_empty() && announced.is_empty() && going.is_empty());
            sends || !coming.is_empty() || self.asked.iter().any(|asked| asked.from == Some(at))
        };
        let awaited = (0..self.peers.len()).filter(|at| *at != me && is_awaited(*at)).collect();
        (awaited, self.asked.iter().any(|asked| asked.from.is_none()))
    }

    fn take_first(&mut self, from: usize, header: Header) -> Result<Delivery, MailError> {
        let is_whole = header.kind == ChunkKind::Whole;
        if is_whole != (header.bytes <= PAYLOAD_BYTES) {
            return Err(MailError::Garbled);
        }
        let Some(at) = self.asked.iter().position(|asked| asked.is_for(from, &header)) else {
            let is_full = self.peers[from].unasked >= UNASKED_MAX;
            return Ok(if is_full { Delivery::NotYet } else { Delivery::Unasked });
        };
        let asked = self.asked.remove(at).ok_or(MailError::Garbled)?;
        asked.check(&header)?;
        if is_whole {
            let done = Some(Received { from, bytes: header.bytes });
            return Ok(Delivery::Into { handle: asked.handle, at: 0, done });
        }
        self.want(from, asked.handle, &header);
        Ok(Delivery::Done)
    }

    fn take_part(&mut self, from: usize, header: Header) -> Result<Delivery, MailError> {
        let coming = &mut self.peers[from].coming;
        let of = coming.get_mut(&header.message).ok_or(MailError::Garbled)?;
        if header.bytes > PAYLOAD_BYTES || header.bytes > of.bytes - of.come {
            return Err(MailError::Garbled);
        }
        let Coming { handle, bytes, come: at } = *of;
        of.come += header.bytes;
        let is_last = of.come == bytes;
        if is_last {
            coming.remove(&header.message);
        }
        Ok(Delivery::Into { handle, at, done: is_last.then_some(Received { from, bytes }) })
    }

    fn want(&mut self, from: usize, handle: Handle, header: &Header) {
        let peer = &mut self.peers[from];
        peer.coming.insert(header.message, Coming { handle, bytes: header.bytes, come: 0 });
        peer.wanted.push_back(header.message);
    }
}

impl Asked {
    fn is_for(&self, from: usize, header: &Header) -> bool {
        self.tag == header.tag && self.from.is_none_or(|of| of == from)
    }

    fn check(&self, header: &Header) -> Result<(), MailError> {
        let Header { tag, bytes, .. } = *header;
        match self.room {
            room if bytes > room => {
                Err(MailError::TooLong { handle: self.handle, tag, bytes, room })
            }
            _ => Ok(()),
        }
    }
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            ChunkKind::Whole => 0,
            ChunkKind::Announced => 1,
            ChunkKind::Part => 2,
            ChunkKind::Wanted => 3,
        };
        let mut bytes = [0; HEADER_BYTES];
        // fits: a size in memory
        let words = [kind, self.message, self.tag, self.bytes as u64];
        for (into, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *into = word.to_le_bytes();
        }
        bytes
    }

    /// None if these are no header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let (words, _) = bytes.get(..HEADER_BYTES)?.as_chunks();
        let [kind, message, tag, bytes] = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
        let kind = match kind {
            0 => ChunkKind::Whole,
            1 => ChunkKind::Announced,
            2 => ChunkKind::Part,
            3 => ChunkKind::Wanted,
            _ => return None,
        };
        Some(Header { kind, message, tag, bytes: usize::try_from(bytes).ok()? })
    }
}
