//! Executes one partition of a plan, step after step. It knows plans, buffers and ports; it does not
//! know models, what a gradient means, or how bytes travel.
#![forbid(unsafe_code)]

mod ahead;
mod dynamic;
mod error;
mod executor;
mod frontier;
#[doc(hidden)]
pub mod fuzz;
mod mirrors;
mod one_sided;
mod ports;
mod readers;
mod session;
mod sessions;
mod standing;
mod storage;
mod tail;
mod timeline;
mod under_way;
mod whole;
mod workspace;

pub use dynamic::LaneUse;
pub use error::{AllocError, ConnectEdgesError, ExchangeError, RunError, SessionError};
pub use executor::{Advance, Counters};
pub use mirrors::{Reading, Writing};
pub use one_sided::{OneSided, OneSidedOptions, Opening};
pub use ports::{
    AnnouncedWay, DeviceWay, Events, GroupOps, OnPeer, Ports, Sending, TensorExchange,
};
pub use session::{Computing, Session, SessionOptions};
pub use sessions::{run_sessions, share_memory, share_variables};
pub use standing::{Doing, Standing};
pub use storage::Storage;
pub use timeline::{Event, EventKind, Timeline};
