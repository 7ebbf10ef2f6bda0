//! The store: its messages, its protocol rule by rule and under simulation, its rings, and all of it from
//! end to end.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod codec;
mod protocol;
mod simulation;
mod store;
mod wire;
