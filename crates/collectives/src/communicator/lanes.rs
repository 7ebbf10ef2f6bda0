//! Vectors through which memory goes that is not registered: what is copied into one before an operation of the group, and
//! out of it behind; where members share memory, only what others take. An operation goes in chunks, as long as a lane has
//! room for.

use std::ops::Range;

use tensorwire_base::Deadline;
use tensorwire_memory::{Arena, Buffer, LoanError, Place};

use super::call::{CallKind, CommunicatorCall, Parts};
use crate::error::GroupError;
use crate::group::{Group, Outside};
use crate::ports::{CollectiveCall, Collectives, Handle, Reducer, VectorId};

/// Chunks begin at multiples of this, which no element divides.
const ALIGN: usize = 64;

/// One vector, and what goes through it now.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) vector: VectorId,
    buffer: Buffer,
    pub(super) way: Option<Way>,
}

/// What goes through a lane.
#[derive(Debug)]
pub(super) struct Way {
    /// The number of the operation.
    pub(super) job: u64,
    pub(super) handle: Handle,
    /// Of each part, the bytes that go; None if they lie elsewhere.
    pub(super) chunk: Option<Range<usize>>,
}

/// All members call this.
pub(super) fn open(
    group: &mut Group,
    count: usize,
    bytes: usize,
    deadline: Deadline,
) -> Result<Vec<Lane>, GroupError> {
    let failed = |error: &dyn std::fmt::Display| GroupError::Failed(error.to_string());
    // a chunk of each of two times as many parts as there are members
    let bytes = bytes.max(2 * ALIGN * group.size()).next_multiple_of(ALIGN);
    let slab = group.alloc(count * bytes)?;
    let places: Vec<Place> = (0..count).map(|at| Place { offset: at * bytes, bytes }).collect();
    let buffers = Arena::new(&slab, &places).map_err(|error| failed(&error))?.into_buffers();
    let vectors = group.bind_lanes(&buffers, deadline)?;
    let lane = |(vector, buffer)| Lane { vector, buffer, way: None };
    Ok(vectors.into_iter().zip(buffers).map(lane).collect())
}

/// True if members read each other's lanes, and so nothing is copied into one that nobody takes.
pub(super) fn are_shared(group: &Group) -> bool {
    group.size() > 1 && group.shares_memory()
}

/// Bytes of a part that go at a time.
pub(super) fn chunk_bytes(
    kind: CallKind,
    lane_bytes: usize,
    size: usize,
    are_shared: bool,
) -> usize {
    let parts = match kind {
        CallKind::AllReduce | CallKind::Broadcast { .. } | CallKind::Reduce { .. } => 1,
        CallKind::AllGather | CallKind::Gather { .. } if are_shared => 1,
        CallKind::AllToAll if !are_shared => 2 * size,
        _ => size,
    };
    (lane_bytes / parts / ALIGN * ALIGN).max(ALIGN)
}

/// Bytes of a chunk of all parts, and what the group does with them.
pub(super) fn group_call(
    call: &CommunicatorCall,
    part_bytes: usize,
    size: usize,
) -> Result<(usize, CollectiveCall), GroupError> {
    let reducer = || {
        let none = || GroupError::Failed("a reduction without a reducer".to_string());
        call.reducer.clone().ok_or_else(none)
    };
    let element_bytes = part_bytes;
    Ok(match call.kind {
        CallKind::AllReduce => (part_bytes, CollectiveCall::AllReduce(reducer()?)),
        CallKind::Broadcast { root } => (part_bytes, CollectiveCall::Broadcast { root }),
        CallKind::Reduce { root } => {
            (part_bytes, CollectiveCall::Reduce { root, reducer: reducer()? })
        }
        CallKind::AllGather => (size * part_bytes, CollectiveCall::AllGather { element_bytes }),
        CallKind::Gather { root } => {
            (size * part_bytes, CollectiveCall::Gather { root, element_bytes })
        }
        CallKind::Scatter { root } => {
            (size * part_bytes, CollectiveCall::Scatter { root, element_bytes })
        }
        CallKind::ReduceScatter => (size * part_bytes, CollectiveCall::ReduceScatter(reducer()?)),
        CallKind::AllToAll => (2 * size * part_bytes, CollectiveCall::AllToAll { element_bytes }),
        CallKind::Barrier => (0, CollectiveCall::AllGather { element_bytes: 1 }),
    })
}

/// A chunk of a call, and its memory, where lanes are shared.
pub(super) fn through(
    call: &CommunicatorCall,
    chunk: &Range<usize>,
    size: usize,
) -> Result<(CollectiveCall, Outside), GroupError> {
    let all = |parts: &Parts, count: usize| {
        let part = |at| parts.part(at, call.bytes);
        let start = |(buffer, at): (&Buffer, usize)| (buffer.clone(), at + chunk.start);
        (0..count).map_while(part).map(start).collect::<Vec<_>>()
    };
    let gets = all(&call.outputs, size);
    let (group_call, gives) = match call.kind {
        CallKind::AllReduce | CallKind::Reduce { .. } => {
            (group_call(call, chunk.len(), size)?.1, gets.clone())
        }
        CallKind::Broadcast { root } => (CollectiveCall::Broadcast { root }, gets.clone()),
        CallKind::ReduceScatter => {
            (group_call(call, chunk.len(), size)?.1, all(&call.inputs, size))
        }
        CallKind::AllGather => {
            (CollectiveCall::AllGather { element_bytes: 1 }, all(&call.inputs, 1))
        }
        CallKind::Gather { root } => {
            (CollectiveCall::Gather { root, element_bytes: 1 }, all(&call.inputs, 1))
        }
        CallKind::Scatter { root } => {
            (CollectiveCall::Scatter { root, element_bytes: 1 }, all(&call.inputs, size))
        }
        CallKind::AllToAll => {
            (CollectiveCall::AllToAll { element_bytes: 1 }, all(&call.inputs, size))
        }
        CallKind::Barrier => (CollectiveCall::AllGather { element_bytes: 1 }, Vec::new()),
    };
    Ok((group_call, Outside { gives, gets }))
}

impl Lane {
    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Copies in what this member gives; returns the bytes.
    pub(super) fn fill(
        &self,
        call: &CommunicatorCall,
        chunk: &Range<usize>,
        me: usize,
        size: usize,
    ) -> Result<usize, LoanError> {
        let each = |parts: &Parts, at: usize, into: usize| {
            let Some((part, start)) = parts.part(at, call.bytes) else { return Ok(0) };
            let range = start + chunk.start..start + chunk.end;
            self.buffer.copy_from(into * chunk.len(), part, range).map(|()| chunk.len())
        };
        match call.kind {
            CallKind::AllReduce | CallKind::Reduce { .. } => each(&call.outputs, 0, 0),
            CallKind::Broadcast { root } if root == me => each(&call.outputs, 0, 0),
            CallKind::Broadcast { .. } | CallKind::Barrier => Ok(0),
            CallKind::AllGather | CallKind::Gather { .. } => each(&call.inputs, 0, me),
            CallKind::Scatter { root } if root != me => Ok(0),
            CallKind::Scatter { .. } | CallKind::ReduceScatter | CallKind::AllToAll => {
                (0..size).map(|at| each(&call.inputs, at, at)).sum()
            }
        }
    }

    /// Copies out what this member gets; returns the bytes.
    pub(super) fn drain(
        &self,
        call: &CommunicatorCall,
        chunk: &Range<usize>,
        me: usize,
        size: usize,
    ) -> Result<usize, LoanError> {
        let each = |at: usize, from: usize| {
            let Some((part, start)) = call.outputs.part(at, call.bytes) else { return Ok(0) };
            let from = from * chunk.len();
            let range = from..from + chunk.len();
            part.copy_from(start + chunk.start, &self.buffer, range).map(|()| chunk.len())
        };
        match call.kind {
            CallKind::AllReduce => each(0, 0),
            CallKind::Reduce { root } if root != me => Ok(0),
            CallKind::Reduce { .. } => each(0, 0),
            CallKind::Broadcast { root } if root == me => Ok(0),
            CallKind::Broadcast { .. } => each(0, 0),
            CallKind::Barrier => Ok(0),
            CallKind::AllGather => (0..size).map(|at| each(at, at)).sum(),
            CallKind::Gather { root } if root != me => Ok(0),
            CallKind::Gather { .. } => (0..size).map(|at| each(at, at)).sum(),
            CallKind::Scatter { .. } | CallKind::ReduceScatter => each(0, me),
            CallKind::AllToAll => (0..size).map(|at| each(at, size + at)).sum(),
        }
    }
}

/// True if members reduce elements of a size that a lane's chunks are whole in.
pub(super) fn divides(reducer: Option<&dyn Reducer>) -> bool {
    reducer.is_none_or(|reducer| ALIGN.is_multiple_of(reducer.element_bytes().max(1)))
}
