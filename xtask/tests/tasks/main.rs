//! The project's own tasks: that they would complain, and what they say to machines and programs.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod clusters;
mod gpu;
mod licences;
mod peers;
mod release;
mod soft_roce;
mod tidy;
