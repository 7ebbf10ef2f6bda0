//! One peer: the ring that we write at its end, through a mirror of it here, and the ring that it writes here.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalSlot, Channel, Direction, Fabric, Gone, LocalSlice, Memcpy, OpenRegionError, PostError,
    Posted, Region, RegionDescriptor, RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_memory::{Place, Window};

use super::fragment::{Fragment, HEADER_BYTES};
use super::{CONTENT_BYTES_MAX, SLOT_BYTES, SLOTS};
use crate::transport::{ContentSink, HEAD_BYTES_MAX, MessageError, MessageSink};

/// The token of a write that has no slot of the mirror: one that only says how far we read.
const NO_SLOT: u64 = SLOTS as u64;

/// What two ends tell each other first: where our ring is, where its arrivals are awaited, and where we await
/// to be told how far what we sent was read.
pub(super) struct Introduction {
    ring: RegionDescriptor,
    arrival: ArrivalSlot,
    credit: ArrivalSlot,
}

/// A peer that was told, and has not told us.
pub(super) struct Opening {
    channel: Channel,
    ring: Region,
    mirror: Region,
    mine: Introduction,
}

pub(super) struct Peer {
    channel: Channel,
    theirs: Introduction,
    remote: RemoteRegion,
    // what we send
    mirror: Region,
    staged: Window,
    /// Slots of the mirror whose write is not over.
    is_posted: [bool; SLOTS],
    outgoing: VecDeque<Outgoing>,
    /// Fragments written so far, and read by the peer.
    written: u64,
    credit: ArrivalSlot,
    bytes_copied: u64,
    // what we receive
    received: Window,
    /// Keeps the memory that the peer writes to.
    _ring: Region,
    arrival: ArrivalSlot,
    /// Fragments read so far, and those that the peer knows of.
    read: u64,
    told: u64,
    incoming: Option<Incoming>,
}

/// A message that waits, or of which some has gone.
struct Outgoing {
    /// Until it has gone.
    head: Option<Vec<u8>>,
    content: Bytes,
}

/// A message of which some has come.
struct Incoming {
    sink: Box<dyn ContentSink>,
    left: usize,
}

impl Introduction {
    const WIRE_BYTES: usize = RegionDescriptor::WIRE_BYTES + 8;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.ring.to_bytes().to_vec();
        body.extend_from_slice(&self.arrival.0.to_le_bytes());
        body.extend_from_slice(&self.credit.0.to_le_bytes());
        body
    }

    pub(super) fn decode(body: &[u8]) -> Result<Introduction, String> {
        if body.len() != Introduction::WIRE_BYTES {
            return Err(format!("{} bytes are no introduction of a ring", body.len()));
        }
        let (ring, slots) = body.split_at(RegionDescriptor::WIRE_BYTES);
        let ring = RegionDescriptor::from_bytes(ring).map_err(|error| error.to_string())?;
        if ring.bytes != (SLOTS * SLOT_BYTES) as u64 {
            return Err(format!("its ring has {} bytes; do all run one version?", ring.bytes));
        }
        let slot =
            |at: usize| ArrivalSlot(u32::from_le_bytes(std::array::from_fn(|i| slots[at + i])));
        Ok(Introduction { ring, arrival: slot(0), credit: slot(4) })
    }
}

impl Opening {
    /// Registers both rings' memory here, and tells the peer.
    pub(super) fn new(
        fabric: &Fabric,
        rank: Rank,
        deadline: Deadline,
    ) -> Result<Opening, MessageError> {
        let failed = |error: &dyn std::fmt::Display| MessageError::here(rank, error);
        let region = || fabric.alloc_region((SLOTS * SLOT_BYTES) as u64).map_err(|e| failed(&e));
        let slot = || fabric.alloc_arrival().map_err(|error| failed(&error));
        let (ring, mirror) = (region()?, region()?);
        let mine = Introduction { ring: ring.descriptor(), arrival: slot()?, credit: slot()? };
        let channel = fabric.channel(rank, 0).map_err(|e| MessageError::with(rank, e))?;
        let told = channel.send_message(&mine.encode(), deadline);
        told.map_err(|error| MessageError::with(rank, error))?;
        Ok(Opening { channel, ring, mirror, mine })
    }

    /// The peer has told us.
    pub(super) fn complete(
        self,
        theirs: Introduction,
        deadline: Deadline,
    ) -> Result<Peer, MessageError> {
        let Opening { channel, ring, mirror, mine } = self;
        let rank = channel.peer();
        let remote = channel.open_region(&theirs.ring, deadline);
        let remote = remote.map_err(|error| match error {
            OpenRegionError::Map { .. } => MessageError::here(rank, error),
            error => MessageError::with(rank, error),
        })?;
        let window =
            |region: &Region| Window::new(&region.slab()).map_err(|e| MessageError::here(rank, e));
        Ok(Peer {
            channel,
            theirs,
            remote,
            staged: window(&mirror)?,
            mirror,
            is_posted: [false; SLOTS],
            outgoing: VecDeque::new(),
            written: 0,
            credit: mine.credit,
            bytes_copied: 0,
            received: window(&ring)?,
            _ring: ring,
            arrival: mine.arrival,
            read: 0,
            told: 0,
            incoming: None,
        })
    }
}

impl Peer {
    /// To be sent behind all others.
    pub(super) fn queue(&mut self, head: &[u8], content: Bytes) -> Result<(), MessageError> {
        let rank = self.channel.peer();
        if content.len() > CONTENT_BYTES_MAX || head.len() > HEAD_BYTES_MAX {
            let what = format!("{} bytes are more than a message has", content.len());
            return Err(MessageError::with(rank, what));
        }
        self.outgoing.push_back(Outgoing { head: Some(head.to_vec()), content });
        Ok(())
    }

    /// A posted write is over.
    pub(super) fn complete(&mut self, token: u64) {
        if let Some(is_posted) =
            usize::try_from(token).ok().and_then(|at| self.is_posted.get_mut(at))
        {
            *is_posted = false;
        }
    }

    /// Takes what has come, and sends what there is room for.
    pub(super) fn progress(
        &mut self,
        fabric: &Fabric,
        sink: &dyn MessageSink,
    ) -> Result<(), String> {
        let gone = fabric.gone(self.channel.peer());
        if gone.is_some() {
            self.outgoing.clear();
        }
        if let Some(Gone::Lost(cause)) = &gone {
            return Err(cause.to_string());
        }
        // what comes meanwhile is the next turn's
        let arrived = fabric.arrived(self.arrival);
        let waiting = arrived.saturating_sub(self.read);
        if waiting > SLOTS as u64 {
            return Err(format!("it says that {waiting} fragments wait in a ring of {SLOTS}"));
        }
        while self.read < arrived {
            self.receive(sink)?;
            self.read += 1;
            if gone.is_some() {
                // it waits for nothing any more, and what it wrote before is here
                self.told = self.read;
            } else if self.read - self.told >= SLOTS as u64 / 4 {
                // early enough that the other end need not wait for it
                self.tell()?;
            }
        }
        self.tell()?;
        while self.can_write(fabric) && self.write()? {}
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && !self.is_posted.contains(&true)
    }

    pub(super) fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    /// Copies one fragment out of the ring.
    fn receive(&mut self, sink: &dyn MessageSink) -> Result<(), String> {
        let Peer { received, incoming, .. } = self;
        let slot = Place { offset: slot_of(self.read) * SLOT_BYTES, bytes: SLOT_BYTES };
        let slot = received.read(slot).ok_or("a slot outside of the ring")?;
        let (header, rest) = slot.split_first_chunk::<HEADER_BYTES>().ok_or("no slot")?;
        // once: what is checked is what is used, whatever a peer writes meanwhile
        let fragment = Fragment::decode(&{ *header })?;
        let (head, rest) = rest.split_at(fragment.head.unwrap_or_default());
        let mut message = match (fragment.head, incoming.take()) {
            (Some(_), None) => {
                let sink = sink.open(self.channel.peer(), head, fragment.left)?;
                Incoming { sink, left: fragment.left }
            }
            (None, Some(message)) if message.left == fragment.left => message,
            _ => return Err(format!("a fragment out of turn: {fragment:?}")),
        };
        message.sink.write(&rest[..fragment.bytes]);
        message.left -= fragment.bytes;
        match fragment.is_last() {
            true => message.sink.done(),
            false => *incoming = Some(message),
        }
        Ok(())
    }

    /// Says how far we read.
    fn tell(&mut self) -> Result<(), String> {
        if self.told == self.read {
            return Ok(());
        }
        let signal = Signal { slot: self.theirs.credit, epoch: self.read };
        if self.post(0, 0, signal, NO_SLOT)?.is_some() {
            self.told = self.read;
        }
        Ok(())
    }

    /// Is the next slot free, here and at the peer?
    fn can_write(&self, fabric: &Fabric) -> bool {
        let in_ring = self.written.saturating_sub(fabric.arrived(self.credit));
        in_ring < SLOTS as u64 && !self.is_posted[slot_of(self.written)]
    }

    /// Copies the next fragment into the mirror and writes it; false if there is none, or no room in the queue.
    fn write(&mut self) -> Result<bool, String> {
        let index = slot_of(self.written);
        let Some(message) = self.outgoing.front_mut() else { return Ok(false) };
        let head = message.head.as_deref();
        let fragment = Fragment::next(message.content.len(), head.map(<[u8]>::len));
        let place = Place { offset: index * SLOT_BYTES, bytes: fragment.slot_bytes() };
        let staged = self.staged.write(place).ok_or("a slot outside of the mirror")?;
        let (header, rest) = staged.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&fragment.encode());
        let (named, rest) = rest.split_at_mut(fragment.head.unwrap_or_default());
        named.copy_from_slice(head.unwrap_or_default());
        rest.copy_from_slice(&message.content[..fragment.bytes]);
        // fits: inside the ring
        let (offset, bytes) = (place.offset as u64, place.bytes as u64);
        let signal = Signal { slot: self.theirs.arrival, epoch: self.written + 1 };
        let Some(posted) = self.post(offset, bytes, signal, index as u64)? else {
            return Ok(false);
        };
        self.is_posted[index] = posted == Posted::Queued;
        self.written += 1;
        self.bytes_copied += fragment.bytes as u64;
        if let Some(message) = self.outgoing.front_mut() {
            message.head = None;
            message.content.advance(fragment.bytes);
        }
        if fragment.is_last() {
            self.outgoing.pop_front();
        }
        Ok(true)
    }

    /// None: there is no room in the queue now.
    fn post(
        &self,
        offset: u64,
        bytes: u64,
        signal: Signal,
        token: u64,
    ) -> Result<Option<Posted>, String> {
        let posted = self.channel.memcpy_now(Memcpy {
            local: LocalSlice { region: &self.mirror, offset },
            remote: RemoteSlice { region: &self.remote, offset },
            bytes,
            direction: Direction::Write,
            signal: Some(signal),
            token,
        });
        match posted {
            Ok(posted) => Ok(Some(posted)),
            Err(PostError::Full { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn slot_of(fragment: u64) -> usize {
    // fits: below SLOTS
    (fragment % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tensorwire_fabric::Backend;
    use tensorwire_testkit::mesh::{mesh, soon};

    use super::*;
    use crate::transport::Bell;

    /// Counts messages that have no content, and takes some more than a ring has.
    #[derive(Default)]
    struct Counts(AtomicUsize, Bell);

    struct Nothing;

    impl ContentSink for Nothing {
        fn write(&mut self, _bytes: &[u8]) {}

        fn done(self: Box<Self>) {}
    }

    impl MessageSink for Counts {
        fn open(&self, _: Rank, _: &[u8], _: usize) -> Result<Box<dyn ContentSink>, String> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                came if came < SLOTS * 4 => Ok(Box::new(Nothing)),
                _ => Err("the same slots are read again and again".to_string()),
            }
        }

        fn fail(&self, _error: MessageError) {}

        fn bell(&self) -> &Bell {
            &self.1
        }
    }

    #[test]
    fn a_peer_that_says_that_more_came_than_its_ring_has_keeps_nobody_busy() {
        let fabrics = mesh(|| Backend::Shm, 2);
        let open = |at: usize| Opening::new(&fabrics[at], Rank(1 - at as u32), soon()).unwrap();
        let openings = [open(0), open(1)];
        let mut peers: Vec<Peer> = Vec::new();
        for (fabric, opening) in fabrics.iter().zip(openings) {
            let theirs = fabric.receive_message(soon()).unwrap();
            let theirs = Introduction::decode(&theirs.body).unwrap();
            peers.push(opening.complete(theirs, soon()).unwrap());
        }
        let (sink, [liar, honest]) = (Counts::default(), &mut peers[..]) else { unreachable!() };
        for _ in 0..SLOTS {
            liar.queue(b"spam", Bytes::new()).unwrap();
        }
        liar.progress(&fabrics[0], &sink).unwrap();
        let signal = Signal { slot: liar.theirs.arrival, epoch: 1 << 40 };
        assert!(liar.post(0, 0, signal, NO_SLOT).unwrap().is_some());
        let deadline = soon();
        while fabrics[1].arrived(honest.arrival) < 1 << 40 {
            assert!(!deadline.passed(), "the lie does not come");
            std::thread::yield_now();
        }
        let why = honest.progress(&fabrics[1], &sink).unwrap_err();
        assert!(
            why.starts_with("it says that 1099511627776 fragments wait in a ring of 16"),
            "{why}"
        );
        assert_eq!(sink.0.load(Ordering::Relaxed), 0);
    }
}
