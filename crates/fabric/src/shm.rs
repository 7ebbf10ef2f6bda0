//! One host: regions are memfds that peers map, so a write is one memcpy: by the thread that
//! posts it, or, for a large payload, by one of the threads that stand for the completion queues.
//! Signals are release stores into the peer's mapped arrival table, and its doorbell is a futex in
//! the same mapping. A Unix socket per peer (abstract: it leaves no file) hands descriptors over and
//! notices the peer's death.
//!
//! Arrival rule: `signal` is a release on an atomic that the reader acquires, after the memcpy in
//! program order of one thread; the lock of a queue pair, and the queue of its copier, make posting
//! order the order of effect.

mod copier;
mod device;
mod progress;
mod queue_pair;
mod region;

pub(crate) use device::{ShmDevice, open};
