//! Running schedules: each lane goes as far as it can, and nothing waits here.

use std::ops::Range;
use std::sync::Arc;

use tensorwire_fabric::{Direction, LocalSlice, Memcpy, PostError, Posted, RemoteSlice, Signal};

use super::fold::BLOCK_BYTES;
use super::{Group, MAX_LANES, STREAMS, failed};
use crate::error::GroupError;
use crate::ports::{Call, Collectives, Fold, Ticket, VectorId};
use crate::schedule::{Into, Kind, Schedule, Shape, Step, Stream, schedule};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) ticket: Ticket,
    pub(super) vector: usize,
    pub(super) fold: Option<Arc<dyn Fold>>,
    pub(super) element_bytes: usize,
    schedule: Arc<Schedule>,
    /// Where each lane is.
    at: Vec<usize>,
    /// Writes that were posted and are not over.
    pub(super) in_flight: usize,
    /// Bytes from the landing's start on where this one's addends land.
    pub(super) landing_offset: usize,
}

/// What the schedule of a vector was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleKey {
    kind: Kind,
    element_bytes: usize,
    /// All wait for all before anything else.
    meets: bool,
}

/// Where a write goes.
#[derive(Clone, Copy)]
enum Target {
    /// To the same bytes of the member's vector.
    Vector,
    /// From this byte of its landing on.
    Landing(usize),
}

impl Running {
    /// Whom lanes wait for.
    pub(super) fn awaits(&self) -> impl Iterator<Item = usize> + '_ {
        let lanes = self.at.iter().zip(&self.schedule.lanes);
        lanes.filter_map(|(at, lane)| match lane.get(*at) {
            Some(Step::Receive { from, .. }) => Some(*from),
            _ => None,
        })
    }

    fn is_over(&self) -> bool {
        let mut lanes = self.at.iter().zip(&self.schedule.lanes);
        self.in_flight == 0 && lanes.all(|(at, lane)| *at == lane.len())
    }

    /// Bytes of a range of elements.
    pub(super) fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        range.start * self.element_bytes..range.end * self.element_bytes
    }
}

impl Group {
    pub(super) fn begin(&mut self, id: VectorId, call: Call) -> Result<Ticket, GroupError> {
        let wrong = |what: String| GroupError::Vector { vector: id.0, what };
        let index = id.0 as usize;
        let known = self.vectors.get(index).ok_or_else(|| wrong("nobody bound it".to_string()))?;
        if known.busy {
            return Err(wrong("an operation on it is under way; wait for that first".to_string()));
        }
        if known.buffer.write().is_err() {
            return Err(wrong("it is lent; give the loan back first".to_string()));
        }
        let (kind, fold, element_bytes) = parts(call);
        let (size, bytes) = (self.size(), known.buffer.bytes());
        if let Kind::Broadcast { root } | Kind::Reduce { root } = kind
            && root >= size
        {
            return Err(wrong(format!("there is no root {root} among members 0 to {}", size - 1)));
        }
        if element_bytes == 0 || !bytes.is_multiple_of(element_bytes) {
            return Err(wrong(format!("{bytes} bytes are no whole elements of {element_bytes}")));
        }
        if fold.is_some() && element_bytes > BLOCK_BYTES {
            return Err(wrong(format!(
                "elements of more than {BLOCK_BYTES} bytes cannot be folded"
            )));
        }
        let made = self.schedule(index, kind, element_bytes);
        let turns = if made.alternates { 2 } else { 1 };
        let needed = turns * made.landing * element_bytes;
        let room = self.landing_bytes_max(self.vectors[index].algorithm, bytes);
        if needed > room {
            return Err(wrong(format!("{needed} bytes would land where there is room for {room}")));
        }
        if size == 1 {
            self.alone(index, fold.as_deref())?;
        }
        let vector = &mut self.vectors[index];
        // two operations at most are not over everywhere
        let turn = if made.alternates { vector.epoch as usize % 2 } else { 0 };
        vector.epoch += 1;
        vector.busy = true;
        vector.is_settled = kind == Kind::AllReduce;
        let ticket = Ticket(self.started);
        self.started += 1;
        self.running.push(Running {
            ticket,
            vector: index,
            fold,
            element_bytes,
            at: vec![0; made.lanes.len()],
            landing_offset: turn * made.landing * element_bytes,
            schedule: made,
            in_flight: 0,
        });
        Ok(ticket)
    }

    /// As it was made for the same before: short vectors would take longer to be scheduled than to be folded.
    fn schedule(&mut self, vector: usize, kind: Kind, element_bytes: usize) -> Arc<Schedule> {
        let known = &self.vectors[vector];
        // whoever is done with an all-reduce knows that all have come, and what they folded; else what is written
        // might meet what others have not left or folded yet
        let is_settled = known.is_settled && kind == Kind::AllReduce;
        let meets = !is_settled && known.buffer.bytes() > 0;
        let key = ScheduleKey { kind, element_bytes, meets };
        if let Some((_, made)) = known.schedules.iter().find(|(of, _)| *of == key) {
            return made.clone();
        }
        let made = Arc::new(self.make_schedule(vector, key));
        self.vectors[vector].schedules.push((key, made.clone()));
        made
    }

    fn make_schedule(&self, vector: usize, key: ScheduleKey) -> Schedule {
        let ScheduleKey { kind, element_bytes, meets } = key;
        let known = &self.vectors[vector];
        let shape = Shape {
            size: self.size(),
            me: self.me,
            len: known.buffer.bytes() / element_bytes,
            segment: (self.options.segment_bytes / element_bytes).max(1),
            window: self.options.window(self.size()),
            rings: self.options.rings.clamp(1, MAX_LANES),
            deterministic: self.options.deterministic,
        };
        let mut made = schedule(known.algorithm, kind, shape);
        if meets {
            for lane in &mut made.lanes {
                let mut steps = shape.meet();
                steps.append(lane);
                *lane = steps;
            }
        }
        made
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
        for lane in 0..running.at.len() {
            while running.at[lane] < running.schedule.lanes[lane].len() {
                if !self.step(running, lane)? {
                    break;
                }
                running.at[lane] += 1;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Does a lane's next step; false if it must wait.
    fn step(&mut self, running: &mut Running, lane: usize) -> Result<bool, GroupError> {
        match &running.schedule.lanes[lane][running.at[lane]] {
            Step::Send { to, range, into, stream } => {
                let target = match into {
                    Into::Vector => Target::Vector,
                    Into::Landing(at) => {
                        Target::Landing(running.landing_offset + at * running.element_bytes)
                    }
                };
                let (counter, bytes) = (counter(lane, *stream), running.bytes(range));
                return self.send(running, counter, *to, bytes, target);
            }
            Step::Signal { to, stream } => {
                let counter = counter(lane, *stream);
                return self.send(running, counter, *to, 0..0, Target::Vector);
            }
            Step::Receive { from, stream } => {
                let counter = counter(lane, *stream);
                let known = &mut self.vectors[running.vector];
                let Some(remote) = &known.remotes[*from] else { return Ok(true) };
                let next = known.awaited[counter][*from] + 1;
                let has_come = self.fabric.arrived(remote.ours[counter]) >= next;
                if has_come {
                    known.awaited[counter][*from] = next;
                }
                return Ok(has_come);
            }
            Step::Flush => return Ok(running.in_flight == 0),
            Step::Fold { range, addends, is_whole } => {
                self.fold(running, running.bytes(range), addends, *is_whole)?;
            }
            Step::FoldShared { range, to } => {
                self.fold_shared(running, running.bytes(range), *to)?
            }
            Step::Pull { from, range } => self.pull(running, *from, running.bytes(range))?,
        }
        Ok(true)
    }

    /// Writes bytes of a vector to a member, and signals; false if there is no room for it now.
    fn send(
        &mut self,
        running: &mut Running,
        counter: usize,
        to: usize,
        bytes: Range<usize>,
        target: Target,
    ) -> Result<bool, GroupError> {
        let posted = self.post(running, counter, to, bytes, target)?;
        running.in_flight += usize::from(posted == Some(Posted::Queued));
        Ok(posted.is_some())
    }

    fn post(
        &mut self,
        running: &Running,
        counter: usize,
        to: usize,
        bytes: Range<usize>,
        target: Target,
    ) -> Result<Option<Posted>, GroupError> {
        let known = &mut self.vectors[running.vector];
        let Some(remote) = &known.remotes[to] else { return Ok(Some(Posted::Done)) };
        // fits: offsets into memory, and bytes of it; so below
        let (region, offset) = match (target, remote.landing) {
            (Target::Vector, _) => (remote.vector, remote.offset + bytes.start as u64),
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
            token: running.ticket.0,
        });
        match posted {
            Ok(posted) => {
                known.sent[counter][to] = epoch;
                self.bytes_sent += bytes.len() as u64;
                Ok(Some(posted))
            }
            Err(PostError::Full { .. }) => Ok(None),
            Err(PostError::PeerLost { cause, .. }) => Err(self.lost(to, cause)),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// What counts the writes of a lane's stream.
fn counter(lane: usize, stream: Stream) -> usize {
    STREAMS * lane + usize::from(stream == Stream::Second)
}

/// What is done, with what, on elements of how many bytes.
fn parts(call: Call) -> (Kind, Option<Arc<dyn Fold>>, usize) {
    let folding = |kind, fold: Arc<dyn Fold>| {
        let element_bytes = fold.element_bytes();
        (kind, Some(fold), element_bytes)
    };
    match call {
        Call::AllReduce(fold) => folding(Kind::AllReduce, fold),
        Call::ReduceScatter(fold) => folding(Kind::ReduceScatter, fold),
        Call::Reduce { root, fold } => folding(Kind::Reduce { root }, fold),
        Call::AllGather { element_bytes } => (Kind::AllGather, None, element_bytes),
        Call::Broadcast { root } => (Kind::Broadcast { root }, None, 1),
    }
}
