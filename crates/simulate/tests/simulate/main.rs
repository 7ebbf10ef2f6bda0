//! The simulator: its engine, and jobs on networks.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod engine;
mod hosts;
mod jobs;
