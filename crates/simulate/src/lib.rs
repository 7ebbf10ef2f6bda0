//! What a step of training would take on a cluster that is described, not there: the plan and the schedules that a
//! job would run, in a discrete-event simulation. Pure: no clock, no I/O, the same answer every time.
//!
//! A [`SimulatedJob`] is a plan for few workers and the number of those that there are to be; a [`Network`] says what machines
//! and links can do. [`estimate`] makes activities of them ([`engine`]) that share resources max–min fairly: kernels,
//! reductions and updates share cores and memory, messages share NIC ports and the core of the network, and take of cores
//! what sockets or copies cost. What a step's time goes into is said by [`Component`].
//!
//! # What is grouped, so that thousands of workers take seconds
//! - Machines with like processes do the same at the same time: one stands for all, and what they take of a server's
//!   NIC counts as often as there are such. Of more than a few machines with servers the servers count as apart
//!   (`layout.rs`).
//! - Members of a group do the same at the same time with other peers: one's schedule is read, and like rounds in a
//!   row are one (`collective.rs`).
//! - A host with several workers sends what each of them sends, over one NIC; what goes to a process of the same machine is
//!   read there or copied, and takes nothing of the NIC.
//! - Messages of a worker to a server, and back, go in the order in which they are ready, as on one queue pair.
//!
//! # What is left out
//! Hierarchical all-reduces of machines with unlike numbers of workers, which are done as if nobody shared memory. That workers
//! with weights of their own begin a step while gradients of the one before are reduced: here it begins behind them. That a store's large values
//! go in slices, and that its workers ask for the next step's weights before a step is over: here a share goes whole, when a step begins. Signals
//! without bytes; polling, and what more processes than cores lose to each other's switching; congestion
//! control, which takes time to find the fair share; stragglers: all machines of a kind are equally fast, and so are
//! their processes, step after step, where in truth a step waits for the slowest.
#![forbid(unsafe_code)]

mod cluster;
mod collective;
mod component;
pub mod cost;
pub mod engine;
mod estimate;
mod layout;
mod network;
pub mod paper;
mod step;

pub use component::{Component, Seconds};
pub use estimate::{Estimate, SimulateError, SimulatedJob, SimulatedStrategy, estimate};
pub use network::{
    Link, LocalLink, Network, NetworkError, Rpc, SimulatedExchange, SimulatedMachine,
};
