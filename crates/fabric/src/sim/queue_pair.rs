//! A memcpy in flight in the simulated network: which of its pieces have landed.

use std::sync::Arc;

use super::progress::{Random, SimKnobs, Within};
use crate::api::Direction;
use crate::common::{Core, Credits};
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
    fails: bool,
}

impl InFlight {
    pub(super) fn new(
        lane: Lane,
        work: Work,
        credits: Arc<Credits>,
        knobs: &SimKnobs,
        random: &mut Random,
    ) -> InFlight {
        let missing = cut(work.bytes, knobs, random);
        let delay = random.below(knobs.delay_turns_max.saturating_add(1));
        let fails = random.happens(knobs.fail_per_mille);
        InFlight { lane, work, credits, delay, missing, landed: Vec::new(), fails }
    }

    /// All bytes have landed, or never will.
    pub(super) fn is_landed(&self) -> bool {
        self.missing.is_empty()
    }

    pub(super) fn fails(&self) -> bool {
        self.fails
    }

    /// One turn: sit out, land a piece, or land one again. The error is the receiver's refusal.
    pub(super) fn turn(
        &mut self,
        receiver: &Core,
        knobs: &SimKnobs,
        random: &mut Random,
    ) -> Result<(), String> {
        if self.delay > 0 {
            self.delay -= 1;
            return Ok(());
        }
        let (key, offset) = (self.work.remote.key(), self.work.remote_offset);
        // checked each time: the region may be freed while the memcpy is on its way
        let remote = receiver.regions().check(key, offset, self.work.bytes)?;
        if !self.landed.is_empty() && random.happens(knobs.duplicate_per_mille) {
            let again = self.landed[random.index(self.landed.len())];
            self.land(&remote, again);
            return Ok(());
        }
        let next = match knobs.within {
            Within::Ascending => 0,
            Within::Random => random.index(self.missing.len()),
        };
        let piece = self.missing.remove(next);
        self.land(&remote, piece);
        self.landed.push(piece);
        if self.fails && random.happens(500) {
            // the rest is lost on the way
            self.missing.clear();
        }
        Ok(())
    }

    fn land(&self, remote: &RegionMemory, (start, bytes): (u64, u64)) {
        let local = (self.work.local.mapping(), self.work.local_offset + start);
        let remote = (remote.mapping(), self.work.remote_offset + start);
        match self.work.direction {
            Direction::Write => Mapping::copy(local, remote, bytes),
            Direction::Read => Mapping::copy(remote, local, bytes),
        }
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
