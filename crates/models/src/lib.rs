//! Graphs of known models, and the data they learn from. Builds graphs and runs none; knows no
//! sessions, no fabric and no threads. Reads only the files it is given.
#![forbid(unsafe_code)]

pub mod data;
mod init;
mod mlp;
mod program;
mod scope;

pub use init::initialise;
pub use program::{Model, Optimizer, Program, ProgramSpec, Replica, Variable};
pub use scope::Scope;
