//! Operations on memory of anybody through a vector that members share: what others take of it is copied into the vector,
//! what they have is read where it lies in theirs.

use std::ops::Range;

use tensorwire_memory::{Buffer, CopyPurpose, LoanError, Place};

use super::cache::ScheduleKey;
use super::reduce::{blocks, lent, place, reducer_of, too_large, unshared};
use super::run::{Elsewhere, Running};
use super::{Group, failed};
use crate::error::GroupError;
use crate::ports::{CollectiveCall, Collectives, Handle, VectorId};
use crate::schedule::{GroupShape, OperationKind, PartSpot, Schedule, through};

/// Memory outside of vectors: each part that this member gives, and gets, from a byte of a buffer on.
#[derive(Debug, Default)]
pub struct Outside {
    pub gives: Vec<(Buffer, usize)>,
    pub gets: Vec<(Buffer, usize)>,
}

/// So many bytes of all members are reduced by everybody, as that takes one round less.
const AT_ONCE_BYTES: usize = 64 << 10;

impl Group {
    /// Starts an operation on memory of anybody, through the first bytes of a vector: `part_bytes` of each part go. Members
    /// share memory ([`Group::shares_memory`]), and are two at least. What has one part for each member takes as many
    /// times `part_bytes` of the vector, all else `part_bytes`. All-reduce, reduce and broadcast give and get one part.
    /// What moves elements that nobody reduces names one byte as an element.
    ///
    /// # Errors
    /// As of [`Collectives::start`].
    pub fn start_through(
        &mut self,
        vector: VectorId,
        part_bytes: usize,
        call: CollectiveCall,
        outside: Outside,
    ) -> Result<Handle, GroupError> {
        if self.size() < 2 || !self.shares_memory() {
            return Err(failed(&"members that share no memory have nothing to read through"));
        }
        let bytes = match call {
            CollectiveCall::Scatter { .. }
            | CollectiveCall::ReduceScatter(_)
            | CollectiveCall::AllToAll { .. } => part_bytes * self.size(),
            _ => part_bytes,
        };
        let handle = self.begin(vector, bytes, call, Elsewhere::Outside(outside))?;
        self.progress()?;
        Ok(handle)
    }

    /// The vector's bytes ← a part that is given.
    pub(super) fn stage(
        &mut self,
        running: &Running,
        from: PartSpot,
        bytes: Range<usize>,
    ) -> Result<(), GroupError> {
        let (given, at) = spot(running, from, |outside| &outside.gives)?;
        let vector = &self.vectors[running.vector].buffer;
        vector.copy_from(bytes.start, given, at..at + bytes.len()).map_err(lent_outside)?;
        // fits: a size in memory
        self.copies.add(CopyPurpose::Staging, bytes.len() as u64);
        Ok(())
    }

    /// A part that it gets ← these bytes of a member's vector, where it lies.
    pub(super) fn take(
        &mut self,
        running: &Running,
        from: usize,
        bytes: Range<usize>,
        to: PartSpot,
    ) -> Result<(), GroupError> {
        let (got, at) = spot(running, to, |outside| &outside.gets)?;
        let known = &self.vectors[running.vector];
        let theirs = || {
            let remote = known.remotes[from].as_ref()?;
            let window = self.opened[remote.vector].window.as_ref()?;
            window.read(place(remote.offset, &bytes)?)
        };
        let theirs = theirs().ok_or_else(unshared)?;
        got.write().map_err(lent_outside)?[at..at + bytes.len()].copy_from_slice(theirs);
        self.copies.add(CopyPurpose::Staging, bytes.len() as u64);
        Ok(())
    }

    /// A part that it gets ← one that it gives, unless they are the same memory.
    pub(super) fn keep(
        &mut self,
        running: &Running,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), GroupError> {
        let (given, from) =
            spot(running, PartSpot { part: from, at: 0 }, |outside| &outside.gives)?;
        let (got, to) = spot(running, PartSpot { part: to, at: 0 }, |outside| &outside.gets)?;
        if given.address() + from == got.address() + to {
            return Ok(());
        }
        got.copy_from(to, given, from..from + bytes).map_err(lent_outside)?;
        self.copies.add(CopyPurpose::Staging, bytes as u64);
        Ok(())
    }

    /// A part that it gets ← the reduction of what it gives and of all others' bytes, where they lie; and the vector's
    /// bytes, if they are `left` to others.
    pub(super) fn reduce_staged(
        &mut self,
        running: &Running,
        bytes: Range<usize>,
        own: PartSpot,
        to: Option<PartSpot>,
        left: bool,
    ) -> Result<(), GroupError> {
        let reducer = reducer_of(running)?;
        let size = self.size();
        let (given, given_at) = spot(running, own, |outside| &outside.gives)?;
        let to = to.map(|to| spot(running, to, |outside| &outside.gets)).transpose()?;
        let Group { vectors, opened, scratch, copies, .. } = self;
        let known = &vectors[running.vector];
        for block in blocks(running, &bytes) {
            let skipped = block.start - bytes.start;
            let mut vector;
            let sum = if left {
                vector = known.buffer.write().map_err(lent)?;
                vector.part_mut(block.clone())
            } else {
                let here = Place { offset: 0, bytes: block.len() };
                scratch.write(here).ok_or_else(too_large)?
            };
            {
                let given = given.read().map_err(lent_outside)?;
                let own = given.part(given_at + skipped..given_at + skipped + block.len());
                let part = |member: usize| match &known.remotes[member] {
                    None => Some(own),
                    Some(remote) => {
                        let window = opened[remote.vector].window.as_ref()?;
                        window.read(place(remote.offset, &block)?)
                    }
                };
                let parts: Option<Vec<&[u8]>> = (0..size).map(part).collect();
                reducer.reduce(&parts.ok_or_else(unshared)?, sum, Some(size));
            }
            if let Some((got, at)) = to {
                let mut got = got.write().map_err(lent_outside)?;
                let got = got.part_mut(at + skipped..at + skipped + block.len());
                copies.copy(CopyPurpose::Staging, sum, got);
            }
        }
        Ok(())
    }
}

/// What a member does on a vector with memory outside of it.
pub(super) fn schedule_of(key: ScheduleKey, shape: GroupShape) -> Schedule {
    let parts = match key.kind {
        OperationKind::Scatter { .. } | OperationKind::ReduceScatter | OperationKind::AllToAll => {
            shape.size
        }
        _ => 1,
    };
    let at_once = key.bytes * shape.size <= AT_ONCE_BYTES;
    through(key.kind, shape, shape.len / parts, at_once)
}

/// The buffer of a spot, and the byte in it.
fn spot(
    running: &Running,
    spot: PartSpot,
    of: impl Fn(&Outside) -> &Vec<(Buffer, usize)>,
) -> Result<(&Buffer, usize), GroupError> {
    let parts = running.outside.as_ref().map(of);
    let part = parts.and_then(|parts| parts.get(spot.part));
    let none =
        || failed(&format!("part {} of the memory of an operation was not given", spot.part));
    let (buffer, start) = part.ok_or_else(none)?;
    Ok((buffer, start + spot.at * running.element_bytes))
}

fn lent_outside(error: LoanError) -> GroupError {
    failed(&format!("memory of an operation that is under way: {error}"))
}
