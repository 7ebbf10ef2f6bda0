//! What the way between members takes, measured when a group is made: latency by round trips of nothing, bandwidth by long
//! writes that are answered. Two members measure, and tell the others, so that all choose alike.

use std::ops::Range;

use tensorwire_base::{Clock, Deadline};
use tensorwire_memory::{Arena, Place};

use super::bind::Purpose;
use super::run::Target;
use super::{Group, TAGS, failed};
use crate::error::GroupError;
use crate::link::LinkCost;
use crate::ports::Collectives;

/// Of a long write; of the first, after which a slow link is not tried by longer ones.
const LONG_BYTES: usize = 1 << 20;
const FIRST_BYTES: usize = 64 << 10;
/// A link that takes longer for the first is slow.
const SLOW_NS: u64 = 10_000_000;
/// Round trips, unmeasured ones first, and long writes, at most; the median counts.
const WARM_UP: usize = 4;
const TRIPS: usize = 16;
const WRITES: usize = 5;
/// No other begins that could end later: with the last of them at most 200 ms.
const BUDGET_NS: u64 = 150_000_000;
/// What counts what is measured with, and what all are told.
const MEASURED: usize = 0;
const TOLD: usize = 1;
const _: () = assert!(TOLD < TAGS);
/// Latency and the price of a byte.
const TOLD_BYTES: usize = 2 * size_of::<u64>();
/// No operation is told of a completion.
const NOBODY: u64 = u64::MAX;

impl Group {
    /// Measures the way between members that share no memory, by which algorithms are chosen from then on, in at most 200 ms
    /// where a round trip takes no more than a few; returns none where all share memory. All members call this, before they
    /// bind vectors and while nothing is under way. It takes 1 MiB. What it finds differs from time to time, and with it what
    /// is chosen: whoever wants the same bits again keeps it and gives it as [`super::GroupOptions::link`].
    ///
    /// # Errors
    /// As of [`Collectives::bind`].
    pub fn measure_link(&mut self, deadline: Deadline) -> Result<Option<LinkCost>, GroupError> {
        let Some(far) = (1..self.size()).find(|member| self.hosts[*member] != self.hosts[0]) else {
            return Ok(None);
        };
        let slab = self.alloc(LONG_BYTES)?;
        let all = Place { offset: 0, bytes: LONG_BYTES };
        let arena = Arena::new(&slab, &[all]).map_err(|error| failed(&error))?;
        let bound = self.introduce(&arena.into_buffers(), Purpose::Mail, deadline)?;
        // fits: u32 does
        let vector = bound[0].0 as usize;
        // no operation ever
        self.vectors[vector].busy = true;
        let told = match self.me {
            0 => self.measure_and_tell(vector, far, deadline)?,
            _ => self.answer(vector, far, deadline)?,
        };
        let link = self.options.link.measured(told);
        self.options.link = link;
        Ok(Some(link))
    }

    /// The first member's part.
    fn measure_and_tell(
        &mut self,
        vector: usize,
        far: usize,
        deadline: Deadline,
    ) -> Result<[u64; 2], GroupError> {
        let start_ns = Clock::now_ns();
        let has_time = |took_ns: u64| Clock::now_ns() + took_ns < start_ns + BUDGET_NS;
        let mut trips = Vec::new();
        for at in 0..WARM_UP + TRIPS {
            let took_ns = self.trip(vector, far, 0, deadline)?;
            if at >= WARM_UP || !has_time(took_ns) {
                trips.push(took_ns);
            }
            if !has_time(took_ns) {
                break;
            }
        }
        let trip_ns = median(trips);
        let first_ns = self.trip(vector, far, FIRST_BYTES, deadline)?;
        let (mut bytes, mut writes) = (FIRST_BYTES, vec![first_ns]);
        if first_ns < SLOW_NS {
            (bytes, writes) = (LONG_BYTES, Vec::new());
        }
        while writes.len() < WRITES && (writes.is_empty() || has_time(median(writes.clone()))) {
            writes.push(self.trip(vector, far, bytes, deadline)?);
        }
        let on_wire_ns = median(writes).saturating_sub(trip_ns);
        // fits: a size in memory
        let told = [trip_ns / 2, on_wire_ns.saturating_mul(1000) / bytes as u64];
        {
            let mut memory = self.vectors[vector].buffer.write().map_err(|error| failed(&error))?;
            for (word, number) in memory.as_chunks_mut().0.iter_mut().zip(told) {
                *word = number.to_le_bytes();
            }
        }
        for member in 1..self.size() {
            self.post_soon(vector, TOLD, member, 0..TOLD_BYTES, deadline)?;
        }
        Ok(told)
    }

    /// Another member's part.
    fn answer(
        &mut self,
        vector: usize,
        far: usize,
        deadline: Deadline,
    ) -> Result<[u64; 2], GroupError> {
        loop {
            self.observe();
            if self.has_come(vector, 0, TOLD) {
                break;
            }
            if self.me == far && self.has_come(vector, 0, MEASURED) {
                self.post_soon(vector, MEASURED, 0, 0..0, deadline)?;
                continue;
            }
            self.pause(0, deadline)?;
        }
        let memory = self.vectors[vector].buffer.read().map_err(|error| failed(&error))?;
        let mut words = memory.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok([(); 2].map(|()| words.next().unwrap_or_default()))
    }

    /// Writes so much to a member and waits for its answer; returns how long that took.
    fn trip(
        &mut self,
        vector: usize,
        far: usize,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<u64, GroupError> {
        let start_ns = Clock::now_ns();
        self.post_soon(vector, MEASURED, far, 0..bytes, deadline)?;
        loop {
            self.observe();
            if self.has_come(vector, far, MEASURED) {
                return Ok(Clock::now_ns().saturating_sub(start_ns));
            }
            self.pause(far, deadline)?;
        }
    }

    /// Posts a write as soon as there is room for it.
    fn post_soon(
        &mut self,
        vector: usize,
        counter: usize,
        to: usize,
        bytes: Range<usize>,
        deadline: Deadline,
    ) -> Result<(), GroupError> {
        loop {
            self.observe();
            let target = Target::Vector(0);
            if self.post(vector, NOBODY, counter, to, bytes.clone(), target)?.is_some() {
                return Ok(());
            }
            self.pause(to, deadline)?;
        }
    }

    /// Waits until something may have moved since it was observed.
    fn pause(&mut self, on: usize, deadline: Deadline) -> Result<(), GroupError> {
        self.land()?;
        self.check(on)?;
        if deadline.passed() {
            let waiting_for = format!("member {on} (rank {}), to measure the link", self.ranks[on]);
            return Err(GroupError::TimedOut { waiting_for });
        }
        self.wait_for_news(deadline);
        Ok(())
    }
}

/// The middle one; 0 of none.
fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}
