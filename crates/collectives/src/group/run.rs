//! Running schedules: each sequence goes as far as it can, and nothing waits here.

use std::ops::Range;
use std::sync::Arc;

use tensorwire_fabric::{Direction, LocalSlice, Memcpy, PostError, Posted, RemoteSlice, Signal};
use tensorwire_memory::Buffer;

use super::bind::ALIGN;
use super::cache::ScheduleKey;
use super::reduce::BLOCK_BYTES;
use super::through::{self, Outside};
use super::{Group, Others, TAGS, Vector, failed};
use crate::error::GroupError;
use crate::ports::{CollectiveCall, Collectives, Handle, Reducer, VectorId};
use crate::schedule::{GroupShape, Into, OperationKind, Schedule, Step, Tag, schedule};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) handle: Handle,
    pub(super) vector: usize,
    pub(super) reducer: Option<Arc<dyn Reducer>>,
    /// Where a reduce-scatter puts this one's piece, if not into the vector.
    pub(super) out: Option<Buffer>,
    /// The first byte of this one's piece in the vector.
    pub(super) out_from: usize,
    pub(super) element_bytes: usize,
    schedule: Arc<Schedule>,
    /// Where each sequence is.
    at: Vec<usize>,
    /// Writes that were posted and are not over, and about how many bytes one of them has.
    pub(super) in_flight: usize,
    write_bytes: usize,
    /// Bytes from the landing's start on where this one's addends land.
    pub(super) landing_offset: usize,
    /// Memory outside of the vector, if it goes there.
    pub(super) outside: Option<Outside>,
    /// The next member that has the vector's last operation to leave, before this one begins; see [`Step::Leave`].
    leaver: usize,
    size: usize,
}

/// Where an operation finds memory, if not in the vector alone.
#[derive(Debug)]
pub(super) enum Elsewhere {
    No,
    /// What a reduce-scatter makes goes there.
    Out(Buffer),
    Outside(Outside),
}

/// Where a write goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// To the member's vector, from this byte on. So below.
    Vector(usize),
    /// From this byte of its landing on.
    Landing(usize),
}

impl Running {
    /// Whom sequences wait for.
    pub(super) fn awaits(&self) -> impl Iterator<Item = usize> + '_ {
        let size = self.size;
        let leaver = Some(self.leaver).filter(|leaver| *leaver < size);
        let sequences = self.at.iter().zip(&self.schedule.sequences);
        let awaited = sequences.filter_map(|(at, sequence)| match sequence.get(*at) {
            Some(Step::Receive { from, .. }) => Some(*from),
            _ => None,
        });
        awaited.filter(move |_| leaver.is_none()).chain(leaver)
    }

    fn is_over(&self) -> bool {
        if self.leaver < self.size {
            return false;
        }
        let mut sequences = self.at.iter().zip(&self.schedule.sequences);
        self.in_flight == 0 && sequences.all(|(at, sequence)| *at == sequence.len())
    }

    /// Bytes of a range of elements.
    pub(super) fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        range.start * self.element_bytes..range.end * self.element_bytes
    }
}

impl Group {
    pub(super) fn begin(
        &mut self,
        id: VectorId,
        bytes: usize,
        call: CollectiveCall,
        memory: Elsewhere,
    ) -> Result<Handle, GroupError> {
        let wrong = |what: String| GroupError::Vector { vector: id.0, what };
        let known = self.vector(id)?;
        if known.busy {
            return Err(wrong("an operation on it is under way; wait for that first".to_string()));
        }
        if known.buffer.write().is_err() {
            return Err(wrong("it is lent; give the loan back first".to_string()));
        }
        let (kind, reducer, element_bytes) = parts(call);
        let size = self.size();
        if let Some(root) = kind.root()
            && root >= size
        {
            return Err(wrong(format!("there is no root {root} among members 0 to {}", size - 1)));
        }
        if bytes > known.buffer.bytes() {
            let all = known.buffer.bytes();
            return Err(wrong(format!(
                "it has {all} bytes, and no first {bytes}; bind a longer one"
            )));
        }
        if element_bytes == 0 || !bytes.is_multiple_of(element_bytes) {
            return Err(wrong(format!("{bytes} bytes are no whole elements of {element_bytes}")));
        }
        let is_outside = matches!(memory, Elsewhere::Outside(_));
        let halves = kind == OperationKind::AllToAll && !is_outside;
        if halves && !(bytes / element_bytes).is_multiple_of(2 * size) {
            return Err(wrong(format!(
                "{bytes} bytes are no two halves of {size} equal parts of elements of {element_bytes}"
            )));
        }
        if reducer.is_some() && element_bytes > BLOCK_BYTES {
            return Err(wrong(format!(
                "elements of more than {BLOCK_BYTES} bytes cannot be reduced"
            )));
        }
        // fits: it was looked up
        let index = id.0 as usize;
        let is_away = self.vectors[index].home.is_some();
        let made =
            self.schedule(index, ScheduleKey { kind, bytes, element_bytes, is_away, is_outside });
        let known = &self.vectors[index];
        let all = known.landing.map_or(0, |landing| landing.bytes);
        // two operations at most are not over everywhere: whatever their lengths, they land in different halves
        let half = all / 2 / ALIGN * ALIGN;
        let room = if made.alternates { half } else { all };
        let needed = made.landing * element_bytes;
        if needed > room {
            return Err(wrong(format!("{needed} bytes would land where there is room for {room}")));
        }
        let (out, outside) = match memory {
            Elsewhere::No => (None, None),
            Elsewhere::Out(out) => (Some(out), None),
            Elsewhere::Outside(outside) => (None, Some(outside)),
        };
        if size == 1 {
            self.alone(index, reducer.as_deref(), bytes, out.as_ref())?;
        }
        let vector = &mut self.vectors[index];
        let turn = if made.alternates { vector.epoch as usize % 2 } else { 0 };
        vector.epoch += 1;
        vector.busy = true;
        let leaver = if vector.others == Others::Leaving { 0 } else { size };
        vector.others = match kind {
            _ if made.is_left => Others::Leaving,
            _ if made.meets => Others::Settled,
            OperationKind::AllReduce if made.alternates => Others::Begun,
            OperationKind::AllReduce => Others::Settled,
            _ => Others::Unknown,
        };
        let handle = self.next_handle();
        let turn_of = match self.options.posted_bytes_max {
            Some(_) => self.running.partition_point(|other| other.vector <= index),
            None => self.running.len(),
        };
        let write_bytes = (bytes / size).min(self.options.segment(size));
        let running = Running {
            handle,
            vector: index,
            reducer,
            out,
            out_from: self.me * (bytes / element_bytes) / size * element_bytes,
            element_bytes,
            at: vec![0; made.sequences.len()],
            landing_offset: turn * half,
            schedule: made,
            in_flight: 0,
            write_bytes,
            outside,
            leaver,
            size,
        };
        self.running.insert(turn_of, running);
        Ok(handle)
    }

    pub(super) fn vector(&self, id: VectorId) -> Result<&Vector, GroupError> {
        let unknown = || GroupError::Vector { vector: id.0, what: "nobody bound it".to_string() };
        self.vectors.get(id.0 as usize).ok_or_else(unknown)
    }

    /// What this member does next on a vector.
    fn schedule(&mut self, vector: usize, key: ScheduleKey) -> Arc<Schedule> {
        // taken out: what is made is asked of the rest of the group
        let mut cache = std::mem::take(&mut self.vectors[vector].schedules);
        let (shape, known) = (self.shape(key), &self.vectors[vector]);
        let make = || match key.is_outside {
            true => through::schedule_of(key, shape),
            false => schedule(self.algorithm_of(known, key.bytes), key.kind, shape),
        };
        let made = cache.get(key, make);
        // whoever is done with an all-reduce knows that all have come, and mostly that all is reduced; else what is
        // written might meet what others have not left or reduced yet
        let knows_enough = match known.others {
            Others::Unknown | Others::Leaving => false,
            Others::Begun => made.plain().alternates,
            Others::Settled => true,
        };
        let asks = !(made.plain().meets || made.plain().is_left);
        let meets =
            asks && key.bytes > 0 && !(key.kind == OperationKind::AllReduce && knows_enough);
        let made = if meets { made.behind_meeting(shape) } else { made.plain() }.clone();
        self.vectors[vector].schedules = cache;
        made
    }

    fn shape(&self, key: ScheduleKey) -> GroupShape<'_> {
        GroupShape {
            size: self.size(),
            me: self.me,
            len: key.bytes / key.element_bytes,
            segment: (self.options.segment(self.size()) / key.element_bytes).max(1),
            window: self.options.window(self.size()),
            rings: self.options.rings(),
            deterministic: self.options.deterministic,
            hosts: &self.hosts,
        }
    }

    /// Lets everything go as far as it can; true if anything has moved.
    pub(super) fn run(&mut self) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut index = 0;
        while index < self.running.len() {
            // taken out while it runs: its steps need the rest of the group
            let mut running = self.running.remove(index);
            let ran = self.run_one(&mut running);
            if running.is_over() {
                self.vectors[running.vector].busy = false;
                self.vectors[running.vector].come_home();
                moved = true;
            } else {
                self.running.insert(index, running);
                index += 1;
            }
            moved |= ran?;
        }
        Ok(moved)
    }

    fn run_one(&mut self, running: &mut Running) -> Result<bool, GroupError> {
        let mut moved = false;
        while running.leaver < running.size {
            let has_left =
                running.leaver == self.me || self.has_come(running.vector, running.leaver, LEAVES);
            if !has_left {
                return Ok(moved);
            }
            running.leaver += 1;
            moved = true;
        }
        for sequence in 0..running.at.len() {
            while running.at[sequence] < running.schedule.sequences[sequence].len() {
                if !self.step(running, sequence)? {
                    break;
                }
                running.at[sequence] += 1;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Does a sequence's next step; false if it must wait.
    fn step(&mut self, running: &mut Running, sequence: usize) -> Result<bool, GroupError> {
        match &running.schedule.sequences[sequence][running.at[sequence]] {
            Step::Send { range, .. }
                if running.bytes(range).len() > SMALL && self.has_posted_enough(running) =>
            {
                return Ok(false);
            }
            Step::Send { to, range, into, tag } => {
                let (counter, bytes) = (counter(sequence, *tag), running.bytes(range));
                let target = match into {
                    Into::Vector => Target::Vector(bytes.start),
                    Into::VectorAt(at) => Target::Vector(at * running.element_bytes),
                    Into::Landing(at) => {
                        Target::Landing(running.landing_offset + at * running.element_bytes)
                    }
                };
                return self.write(running, counter, *to, bytes, target);
            }
            Step::Signal { to, tag } => {
                let counter = counter(sequence, *tag);
                return self.write(running, counter, *to, 0..0, Target::Vector(0));
            }
            Step::Receive { from, tag } => {
                return Ok(self.has_come(running.vector, *from, counter(sequence, *tag)));
            }
            Step::Flush => return Ok(running.in_flight == 0),
            Step::Reduce { range, addends, is_whole } => {
                self.reduce(running, running.bytes(range), addends, *is_whole)?;
            }
            Step::ReduceShared { range, to } => {
                self.reduce_shared(running, running.bytes(range), *to)?
            }
            Step::Pull { from, range, at } => {
                self.pull(running, *from, running.bytes(range), at * running.element_bytes)?;
            }
            Step::Copy { range, at } => {
                self.copy(running, running.bytes(range), at * running.element_bytes)?;
            }
            Step::Stage { from, range } => self.stage(running, *from, running.bytes(range))?,
            Step::Fetch { from, range, to } => {
                self.take(running, *from, running.bytes(range), *to)?;
            }
            Step::Keep { from, to, len } => {
                self.keep(running, *from, *to, len * running.element_bytes)?;
            }
            Step::ReduceStaged { range, own, to, leaves } => {
                self.reduce_staged(running, running.bytes(range), *own, *to, *leaves)?;
            }
            Step::Leave { to } => {
                let (vector, target) = (running.vector, Target::Vector(0));
                return match self.post(vector, UNNEEDED, LEAVES, *to, 0..0, target) {
                    // it needs nothing of this one any more
                    Err(GroupError::Lost { .. }) => Ok(true),
                    posted => posted.map(|posted| posted.is_some()),
                };
            }
        }
        Ok(true)
    }

    /// True if so much is posted that who comes first of those under way, `running` or another, is to post next.
    fn has_posted_enough(&self, running: &Running) -> bool {
        let posted = |of: &Running| of.in_flight.saturating_mul(of.write_bytes);
        let is_enough = |most: usize| {
            let all = self.running.iter().map(posted).sum::<usize>() + posted(running);
            all >= most
        };
        self.options.posted_bytes_max.is_some_and(is_enough)
    }

    /// Takes the next write or signal of a member; false if it has not come.
    pub(super) fn has_come(&mut self, vector: usize, from: usize, counter: usize) -> bool {
        let known = &mut self.vectors[vector];
        let Some(remote) = &known.remotes[from] else { return true };
        let next = known.awaited[counter][from] + 1;
        let has_come = self.fabric.arrived(remote.ours[counter]) >= next;
        if has_come {
            known.awaited[counter][from] = next;
        }
        has_come
    }

    /// Writes bytes of a vector to a member, and signals; false if there is no room for it now.
    fn write(
        &mut self,
        running: &mut Running,
        counter: usize,
        to: usize,
        bytes: Range<usize>,
        target: Target,
    ) -> Result<bool, GroupError> {
        let (vector, token) = (running.vector, running.handle.0);
        let posted = self.post(vector, token, counter, to, bytes, target)?;
        running.in_flight += usize::from(posted == Some(Posted::Queued));
        Ok(posted.is_some())
    }

    /// Posts a write of bytes of a vector; None if there is no room for it now.
    pub(super) fn post(
        &mut self,
        vector: usize,
        token: u64,
        counter: usize,
        to: usize,
        bytes: Range<usize>,
        target: Target,
    ) -> Result<Option<Posted>, GroupError> {
        let known = &mut self.vectors[vector];
        let Some(remote) = &known.remotes[to] else { return Ok(Some(Posted::Done)) };
        // fits: offsets into memory, and bytes of it; so below
        let (region, offset) = match (target, remote.landing) {
            (Target::Vector(at), _) => (remote.vector, remote.offset + at as u64),
            (Target::Landing(at), Some((region, offset))) => (region, offset + at as u64),
            (Target::Landing(_), None) => return Err(failed(&"a member has no place for addends")),
        };
        let epoch = known.sent[counter][to] + 1;
        let channels = &self.channels[to];
        let posted = channels[counter % channels.len()].memcpy_now(Memcpy {
            local: LocalSlice {
                region: &known.region,
                offset: (known.buffer.place().offset + bytes.start) as u64,
            },
            remote: RemoteSlice { region: &self.opened[region].region, offset },
            bytes: bytes.len() as u64,
            direction: Direction::Write,
            signal: Some(Signal { slot: remote.theirs[counter], epoch }),
            token,
        });
        match posted {
            Ok(posted) => {
                known.sent[counter][to] = epoch;
                self.bytes_sent += bytes.len() as u64;
                if self.hosts[to] != self.hosts[self.me] {
                    self.bytes_over_wire += bytes.len() as u64;
                }
                Ok(Some(posted))
            }
            Err(PostError::Full { .. }) => Ok(None),
            Err(PostError::PeerLost { cause, .. }) => Err(self.lost(to, cause)),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Writes of so many bytes go at once: others wait for them no longer than for a signal.
const SMALL: usize = 16 << 10;

/// What a signal is posted with that whoever has left does without: nobody waits for its end, and nothing fails with it.
pub(super) const UNNEEDED: u64 = u64::MAX - 1;

/// What counts signals of [`Step::Leave`].
const LEAVES: usize = TAGS - 1;

/// What counts the writes of a sequence's tag.
fn counter(sequence: usize, tag: Tag) -> usize {
    TAGS * sequence + usize::from(tag == Tag::Second)
}

/// What is done, with what, on elements of how many bytes.
fn parts(call: CollectiveCall) -> (OperationKind, Option<Arc<dyn Reducer>>, usize) {
    let reducing = |kind, reducer: Arc<dyn Reducer>| {
        let element_bytes = reducer.element_bytes();
        (kind, Some(reducer), element_bytes)
    };
    match call {
        CollectiveCall::AllReduce(reducer) => reducing(OperationKind::AllReduce, reducer),
        CollectiveCall::ReduceScatter(reducer) => reducing(OperationKind::ReduceScatter, reducer),
        CollectiveCall::Reduce { root, reducer } => {
            reducing(OperationKind::Reduce { root }, reducer)
        }
        CollectiveCall::AllGather { element_bytes } => {
            (OperationKind::AllGather, None, element_bytes)
        }
        CollectiveCall::Gather { root, element_bytes } => {
            (OperationKind::Gather { root }, None, element_bytes)
        }
        CollectiveCall::Scatter { root, element_bytes } => {
            (OperationKind::Scatter { root }, None, element_bytes)
        }
        CollectiveCall::AllToAll { element_bytes } => {
            (OperationKind::AllToAll, None, element_bytes)
        }
        CollectiveCall::Broadcast { root } => (OperationKind::Broadcast { root }, None, 1),
    }
}
