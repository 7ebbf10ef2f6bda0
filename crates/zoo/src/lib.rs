//! Known models, and the data they learn from. Uses [`tensorwire_nn`] as anybody does; knows no sessions, no fabric
//! and no threads. Reads only the files it is given.
#![forbid(unsafe_code)]

pub mod data;
mod models;

pub use models::{MismatchError, Model, OnSamples};
