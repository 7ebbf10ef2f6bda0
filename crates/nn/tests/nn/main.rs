//! Models and data as users bring them: what a batch holds, what a layer computes, and what an error says.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod data;
mod errors;
mod layers;
mod local;
mod outputs;
mod transformer;
