//! A group over MPI: each vector has a communicator of its own, since operations on one have an order and those on
//! different ones have none. Nothing moves but in [`Collectives::progress`], which asks MPI.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{
    CollectiveCall, Collectives, GroupError, GroupStats, Handle, Plain, ReduceOp, Reducer, VectorId,
};
use tensorwire_memory::{Arena, Buffer, LoanError, Place, Slab, WriteLoan};

use crate::calls::{Communicator, InPlace, Lent, Operation, pause};
use crate::error::MpiError;
use crate::world::{World, word, words};

/// Most bytes of a vector. MPI's counts have 31 bits; what is gathered of a piece that is longer than others' is a
/// little more than a vector.
const BYTES_MAX: usize = (i32::MAX as usize) - (1 << 20);

/// What a group is told; the same at all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MpiGroupOptions {
    /// Every reduction is in the order of members, and never MPI's own, which has none.
    pub deterministic: bool,
}

/// Processes that reduce, broadcast and gather vectors by MPI; see [`Collectives`]. Sums, means and maxima that say
/// of themselves what they are ([`Reducer::plain`]) are MPI's; of others it moves the pieces, and they are called here.
///
/// [`GroupStats::bytes_sent`] and `registered_bytes` stay 0: MPI does not tell. Nor does it say whose loss it is
/// if something fails; under `mpirun`, a process that dies ends the job.
#[derive(Debug)]
pub struct MpiGroup {
    options: MpiGroupOptions,
    me: usize,
    size: usize,
    in_place: InPlace,
    own: Option<Communicator>,
    vectors: Vec<Vector>,
    running: Vec<Running>,
    /// Operations that ended without what they were to do.
    failed: Vec<Handle>,
    started: u64,
    /// Waits in a row in which nothing moved.
    waited: u32,
    groups: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Vector {
    buffer: Buffer,
    communicator: Option<Communicator>,
    /// Where addends are gathered; made when it is first needed.
    addends: Option<Buffer>,
    is_busy: bool,
}

#[derive(Debug)]
struct Running {
    handle: Handle,
    vector: usize,
    operation: Operation<Lent>,
    then: Then,
}

/// What is left to do when MPI is done.
#[derive(Debug)]
enum Then {
    Nothing,
    /// Of the sum of all, which is in this range, the reduction makes what it is to be.
    Finish(Arc<dyn Reducer>, Range<usize>),
    /// What is at the beginning belongs in this range, and is to be finished there where there is a reduction.
    Move(Option<Arc<dyn Reducer>>, Range<usize>),
    /// The members' addends of this range were gathered.
    Reduce(Arc<dyn Reducer>, Range<usize>),
    /// The same, and everybody wants everybody's, or the one that is named does.
    ReduceAndGather {
        reducer: Arc<dyn Reducer>,
        pieces: Vec<(usize, usize)>,
        root: Option<usize>,
    },
}

impl MpiGroup {
    /// Opens a group of all processes. All of them call this.
    ///
    /// # Errors
    /// When they do not come before the deadline.
    pub fn open(
        world: &World,
        options: MpiGroupOptions,
        deadline: Deadline,
    ) -> Result<MpiGroup, MpiError> {
        let own = world.communicator().duplicate()?.finish(deadline)?.communicator();
        let groups = world.groups.clone();
        groups.fetch_add(1, Ordering::Relaxed);
        Ok(MpiGroup {
            options,
            me: world.rank(),
            size: world.size(),
            in_place: world.in_place,
            own: Some(own),
            vectors: Vec::new(),
            running: Vec::new(),
            failed: Vec::new(),
            started: 0,
            waited: 0,
            groups,
        })
    }

    fn own(&self) -> Result<&Communicator, GroupError> {
        self.own.as_ref().ok_or_else(closed)
    }

    /// Do all bind vectors of these lengths?
    fn compare(&self, lengths: &[usize], deadline: Deadline) -> Result<(), GroupError> {
        let own = self.own()?;
        let counts = own.all_gather(&word(lengths.len()))?.finish(deadline)?.into;
        for (member, count) in words(&counts).enumerate() {
            if count != lengths.len() {
                let (theirs, ours) = (format!("{count} vectors"), lengths.len().to_string());
                return Err(differs(member, theirs, ours));
            }
        }
        let mine: Vec<u8> = lengths.iter().flat_map(|bytes| word(*bytes)).collect();
        let all = own.all_gather(&mine)?.finish(deadline)?.into;
        for (at, theirs) in words(&all).enumerate() {
            let (member, index) = (at / lengths.len(), at % lengths.len());
            let ours = lengths[index];
            if theirs != ours {
                let theirs = format!("{theirs} bytes as vector {index}");
                return Err(differs(member, theirs, format!("{ours} bytes")));
            }
        }
        Ok(())
    }

    /// Start and bytes of each member's piece of a vector.
    fn pieces(&self, bytes: usize, element_bytes: usize) -> Vec<(usize, usize)> {
        let (len, size) = (bytes / element_bytes, self.size);
        // fits: twice as many bits as a length that MPI counts
        let start = |member: usize| (member as u128 * len as u128 / size as u128) as usize;
        let piece = |member: usize| (start(member), start(member + 1));
        let pieces = (0..size).map(piece);
        pieces.map(|(from, to)| (from * element_bytes, (to - from) * element_bytes)).collect()
    }

    /// What MPI does of a reduction, unless all is to be in the order of members.
    fn plain(&self, reducer: &Arc<dyn Reducer>) -> Option<Plain> {
        reducer.plain().filter(|_| !self.options.deterministic)
    }

    /// Returns the bytes of an element, if this can be done with a vector's first bytes.
    fn check(
        &self,
        vector: usize,
        bytes: usize,
        call: &CollectiveCall,
    ) -> Result<usize, GroupError> {
        let known = self.vectors.get(vector).ok_or_else(|| unknown(vector))?;
        if known.is_busy {
            return Err(wrong(vector, "an operation on it is under way; wait for that"));
        }
        let all = known.buffer.bytes();
        if bytes > all {
            let what = format!("it has {all} bytes, and no first {bytes}; bind a longer one");
            return Err(wrong(vector, &what));
        }
        let element_bytes = match call {
            CollectiveCall::AllReduce(reducer)
            | CollectiveCall::ReduceScatter(reducer)
            | CollectiveCall::Reduce { reducer, .. } => reducer.element_bytes(),
            CollectiveCall::AllGather { element_bytes }
            | CollectiveCall::Gather { element_bytes, .. }
            | CollectiveCall::Scatter { element_bytes, .. }
            | CollectiveCall::AllToAll { element_bytes } => *element_bytes,
            CollectiveCall::Broadcast { .. } => 1,
        };
        if element_bytes == 0 || !bytes.is_multiple_of(element_bytes) {
            return Err(wrong(
                vector,
                &format!("{bytes} bytes are no elements of {element_bytes}"),
            ));
        }
        let size = self.size;
        if let CollectiveCall::AllToAll { .. } = call
            && !(bytes / element_bytes).is_multiple_of(2 * size)
        {
            let what = format!(
                "{bytes} bytes are no two halves of {size} equal parts of elements of {element_bytes}"
            );
            return Err(wrong(vector, &what));
        }
        if let CollectiveCall::Broadcast { root }
        | CollectiveCall::Gather { root, .. }
        | CollectiveCall::Scatter { root, .. }
        | CollectiveCall::Reduce { root, .. } = call
            && *root >= size
        {
            return Err(wrong(vector, &format!("there is no member {root} of {}", self.size)));
        }
        Ok(element_bytes)
    }

    fn begin(
        &mut self,
        vector: usize,
        bytes: usize,
        call: CollectiveCall,
    ) -> Result<(Operation<Lent>, Then), GroupError> {
        let element_bytes = self.check(vector, bytes, &call)?;
        let known = &self.vectors[vector];
        let loan = known.buffer.lend_for_writing().map_err(|error| lent(vector, error))?;
        let over = known.communicator.as_ref().ok_or_else(closed)?;
        let pieces = self.pieces(bytes, element_bytes);
        let (start, piece_bytes) = pieces[self.me];
        let piece = start..start + piece_bytes;
        let (all, in_place) = (0..bytes, self.in_place);
        Ok(match call {
            CollectiveCall::Broadcast { root } => {
                (over.broadcast(loan, bytes, root)?, Then::Nothing)
            }
            CollectiveCall::AllGather { .. } => {
                (over.all_gather_pieces(loan, &pieces, in_place)?, Then::Nothing)
            }
            CollectiveCall::Gather { root, .. } => {
                (over.gather_pieces(loan, &pieces, root, self.me, in_place)?, Then::Nothing)
            }
            CollectiveCall::Scatter { root, .. } => {
                (over.scatter_pieces(loan, &pieces, root, self.me, in_place)?, Then::Nothing)
            }
            CollectiveCall::AllToAll { .. } => {
                (over.all_to_all(loan, bytes, self.size)?, Then::Nothing)
            }
            CollectiveCall::AllReduce(reducer) => match self.plain(&reducer) {
                Some(plain) => {
                    (over.all_reduce(loan, bytes, plain, in_place)?, finishing(plain, reducer, all))
                }
                None => {
                    let operation = self.exchange(vector, loan, &pieces)?;
                    (operation, Then::ReduceAndGather { reducer, pieces, root: None })
                }
            },
            CollectiveCall::ReduceScatter(reducer) => match self.plain(&reducer) {
                Some(plain) => {
                    let operation = over.reduce_scatter(loan, plain, &pieces, in_place)?;
                    (operation, Then::Move((plain.op == ReduceOp::Mean).then_some(reducer), piece))
                }
                None => (self.exchange(vector, loan, &pieces)?, Then::Reduce(reducer, piece)),
            },
            CollectiveCall::Reduce { root, reducer } => {
                let is_root = root == self.me;
                match self.plain(&reducer) {
                    Some(plain) => {
                        let in_place = is_root.then_some(in_place);
                        let operation = over.reduce(loan, bytes, plain, root, in_place)?;
                        let then = finishing(plain, reducer, all);
                        (operation, if is_root { then } else { Then::Nothing })
                    }
                    None => {
                        let operation = self.exchange(vector, loan, &pieces)?;
                        (operation, Then::ReduceAndGather { reducer, pieces, root: Some(root) })
                    }
                }
            }
        })
    }

    /// Sends each member its piece, and gathers this one's.
    fn exchange(
        &mut self,
        vector: usize,
        loan: WriteLoan,
        pieces: &[(usize, usize)],
    ) -> Result<Operation<Lent>, GroupError> {
        let (_, bytes_in) = pieces[self.me];
        let all = bytes_in * self.size;
        let Vector { addends, communicator, .. } = &mut self.vectors[vector];
        if addends.as_ref().is_none_or(|there| there.bytes() < all) {
            *addends = Some(whole(&slab(all)?)?);
        }
        let gathered = addends.as_ref().ok_or_else(closed)?;
        let gathered = gathered.lend_for_writing().map_err(|error| lent(vector, error))?;
        let over = communicator.as_ref().ok_or_else(closed)?;
        Ok(over.exchange(loan, gathered, pieces, bytes_in)?)
    }

    /// What is left to do; another operation, if there is more.
    fn end(
        &mut self,
        vector: usize,
        lent: Lent,
        then: Then,
    ) -> Result<Option<Operation<Lent>>, GroupError> {
        let Lent { vector: mut loan, gathered, .. } = lent;
        let size = self.size;
        let reduce_gathered =
            |reducer: &dyn Reducer, loan: &mut WriteLoan, range: &Range<usize>| {
                let Some(gathered) = &gathered else { return };
                let part = |member: usize| &gathered[member * range.len()..][..range.len()];
                let parts: Vec<&[u8]> = (0..size).map(part).collect();
                reducer.reduce(&parts, &mut loan[range.clone()], Some(size));
            };
        match then {
            Then::Nothing => {}
            Then::Finish(reducer, range) => finish(reducer.as_ref(), &mut loan[range], size)?,
            Then::Move(reducer, range) => {
                loan.copy_within(0..range.len(), range.start);
                if let Some(reducer) = reducer {
                    finish(reducer.as_ref(), &mut loan[range], size)?;
                }
            }
            Then::Reduce(reducer, range) => reduce_gathered(reducer.as_ref(), &mut loan, &range),
            Then::ReduceAndGather { reducer, pieces, root } => {
                let (start, bytes) = pieces[self.me];
                reduce_gathered(reducer.as_ref(), &mut loan, &(start..start + bytes));
                let over = self.vectors[vector].communicator.as_ref().ok_or_else(closed)?;
                let in_place = self.in_place;
                return Ok(Some(match root {
                    None => over.all_gather_pieces(loan, &pieces, in_place)?,
                    Some(root) => over.gather_pieces(loan, &pieces, root, self.me, in_place)?,
                }));
            }
        }
        Ok(None)
    }
}

impl Collectives for MpiGroup {
    fn size(&self) -> usize {
        self.size
    }

    fn me(&self) -> usize {
        self.me
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, GroupError> {
        slab(bytes)
    }

    fn bind(
        &mut self,
        vectors: &[Buffer],
        deadline: Deadline,
    ) -> Result<Vec<VectorId>, GroupError> {
        let lengths: Vec<usize> = vectors.iter().map(Buffer::bytes).collect();
        self.compare(&lengths, deadline)?;
        let first = self.vectors.len();
        if let Some(bytes) = lengths.into_iter().find(|bytes| *bytes > BYTES_MAX) {
            return Err(MpiError::TooLarge { bytes }.into());
        }
        for buffer in vectors {
            let over = self.own()?.duplicate()?.finish(deadline)?.communicator();
            let (buffer, communicator) = (buffer.clone(), Some(over));
            self.vectors.push(Vector { buffer, communicator, addends: None, is_busy: false });
        }
        // fits: vectors of a model
        Ok((first..self.vectors.len()).map(|vector| VectorId(vector as u32)).collect())
    }

    fn vector_bytes(&self, vector: VectorId) -> Result<usize, GroupError> {
        // fits: usize is 64 bits wide; so below
        let vector = vector.0 as usize;
        let known = self.vectors.get(vector).ok_or_else(|| unknown(vector))?;
        Ok(known.buffer.bytes())
    }

    fn start_part(
        &mut self,
        vector: VectorId,
        bytes: usize,
        call: CollectiveCall,
    ) -> Result<Handle, GroupError> {
        let vector = vector.0 as usize;
        let (operation, then) = self.begin(vector, bytes, call)?;
        self.vectors[vector].is_busy = true;
        self.started += 1;
        let handle = Handle(self.started);
        self.running.push(Running { handle, vector, operation, then });
        Ok(handle)
    }

    fn progress(&mut self) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut at = 0;
        while at < self.running.len() {
            if !self.running[at].operation.test()? {
                at += 1;
                continue;
            }
            moved = true;
            let Running { handle, vector, operation, then } = self.running.swap_remove(at);
            let Some(lent) = operation.into_held() else {
                self.failed.push(handle);
                continue;
            };
            match self.end(vector, lent, then) {
                Ok(Some(operation)) => {
                    self.running.push(Running { handle, vector, operation, then: Then::Nothing });
                }
                Ok(None) => self.vectors[vector].is_busy = false,
                Err(error) => {
                    self.failed.push(handle);
                    return Err(error);
                }
            }
        }
        if moved {
            self.waited = 0;
        }
        Ok(moved)
    }

    fn is_done(&mut self, handle: Handle) -> bool {
        !self.running.iter().any(|running| running.handle == handle)
            && !self.failed.contains(&handle)
    }

    fn observe(&mut self) {}

    fn wait_for_news(&mut self, deadline: Deadline) {
        pause(&mut self.waited, deadline);
    }

    fn waiting_for(&self) -> String {
        let what = |running: &Running| {
            format!("{} on vector {}", running.operation.call(), running.vector)
        };
        self.running.iter().map(what).collect::<Vec<_>>().join(", ")
    }

    fn barrier(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        let barrier = self.own()?.barrier()?;
        Ok(barrier.finish(deadline)?)
    }

    fn stats(&self) -> GroupStats {
        GroupStats { operations: self.started, ..GroupStats::default() }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        while !self.running.is_empty() {
            if deadline.passed() {
                return Err(GroupError::TimedOut { waiting_for: self.waiting_for() });
            }
            if !self.progress()? {
                self.wait_for_news(deadline);
            }
        }
        self.barrier(deadline)?;
        for vector in &mut self.vectors {
            vector.communicator.take().map_or(Ok(()), Communicator::free)?;
        }
        if let Some(own) = self.own.take() {
            own.free()?;
            self.groups.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Of a sum that MPI made nothing is left to do; of what is to be a mean, the share.
fn finishing(plain: Plain, reducer: Arc<dyn Reducer>, range: Range<usize>) -> Then {
    match plain.op {
        ReduceOp::Mean => Then::Finish(reducer, range),
        ReduceOp::Sum | ReduceOp::Max => Then::Nothing,
    }
}

/// Bytes that are finished at a time.
const BLOCK_BYTES: usize = 8 << 10;

/// sum ← the reduction of it alone, as the whole of `size` addends.
fn finish(reducer: &dyn Reducer, sum: &mut [u8], size: usize) -> Result<(), GroupError> {
    let element_bytes = reducer.element_bytes();
    let block = BLOCK_BYTES / element_bytes * element_bytes;
    // aligned for any element
    let copy = whole(&slab(block)?)?;
    for sum in sum.chunks_mut(block) {
        let mut copy = copy.write().map_err(|error| GroupError::Failed(error.to_string()))?;
        copy[..sum.len()].copy_from_slice(sum);
        reducer.reduce(&[&copy[..sum.len()]], sum, Some(size));
    }
    Ok(())
}

fn slab(bytes: usize) -> Result<Slab, GroupError> {
    Slab::anonymous(bytes).map_err(|error| GroupError::Failed(error.to_string()))
}

fn whole(slab: &Slab) -> Result<Buffer, GroupError> {
    let place = Place { offset: 0, bytes: slab.bytes() };
    let arena =
        Arena::new(slab, &[place]).map_err(|error| GroupError::Failed(error.to_string()))?;
    let buffer = arena.into_buffers().pop();
    buffer.ok_or_else(|| GroupError::Failed("an arena of no place".to_string()))
}

fn differs(member: usize, theirs: String, ours: String) -> GroupError {
    // fits: MPI counts processes in 31 bits
    GroupError::Differs { member, rank: Rank(member as u32), theirs, ours }
}

fn wrong(vector: usize, what: &str) -> GroupError {
    // fits: vectors of a model
    GroupError::Vector { vector: vector as u32, what: what.to_string() }
}

fn unknown(vector: usize) -> GroupError {
    wrong(vector, "it was not bound; bind it first, at all members")
}

fn lent(vector: usize, error: LoanError) -> GroupError {
    wrong(vector, &error.to_string())
}

fn closed() -> GroupError {
    GroupError::Failed("the group is closed; nothing can be asked of it".to_string())
}
