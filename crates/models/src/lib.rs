//! Graphs of known models, and the data they learn from. Builds graphs and runs none; knows no
//! sessions, no fabric and no threads. Reads only the files it is given.
#![forbid(unsafe_code)]

pub mod data;
mod init;
mod program;
mod scope;
mod zoo;

pub use init::initialise;
pub use program::{ModelCopy, Program, ProgramSpec, Sharing, Variable};
pub use scope::{Mode, Scope};
pub use zoo::{MismatchError, Model};
