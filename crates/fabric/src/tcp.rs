//! Any hosts: software one-sided. A queue pair is a socket; a frame says where its payload goes, the
//! receiver's poller checks key and bounds against its own regions and then reads from the socket
//! straight into the region. No staging buffer on either side, but for payload that is encrypted.
//!
//! Arrival rule: the poller raises the slot after the last payload byte was read, on the same thread;
//! frames of one socket are handled in order. A write's completion says that its source may be written again: the kernel has a copy of
//! all its bytes.
//!
//! Beside the queue pairs each peer has a control connection (`control/`), so that a goodbye or a
//! refusal never waits behind data.

mod device;
mod frame;
mod outgoing;
mod progress;
mod queue_pair;
mod receiving;
mod region;

pub(crate) use device::{TcpDevice, open};
pub use frame::fuzz_headers;
pub(crate) use region::{adopt as adopt_private, alloc as alloc_private};

#[cfg(test)]
mod tests;
