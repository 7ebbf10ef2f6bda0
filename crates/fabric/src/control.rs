//! The connection beside the data: one stream socket per peer for messages, region requests,
//! readiness, goodbyes and refusals, and by its end the peer's death. One sleeping thread serves all
//! of them, so that a 16 MiB write never delays a goodbye. Shared by shm, tcp and verbs.

mod frame;
mod link;
mod service;

pub use frame::fuzz_frames;
pub(crate) use frame::{Attached, Frame, Granted};
pub(crate) use link::Link;
pub(crate) use service::{Control, Requests, Suspicion, rank_list};
