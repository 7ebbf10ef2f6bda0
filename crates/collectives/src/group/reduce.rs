//! What a member does with bytes: its own, what landed, and those of members whose memory it shares. What it writes into
//! the memory of others, or reads from there into its own, is the transfer; what it copies here is counted. Slices are made of
//! the bytes alone that are worked on: others write what is beside them meanwhile.

use std::ops::Range;

use tensorwire_memory::{Buffer, CopyPurpose, LoanError, Place};

use super::run::Running;
use super::{Group, Remote, failed};
use crate::error::GroupError;
use crate::ports::{Collectives, Reducer};
use crate::schedule::{Addend, Owners};

/// Bytes that are reduced at a time: with an addend of each of several members, they stay in the L1 cache.
pub(super) const BLOCK_BYTES: usize = 8 << 10;

impl Group {
    /// bytes ← the reduction of addends that lie here.
    pub(super) fn reduce(
        &mut self,
        running: &Running,
        bytes: Range<usize>,
        addends: &[Addend],
        is_whole: bool,
    ) -> Result<(), GroupError> {
        let reducer = reducer_of(running)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let whole = is_whole.then_some(self.size());
        let Group { vectors, landings, scratch, copies, .. } = self;
        let known = &vectors[running.vector];
        let landed = |at: usize, skipped: usize, bytes: usize| {
            let landing = known.landing?;
            let from = running.landing_offset + at * running.element_bytes + skipped;
            landings[landing.window].read(Place { offset: landing.offset + from, bytes })
        };
        let nowhere = || failed(&"an addend that was to land has no place here");
        if let Some(out) = running.out.as_ref().filter(|_| is_whole) {
            let own = known.buffer.read().map_err(lent)?;
            let mut into = out.write().map_err(lent)?;
            for block in blocks(running, &bytes) {
                let skipped = block.start - bytes.start;
                let part = |addend: &Addend| match addend {
                    Addend::Own => Some(own.part(block.clone())),
                    Addend::Landed(at) => landed(*at, skipped, block.len()),
                };
                let parts: Option<Vec<&[u8]>> = addends.iter().map(part).collect();
                let at = block.start - running.out_from;
                let into = into.part_mut(at..at + block.len());
                reducer.reduce(&parts.ok_or_else(nowhere)?, into, whole);
            }
            return Ok(());
        }
        let own_is = addends.iter().position(|addend| *addend == Addend::Own);
        if let Some(own_is) = own_is.filter(|_| goes_around(reducer, addends.len())) {
            let mut own = known.buffer.write().map_err(lent)?;
            for block in blocks(running, &bytes) {
                let skipped = block.start - bytes.start;
                let part = |addend: &Addend| match addend {
                    Addend::Own => None,
                    Addend::Landed(at) => landed(*at, skipped, block.len()),
                };
                let around = |addends: &[Addend]| addends.iter().map(part).collect();
                let before: Option<Vec<&[u8]>> = around(&addends[..own_is]);
                let after: Option<Vec<&[u8]>> = around(&addends[own_is + 1..]);
                let (before, after) = before.zip(after).ok_or_else(nowhere)?;
                let here = Place { offset: 0, bytes: block.len() };
                let room = scratch.write(here).ok_or_else(too_large)?;
                fold_around(reducer, &before, own.part_mut(block), &after, room, whole);
            }
            return Ok(());
        }
        for block in blocks(running, &bytes) {
            let here = Place { offset: 0, bytes: block.len() };
            let sum = scratch.write(here).ok_or_else(too_large)?;
            {
                let own = known.buffer.read().map_err(lent)?;
                let part = |addend: &Addend| match addend {
                    Addend::Own => Some(own.part(block.clone())),
                    Addend::Landed(at) => landed(*at, block.start - bytes.start, block.len()),
                };
                let parts: Option<Vec<&[u8]>> = addends.iter().map(part).collect();
                reducer.reduce(&parts.ok_or_else(nowhere)?, sum, whole);
            }
            let mut own = known.buffer.write().map_err(lent)?;
            copies.copy(CopyPurpose::Reduction, sum, own.part_mut(block));
        }
        Ok(())
    }

    /// bytes ← the reduction of all members' vectors, where they lie.
    pub(super) fn reduce_shared(
        &mut self,
        running: &Running,
        bytes: Range<usize>,
        to: Owners,
    ) -> Result<(), GroupError> {
        let reducer = reducer_of(running)?;
        let size = self.size();
        let Group { vectors, opened, scratch, me, copies, .. } = self;
        let known = &vectors[running.vector];
        if let Some(out) = &running.out {
            let own = known.buffer.read().map_err(lent)?;
            let mut into = out.write().map_err(lent)?;
            for block in blocks(running, &bytes) {
                let part = |member: usize| match &known.remotes[member] {
                    None => Some(own.part(block.clone())),
                    Some(remote) => {
                        let window = opened[remote.vector].window.as_ref()?;
                        window.read(place(remote.offset, &block)?)
                    }
                };
                let parts: Option<Vec<&[u8]>> = (0..size).map(part).collect();
                let at = block.start - running.out_from;
                let into = into.part_mut(at..at + block.len());
                reducer.reduce(&parts.ok_or_else(unshared)?, into, Some(size));
            }
            return Ok(());
        }
        if to == Owners::All && goes_around(reducer, size) {
            for block in blocks(running, &bytes) {
                let mut own = known.buffer.write().map_err(lent)?;
                let own = own.part_mut(block.clone());
                let part = |remote: &Option<Remote>| {
                    let remote = remote.as_ref()?;
                    let window = opened[remote.vector].window.as_ref()?;
                    window.read(place(remote.offset, &block)?)
                };
                let around = |remotes: &[Option<Remote>]| remotes.iter().map(part).collect();
                let before: Option<Vec<&[u8]>> = around(&known.remotes[..*me]);
                let after: Option<Vec<&[u8]>> = around(&known.remotes[*me + 1..]);
                let (before, after) = before.zip(after).ok_or_else(unshared)?;
                let here = Place { offset: 0, bytes: block.len() };
                let room = scratch.write(here).ok_or_else(too_large)?;
                fold_around(reducer, &before, own, &after, room, Some(size));
                for remote in known.remotes.iter().flatten() {
                    let window = opened[remote.vector].window.as_mut().ok_or_else(unshared)?;
                    let place = place(remote.offset, &block).ok_or_else(unshared)?;
                    window.write(place).ok_or_else(unshared)?.copy_from_slice(own);
                }
            }
            return Ok(());
        }
        for block in blocks(running, &bytes) {
            let here = Place { offset: 0, bytes: block.len() };
            let sum = scratch.write(here).ok_or_else(too_large)?;
            {
                let own = known.buffer.read().map_err(lent)?;
                let part = |member: usize| match &known.remotes[member] {
                    None => Some(own.part(block.clone())),
                    Some(remote) => {
                        let window = opened[remote.vector].window.as_ref()?;
                        window.read(place(remote.offset, &block)?)
                    }
                };
                let parts: Option<Vec<&[u8]>> = (0..size).map(part).collect();
                reducer.reduce(&parts.ok_or_else(unshared)?, sum, Some(size));
            }
            for member in (0..size).filter(|at| to == Owners::All || to == Owners::One(*at)) {
                if member == *me {
                    let mut own = known.buffer.write().map_err(lent)?;
                    copies.copy(CopyPurpose::Reduction, sum, own.part_mut(block.clone()));
                } else if let Some(remote) = &known.remotes[member] {
                    let window = opened[remote.vector].window.as_mut().ok_or_else(unshared)?;
                    let place = place(remote.offset, &block).ok_or_else(unshared)?;
                    window.write(place).ok_or_else(unshared)?.copy_from_slice(sum);
                }
            }
        }
        Ok(())
    }

    /// The vector from byte `at` on ← these bytes of a member's vector, where it lies.
    pub(super) fn pull(
        &mut self,
        running: &Running,
        from: usize,
        bytes: Range<usize>,
        at: usize,
    ) -> Result<(), GroupError> {
        let known = &self.vectors[running.vector];
        let into = at..at + bytes.len();
        let theirs = || {
            let remote = known.remotes[from].as_ref()?;
            let window = self.opened[remote.vector].window.as_ref()?;
            window.read(place(remote.offset, &bytes)?)
        };
        let theirs = theirs().ok_or_else(unshared)?;
        known.buffer.write().map_err(lent)?.part_mut(into).copy_from_slice(theirs);
        Ok(())
    }

    /// The same of this member's own vector.
    pub(super) fn copy(
        &mut self,
        running: &Running,
        bytes: Range<usize>,
        at: usize,
    ) -> Result<(), GroupError> {
        // fits: a size in memory
        self.copies.add(CopyPurpose::Staging, bytes.len() as u64);
        let known = &self.vectors[running.vector];
        known.buffer.write().map_err(lent)?.copy_part(bytes, at);
        Ok(())
    }

    /// In a group of one, what is reduced is the one vector.
    pub(super) fn alone(
        &mut self,
        vector: usize,
        reducer: Option<&dyn Reducer>,
        bytes: usize,
        out: Option<&Buffer>,
    ) -> Result<(), GroupError> {
        let Some(reducer) = reducer else { return Ok(()) };
        let known = &self.vectors[vector];
        let own = known.buffer.read().map_err(lent)?.part(0..bytes).to_vec();
        // fits: a size in memory
        self.copies.add(CopyPurpose::Reduction, own.len() as u64);
        let into = out.unwrap_or(&known.buffer);
        reducer.reduce(&[&own], into.write().map_err(lent)?.part_mut(0..bytes), Some(1));
        Ok(())
    }
}

/// True if so many addends make the same bits when each is added to this member's own where that lies: of two the order does
/// not matter, and what is [`Reducer::plain`] rounds after each.
fn goes_around(reducer: &dyn Reducer, addends: usize) -> bool {
    addends == 2 || reducer.plain().is_some()
}

/// own ← before ∘ own ∘ after, in this order. `room` is as long, for what is before if that is several.
fn fold_around(
    reducer: &dyn Reducer,
    before: &[&[u8]],
    own: &mut [u8],
    after: &[&[u8]],
    room: &mut [u8],
    whole: Option<usize>,
) {
    let last = |is_last: bool| whole.filter(|_| is_last);
    match before {
        [] => {}
        [one] => reducer.reduce_into(own, one, last(after.is_empty())),
        several => {
            reducer.reduce(several, room, None);
            reducer.reduce_into(own, room, last(after.is_empty()));
        }
    }
    for (at, part) in after.iter().enumerate() {
        reducer.reduce_into(own, part, last(at + 1 == after.len()));
    }
}

/// Whole elements at a time.
pub(super) fn blocks(
    running: &Running,
    bytes: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let block = BLOCK_BYTES / running.element_bytes * running.element_bytes;
    let end = bytes.end;
    bytes
        .clone()
        .step_by(block.max(running.element_bytes))
        .map(move |start| start..(start + block).min(end))
}

/// Bytes of a vector that begins at `offset` of its region.
pub(super) fn place(offset: u64, bytes: &Range<usize>) -> Option<Place> {
    let offset = usize::try_from(offset).ok()?.checked_add(bytes.start)?;
    Some(Place { offset, bytes: bytes.len() })
}

pub(super) fn reducer_of(running: &Running) -> Result<&dyn Reducer, GroupError> {
    running.reducer.as_deref().ok_or_else(|| failed(&"a reducer was scheduled, and none was given"))
}

pub(super) fn too_large() -> GroupError {
    failed(&format!("elements of more than {BLOCK_BYTES} bytes cannot be reduced"))
}

pub(super) fn unshared() -> GroupError {
    failed(&"a member's memory is not shared here")
}

pub(super) fn lent(error: LoanError) -> GroupError {
    failed(&format!("a vector of an operation that is under way: {error}"))
}
