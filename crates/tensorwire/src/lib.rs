//! tensorwire: distributed deep learning in which a remote machine is just a device.
//!
//! This facade re-exports the rooms of the project. A user of the fabric alone starts at
//! [`fabric::Fabric`]; a user of the runtime builds a [`graph::Graph`], has it placed and planned, and
//! runs it in a [`runtime::Session`]; a job of several processes is launched by [`launch::launch`]; a store of
//! tensors that they share is [`kvstore`], and `examples/kvstore.rs` a program that uses it; what they fold and spread among
//! themselves is [`collectives`].
#![forbid(unsafe_code)]

pub mod program;

pub use tensorwire_base as base;
pub use tensorwire_collectives as collectives;
pub use tensorwire_fabric as fabric;
pub use tensorwire_graph as graph;
pub use tensorwire_kernels as kernels;
pub use tensorwire_kvstore as kvstore;
pub use tensorwire_launch as launch;
pub use tensorwire_memory as memory;
#[cfg(feature = "mpi")]
pub use tensorwire_mpi as mpi;
pub use tensorwire_nn as nn;
pub use tensorwire_runtime as runtime;
pub use tensorwire_tensor as tensor;
pub use tensorwire_train as train;
pub use tensorwire_zoo as zoo;
