//! What simulated nodes hand to the world around them, and what it keeps for them.

use std::collections::HashMap;

use tensorwire_base::Rank;
use tensorwire_fabric::Identity;
use tensorwire_kvstore::message::{Reply, Request, RequestId};
use tensorwire_kvstore::proto::SchedulerEvent;

use super::plan::{Fault, Plan};
use super::server::{Sending, Snapshot};
use super::value::{Gradient, Value};

/// A message between a worker and a server, with its value.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Request(Request, Option<Gradient>),
    Reply(Reply, Option<Value>),
}

/// What a launcher says to a node over the control connection.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    Release { barrier: u64 },
    World { alive: Vec<u32> },
    Replaced { server: u32, node: Identity },
}

/// What a node does to the outside.
#[derive(Clone, Debug)]
pub(crate) enum Out {
    Message {
        to: Identity,
        payload: Payload,
    },
    /// A value begins to leave the weights.
    Sending(Sending),
    /// A snapshot is being written.
    Snapshot(Snapshot),
    Scheduler(SchedulerEvent),
    /// Wakes the node at this time.
    Timer(u64),
}

/// What a node is given with an event.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) job: &'a Plan,
    pub(crate) fault: Fault,
    pub(crate) now_ms: u64,
    pub(crate) out: Vec<Out>,
    pub(crate) seen: &'a mut Seen,
    /// Servers whose optimizer some worker knows to be set.
    pub(crate) optimizers: &'a mut Vec<bool>,
    /// How many own rounds a pull asks for.
    pub(crate) pulled: &'a mut HashMap<(Rank, RequestId), u64>,
    /// The snapshots of each server that would survive it, with the life that wrote them.
    pub(crate) disk: &'a mut Vec<Vec<(Identity, Snapshot)>>,
}

/// What a seed showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) forged: u64,
    pub(crate) refused: u64,
    pub(crate) resent: u64,
    pub(crate) direct: u64,
    pub(crate) folds: u64,
    pub(crate) pulls: u64,
    pub(crate) calls: u64,
    pub(crate) barriers: u64,
    pub(crate) worker_deaths: u64,
    pub(crate) server_deaths: u64,
    pub(crate) hung: u64,
    /// Worlds that went on smaller.
    pub(crate) shrunk: u64,
    pub(crate) replaced: u64,
    /// Of these without any snapshot.
    pub(crate) replaced_from_nothing: u64,
    pub(crate) replayed: u64,
    pub(crate) finished: u64,
    pub(crate) ended: u64,
    pub(crate) stuck: u64,
    /// Hash of everything that happened, in order.
    pub(crate) trace: u64,
}

impl Seen {
    /// Folds a word into the trace (FNV-1a, a word at a time).
    pub(crate) fn note(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    /// All counts, by name.
    pub(crate) fn counts(&mut self) -> [(&'static str, &mut u64); 21] {
        [
            ("messages", &mut self.messages),
            ("lost", &mut self.lost),
            ("repeated", &mut self.repeated),
            ("forged", &mut self.forged),
            ("refused", &mut self.refused),
            ("resent", &mut self.resent),
            ("direct", &mut self.direct),
            ("folds", &mut self.folds),
            ("pulls", &mut self.pulls),
            ("calls", &mut self.calls),
            ("barriers", &mut self.barriers),
            ("worker deaths", &mut self.worker_deaths),
            ("server deaths", &mut self.server_deaths),
            ("hung", &mut self.hung),
            ("shrunk", &mut self.shrunk),
            ("replaced", &mut self.replaced),
            ("replaced from nothing", &mut self.replaced_from_nothing),
            ("replayed", &mut self.replayed),
            ("finished", &mut self.finished),
            ("ended", &mut self.ended),
            ("stuck", &mut self.stuck),
        ]
    }

    pub(crate) fn add(&mut self, mut more: Seen) {
        let counts = self.counts().into_iter().zip(more.counts());
        counts.for_each(|((_, to), (_, from))| *to += *from);
    }
}
