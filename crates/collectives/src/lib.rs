//! Collective operations of a group of processes, over one-sided writes: all-reduce, reduce-scatter, all-gather, gather,
//! scatter, all-to-all, broadcast, reduce and barrier (Mamidala et al., *MXNET-MPI*, §6). It knows ranks, ranges and schedules. It does not
//! know what an element is (the reduction is passed in), or the name of any transport.
//!
//! # A walk through
//! A [`Group`] is opened by all its members over a connected fabric. Vectors lie in memory of
//! [`Collectives::alloc`] and are bound once, by all members in the same order, which exchanges their addresses; from
//! then on an operation is writes and signals alone. [`Collectives::start`] begins one in place and returns a
//! [`Handle`]; what is under way moves in [`Collectives::progress`], and operations on different vectors go side by
//! side, started in any order. [`Collectives::start_part`] begins one on the first bytes of a vector: memory that is
//! bound once, with room for the longest, serves operations of any length.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tensorwire_base::Deadline;
//! use tensorwire_collectives::{CollectiveCall, Collectives, Reducer, GroupError};
//! use tensorwire_memory::Buffer;
//!
//! fn mean(
//!     group: &mut dyn Collectives,
//!     gradient: &Buffer,
//!     mean: Arc<dyn Reducer>,
//! ) -> Result<(), GroupError> {
//!     let soon = Deadline::after(Duration::from_secs(10));
//!     let vectors = group.bind(std::slice::from_ref(gradient), soon)?;
//!     // … compute the gradient …
//!     let handle = group.start(vectors[0], CollectiveCall::AllReduce(mean))?;
//!     // … compute something else …
//!     group.wait(handle, soon)
//! }
//! ```
//!
//! # Messages between two members
//! Behind [`Group::open_mail`] a member sends a buffer to another by [`Group::send`], with a tag by which that one
//! receives it, from it or from any ([`Group::receive`]). They move in [`Collectives::progress`], too, and their handles are
//! waited for alike. How they go says [`mail`].
//!
//! # How it is made
//! [`schedule`] makes of an [`Algorithm`], the size and the length what each member sends, awaits and reduces: pure data.
//! Which algorithm suits how many members and bytes says a [`Table`] that was measured, or the model of a [`LinkCost`]. A [`Group`] runs schedules: a step is one
//! one-sided write with a signal, the wait for one, or a reduction. Three rules keep writes and reductions apart without
//! a round trip: an all-reduce is over nowhere before every member has begun it, so the next one on that vector may begin
//! at once. Nor is it before every addend is reduced, but where vectors are exchanged: the next one that exchanges them
//! lands in another half of the room, whatever its length, and any other waits for all. And before and after anything
//! else members meet. What was sent lies still until it has left.
//!
//! With `deterministic`, whoever owns a piece gets every member's addend and reduces them in the order of members: the
//! same bits with every algorithm, segment and transport, for as many bytes on the wire.
#![forbid(unsafe_code)]

pub mod communicator;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod link;
pub mod mail;
mod ports;
pub mod schedule;
mod table;
mod tensor;

pub use communicator::{Communicator, CommunicatorError};
pub use error::GroupError;
pub use group::{Group, GroupOptions, MemorySpot, NOTICE_BYTES, NOTICES, Outside, Watch};
pub use link::LinkCost;
pub use mail::{MailError, Received};
pub use ports::{
    CollectiveCall, Collectives, ElementType, GroupStats, Handle, Plain, ReduceOp, Reducer,
    VectorId,
};
pub use schedule::Algorithm;
pub use table::{Row, Table};
pub use tensor::{Design, Devices, TensorGroup, TensorId, Work};
