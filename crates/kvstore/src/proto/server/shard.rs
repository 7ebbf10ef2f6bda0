//! One shard on its server: what waits, when it may go into the weights, when they may be read. It knows the
//! shard's slots and numbers, and neither its key nor how anything is answered.

use super::WorkerState;
use crate::key::ValueSpec;
use crate::message::RequestId;
use crate::proto::Mode;
use crate::wire::RemotePlace;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) spec: ValueSpec,
    /// The driver has memory for it.
    pub(super) created: bool,
    pub(super) seeded: bool,
    pub(super) version: u64,
    /// Answers whose value is leaving the weights; nothing is applied meanwhile.
    pub(super) readers: usize,
    /// Workers whose slot holds their next round, in order of arrival.
    pending: Vec<usize>,
    /// For each worker.
    pub(super) slots: Vec<Slot>,
}

/// What a shard knows of a worker.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Its rounds that are in the weights.
    pub(super) rounds: u64,
    /// Those of them that are in a snapshot.
    pub(super) durable: u64,
    /// The request whose value is in the slot.
    push: Option<RequestId>,
    /// What is in the slot is some rows.
    is_rows: bool,
    /// An action that the driver has not seen yet reads the slot.
    pub(super) is_due: bool,
    /// The same of the rows that are kept for a pull.
    pub(super) is_pull_due: bool,
    pub(super) pull: Option<Pull>,
    /// The last pull that was answered.
    pulled: Option<RequestId>,
}

/// A pull that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pull {
    pub(super) id: RequestId,
    pub(super) round: u64,
    pub(super) priority: i32,
    pub(super) into: Option<RemotePlace>,
    pub(super) sparse: bool,
}

/// What a push is.
#[derive(Debug)]
pub(super) enum Push {
    /// The next round; its value goes into the slot.
    Taken,
    /// The shard's first value.
    First,
    /// The slot holds it already.
    Waits,
    /// It is in the weights already.
    Known {
        version: u64,
        durable: u64,
    },
    OutOfTurn {
        expected: u64,
    },
    /// Its slot is yet to be read.
    TooSoon,
    /// Others pushed rows in this round, and this worker all, or the other way round.
    Mixed,
}

/// What a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulled {
    /// It waits now.
    Taken,
    /// Nobody waits for its answer.
    Known,
    /// The rows of the one before are yet to be read.
    TooSoon,
}

impl Shard {
    pub(super) fn new(spec: ValueSpec, workers: usize) -> Shard {
        let slots = std::iter::repeat_with(Slot::default).take(workers).collect();
        let (seeded, created) = (false, false);
        Shard { spec, created, seeded, version: 0, readers: 0, pending: Vec::new(), slots }
    }

    pub(super) fn on_push(
        &mut self,
        mode: Mode,
        worker: usize,
        id: RequestId,
        (round, is_rows): (u64, bool),
    ) -> Push {
        let (seeded, version) = (self.seeded, self.version);
        let others = self.pending.first().map(|other| self.slots[*other].is_rows);
        let slot = &mut self.slots[worker];
        let expected = slot.rounds + 1;
        if round == 0 && !seeded && slot.push.is_none() {
            self.seeded = true;
            slot.is_due = true;
            Push::First
        } else if round <= slot.rounds && (round > 0 || seeded) {
            Push::Known { version, durable: slot.durable }
        } else if round != expected {
            Push::OutOfTurn { expected }
        } else if slot.push.is_some() {
            Push::Waits
        } else if slot.is_due {
            Push::TooSoon
        } else if mode == Mode::Sync && others.is_some_and(|others| others != is_rows) {
            Push::Mixed
        } else {
            (slot.push, slot.is_rows) = (Some(id), is_rows);
            self.pending.push(worker);
            Push::Taken
        }
    }

    pub(super) fn on_pull(&mut self, worker: usize, pull: Pull) -> Pulled {
        let slot = &mut self.slots[worker];
        let waits = slot.pull.as_ref().is_some_and(|waiting| pull.id <= waiting.id);
        // What is written in place goes over a wire that loses nothing: the answer is there or on its way,
        // and a second one would be written over what its receiver may be reading.
        let answered = slot
            .pulled
            .is_some_and(|last| pull.id < last || (pull.id == last && pull.into.is_some()));
        if waits || answered {
            return Pulled::Known;
        }
        if pull.sparse && slot.is_pull_due {
            return Pulled::TooSoon;
        }
        slot.pull = Some(pull);
        Pulled::Taken
    }

    /// Makes the next version, if one is due and nobody reads: whose slots it takes in which order, and its
    /// number.
    pub(super) fn apply(
        &mut self,
        mode: Mode,
        workers: &[WorkerState],
    ) -> Option<(Vec<usize>, u64)> {
        if self.readers > 0 || !self.update_is_due(mode, workers) {
            return None;
        }
        let applied = match mode {
            Mode::Sync => {
                self.pending.sort_unstable();
                std::mem::take(&mut self.pending)
            }
            Mode::Async { .. } => vec![self.pending.remove(0)],
        };
        self.version += 1;
        for worker in &applied {
            self.slots[*worker].rounds += 1;
            self.slots[*worker].is_due = true;
        }
        Some((applied, self.version))
    }

    /// The request that brought what was applied for this worker, and how many of its rounds are durable.
    pub(super) fn answer_push(&mut self, worker: usize) -> (Option<RequestId>, u64) {
        let slot = &mut self.slots[worker];
        (slot.push.take(), slot.durable)
    }

    /// Takes a pull that may be answered now, and counts its reader.
    pub(super) fn next_pull(
        &mut self,
        mode: Mode,
        workers: &[WorkerState],
    ) -> Option<(usize, Pull)> {
        // an update that waits for readers would wait for ever if new ones went before it
        if !self.seeded || self.update_is_due(mode, workers) {
            return None;
        }
        let in_from_all = |rounds: u64| {
            let mut live =
                self.slots.iter().zip(workers).filter(|(_, worker_state)| worker_state.alive);
            live.all(|(slot, _)| slot.rounds >= rounds)
        };
        let may_go = |slot: &Slot| {
            let pull = slot.pull.filter(|pull| slot.rounds >= pull.round)?;
            let in_time = match mode {
                Mode::Sync | Mode::Async { max_delay: None } => true,
                Mode::Async { max_delay: Some(delay) } => {
                    in_from_all(pull.round.saturating_sub(delay))
                }
            };
            in_time.then_some(pull)
        };
        let found = self.slots.iter().enumerate();
        let (worker, pull) = found.filter_map(|(w, slot)| Some((w, may_go(slot)?))).next()?;
        self.slots[worker].pull = None;
        self.slots[worker].pulled = Some(pull.id);
        self.slots[worker].is_pull_due |= pull.sparse;
        self.readers += 1;
        Some((worker, pull))
    }

    fn update_is_due(&self, mode: Mode, workers: &[WorkerState]) -> bool {
        let is_there = |worker: usize| self.slots[worker].push.is_some();
        let mut live = workers.iter().enumerate().filter(|(_, worker_state)| worker_state.alive);
        let complete = match mode {
            Mode::Sync => live.all(|(worker, _)| is_there(worker)),
            Mode::Async { .. } => true,
        };
        self.seeded && complete && !self.pending.is_empty()
    }
}
