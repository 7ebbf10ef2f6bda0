//! A key-value store of tensors: workers push gradients and pull weights, servers fold and update (ps-lite;
//! Li et al., *Improving the Performance of Distributed MXNet with RDMA*). It knows keys, ranges, versions
//! and roles. It does not know what a gradient means (the update rule is passed in), which graph computed
//! it, or the name of any transport.
//!
//! | layer | what it is |
//! |---|---|
//! | [`proto`] | the protocol as state machines: no socket, no memory, no clock |
//! | [`wire`] | the seam below: messages in rings, values written where they belong |
#![forbid(unsafe_code)]

mod batch;
mod error;
mod key;
pub mod message;
mod partition;
mod pool;
mod ports;
pub mod proto;
mod server;
pub mod wire;
mod worker;

pub use error::StoreError;
pub use key::{Key, PartKey, ValueSpec};
pub use partition::{BIG_ELEMENTS, KeyError, Part, Partition, ServerLoad};
pub use ports::{
    Keep, Membership, PartSnapshot, PushedRows, Reduce, Snapshot, StateTensor, StoreEvent, Update,
};
pub use server::{Checkpoint, Function, KvServer, KvServerOptions, ServerCounters, ServerPorts};
pub use worker::{KvWorker, KvWorkerOptions, Progress, Ticket};
