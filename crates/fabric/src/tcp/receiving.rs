//! What has come over a socket and is not taken account of yet: part of a header, a payload that is being received.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::frame::{HEADER_BYTES, Header};
use super::outgoing::{Bytes, RECORD_BYTES};
use super::queue_pair::Broken;
use crate::api::Signal;
use crate::raw_io::{self, Span};
use crate::seal::{Opener, TAG_BYTES};

/// What comes is received so far ahead of what is known of it: a small frame and what is behind it, in one call. Of a large
/// payload as much is copied once.
const AHEAD_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) opener: Opener,
    /// Where payload is opened: a sealed record, and how much of it has come.
    pub(super) record: Option<(Vec<u8>, usize)>,
    /// What came behind the payload: headers, and small payloads between them.
    pub(super) ahead: Box<[u8; AHEAD_BYTES]>,
    pub(super) have: usize,
    pub(super) payload: Option<(Bytes, Received)>,
    /// Bytes that are to be there before the poller is woken.
    pub(super) wakes_at: usize,
    /// The connection is over: what comes behind that is not looked at.
    pub(super) is_over: bool,
}

/// What the last byte of a payload means.
#[derive(Debug)]
pub(super) enum Received {
    Raise(Option<Signal>),
    Complete { token: u64 },
}

impl Receiving {
    pub(super) fn new(opener: Opener, record: Option<(Vec<u8>, usize)>) -> Receiving {
        Receiving {
            opener,
            record,
            ahead: Box::new([0; AHEAD_BYTES]),
            have: 0,
            payload: None,
            wakes_at: 1,
            is_over: false,
        }
    }

    /// True if what comes next is a sealed record of payload.
    pub(super) fn takes_record(&self) -> bool {
        self.record.is_some() && self.payload.is_some()
    }

    /// The header that came and begins at `at`; None while it has not come, or payload comes first.
    pub(super) fn header(&mut self, at: usize) -> Option<Result<Header, Broken>> {
        let Receiving { opener, ahead, have, payload: None, .. } = self else { return None };
        let (wire, _) = ahead[at..*have].split_first_chunk_mut()?;
        Some(Header::open(wire, opener).map_err(|error| Broken::Refused(error.to_string())))
    }

    /// Gives the payload what came of it ahead, from `at` on; how much that was.
    pub(super) fn payload_ahead(&mut self, at: usize) -> usize {
        let Some((bytes, _)) = &mut self.payload else { return 0 };
        let part = bytes.part(0, (self.have - at) as u64); // fits: as below
        let count = part.bytes() as usize; // fits: at most what came
        part.write(&self.ahead[at..at + count]);
        bytes.advance(count as u64);
        count
    }

    /// Receives what comes next, as much as there is: how much came, and how much could have.
    pub(super) fn receive(&mut self, socket: &OwnedFd) -> (Result<usize, Errno>, usize) {
        // behind a header there may be a sealed record, which has a place of its own
        let most = if self.record.is_some() { HEADER_BYTES } else { AHEAD_BYTES };
        let head = &mut self.ahead[self.have..most];
        match (&mut self.record, &self.payload) {
            (Some((record, have)), Some((bytes, _))) => {
                // fits: at most RECORD_BYTES
                let part = bytes.part(0, RECORD_BYTES).bytes() as usize;
                record.resize(part + TAG_BYTES, 0);
                let rest = &mut record[*have..];
                (raw_io::receive(socket, None, rest), rest.len())
            }
            (_, payload) => {
                let payload = payload.as_ref().map(|(bytes, _)| bytes.span(0));
                // fits: the bytes of a mapping
                let wanted = payload.map_or(0, Span::bytes) as usize + head.len();
                (raw_io::receive(socket, payload, head), wanted)
            }
        }
    }
}
