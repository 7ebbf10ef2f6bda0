//! Remote procedure calls and messages of others: what one-sided writes are measured against. Knows bytes
//! and addresses; never the zero-copy path. The only room with an asynchronous runtime; its own API blocks,
//! with deadlines.
#![forbid(unsafe_code)]

mod error;
pub mod grpc;
pub mod zmq;

pub use bytes::Bytes;
pub use error::RpcError;
