//! What a group needs of the outside, and what the outside needs of it.

use std::fmt::Debug;
use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_memory::{Buffer, Copies, Slab};

use crate::error::GroupError;

/// How elements are put together. Passed in: a group knows bytes, and no types.
pub trait Reducer: Debug + Send + Sync {
    /// Bytes of an element; no range divides one.
    fn element_bytes(&self) -> usize;

    /// into ← `parts[0] ∘ parts[1] ∘ …`, in this order, element by element. Everything is of one length.
    /// `whole`: with these, the addends of all members are reduced, so many, and `into` is the result; of a
    /// mean, this is where it is divided.
    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>);

    /// into ← from ∘ into; `whole` as in [`Reducer::reduce`].
    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>);

    /// What it is, if it is nothing but this: for a group that can do better than to call it, since whoever
    /// moves the bytes knows such elements.
    fn plain(&self) -> Option<Plain> {
        None
    }
}

/// A reduction that others know, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    pub element: ElementType,
    pub op: ReduceOp,
}

/// Elements of a [`Plain`] reducer, in this machine's order of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F64,
}

/// What a [`Plain`] reducer makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Sum,
    /// The sum, which [`Reducer::reduce`] with it alone and the count of members makes the mean.
    Mean,
    /// Where any is not a number, the result is one of the others or not a number.
    Max,
}

/// What is done with a vector of all members, which is as long at each. Member i's *piece* of a vector of
/// `len` elements is elements i·len/n to (i+1)·len/n.
#[derive(Clone, Debug)]
pub enum CollectiveCall {
    /// Everybody has the reduction of all.
    AllReduce(Arc<dyn Reducer>),
    /// Everybody has the reduction of his piece; what else is in his vector is undefined.
    ReduceScatter(Arc<dyn Reducer>),
    /// Everybody has everybody's piece.
    AllGather { element_bytes: usize },
    /// The root has everybody's piece; what the others have is as it was.
    Gather { root: usize, element_bytes: usize },
    /// Everybody has his piece of the root's vector; what else is in his is as it was.
    Scatter { root: usize, element_bytes: usize },
    /// The vector has two halves, of as many equal parts as there are members: what is sent, and what comes. Part j of
    /// member i's first half is then part i of member j's second half. So nothing that comes takes the place of what
    /// is still to be sent, and it is written where it is to be: in one half it would land elsewhere first, in room for
    /// a vector that no other operation needs, and be copied. Its length is a multiple of twice the members' elements.
    AllToAll { element_bytes: usize },
    /// Everybody has the root's vector.
    Broadcast { root: usize },
    /// The root has the reduction of all; what the others have is undefined.
    Reduce { root: usize, reducer: Arc<dyn Reducer> },
}

/// A vector that all members have bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VectorId(pub u32);

/// An operation that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// What a group did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    pub operations: u64,
    /// To other members; what they read of this one's memory does not count.
    pub bytes_sent: u64,
    /// Of these, what went to members that share no memory with this one.
    pub bytes_over_wire: u64,
    /// Memory that other members can reach.
    pub registered_bytes: u64,
    /// By this member, from memory of its own to memory of its own.
    pub copies: Copies,
}

/// A group of processes that reduce, broadcast and gather vectors: [`crate::Group`] over one-sided writes, or MPI.
///
/// Nothing runs in the background: what is under way moves in [`Collectives::progress`]. Operations on one
/// vector are to be started in the same order at all members; those on different vectors in any order.
pub trait Collectives: Debug + Send {
    /// Members.
    fn size(&self) -> usize;

    /// Which of them this one is.
    fn me(&self) -> usize;

    /// Memory in which vectors may lie, for the life of the group.
    ///
    /// # Errors
    /// When there is none left.
    fn alloc(&mut self, bytes: usize) -> Result<Slab, GroupError>;

    /// Makes vectors known to the group, for its life; each member binds as many, of the same lengths, in the same order. They
    /// lie in memory of [`Collectives::alloc`]. Waits for the others.
    ///
    /// # Errors
    /// When the others bind other lengths, are lost, or do not come before the deadline.
    fn bind(&mut self, vectors: &[Buffer], deadline: Deadline)
    -> Result<Vec<VectorId>, GroupError>;

    /// Bytes of a vector.
    ///
    /// # Errors
    /// When it is not known.
    fn vector_bytes(&self, vector: VectorId) -> Result<usize, GroupError>;

    /// Starts an operation in place. The vector is the group's until it is done: until then nobody else may
    /// read or write it.
    ///
    /// # Errors
    /// As of [`Collectives::start_part`].
    fn start(&mut self, vector: VectorId, call: CollectiveCall) -> Result<Handle, GroupError> {
        let bytes = self.vector_bytes(vector)?;
        self.start_part(vector, bytes, call)
    }

    /// The same on a vector's first `bytes`, as if they were all: memory that is bound once serves operations of any
    /// length that it has room for. All members give as many. All of the vector is the group's until it is done.
    ///
    /// # Errors
    /// When the vector is not known, lent, under way already, or shorter; when these are no whole number of elements.
    fn start_part(
        &mut self,
        vector: VectorId,
        bytes: usize,
        call: CollectiveCall,
    ) -> Result<Handle, GroupError>;

    /// Moves what is under way; true if anything has moved.
    ///
    /// # Errors
    /// When a member is lost. So everywhere below.
    fn progress(&mut self) -> Result<bool, GroupError>;

    /// Is it over? Once it has said so, it knows the handle no more, and says so always; of what failed, never.
    fn is_done(&mut self, handle: Handle) -> bool;

    /// Takes note of this moment, for [`Collectives::wait_for_news`].
    fn observe(&mut self);

    /// Waits until something may have moved since [`Collectives::observe`], or until the deadline.
    fn wait_for_news(&mut self, deadline: Deadline);

    /// Moves everything until `handle` is done.
    ///
    /// # Errors
    /// [`GroupError::TimedOut`] too.
    fn wait(&mut self, handle: Handle, deadline: Deadline) -> Result<(), GroupError> {
        loop {
            self.observe();
            self.progress()?;
            if self.is_done(handle) {
                return Ok(());
            }
            if deadline.passed() {
                return Err(GroupError::TimedOut { waiting_for: self.waiting_for() });
            }
            self.wait_for_news(deadline);
        }
    }

    /// Whose move it is, for a person who asks why nothing goes on.
    fn waiting_for(&self) -> String;

    /// Waits until every member has come here.
    fn barrier(&mut self, deadline: Deadline) -> Result<(), GroupError>;

    fn stats(&self) -> GroupStats;

    /// Leaves in good order: the others see no fault.
    fn close(&mut self, deadline: Deadline) -> Result<(), GroupError>;
}
