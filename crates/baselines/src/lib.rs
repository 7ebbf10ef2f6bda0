//! Remote procedure calls and messages: what one-sided writes are measured against. Knows bytes and
//! addresses; never the zero-copy path. The only crate with an asynchronous runtime; its own API blocks,
//! with deadlines.
#![forbid(unsafe_code)]

mod baseline;
mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod grpc;
mod identity;
pub mod messages;
pub mod ring;
mod seals;
mod transport;
pub mod zmq;

pub use baseline::Baseline;
pub use bytes::Bytes;
pub use error::RpcError;
pub use identity::{BadNonce, PeerCredentials, PeerIdentity, PeerNonce};
pub use transport::{Bell, ContentSink, MessageError, MessageSink, MessageTransport};
