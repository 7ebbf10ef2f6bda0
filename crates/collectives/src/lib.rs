//! Collective operations of a group of processes, over one-sided writes (Mamidala et al., *MXNET-MPI*, §6).
#![forbid(unsafe_code)]

mod error;
mod ports;

pub use error::GroupError;
pub use ports::{Call, Collectives, Fold, GroupStats, Ticket, VectorId};
