//! The shipped models as programs, and the shipped data in batches.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod balance;
mod batches;
mod cifar;
mod feeds;
mod files;
mod program;
mod text;
