//! Memory for tensors whose size is known only when they exist, and the choice of its lane. Xue et al.
//! §3.4: who allocates a tensor is not always who sends it, since operators in between work in place.
//! So every allocation is noted by its address; when a tensor is sent, the note says which node made
//! it, and from the next step on that node allocates registered memory, from where nothing is copied.

use std::collections::{HashMap, HashSet};

use tensorwire_graph::{Lane, NodeId};
use tensorwire_memory::{Buffer, Heap, Slab};

use crate::error::AllocError;

/// The n-th allocation that a node makes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    pub(crate) node: NodeId,
    pub(crate) index: u32,
}

/// Where tensors were allocated, and which of these places send.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    /// The latest allocation at each address.
    allocated: HashMap<usize, Site>,
    /// The paper's set S.
    sent: HashSet<Site>,
}

impl Sites {
    pub(crate) fn lane(&self, site: Site) -> Lane {
        if self.sent.contains(&site) { Lane::Registered } else { Lane::Private }
    }

    pub(crate) fn note(&mut self, site: Site, buffer: &Buffer) {
        // an empty tensor has no address of its own
        if buffer.bytes() > 0 {
            self.allocated.insert(buffer.address(), site);
        }
    }

    /// A tensor is sent that was not allocated to be: next time it will be.
    pub(crate) fn note_sent(&mut self, buffer: &Buffer) {
        if let Some(site) = self.allocated.get(&buffer.address()).filter(|_| buffer.bytes() > 0) {
            self.sent.insert(*site);
        }
    }
}

/// A lane that grows as it is needed, up to a limit.
#[derive(Debug)]
pub(crate) struct Pool {
    name: &'static str,
    chunks: Vec<Heap>,
    bytes_max: usize,
}

/// Smallest piece by which a pool grows, in bytes.
const CHUNK_BYTES_MIN: usize = 1 << 20;

impl Pool {
    pub(crate) fn new(name: &'static str, bytes_max: usize) -> Pool {
        Pool { name, chunks: Vec::new(), bytes_max }
    }

    /// Memory of `bytes` bytes, which comes back to the pool when its last user drops it. `more` is asked
    /// for a slab of at least as many bytes as it is told.
    pub(crate) fn alloc(
        &mut self,
        bytes: usize,
        more: impl FnOnce(usize) -> Result<Slab, AllocError>,
    ) -> Result<Buffer, AllocError> {
        if let Some(buffer) = self.chunks.iter().find_map(|chunk| chunk.alloc(bytes)) {
            return Ok(buffer);
        }
        let total: usize = self.chunks.iter().map(Heap::bytes).sum();
        let exhausted = || AllocError::Exhausted {
            lane: self.name,
            request: bytes,
            in_use: self.chunks.iter().map(Heap::in_use).sum(),
            bytes_max: self.bytes_max,
        };
        let room = self.bytes_max.saturating_sub(total);
        let least = bytes.checked_next_multiple_of(tensorwire_memory::ALIGNMENT);
        let least = least.filter(|least| *least <= room).ok_or_else(exhausted)?;
        // as much again as there is: what grows step by step takes few chunks
        let chunk = least.max(total).max(CHUNK_BYTES_MIN).min(room.max(least));
        let heap = Heap::new(&more(chunk)?)?;
        let buffer = heap.alloc(bytes).ok_or_else(exhausted)?;
        self.chunks.push(heap);
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(pool: &mut Pool, bytes: usize) -> Result<Buffer, AllocError> {
        pool.alloc(bytes, |bytes| Ok(Slab::anonymous(bytes)?))
    }

    #[test]
    fn a_pool_grows_to_its_limit_and_says_what_did_not_fit() {
        let mut pool = Pool::new("private", 3 << 20);
        let first = alloc(&mut pool, 1000).unwrap();
        let second = alloc(&mut pool, 2 << 20).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (1000, 2 << 20));
        let error = alloc(&mut pool, 1 << 20).unwrap_err().to_string();
        let used = 1024 + (2 << 20);
        assert!(error.contains(&format!("{used} of at most 3145728 bytes")), "{error}");
        assert!(error.contains("1048576 bytes do not fit the private arena"), "{error}");
        drop(second);
        alloc(&mut pool, 1 << 20).unwrap();
        assert!(alloc(&mut pool, usize::MAX).is_err());
    }

    #[test]
    fn what_grows_step_by_step_takes_few_chunks() {
        let mut pool = Pool::new("private", 1 << 30);
        for step in 1..=64 {
            drop(alloc(&mut pool, step << 20).unwrap());
        }
        assert!(pool.chunks.len() <= 8, "{} chunks", pool.chunks.len());
    }

    #[test]
    fn a_site_whose_tensor_was_sent_is_registered_from_then_on() {
        let mut pool = Pool::new("private", 1 << 20);
        let mut sites = Sites::default();
        let (maker, other) =
            (Site { node: NodeId(1), index: 0 }, Site { node: NodeId(2), index: 0 });
        let tensor = alloc(&mut pool, 64).unwrap();
        sites.note(other, &tensor);
        sites.note(maker, &tensor);
        sites.note_sent(&tensor);
        assert_eq!((sites.lane(maker), sites.lane(other)), (Lane::Registered, Lane::Private));
        let empty = alloc(&mut pool, 0).unwrap();
        sites.note(other, &empty);
        sites.note_sent(&empty);
        assert_eq!(sites.lane(other), Lane::Private);
    }
}
