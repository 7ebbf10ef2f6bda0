//! What one-sided writes are compared with: gRPC, ZeroMQ and message rings carry what they are given.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod carriers;
mod grpc;
mod grpc_strangers;
mod strangers;
mod tap;
mod zmq;
