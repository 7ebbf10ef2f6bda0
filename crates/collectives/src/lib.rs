//! Collective operations of a group of processes, over one-sided writes (Mamidala et al., *MXNET-MPI*, §6).
#![forbid(unsafe_code)]

mod error;
mod group;
mod ports;
pub mod schedule;
mod table;

pub use error::GroupError;
pub use group::{Group, GroupOptions};
pub use ports::{Call, Collectives, Fold, GroupStats, Ticket, VectorId};
pub use schedule::Algorithm;
pub use table::{Row, Table};
