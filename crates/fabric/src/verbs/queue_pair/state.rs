//! Where one queue pair is: its phase, with what only that phase has; what waits and what is in flight; what both
//! ends have counted. Posts nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::failure::Failure;
use super::super::ibv::{self, Address, Path};
use super::super::wire::Note;
use crate::device::Work;

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// Which life this is, or the last one was; from 0.
    pub(super) generation: u32,
    pub(super) in_flight: VecDeque<Posted>,
    pub(super) backlog: VecDeque<Item>,
    /// Go before the backlog, and are under no window.
    pub(super) notes: VecDeque<Note>,
    pub(super) next_id: u64,
    pub(super) signals: Signals,
    pub(super) outage: Outage,
    /// Failures of the path, in all lives, none of which is long behind the one before it; and when the last one was.
    pub(super) path_failures: usize,
    pub(super) path_failed: Option<Instant>,
    pub(super) theirs: Option<Theirs>,
    /// The peer's last word of readiness: the generation.
    pub(super) peer_ready: Option<u32>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Not started yet.
    New(Life),
    Ready(Life),
    /// Waiting for the end of everything that was posted. There is no life where none could be made, or where the
    /// peer was lost between two.
    Draining {
        life: Option<Life>,
        since: Instant,
    },
    /// Waiting before the next try.
    Resting {
        until: Instant,
    },
    /// Waiting for the peer's half, and once connected to it (`joined`), for its word of readiness.
    Rebuilding {
        life: Life,
        joined: bool,
    },
    Closed,
}

/// A queue pair of the NIC, from being made to being destroyed.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) raw: ibv::QueuePair,
    pub(super) first_packet: u32,
    pub(super) sends_free: u32,
    /// Ends of chains that were posted and not told of.
    pub(super) ends_out: u32,
    pub(super) receives_out: u32,
}

/// Signals in all lives.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) sent: u64,
    /// Those that the peer says it took.
    pub(super) peer_took: u64,
    /// The peer's that were taken here, and how many of them it knows of.
    pub(super) taken: u64,
    pub(super) told: u64,
}

/// What is wrong, from the first bad completion to the first good one of a later life.
#[derive(Debug, Default)]
pub(super) struct Outage {
    pub(super) since: Option<Instant>,
    /// Lives that were begun in vain.
    pub(super) attempts: u32,
    /// What went wrong first, in this life.
    pub(super) failure: Option<Failure>,
    /// The request that failed.
    pub(super) faulty: Option<u64>,
}

/// What the peer said of its next life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theirs {
    pub(super) generation: u32,
    pub(super) number: u32,
    pub(super) first_packet: u32,
    pub(super) took: u64,
}

#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) sends: u32,
    pub(super) item: Item,
    /// How many signals had been sent with it.
    pub(super) signal: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Item {
    Memcpy(Work),
    Note(Note),
}

/// A path that carried everything for so long is as good as new.
const FORGIVEN: Duration = Duration::from_secs(60);

impl State {
    /// Failures of the path that still count.
    pub(super) fn path_failures_at(&self, now: Instant) -> usize {
        let is_recent = |failed| now.saturating_duration_since(failed) < FORGIVEN;
        if self.path_failed.is_some_and(is_recent) { self.path_failures } else { 0 }
    }

    /// Before the first life.
    pub(super) fn new() -> State {
        State {
            phase: Phase::Closed,
            generation: 0,
            in_flight: VecDeque::new(),
            backlog: VecDeque::new(),
            notes: VecDeque::new(),
            next_id: 0,
            signals: Signals::default(),
            outage: Outage::default(),
            path_failures: 0,
            path_failed: None,
            theirs: None,
            peer_ready: None,
        }
    }

    /// A completion of this life was good: the outage is over.
    pub(super) fn recovered(&mut self) {
        self.outage.since = None;
        self.outage.attempts = 0;
    }
}

impl Phase {
    pub(super) fn life(&self) -> Option<&Life> {
        match self {
            Phase::New(life) | Phase::Ready(life) | Phase::Rebuilding { life, .. } => Some(life),
            Phase::Draining { life, .. } => life.as_ref(),
            Phase::Resting { .. } | Phase::Closed => None,
        }
    }

    pub(super) fn life_mut(&mut self) -> Option<&mut Life> {
        match self {
            Phase::New(life) | Phase::Ready(life) | Phase::Rebuilding { life, .. } => Some(life),
            Phase::Draining { life, .. } => life.as_mut(),
            Phase::Resting { .. } | Phase::Closed => None,
        }
    }

    /// The life that the phase had. The phase is closed then, until the caller says what comes next.
    pub(super) fn take_life(&mut self) -> Option<Life> {
        match std::mem::replace(self, Phase::Closed) {
            Phase::New(life) | Phase::Ready(life) | Phase::Rebuilding { life, .. } => Some(life),
            Phase::Draining { life, .. } => life,
            Phase::Resting { .. } | Phase::Closed => None,
        }
    }

    /// The number of its life on the NIC; 0 where there is none.
    pub(super) fn number(&self) -> u32 {
        self.life().map_or(0, |life| life.raw.number())
    }
}

impl Life {
    /// Connects it to the peer's: it receives and sends from now on.
    pub(super) fn connect(&self, peer: &Address, path: &Path) -> std::io::Result<()> {
        self.raw.init_to_rtr(peer, path)?;
        self.raw.rtr_to_rts(self.first_packet, path)
    }

    /// True if nothing is posted to the NIC any more.
    pub(super) fn is_drained(&self) -> bool {
        self.ends_out == 0 && self.receives_out == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_path_are_forgiven_once_it_carried_everything_for_a_while() {
        let mut state = State::new();
        let start = Instant::now();
        assert_eq!(state.path_failures_at(start), 0);
        (state.path_failures, state.path_failed) = (3, Some(start));
        assert_eq!(state.path_failures_at(start + FORGIVEN / 2), 3);
        assert_eq!(state.path_failures_at(start + FORGIVEN), 0);
    }
}
