//! A server's side: which push goes into which version, who is answered when, what survives a death. It
//! knows no value, only that one is in a slot; the driver carries its actions out at once and in order.
//!
//! What it remembers is bounded: for each part and worker one push that waits, one pull that waits and
//! numbers; for each worker the last answer to a [`Control`]. An answer to a push is made again from the numbers.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tensorwire_fabric::Member;

use super::{Control, Mode};
use crate::key::{PartKey, ValueSpec};
use crate::message::{Answer, Reply, Request, RequestId};
use crate::wire::RemotePlace;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub mode: Mode,
    /// Who may push and pull; a worker's index here is its number, and the order in which pushes are folded.
    pub workers: Vec<Member>,
    /// The keys of the parts that belong to this server.
    pub range: Range<u64>,
}

/// Everything that a server knows but the bytes of the values and of the optimizer's state: with those, a
/// snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerState {
    /// Rank and incarnation of each worker. Another life of a worker starts at round 1 again.
    pub workers: Vec<(u32, u64)>,
    pub parts: Vec<PartState>,
    /// The last [`Ask::SetOptimizer`](crate::message::Ask::SetOptimizer).
    pub optimizer: Option<Vec<u8>>,
    /// For each worker the number of its last [`Control`] that was done, and the answer.
    pub controls: Vec<Option<(RequestId, Answer)>>,
}

/// A part in a [`ServerState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartState {
    pub part: PartKey,
    pub spec: ValueSpec,
    /// It has a value; else its weights are not to be saved.
    pub seeded: bool,
    /// Updates so far.
    pub version: u64,
    /// For each worker the rounds that are in.
    pub rounds: Vec<u64>,
}

/// What the driver does with the values that came with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A push: value and rows go into the sender's slot of the part, before the next [`Server::poll`]. A
    /// pull: its rows are kept for the sender and part until the [`ServerAction::Send`].
    Store,
    /// A repetition, or refused: nothing is kept.
    Drop,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerAction {
    /// Weights, and a slot for every worker, of a new part.
    Create { part: PartKey, spec: ValueSpec },
    /// Answers [`Answer::Placed`] with this worker's slot and `rounds`.
    Place { to: Member, id: RequestId, part: PartKey, rounds: u64 },
    /// The worker's slot is the first value of the weights.
    Seed { part: PartKey, worker: usize },
    /// One update with the slots of these workers, in this order, makes `version`.
    Fold { part: PartKey, workers: Vec<usize>, version: u64 },
    /// An answer without a value.
    Reply { to: Member, reply: Reply },
    /// Answers [`Answer::Value`] with the weights as they are now, or with the rows kept for this worker
    /// where `sparse`. The driver calls [`Server::on_sent`] when they may change again.
    Send {
        to: Member,
        id: RequestId,
        part: PartKey,
        version: u64,
        into: Option<RemotePlace>,
        sparse: bool,
    },
    /// Does it and calls [`Server::on_done`], which answers. No value is being sent during a load.
    Control { from: Member, id: RequestId, what: Control },
}

/// A server's state.
#[derive(Debug)]
pub struct Server {}

impl Server {
    pub fn new(config: ServerConfig) -> Server {
        todo!()
    }

    /// The server that a snapshot describes; the driver makes the parts' weights and slots itself. All of
    /// `config.workers` are taken to live until [`Server::on_world`].
    pub fn restored(config: ServerConfig, state: ServerState) -> Server {
        todo!()
    }

    /// What a snapshot holds beside the values. Taken when [`Server::poll`] has nothing more, or nothing but
    /// answers.
    pub fn state(&self) -> ServerState {
        todo!()
    }

    /// Takes a request.
    pub fn on_request(&mut self, from: Member, request: &Request) -> Taken {
        todo!()
    }

    /// An answer's value has left the weights of this part, or its receiver is lost: once per
    /// [`ServerAction::Send`].
    pub fn on_sent(&mut self, part: PartKey) {
        todo!()
    }

    /// A [`ServerAction::Control`] was done: [`Answer::Done`], [`Answer::Returned`] or a refusal. Whoever
    /// takes snapshots takes one between this and the next [`Server::poll`] for whatever a replacement
    /// cannot do without: an optimizer, a load.
    pub fn on_done(&mut self, from: Member, id: RequestId, answer: Answer) {
        todo!()
    }

    /// Only these workers live now. What the others had pushed whole still counts; nobody waits for them.
    pub fn on_world(&mut self, alive: &[Member]) {
        todo!()
    }

    /// A snapshot with this state will survive this server.
    pub fn on_snapshot(&mut self, state: &ServerState) {
        todo!()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ServerAction> {
        todo!()
    }
}
