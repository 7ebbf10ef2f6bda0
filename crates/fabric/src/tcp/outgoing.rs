//! A frame on its way to the socket: a sealed header, and payload as it lies or in sealed records.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::frame::{HEADER_BYTES, Header};
use crate::api::Signal;
use crate::raw_io::{self, Span};
use crate::region::RegionMemory;
use crate::seal::Sealer;

/// Payload of a sealed record, but for the last of a frame: it stays in the caches between one pass and the next.
pub(super) const RECORD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: Header,
    /// The header as it goes, once it is this one's turn.
    sealed: Option<[u8; HEADER_BYTES]>,
    pub(super) payload: Option<Bytes>,
    /// Of the payload, and of the header before it where nothing is encrypted.
    sent: u64,
    pub(super) then: Sent,
}

/// What the last byte handed to the kernel means.
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

    pub(super) fn send(&mut self, socket: &OwnedFd, sealer: &mut Sealer) -> Result<usize, Errno> {
        const HEAD: u64 = HEADER_BYTES as u64;
        let sealed = self.sealed.get_or_insert_with(|| self.header.seal(sealer));
        let head = sealed.get(self.sent.min(HEAD) as usize..).unwrap_or_default();
        let payload = self.payload.as_ref().map(|bytes| bytes.span(self.sent.saturating_sub(HEAD)));
        let count = raw_io::send(socket, head, payload)?;
        self.sent += count as u64; // fits: usize is 64 bits wide
        Ok(count)
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
            None => self.sent == HEADER_BYTES as u64 + payload,
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
    pub(super) fn part(&self, done: u64, most: usize) -> Span<'_> {
        let bytes = (self.bytes - done).min(most as u64); // fits: usize is 64 bits wide
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
