//! From a memcpy to the requests that carry it out: where its bytes are here and there, and how its
//! signal travels. Knows neither completions nor failures.

use super::super::ibv::{self, CHAIN_MAX, Kind, Remote, Request, Segment};
use super::super::wire::{self, NOTE_BYTES, Note};
use super::{NOTES, ONE_REQUEST_BYTES, QueuePair};
use crate::api::{Direction, Signal};
use crate::arrival::ArrivalMode;
use crate::device::Work;

impl QueuePair {
    pub(super) fn push_memcpy(
        &self,
        chain: &mut Chain<'_>,
        work: &Work,
        id: u64,
        piece_bytes: u64,
    ) {
        let Some(remote) = work.remote.remote() else { return };
        let Some(registration) = work.local.registration() else { return };
        let Some(peer) = self.peer.get() else { return };
        let local_key = registration.local_key();
        let at = |offset: u64| Segment {
            address: work.local.mapping().at(work.local_offset + offset) as u64,
            bytes: 0,
            key: local_key,
        };
        let there = |offset: u64| Remote {
            address: remote.address.wrapping_add(work.remote_offset + offset),
            key: remote.key,
        };
        let is_read = work.direction == Direction::Read;
        let in_one = work.bytes <= ONE_REQUEST_BYTES.min(piece_bytes) && !is_read;
        let plan = self.plan(work.signal, is_read, in_one && work.bytes > 0, peer.slots);
        let mut done = 0;
        while done < work.bytes {
            let bytes = (work.bytes - done).min(piece_bytes);
            let segment = Segment { bytes: bytes as u32, ..at(done) }; // fits: at most 2 GiB
            let is_last = done + bytes == work.bytes;
            let (kind, tail) = match plan {
                _ if is_read => (Kind::Read, None),
                Plan::Within(immediate) => (Kind::WriteWithImmediate(immediate), None),
                Plan::Tail(epoch) if is_last => (Kind::Write, Some(self.word(id, epoch))),
                _ => (Kind::Write, None),
            };
            // what travels in its request is read by the host
            let inline = !is_read
                && tail.is_none()
                && bytes <= u64::from(self.end.inline_bytes)
                && !work.local.mapping().is_of_device();
            let segments = [Some(segment), tail];
            chain.push(kind, segments, inline, there(done), false);
            done += bytes;
        }
        match plan {
            Plan::None | Plan::Within(_) if work.bytes > 0 => {}
            // nothing to move and nothing to tell: the completion alone
            Plan::None => chain.push(Kind::Write, [None; 2], false, there(0), is_read),
            Plan::Tail(_) if work.bytes > 0 => {}
            Plan::Tail(epoch) => {
                chain.push(Kind::Write, [Some(self.word(id, epoch)), None], false, there(0), false);
            }
            Plan::Immediate(immediate) | Plan::Within(immediate) => {
                let kind = Kind::WriteWithImmediate(immediate);
                chain.push(kind, [None; 2], false, Remote::default(), is_read);
            }
            Plan::Message(signal) => chain.push_message(Note::Signal(signal).encode(), is_read),
            Plan::Flag(Signal { slot, epoch }) => {
                // fits: the number of queue pairs was compared
                let flags = peer.introduction.queue_pairs[self.index as usize].flags;
                let address = flags.address.wrapping_add(u64::from(slot.index()) * 8);
                chain.push_flag(epoch, Remote { address, key: flags.key }, is_read);
            }
        }
    }

    /// How a signal travels. `in_one`: with a payload that is a request by itself.
    fn plan(&self, signal: Option<Signal>, is_read: bool, in_one: bool, slots: u64) -> Plan {
        let Some(signal) = signal else { return Plan::None };
        match self.mode {
            ArrivalMode::WriteImm => match wire::to_immediate(signal, slots) {
                Some(immediate) if in_one => Plan::Within(immediate),
                Some(immediate) => Plan::Immediate(immediate),
                None => Plan::Message(signal),
            },
            ArrivalMode::FlagTail if signal.slot.is_tail() && !is_read => Plan::Tail(signal.epoch),
            ArrivalMode::FlagSeparate | ArrivalMode::FlagTail => {
                let mut sent = self.flags_sent.lock();
                let highest = sent.entry(signal.slot.index()).or_insert(0);
                if signal.epoch <= *highest {
                    // a lower flag would take back what was said
                    return Plan::None;
                }
                *highest = signal.epoch;
                Plan::Flag(signal)
            }
        }
    }

    /// An epoch in registered memory, for the request of that id.
    fn word(&self, id: u64, epoch: u64) -> Segment {
        let offset = self.depth.words_at() + id % u64::from(self.depth.memcpys + NOTES) * 8;
        // SAFETY: 8 bytes inside the control memory, at a multiple of 8 from a page's start. Only the
        // request of this id reads them: the one that had the word before it, `memcpys + NOTES` ids ago,
        // has completed, as at most `memcpys` memcpys and that many notes are in flight.
        unsafe { self.memory.mapping.at(offset).cast::<u64>().write(epoch.to_le()) };
        let key = self.memory.registration.local_key();
        Segment { address: self.memory.address(offset), bytes: 8, key }
    }
}

/// How a signal travels with its memcpy.
#[derive(Clone, Copy)]
enum Plan {
    None,
    /// In the payload's request.
    Within(u32),
    /// In a request of its own.
    Immediate(u32),
    /// Too large for an immediate.
    Message(Signal),
    Flag(Signal),
    /// Behind the payload, in its request.
    Tail(u64),
}

/// Requests of one item, posted with one doorbell, or a few where they are many.
pub(super) struct Chain<'a> {
    pub(super) raw: &'a ibv::QueuePair,
    pub(super) id: u64,
    pub(super) requests: Vec<Request>,
    pub(super) sends: u32,
    pub(super) failed: Option<std::io::Error>,
}

impl Chain<'_> {
    fn push(
        &mut self,
        kind: Kind,
        segments: [Option<Segment>; 2],
        inline: bool,
        remote: Remote,
        fence: bool,
    ) {
        if self.requests.len() == CHAIN_MAX {
            self.post();
        }
        self.sends += 1;
        let id = self.id << 1;
        self.requests.push(Request { id, kind, segments, inline, remote, fence, signaled: false });
    }

    /// Bytes that are copied at once: posted before this returns.
    fn push_inline(&mut self, kind: Kind, bytes: &[u8], remote: Remote, fence: bool) {
        let length = bytes.len() as u32; // fits: a few bytes
        let segment = Segment { address: bytes.as_ptr() as u64, bytes: length, key: 0 };
        self.push(kind, [Some(segment), None], true, remote, fence);
        self.finish();
    }

    pub(super) fn push_message(&mut self, note: [u8; NOTE_BYTES], fence: bool) {
        self.push_inline(Kind::Send, &note, Remote::default(), fence);
    }

    fn push_flag(&mut self, epoch: u64, remote: Remote, fence: bool) {
        self.push_inline(Kind::Write, &epoch.to_le_bytes(), remote, fence);
    }

    /// The last request is the item's end.
    pub(super) fn finish(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.signaled = true;
            last.id |= 1;
        }
        self.post();
    }

    fn post(&mut self) {
        if self.failed.is_none()
            && let Err((_, error)) = self.raw.post(&self.requests)
        {
            self.failed = Some(error);
        }
        self.requests.clear();
    }
}
