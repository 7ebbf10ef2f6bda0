//! What happens in a simulated job, in the order of time.

use std::cmp::Ordering;

use tensorwire_base::Rank;
use tensorwire_fabric::Identity;
use tensorwire_kvstore::proto::SchedulerEvent;

use crate::simulation::network::{Note, Payload};
use crate::simulation::server::{Sending, Snapshot};

/// What happens at a time.
#[derive(Debug)]
pub(super) enum Event {
    Join {
        rank: Rank,
    },
    Arrives {
        from: Identity,
        to: Identity,
        payload: Payload,
    },
    /// A value has left the weights.
    Left {
        server: Rank,
        sending: Sending,
    },
    Durable {
        server: Rank,
        snapshot: Snapshot,
    },
    ToScheduler(SchedulerEvent),
    FromScheduler {
        to: Rank,
        note: Note,
    },
    Timer {
        rank: Rank,
    },
    Heartbeat {
        rank: Rank,
    },
    Tick,
    Start {
        server: u32,
        rank: Rank,
    },
}

/// Ordered by time, and by number at the same time; the earliest is the largest, as a heap wants it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at_ms: u64,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at_ms, other.number).cmp(&(self.at_ms, self.number))
    }
}
