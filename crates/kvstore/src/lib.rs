//! A key-value store of tensors: workers push gradients and pull weights, servers sum and update (ps-lite;
//! Li et al., *Improving the Performance of Distributed MXNet with RDMA*). It knows keys, ranges, versions
//! and roles. It does not know what a gradient means (the update rule is passed in), which graph computed
//! it, or the name of any transport.
//!
//! # A walk through
//! A value has a [`Key`] and a [`ValueSpec`]: rows of as many columns, of any type. [`Partition`] says which
//! server has it: small values take turns, large ones are cut between two rows and lie on all.
//!
//! A worker's end is a [`KvWorker`]. Every worker calls [`KvWorker::init`] for all keys, and one of them gives
//! the first values; then [`push`](KvWorker::push), [`pull`](KvWorker::pull) and
//! [`pushpull`](KvWorker::pushpull) take lists of keys and, for each, a tensor of every local device. Tables go
//! by rows with [`push_rows`](KvWorker::push_rows) and [`pull_rows`](KvWorker::pull_rows). Each call returns a
//! [`KvHandle`] at once; [`KvWorker::wait`] waits for it, [`KvWorker::news`] tells when tensors may be written
//! again. Nothing runs in the background: what is under way moves whenever the worker is called. Operations on
//! a key are done in the order of their calls; between keys, a larger priority goes first.
//!
//! A server's end is a [`KvServer`]: it is given an [`Updater`] rule and [`serve`](KvServer::serve)s until all
//! workers have left. Users [`register`](KvServer::register) functions of their own, for
//! [`KvWorker::call`]. [`proto::Mode`] says when a push is in: with everybody's of its round (`dist_sync`), on
//! arrival (`dist_async`), or between the two, when nobody is further ahead than a bound.
//! [`KvWorker::local`] is a store in one process with the same results.
//!
//! ```
//! use std::time::Duration;
//! use tensorwire_base::Deadline;
//! use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
//! use tensorwire_tensor::DType;
//!
//! fn step(store: &mut KvWorker) -> Result<(), StoreError> {
//!     let soon = Deadline::after(Duration::from_secs(10));
//!     let spec = ValueSpec::dense(DType::F32, 1000);
//!     let (gradient, weights) = (store.alloc(&spec)?, store.alloc(&spec)?);
//!     let handle = store.init(&[(Key(0), spec)], Some(&[weights.clone()]))?;
//!     store.wait(handle, soon)?;
//!     // a tensor of memory that the store gave is not copied on its way
//!     let handle = store.pushpull(&[Key(0)], &[vec![gradient]], &[vec![weights]], 0)?;
//!     store.wait(handle, soon)
//! }
//! ```
//!
//! # How it is made
//! | layer | what it is | Li et al. |
//! |---|---|---|
//! | [`proto`] | the protocol as state machines: no socket, no memory, no clock | §2, and what ps-lite promises |
//! | [`message`] | what is said: requests that can be sent again and again | |
//! | [`wire`] | the seam below: messages of several blocks in reused rings of registered memory, one write for all that wait; large values written straight into the server's accumulation buffer | §3.2–3.4, Table 1 |
//!
//! With a [`Checkpoint`], a server writes snapshots (the first as soon as all shards have their first values), and
//! workers keep what they pushed since: a server that takes over ([`KvServer::restored`]) is brought up to date
//! by them, with no push lost and none counted twice.
#![forbid(unsafe_code)]

mod batch;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod key;
pub mod message;
mod partition;
mod pool;
mod ports;
pub mod proto;
mod server;
mod transfer;
pub mod wire;
mod worker;

pub use error::StoreError;
pub use key::{Key, ShardKey, ValueSpec};
pub use partition::{BIG_ELEMENTS, KeyError, Partition, ServerLoad, Shard};
pub use ports::{
    DeviceMark, DeviceReach, DeviceRows, Keep, Membership, MembershipEvent, PushedRows, Reduce,
    ShardSnapshot, Snapshot, StateTensor, StoreDevice, Updater,
};
pub use server::{
    Checkpoint, Function, KvServer, KvServerOptions, ServerCounters, ServerPorts, ServerStanding,
    Serving,
};
pub use transfer::{TransferMode, TransferThresholds};
pub use worker::{KvHandle, KvProgress, KvWorker, KvWorkerOptions};
