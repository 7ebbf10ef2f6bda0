//! Neural networks as data-flow graphs: layers in a [`Scope`], a [`Model`] that is made of them, and the [`Program`] that
//! trains it. Builds graphs and runs none; knows no sessions, no fabric, no threads and no files.
#![forbid(unsafe_code)]

mod init;
mod model;
mod program;
mod scope;

pub use init::{fnv1a, initialise};
pub use model::{Model, Outcome};
pub use program::{ModelCopy, Program, ProgramSpec, Sharing, Variable};
pub use scope::{Mode, Norm, Padding, Scope, WeightInit, glorot, he};
