//! The passes over graphs, and the plans made of them.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod custom;
mod expand;
mod hosts;
mod networks;
mod passes;
mod placement;
mod plan;
mod reduce;
mod rings;
mod spaces;
mod wire;
