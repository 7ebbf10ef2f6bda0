//! The store: its messages, its protocol rule by rule and under simulation, its rings, and all of it from
//! end to end.

mod codec;
mod protocol;
mod simulation;
mod store;
mod wire;
