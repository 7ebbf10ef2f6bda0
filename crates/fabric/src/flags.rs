//! The receiving end of `flag-separate` and `flag-tail`: memory into which peers write epochs, and the
//! look that raises the board to what it finds there. Does not know how a write gets there.
//!
//! There is one flag table for every queue pair of every peer: a write can only raise what that peer
//! raised, and two queue pairs, between which there is no order, never write the same word. The board
//! takes the highest of them and only rises, so that a word that falls is of no consequence.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use tensorwire_base::Rank;

use crate::board::Board;
use crate::region::RegionMemory;

/// What a process looks at to learn of arrivals.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    tables: RwLock<BTreeMap<(Rank, usize), FlagTable>>,
    /// By the index of their slot.
    tails: RwLock<BTreeMap<u32, Tail>>,
}

/// The flags that one queue pair of one peer writes: 8 bytes a slot.
#[derive(Clone, Debug)]
pub(crate) struct FlagTable(Arc<RegionMemory>);

/// The epoch behind a payload. Weak: looking at memory does not keep it.
#[derive(Debug)]
struct Tail {
    memory: Weak<RegionMemory>,
    at: u64,
}

impl FlagTable {
    /// Bytes of a table for a board of so many slots.
    pub(crate) fn bytes(slots: usize) -> u64 {
        slots as u64 * 8
    }

    fn epoch(&self, slot: u32) -> u64 {
        self.0.mapping().word(u64::from(slot) * 8).load(Ordering::Acquire)
    }

    /// Writes the flag of a slot, as the peer's write does.
    pub(crate) fn write(&self, slot: u32, epoch: u64) {
        self.0.mapping().word(u64::from(slot) * 8).store(epoch, Ordering::Release);
    }

    pub(crate) fn written(&self, slot: u32) -> u64 {
        self.epoch(slot)
    }
}

impl Watched {
    /// Enters memory of [`FlagTable::bytes`], zeroed, that one queue pair of a peer writes from now on.
    pub(crate) fn enter_table(&self, peer: Rank, queue_pair: usize, memory: Arc<RegionMemory>) {
        self.tables.write().insert((peer, queue_pair), FlagTable(memory));
    }

    pub(crate) fn table(&self, peer: Rank, queue_pair: usize) -> Option<FlagTable> {
        self.tables.read().get(&(peer, queue_pair)).cloned()
    }

    /// `peer` is gone: its last flags are looked at, and then no more.
    pub(crate) fn forget(&self, peer: Rank, board: &Board) {
        self.look_at_all(board);
        self.tables.write().retain(|(owner, _), _| *owner != peer);
    }

    /// Zeroes the 8 bytes at `at`, a multiple of 8 in that memory, and looks there from now on.
    pub(crate) fn enter_tail(&self, slot: u32, memory: &Arc<RegionMemory>, at: u64) {
        // what lay there is no epoch of this slot
        memory.mapping().word(at).store(0, Ordering::Release);
        self.tails.write().insert(slot, Tail { memory: Arc::downgrade(memory), at });
    }

    /// Raises one slot of the board to the highest epoch that was written for it.
    pub(crate) fn look(&self, board: &Board, slot: u32) {
        let known = board.epoch(slot);
        let tables = self.tables.read();
        let flag = tables.values().map(|table| table.epoch(slot)).max().unwrap_or(0);
        let tail = self.tails.read().get(&slot).map_or(0, Tail::epoch);
        let found = flag.max(tail);
        if found > known {
            board.raise(slot, found);
        }
    }

    /// True if a peer may write flags.
    pub(crate) fn is_used(&self) -> bool {
        !self.tables.read().is_empty()
    }

    /// Raises every slot that was allocated.
    pub(crate) fn look_at_all(&self, board: &Board) {
        if self.tables.read().is_empty() {
            return;
        }
        (0..board.allocated()).for_each(|slot| self.look(board, slot));
    }
}

impl Tail {
    fn epoch(&self) -> u64 {
        let memory = self.memory.upgrade();
        memory.map_or(0, |memory| memory.mapping().word(self.at).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::region::{Exposure, Region, RegionTable};

    fn region(table: &Arc<RegionTable>, bytes: u64) -> Region {
        table.enter(Mapping::private(bytes).unwrap(), Exposure::default())
    }

    fn board() -> Board {
        Board::create(Arc::new(Mapping::private(Board::bytes(4)).unwrap()), 4)
    }

    #[test]
    fn the_highest_flag_counts_and_one_that_falls_does_not() {
        let (regions, watched, board) = (Arc::default(), Watched::default(), board());
        for queue_pair in [0, 1] {
            let memory = region(&regions, FlagTable::bytes(4));
            watched.enter_table(Rank(1), queue_pair, memory.memory().clone());
        }
        let tables = [0, 1].map(|queue_pair| watched.table(Rank(1), queue_pair).unwrap());
        tables[0].write(3, 9);
        tables[1].write(3, 4);
        watched.look(&board, 3);
        assert_eq!((board.epoch(3), board.epoch(2)), (9, 0));
        tables[0].write(3, 2);
        watched.look(&board, 3);
        assert_eq!(board.epoch(3), 9);
        board.alloc_slot().unwrap();
        tables[1].write(0, 5);
        watched.forget(Rank(1), &board);
        assert_eq!(board.epoch(0), 5, "its last words");
        assert!(watched.table(Rank(1), 0).is_none());
    }

    #[test]
    fn looking_at_an_epoch_that_is_there_rings_nobody() {
        let (regions, watched, board) = (Arc::default(), Watched::default(), board());
        let memory = region(&regions, FlagTable::bytes(4));
        watched.enter_table(Rank(1), 0, memory.memory().clone());
        watched.table(Rank(1), 0).unwrap().write(1, 7);
        let before = board.ticket();
        watched.look(&board, 1);
        let after = board.ticket();
        assert_ne!(before, after);
        watched.look(&board, 1);
        assert_eq!(board.ticket(), after);
    }

    #[test]
    fn a_tail_starts_at_zero_and_ends_with_its_region() {
        let (regions, watched, board) = (Arc::default(), Watched::default(), board());
        let region = region(&regions, 24);
        region.memory().mapping().word(16).store(77, Ordering::Relaxed);
        watched.enter_tail(2, region.memory(), 16);
        watched.look(&board, 2);
        assert_eq!(board.epoch(2), 0, "what lay there is no epoch");
        region.memory().mapping().word(16).store(5, Ordering::Relaxed);
        watched.look(&board, 2);
        assert_eq!(board.epoch(2), 5);
        let key = region.descriptor().key;
        drop(region);
        assert!(regions.find(key).is_none(), "looking keeps nothing alive");
        watched.look(&board, 2);
        assert_eq!(board.epoch(2), 5);
    }
}
