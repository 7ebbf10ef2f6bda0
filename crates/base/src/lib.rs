//! Ids, units and deadlines: the words that every crate shares; names that were meant; how this program is linked; and what
//! threads share. Knows nothing of tensors, peers or files.
#![forbid(unsafe_code)]

mod deadline;
mod ids;
mod linkage;
mod space;
pub mod sync;
mod units;
mod words;

pub use deadline::{Clock, Deadline};
pub use ids::{Incarnation, JobId, Rank};
pub use linkage::{LOADS_NOTHING, LoadsNothing};
pub use space::Space;
pub use units::{counted, human_bytes, human_seconds, number_of};
pub use words::nearest;
