//! Collective operations: their schedules in a machine of its own, and groups over every fabric, of hosts'
//! buffers and of tensors.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod communicator;
mod group;
mod mail;
mod measure;
mod parts;
mod schedules;
mod support;
mod tensor;
