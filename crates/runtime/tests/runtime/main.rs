//! Sessions: of one process, of several over every fabric, and of jobs that a seed makes. (What measures
//! the whole process's time is a program of its own, `idle`.)
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod between;
mod custom;
mod devices;
mod distributed;
mod dynamic;
mod dynamic_devices;
mod giving_up;
mod group;
mod hazards;
mod host_devices;
mod order;
mod placement;
mod polling;
mod reuse;
mod seeds;
mod session;
mod sites;
mod support;
mod tail;
