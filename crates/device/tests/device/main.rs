//! A GPU by a driver: one suite, which runs on the driver without a GPU always, and on the machine's own where there is
//! one. Each test is a process of its own, as faults and lost GPUs are a process's.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // test code: what does not hold ends the test

mod captures;
mod cudnn;
mod describing;
mod faults;
mod header;
mod kernels;
mod libraries;
mod memory;
mod nccl;
mod nvrtc;
mod streams;
mod support;
mod words;
