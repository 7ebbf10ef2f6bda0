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

/// How much of a lane that grows is taken, in bytes; what is taken is rounded up to the alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneUse {
    pub in_use: usize,
    /// The most that ever was in use at one time.
    pub peak: usize,
    /// In use or not.
    pub reserved: usize,
}

impl LaneUse {
    /// Both together; the peaks may have been at different times.
    pub(crate) fn with(self, other: LaneUse) -> LaneUse {
        LaneUse {
            in_use: self.in_use + other.in_use,
            peak: self.peak + other.peak,
            reserved: self.reserved + other.reserved,
        }
    }
}

/// A lane that grows as it is needed, up to a limit.
#[derive(Debug)]
pub(crate) struct Pool {
    name: &'static str,
    chunks: Vec<Heap>,
    peak: usize,
    bytes_max: usize,
}

/// Smallest piece by which a pool grows, in bytes.
const CHUNK_BYTES_MIN: usize = 1 << 20;

/// Where a pool's memory comes from.
pub(crate) trait Source {
    /// A slab of at least `bytes` bytes.
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError>;

    /// A slab that is not used any more.
    fn free(&mut self, _slab: &Slab) {}
}

/// This process's own memory; a slab goes when its last user drops it.
pub(crate) struct Anonymous;

impl Source for Anonymous {
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
        Ok(Slab::anonymous(bytes)?)
    }
}

impl Pool {
    pub(crate) fn new(name: &'static str, bytes_max: usize) -> Pool {
        Pool { name, chunks: Vec::new(), peak: 0, bytes_max }
    }

    pub(crate) fn usage(&self) -> LaneUse {
        LaneUse { in_use: self.in_use(), peak: self.peak, reserved: self.reserved() }
    }

    /// True if it is memory of this pool.
    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        let address = buffer.slab().address();
        self.chunks.iter().any(|chunk| chunk.slab().address() == address)
    }

    /// Memory of `bytes` bytes, which comes back to the pool when its last user drops it.
    pub(crate) fn alloc(
        &mut self,
        bytes: usize,
        source: &mut dyn Source,
    ) -> Result<Buffer, AllocError> {
        self.take(bytes, source, |chunk| chunk.alloc(bytes))
    }

    /// As [`Pool::alloc`], in pieces one behind the other.
    pub(crate) fn alloc_in_pieces(
        &mut self,
        (bytes, piece_bytes): (usize, usize),
        source: &mut dyn Source,
    ) -> Result<Vec<Buffer>, AllocError> {
        self.take(bytes, source, |chunk| chunk.alloc_in_pieces(bytes, piece_bytes))
    }

    fn take<T>(
        &mut self,
        bytes: usize,
        source: &mut dyn Source,
        cut: impl Fn(&Heap) -> Option<T>,
    ) -> Result<T, AllocError> {
        let taken = match self.chunks.iter().find_map(&cut) {
            Some(taken) => taken,
            None => {
                self.grow(bytes, source)?;
                let fresh = self.chunks.last().and_then(&cut);
                fresh.ok_or_else(|| self.exhausted(bytes))?
            }
        };
        // it only rises here
        self.peak = self.peak.max(self.in_use());
        Ok(taken)
    }

    /// Adds a chunk that has room for so many bytes.
    fn grow(&mut self, bytes: usize, source: &mut dyn Source) -> Result<(), AllocError> {
        let least = bytes.checked_next_multiple_of(tensorwire_memory::ALIGNMENT);
        let least = least.filter(|least| *least <= self.bytes_max);
        let least = least.ok_or_else(|| self.exhausted(bytes))?;
        // as much again as there is: what grows step by step takes few chunks
        let mut chunk = least.max(self.reserved()).max(CHUNK_BYTES_MIN);
        if least > self.room() {
            // what was reserved for smaller tensors makes room, and twice of it shall suffice longer
            chunk = chunk.max(2 * self.free_idle(source));
        }
        let room = self.room();
        if least > room {
            return Err(self.exhausted(bytes));
        }
        let heap = Heap::new(&source.alloc(chunk.min(room))?)?;
        self.chunks.push(heap);
        Ok(())
    }

    /// Gives the chunks back that nobody uses; returns how many bytes they had.
    fn free_idle(&mut self, source: &mut dyn Source) -> usize {
        let before = self.reserved();
        self.chunks.retain(|chunk| {
            let is_used = chunk.in_use() > 0;
            if !is_used {
                source.free(chunk.slab());
            }
            is_used
        });
        before - self.reserved()
    }

    fn in_use(&self) -> usize {
        self.chunks.iter().map(Heap::in_use).sum()
    }

    fn reserved(&self) -> usize {
        self.chunks.iter().map(Heap::bytes).sum()
    }

    fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.reserved())
    }

    fn exhausted(&self, request: usize) -> AllocError {
        let (lane, bytes_max) = (self.name, self.bytes_max);
        AllocError::Exhausted { lane, request, in_use: self.in_use(), bytes_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(pool: &mut Pool, bytes: usize) -> Result<Buffer, AllocError> {
        pool.alloc(bytes, &mut Anonymous)
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

    /// Counts the slabs that are out.
    #[derive(Default)]
    struct Counting {
        taken: usize,
        freed: usize,
    }

    impl Source for Counting {
        fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
            self.taken += 1;
            Anonymous.alloc(bytes)
        }

        fn free(&mut self, _slab: &Slab) {
            self.freed += 1;
        }
    }

    #[test]
    fn what_was_reserved_for_smaller_tensors_makes_room() {
        let (mut pool, mut source) = (Pool::new("private", 64 << 20), Counting::default());
        for step in 1..=64 {
            drop(pool.alloc(step << 20, &mut source).unwrap());
            assert!(pool.usage().reserved <= 64 << 20);
        }
        assert_eq!(source.taken - source.freed, pool.chunks.len());
        assert!(source.taken <= 10, "{} slabs", source.taken);
        // what is in use stays
        let held = pool.alloc(1, &mut source).unwrap();
        assert!(pool.alloc(64 << 20, &mut source).is_err());
        drop(held);
        assert_eq!(pool.alloc(64 << 20, &mut source).unwrap().bytes(), 64 << 20);
        assert_eq!((pool.usage().in_use, pool.usage().peak), (0, 64 << 20));
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
