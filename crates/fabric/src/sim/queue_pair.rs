//! A memcpy in flight in the simulated network: which of its pieces have landed.

use std::sync::Arc;

use super::progress::{Entry, NicReach, Random, SimKnobs, Within};
use super::signal::{Carried, Delivery, Written};
use crate::api::{ArrivalSlot, Direction};
use crate::arrival::ArrivalMode;
use crate::common::Credits;
use crate::device::Work;
use crate::mapping::Mapping;
use crate::region::RegionMemory;

/// A one-way order: memcpys of one sender, receiver and queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) queue_pair: usize,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) lane: Lane,
    pub(super) work: Work,
    pub(super) credits: Arc<Credits>,
    /// Turns to sit out.
    delay: u32,
    /// Offset and length of what has not landed.
    missing: Vec<(u64, u64)>,
    landed: Vec<(u64, u64)>,
    delivery: Delivery,
    /// Its signal has landed.
    is_raised: bool,
    fate: Fate,
    /// How often its receiver had no room for its signal.
    pub(super) not_ready: u32,
}

/// What the seed decided for a memcpy when it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Fails,
    /// The queue pair dies of it.
    Kills,
}

impl Lane {
    /// The other direction of the queue pair.
    pub(super) fn back(self) -> Lane {
        Lane { from: self.to, to: self.from, ..self }
    }
}

impl InFlight {
    pub(super) fn new(
        lane: Lane,
        work: Work,
        credits: Arc<Credits>,
        mode: ArrivalMode,
        knobs: &SimKnobs,
        random: &mut Random,
    ) -> InFlight {
        let delivery = Delivery::of(mode, &work);
        let mut missing = cut(work.bytes, knobs, random);
        if delivery.is_tail() {
            // whole: 8 aligned bytes are never placed in parts
            missing.push((work.bytes, ArrivalSlot::TAIL_BYTES));
        }
        let delay = random.below(knobs.delay_turns_max.saturating_add(1));
        let fails = random.happens(knobs.fail_per_mille);
        let kills = random.happens(knobs.kill_queue_pair_per_mille);
        let fate = match (kills, fails) {
            (true, _) => Fate::Kills,
            (false, true) => Fate::Fails,
            (false, false) => Fate::Arrives,
        };
        let (landed, is_raised, not_ready) = (Vec::new(), false, 0);
        InFlight {
            lane,
            work,
            credits,
            delay,
            missing,
            landed,
            delivery,
            is_raised,
            fate,
            not_ready,
        }
    }

    /// All bytes have landed, or never will.
    pub(super) fn is_landed(&self) -> bool {
        self.missing.is_empty()
    }

    pub(super) fn fails(&self) -> bool {
        self.fate == Fate::Fails
    }

    pub(super) fn kills(&self) -> bool {
        self.fate == Fate::Kills
    }

    /// Its signal, if it has one that may be sent. What kills its queue pair may have arrived before.
    pub(super) fn carried(&self) -> Option<Carried> {
        let signal = self.work.signal.filter(|_| !self.fails())?;
        Some(Carried { lane: self.lane, signal, delivery: self.delivery })
    }

    /// Its signal is a completion at the receiver, which must have room for it.
    pub(super) fn needs_room(&self) -> bool {
        self.delivery == Delivery::Immediate && self.carried().is_some()
    }

    /// Its flag is still to be written.
    pub(super) fn has_flag(&self) -> bool {
        self.delivery == Delivery::Flag && !self.is_raised && self.carried().is_some()
    }

    /// Its flag could be written now if flags had no order. A flag behind a read is fenced: its sender
    /// waits for the read.
    pub(super) fn has_flag_on_its_way(&self) -> bool {
        let is_fenced = self.work.direction == Direction::Read && !self.is_landed();
        self.has_flag() && self.delay == 0 && !is_fenced
    }

    /// The signal lands, unless it has before.
    pub(super) fn raise(&mut self, receiver: &Entry, written: &mut Written) {
        if let Some(carried) = self.carried().filter(|_| !self.is_raised) {
            carried.land(receiver, written);
        }
        self.is_raised = true;
    }

    /// One turn: sit out, land a piece, or land one again. The error is the receiver's refusal.
    pub(super) fn turn(
        &mut self,
        (receiver, reach): (&Entry, Option<&dyn NicReach>),
        knobs: &SimKnobs,
        random: &mut Random,
        written: &mut Written,
    ) -> Result<(), String> {
        if self.delay > 0 {
            self.delay -= 1;
            return Ok(());
        }
        let (key, offset) = (self.work.remote.key(), self.work.remote_offset);
        let tail = if self.delivery.is_tail() { ArrivalSlot::TAIL_BYTES } else { 0 };
        // checked each time: the region may be freed while the memcpy is on its way
        let remote = receiver.core.regions().check(key, offset, self.work.bytes + tail)?;
        if !self.landed.is_empty() && random.happens(knobs.duplicate_per_mille) {
            let again = self.landed[random.index(self.landed.len())];
            self.land(&remote, again, reach);
            return Ok(());
        }
        let next = match knobs.within {
            Within::Ascending => 0,
            Within::Random => random.index(self.missing.len()),
        };
        let piece = self.missing.remove(next);
        if piece.0 == self.work.bytes {
            self.raise(receiver, written);
        } else {
            self.land(&remote, piece, reach);
            self.landed.push(piece);
        }
        if self.fails() && random.happens(500) {
            // the rest is lost on the way
            self.missing.clear();
        }
        Ok(())
    }

    fn land(
        &self,
        remote: &RegionMemory,
        (start, bytes): (u64, u64),
        reach: Option<&dyn NicReach>,
    ) {
        let local = (self.work.local.mapping(), self.work.local_offset + start);
        let remote = (remote.mapping(), self.work.remote_offset + start);
        match self.work.direction {
            Direction::Write => copy(local, remote, bytes, reach),
            Direction::Read => copy(remote, local, bytes, reach),
        }
    }
}

/// Copies bytes between memory of the host and of devices that the network reaches.
fn copy(
    source: (&Mapping, u64),
    target: (&Mapping, u64),
    bytes: u64,
    reach: Option<&dyn NicReach>,
) {
    let of_device = |(mapping, offset): (&Mapping, u64)| {
        // memory of a device is a region here only where there is a reach
        reach.filter(|_| mapping.is_of_device()).map(|reach| (reach, mapping.at(offset).addr()))
    };
    let read = match (of_device(source), of_device(target)) {
        (None, None) => return Mapping::copy(source, target, bytes),
        (Some((reach, address)), _) => {
            // fits: as the mapping fits the address space
            let mut read = vec![0; bytes as usize];
            reach.read(address, &mut read);
            read
        }
        (None, Some(_)) => source.0.bytes_at(source.1, bytes),
    };
    match of_device(target) {
        Some((reach, address)) => reach.write(address, &read),
        None => target.0.fill_at(target.1, &read),
    }
}

/// Cuts a payload into pieces of random lengths; no bytes, no pieces.
fn cut(bytes: u64, knobs: &SimKnobs, random: &mut Random) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let pieces_max = u64::from(knobs.pieces_max.max(1));
    // on average half of `pieces_max`, never more
    let least = bytes.div_ceil(pieces_max).max(1);
    while start < bytes {
        let length = (least + random.next() % least).min(bytes - start);
        pieces.push((start, length));
        start += length;
    }
    pieces
}
