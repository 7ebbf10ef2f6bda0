//! The protocol as state machines. They own no socket, no memory and no clock: events carry the time, actions
//! say what to do, and the same machines run in a driver over a fabric and in a simulation over a network
//! that loses, repeats and delays what it likes.

mod scheduler;
mod server;
mod worker;

pub use scheduler::{Role, Scheduler, SchedulerAction, SchedulerEvent, SchedulerOptions};
pub use server::{Server, ServerAction, ServerConfig, ServerState, ShardState, Taken};
pub use worker::{RequestBody, ToSend, Worker, WorkerEvent};

use serde::{Deserialize, Serialize};

use crate::message::Ask;

/// When a push becomes part of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Once every live worker's push of the round is there: one update a round.
    Sync,
    /// On arrival. With `max_delay` d, a pull of a worker that pushed c rounds waits until c − d rounds of
    /// every live worker are in (Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel
    /// Parameter Server*).
    Async { max_delay: Option<u64> },
}

/// What a worker asks of a whole server. A worker has one of these under way with each server at a time, so
/// that a server needs to remember only its last answer to each.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    SetOptimizer { bytes: Vec<u8> },
    Call { head: u32, body: Vec<u8> },
    Save { path: String },
    Load { path: String },
}

impl Control {
    /// Bytes of what a user says in it, which no other request has.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Control::SetOptimizer { bytes } => bytes.len(),
            Control::Call { body, .. } => body.len(),
            Control::Save { path } | Control::Load { path } => path.len(),
        }
    }
}

impl From<Control> for Ask {
    fn from(control: Control) -> Ask {
        match control {
            Control::SetOptimizer { bytes } => Ask::SetOptimizer { bytes },
            Control::Call { head, body } => Ask::Call { head, body },
            Control::Save { path } => Ask::Save { path },
            Control::Load { path } => Ask::Load { path },
        }
    }
}
