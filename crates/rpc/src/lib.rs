//! Remote procedure calls and messages: what one-sided writes are measured against. Knows bytes and
//! addresses; never the zero-copy path. The only room with an asynchronous runtime; its own API blocks,
//! with deadlines.
#![forbid(unsafe_code)]

mod carrier;
mod error;
pub mod grpc;
mod identity;
pub mod ring;
pub mod zmq;

pub use bytes::Bytes;
pub use carrier::{Bell, Carrier, CarrierError, Desk, Sink};
pub use error::RpcError;
pub use identity::{PeerIdentity, PeerToken};
