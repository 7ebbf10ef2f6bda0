//! A frame on its way to the socket: a sealed header, and payload as it lies, or in sealed records.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::frame::{HEADER_BYTES, Header};
use crate::api::Signal;
use crate::raw_io::{self, FRAMES_MAX, Span};
use crate::region::RegionMemory;
use crate::seal::Sealer;

/// Payload of a sealed record, but for the last of a frame: it stays in the caches between one pass and the next.
pub(super) const RECORD_BYTES: u64 = 64 << 10;
/// What goes at a time, of a payload or of several frames. Whoever waits receives what has come before it sends the next piece, so that
/// what two members send each other is taken while it is in the caches.
pub(super) const PIECE_BYTES: u64 = 256 << 10;
const HEAD: u64 = HEADER_BYTES as u64;

#[derive(Debug)]
pub(super) struct Outgoing {
    header: Header,
    /// The header as it goes, once it is this one's turn.
    sealed: Option<[u8; HEADER_BYTES]>,
    payload: Option<Bytes>,
    /// Of the payload, and of the header before it where nothing is encrypted.
    sent: u64,
    pub(super) then: Sent,
}

/// What the last byte means, handed to the kernel.
#[derive(Debug)]
pub(super) enum Sent {
    Nothing,
    Complete {
        token: u64,
    },
    /// A read was served: tell our own slot that the source was taken.
    Raise(Option<Signal>),
}

/// Bytes of a region, which live as long as this does.
#[derive(Debug)]
pub(super) struct Bytes {
    pub(super) region: Arc<RegionMemory>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Outgoing {
    pub(super) fn new(header: Header, payload: Option<Bytes>, then: Sent) -> Outgoing {
        Outgoing { header, sealed: None, payload, sent: 0, then }
    }

    /// Sends of the first frames of a queue, in one call, as much as the socket takes, and [`PIECE_BYTES`] and a header at most: each goes
    /// behind the one before it. Their headers are sealed in that order.
    pub(super) fn send_first(
        queue: &mut VecDeque<Outgoing>,
        socket: &OwnedFd,
        sealer: &mut Sealer,
    ) -> Result<usize, Errno> {
        let (mut together, mut bytes) = (0, 0);
        for frame in queue.iter_mut().take(FRAMES_MAX) {
            frame.sealed.get_or_insert_with(|| frame.header.seal(sealer));
            (together, bytes) = (together + 1, bytes + frame.left());
            if bytes >= PIECE_BYTES {
                break;
            }
        }
        let mut room = PIECE_BYTES;
        let parts = queue.iter().take(together).map(|frame| {
            let rest = frame.rest(room);
            room = room.saturating_sub(frame.left());
            rest
        });
        let count = raw_io::send_frames(socket, parts)?;
        let mut taken = count as u64; // fits: usize is 64 bits wide
        for frame in queue.iter_mut().take(together) {
            let of_it = taken.min(frame.left());
            frame.sent += of_it;
            taken -= of_it;
        }
        Ok(count)
    }

    /// What is left of a header that is sealed, and of the payload, `most` bytes of both at most; nothing of both is encrypted.
    fn rest(&self, most: u64) -> (&[u8], Option<Span<'_>>) {
        let sealed = self.sealed.as_ref();
        let head = sealed.and_then(|sealed| sealed.get(self.sent.min(HEAD) as usize..));
        let sent = self.sent.saturating_sub(HEAD);
        let head = head.unwrap_or_default();
        // fits: usize is 64 bits wide
        let most = most.saturating_sub(head.len() as u64);
        (head, self.payload.as_ref().map(|bytes| bytes.part(sent, most)))
    }

    /// How many bytes of both are still to go.
    fn left(&self) -> u64 {
        HEAD + self.payload.as_ref().map_or(0, |bytes| bytes.bytes) - self.sent
    }

    /// Sends what is left of `record`, of which `done` is sent; before that, puts the next part of this frame there.
    pub(super) fn send_encrypted(
        &mut self,
        socket: &OwnedFd,
        sealer: &mut Sealer,
        record: &mut Vec<u8>,
        done: &mut usize,
    ) -> Result<usize, Errno> {
        if *done == record.len() {
            record.clear();
            *done = 0;
            if self.sealed.is_none() {
                let sealed = self.sealed.insert(self.header.seal(sealer));
                record.extend_from_slice(sealed);
            }
            let head = record.len();
            if let Some(bytes) = &self.payload {
                let part = bytes.part(self.sent, RECORD_BYTES);
                self.sent += part.bytes();
                if part.bytes() > 0 {
                    part.read(record);
                    let tag = sealer.seal(&[], &mut record[head..]);
                    record.extend_from_slice(&tag);
                }
            }
        }
        let count = raw_io::send(socket, &record[*done..], None)?;
        *done += count;
        Ok(count)
    }

    /// `record`: where payload is encrypted, the record that was last sent of, and how much of it.
    pub(super) fn is_sent(&self, record: Option<&(Vec<u8>, usize)>) -> bool {
        let payload = self.payload.as_ref().map_or(0, |bytes| bytes.bytes);
        match record {
            None => self.left() == 0,
            Some((record, done)) => self.sent == payload && *done == record.len(),
        }
    }
}

impl Bytes {
    /// What is left after the first `done` bytes.
    pub(super) fn span(&self, done: u64) -> Span<'_> {
        Span::new(self.region.mapping(), self.offset + done, self.bytes - done)
    }

    /// At most `most` bytes after the first `done`.
    pub(super) fn part(&self, done: u64, most: u64) -> Span<'_> {
        let bytes = (self.bytes - done).min(most);
        Span::new(self.region.mapping(), self.offset + done, bytes)
    }

    /// Drops at most `count` bytes from the front; returns how many.
    pub(super) fn advance(&mut self, count: u64) -> u64 {
        let taken = count.min(self.bytes);
        self.offset += taken;
        self.bytes -= taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::api::ArrivalSlot;
    use crate::mapping::Mapping;
    use crate::region::{Exposure, RegionTable};
    use crate::seal::Opener;
    use crate::tcp::frame::Kind;

    const KEY: [u8; 32] = [7; 32];

    /// Bytes that go with frame `at`: in turns none and all of its part of a region.
    fn payload(at: u64, bytes: u64) -> Vec<u8> {
        let bytes = if at.is_multiple_of(2) { bytes } else { 0 };
        (0..bytes).map(|i| (at * 31 + i % 251) as u8).collect()
    }

    fn queue(frames: u64, bytes: u64) -> VecDeque<Outgoing> {
        let mapping = Mapping::private(frames * bytes).unwrap();
        (0..frames).for_each(|at| mapping.fill_at(at * bytes, &payload(at, bytes)));
        let region = Arc::new(RegionTable::default()).enter(mapping, Exposure::default());
        let frame = |at: u64| {
            let signal = Some(Signal { slot: ArrivalSlot(3), epoch: at });
            let part = payload(at, bytes).len() as u64;
            let header = Header { bytes: part, signal, ..Header::bare(Kind::Write) };
            let source = Bytes { region: region.memory().clone(), offset: at * bytes, bytes: part };
            Outgoing::new(header, Some(source), Sent::Nothing)
        };
        (0..frames).map(frame).collect()
    }

    /// Sends a queue and reads it at the other end; returns the calls that took.
    fn calls(frames: u64, bytes: u64) -> usize {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = OwnedFd::from(ours);
        // room for more than a piece, where the system gives it
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1 << 20);
        let (mut queue, mut sealer) = (queue(frames, bytes), Sealer::new(&KEY));
        let (mut calls, mut read, mut some) = (0, Vec::new(), vec![0; 1 << 20]);
        while !queue.is_empty() {
            match Outgoing::send_first(&mut queue, &ours, &mut sealer) {
                Ok(count) => {
                    assert!(count as u64 <= PIECE_BYTES + HEAD, "{count} bytes at a time");
                    calls += 1;
                }
                Err(Errno::AGAIN) => {
                    let count = theirs.read(&mut some).unwrap();
                    read.extend_from_slice(&some[..count]);
                }
                Err(error) => panic!("{error}"),
            }
            while queue.front().is_some_and(|first| first.is_sent(None)) {
                queue.pop_front();
            }
        }
        drop(ours);
        theirs.read_to_end(&mut read).unwrap();
        let (mut rest, mut opener) = (read.as_slice(), Opener::new(&KEY));
        for at in 0..frames {
            let (head, behind) = rest.split_first_chunk::<HEADER_BYTES>().unwrap();
            let header = Header::open(&mut head.clone(), &mut opener).unwrap();
            assert_eq!(header.signal.map(|signal| signal.epoch), Some(at));
            let (bytes, behind) = behind.split_at(header.bytes as usize);
            assert_eq!(bytes, payload(at, bytes.len() as u64), "frame {at}");
            rest = behind;
        }
        assert!(rest.is_empty());
        calls
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no sendmsg")]
    fn small_frames_that_wait_go_in_one_call() {
        assert_eq!(calls(1, 100), 1);
        assert_eq!(calls(FRAMES_MAX as u64, 100), 1);
        assert_eq!(calls(2 * FRAMES_MAX as u64 + 1, 100), 3);
    }

    /// A socket takes parts of them: what comes is the same.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no sendmsg")]
    fn frames_that_a_socket_takes_in_parts_arrive_whole() {
        assert!(calls(9, 300_000) > 1);
    }
}
