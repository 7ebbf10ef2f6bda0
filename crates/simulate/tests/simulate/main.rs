//! The simulator: its engine, and jobs on networks.

mod engine;
mod jobs;
