//! A worker's side: what goes to which server when, what is sent again, what is replayed to a server that
//! took over. It knows no value: a request's value belongs to its operation, or to (part, round) in the
//! driver's log.
//!
//! At most one push and one pull of a part, and one [`Control`] of a server, are under way at a time.

use super::Control;
use crate::key::{PartKey, ValueSpec};
use crate::message::{Carried, Refusal, Reply, RequestId};
use crate::wire::RemotePlace;

/// What a worker is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// A request without an answer is sent again after this long.
    pub resend_after_ms: u64,
    /// The driver keeps what it pushed until a snapshot holds it, so that a server may be replaced.
    pub keeps_log: bool,
}

/// A request that is to be sent now.
#[derive(Clone, Debug, PartialEq)]
pub struct ToSend {
    pub id: RequestId,
    /// The operation that it belongs to; none: it brings a replaced server up to date.
    pub op: Option<u64>,
    /// It was sent before to this same life of the server. A value that was written in place then is there
    /// and must not be written again: what goes out is the message alone.
    pub again: bool,
    pub what: What,
}

/// What a request says, apart from where its values are.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Init {
        part: PartKey,
        spec: ValueSpec,
    },
    /// With the operation's value, or the log's of this round where there is no operation.
    Push {
        part: PartKey,
        round: u64,
    },
    Pull {
        part: PartKey,
        round: u64,
    },
    Control(Control),
}

/// What an answer means to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// The part is known to its server; pushes may be written to `place`.
    Placed { op: Option<u64>, part: PartKey, place: Option<RemotePlace> },
    /// A push is in. The log of this part is needed beyond round `durable` only; the first value, which is
    /// round 0, until `durable` is 1 or more.
    Folded { op: Option<u64>, part: PartKey, round: u64, version: u64, durable: u64 },
    /// The value of a pull came with the answer or is in place.
    Value { op: u64, part: PartKey, version: u64, value: Carried },
    /// A user's function returned.
    Returned { op: u64, body: Vec<u8> },
    /// An optimizer was set; something was saved or loaded.
    Done { op: u64 },
    /// The operation failed.
    Refused { op: Option<u64>, part: Option<PartKey>, why: Refusal },
    /// A replaced server has `rounds` rounds of this worker's. What would bring it up to date is not in the
    /// log, which starts behind `durable` and ends with `pushed`: it came back from another snapshot than
    /// this worker was told of. Nothing more is sent for this part.
    Unfit { part: PartKey, rounds: u64, durable: u64, pushed: u64 },
}

/// A worker's state.
#[derive(Debug)]
pub struct Worker {}

impl Worker {
    pub fn new(servers: usize, config: WorkerConfig) -> Worker {
        todo!()
    }

    /// Makes a part known to its server, which must be before its first push or pull.
    pub fn init(&mut self, op: u64, server: usize, part: PartKey, spec: ValueSpec) {
        todo!()
    }

    /// Gives a part its first value, as round 0; ignored by the server where it has one.
    pub fn seed(&mut self, op: u64, part: PartKey, priority: i32) {
        todo!()
    }

    /// Pushes; returns the round. The value stays as it is until [`WorkerEvent::Folded`].
    pub fn push(&mut self, op: u64, part: PartKey, priority: i32) -> u64 {
        todo!()
    }

    /// Pulls a value that holds all that was pushed before.
    pub fn pull(&mut self, op: u64, part: PartKey, priority: i32) {
        todo!()
    }

    /// Asks something of a whole server.
    pub fn ask(&mut self, op: u64, server: usize, what: Control) {
        todo!()
    }

    /// The next request that may go to this server now: what is due again first, then by priority (larger
    /// first), and in order within a part.
    pub fn poll(&mut self, server: usize, now_ms: u64) -> Option<ToSend> {
        todo!()
    }

    /// Takes an answer; none: nobody waits for it.
    pub fn on_reply(&mut self, server: usize, reply: &Reply) -> Option<WorkerEvent> {
        todo!()
    }

    /// Another process took over from this server's last snapshot: it is told of every part again, and, where
    /// it stands behind, gets the log and then everything unanswered.
    pub fn on_replaced(&mut self, server: usize) {
        todo!()
    }

    /// When [`Worker::poll`] has something to send again, in ms.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        todo!()
    }
}
