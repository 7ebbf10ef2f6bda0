//! Ids, units and deadlines: the words that every crate shares. Knows nothing of tensors, peers or files.
#![forbid(unsafe_code)]

mod deadline;
mod ids;
mod units;

pub use deadline::{Clock, Deadline};
pub use ids::{Incarnation, JobId, Rank};
pub use units::{human_bytes, human_seconds};
