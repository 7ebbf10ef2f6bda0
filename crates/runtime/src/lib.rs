//! Executes one partition of a plan, step after step. It knows plans, buffers and ports; it does not
//! know models, what a gradient means, or how bytes travel.
#![forbid(unsafe_code)]

mod dynamic;
mod error;
mod executor;
mod frontier;
mod lanes;
mod one_sided;
mod ports;
mod readers;
mod session;
mod storage;
mod timeline;
mod workspace;

pub use dynamic::LaneUse;
pub use error::{AllocError, ConnectError, ExchangeError, RunError, SessionError};
pub use executor::{Advance, Counters};
pub use lanes::{run_lanes, share_memory, share_variables};
pub use one_sided::{OneSided, OneSidedOptions, Opening};
pub use ports::{Events, Exchange, GroupOps, Ports, Sending};
pub use session::{Session, SessionOptions};
pub use storage::Storage;
pub use timeline::{Event, Timeline, What};
