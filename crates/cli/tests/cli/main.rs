//! The program as its users have it: real processes, and what they leave behind.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod bad_input;
mod bench;
mod checkpoint;
mod checkpoint_async;
mod clients;
mod command_line;
mod data_script;
mod device;
mod device_centre;
mod device_designs;
mod device_groups;
mod device_libraries;
mod device_nccl;
mod device_store;
mod devices;
mod doctor;
mod eval;
mod evaluation;
#[cfg(feature = "baselines")]
mod exchanges;
mod failure;
mod gpu_command;
mod hosts;
mod launchers;
mod learn;
mod lies;
mod limits;
mod link;
mod models;
mod one_tensor;
mod peers;
mod pictures;
mod report;
mod resizing;
mod restarts;
mod show;
mod simulate;
mod status;
mod store;
mod support;
mod takeover;
mod top;
mod trace;
mod train;
mod watch;
