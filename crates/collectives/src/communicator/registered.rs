//! Memory of the group in which operations copy nothing: heaps that it hands out, and what was adopted. Finds by address
//! where memory of a call lies.

use std::collections::BTreeMap;

use tensorwire_memory::{Arena, Buffer, Heap, Place, Slab};

use super::call::{CallKind, CommunicatorCall, Parts};
use crate::error::GroupError;

/// Bytes that are asked of the group at a time, at least.
const SLAB_BYTES: usize = 16 << 20;

/// By the address of its first byte in this process.
#[derive(Debug, Default)]
pub(super) struct Registered {
    ranges: BTreeMap<usize, Slab>,
    adopted: BTreeMap<usize, Slab>,
    heaps: Vec<Heap>,
}

/// Where an operation goes, if all others' memory is registered, too.
#[derive(Debug)]
pub(super) struct Placed {
    /// The vector of the group's operation.
    pub(super) memory: Buffer,
    /// The input is copied to its part first: it does not lie there.
    pub(super) copies_input: bool,
}

impl Registered {
    pub(super) fn alloc(&self, bytes: usize) -> Option<Buffer> {
        self.heaps.iter().find_map(|heap| heap.alloc(bytes))
    }

    /// Bytes of the next slab, for so many at least.
    pub(super) fn slab_bytes(&self, bytes: usize) -> usize {
        let all: usize = self.heaps.iter().map(Heap::bytes).sum();
        bytes.max(SLAB_BYTES).max(all / 2).next_multiple_of(4096)
    }

    pub(super) fn grow(&mut self, slab: &Slab, bytes: usize) -> Result<Buffer, GroupError> {
        let heap = Heap::new(slab).map_err(|error| GroupError::Failed(error.to_string()))?;
        let none = || GroupError::Failed("a slab has no room for its first piece".to_string());
        let buffer = heap.alloc(bytes).ok_or_else(none)?;
        self.ranges.insert(slab.address(), slab.clone());
        self.heaps.push(heap);
        Ok(buffer)
    }

    pub(super) fn adopt(&mut self, slab: Slab, address: usize) {
        self.adopted.insert(address, slab);
    }

    pub(super) fn forget(&mut self, address: usize) {
        self.adopted.remove(&address);
    }

    /// The group's buffer over the memory of a buffer, if it is registered.
    fn find(&self, buffer: &Buffer) -> Option<Buffer> {
        if buffer.bytes() == 0 {
            return None;
        }
        if let Some((_, slab)) = self.ranges.range(..=buffer.address()).next_back()
            && let Some(seen) = buffer.seen_in(slab)
        {
            return Some(seen);
        }
        // one operation at a time
        let (start, slab) = self.adopted.range(..=buffer.address()).next_back()?;
        let place = Place { offset: buffer.address() - start, bytes: buffer.bytes() };
        Arena::new(slab, &[place]).ok()?.into_buffers().pop()
    }

    /// Where a call goes if it can go in place.
    pub(super) fn place(&self, call: &CommunicatorCall, me: usize) -> Option<Placed> {
        if self.ranges.is_empty() && self.adopted.is_empty() {
            return None;
        }
        let place = |parts: &Parts| match parts {
            Parts::Whole(buffer) => self.find(buffer),
            Parts::Each(_) | Parts::None => None,
        };
        match call.kind {
            CallKind::AllReduce | CallKind::Broadcast { .. } => {
                Some(Placed { memory: place(&call.outputs)?, copies_input: false })
            }
            CallKind::AllGather => {
                let (input, _) = call.inputs.part(0, call.bytes)?;
                let (output, at) = call.outputs.part(me, call.bytes)?;
                let copies_input = input.address() != output.address() + at;
                Some(Placed { memory: place(&call.outputs)?, copies_input })
            }
            CallKind::ReduceScatter => {
                Some(Placed { memory: place(&call.inputs)?, copies_input: false })
            }
            _ => None,
        }
    }
}
