//! gRPC over plaintext HTTP/2 and TCP, at its best: tonic and prost, message limits lifted, windows and
//! frames as large as they may be, and of each tensor no copy but those of the codec and the transport.
//! One unary call, `Push(Tensor) returns (Done)`; knows not what a tensor means. [`GrpcStyle::Bare`] leaves
//! the codec out, too: what is on the wire is the same. What a call is, and whose, is sealed in its metadata, which comes first:
//! a stranger's is refused before its content is read.
//!
//! What crosses, in protobuf's own language:
//!
//! ```text
//! syntax = "proto3";
//! package tensorwire;
//! message Tensor { bytes content = 1; }
//! message Done {}
//! service Exchange { rpc Push(Tensor) returns (Done); }
//! ```

mod bare;
mod client;
mod message;
mod server;
mod transport;

pub use client::{GrpcCalls, GrpcClient};
pub(crate) use message::fuzz_tensors;
pub use server::GrpcServer;
pub use transport::{GrpcStyle, GrpcTransport};

/// Of tonic. None where this crate was not built among its siblings.
pub const VERSION: Option<&str> = option_env!("TENSORWIRE_TONIC");

/// The one method.
const PUSH: &str = "/tensorwire.Exchange/Push";

/// Bytes that may be on their way before the receiver has taken any: as much as HTTP/2 allows, so that
/// flow control never waits for a round trip.
const WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Bytes of the largest HTTP/2 frame.
const FRAME_BYTES: u32 = 1 << 20;
