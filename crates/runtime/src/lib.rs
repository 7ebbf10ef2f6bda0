//! Executes one partition of a plan, step after step. It knows plans, buffers and ports; it does not
//! know models, what a gradient means, or how bytes travel.
#![forbid(unsafe_code)]

mod error;
mod executor;
mod frontier;
mod one_sided;
mod ports;
mod session;
mod storage;
mod timeline;

pub use error::{ConnectError, ExchangeError, RunError, SessionError};
pub use executor::Counters;
pub use one_sided::OneSided;
pub use ports::{Exchange, Sending};
pub use session::{Session, SessionOptions};
pub use storage::Storage;
pub use timeline::{Event, Timeline, What};
