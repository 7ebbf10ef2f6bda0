//! Shared test helpers: the suites that every backend of a seam must pass, and what they stand on.
//! Dev only.

#![forbid(unsafe_code)]
// a suite is test code: what does not hold ends the test
#![allow(clippy::unwrap_used)]

pub mod cpu;
pub mod crowd;
pub mod cuda;
pub mod faults;
pub mod long;
pub mod machine;
pub mod mesh;
pub mod program;
pub mod proxy;
pub mod random;
pub mod shim;
pub mod skip;
pub mod slurm;
pub mod suite;
