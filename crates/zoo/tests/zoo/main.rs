//! The shipped models as programs, and the shipped data in batches.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod balance;
mod batches;
mod cifar;
mod feeds;
mod files;
#[allow(dead_code)] // what the tests of `nn` train with; here one model needs a part of it
#[path = "../../../nn/tests/nn/local.rs"]
mod local;
mod made_images;
mod photos;
mod program;
mod running_text;
mod tables;
mod text;
mod transformers;
