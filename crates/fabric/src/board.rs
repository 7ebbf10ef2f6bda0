//! What peers may raise in a process: its doorbell and its arrival slots, in one mapping that shm
//! peers map too. Does not know what a slot stands for.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::doorbell::{Doorbell, Ticket};
use crate::mapping::Mapping;

const MAGIC: u64 = u64::from_le_bytes(*b"twboard1");
/// Header, doorbell and slots each start on a cache line of their own.
#[cfg(not(loom))]
const DOORBELL_AT: u64 = 64;
const SLOTS_AT: u64 = 128;

/// This process's board, or a peer's.
#[derive(Debug)]
pub(crate) struct Board {
    memory: Arc<Mapping>,
    slots: usize,
    allocated: AtomicU32,
    /// Of this process's own, where a waiter may sleep in something else.
    elsewhere: OnceLock<Elsewhere>,
    /// Loom's words lie in no mapping: the doorbell of this one view of a board.
    #[cfg(loom)]
    doorbell: Doorbell,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer shared {bytes} bytes that are no arrival table")]
pub(crate) struct BoardError {
    bytes: u64,
}

impl Board {
    /// Bytes that a board of so many slots needs.
    pub(crate) fn bytes(slots: usize) -> u64 {
        // fits: `Core::new` allows at most u32::MAX slots
        SLOTS_AT + slots as u64 * 8
    }

    /// Makes zeroed memory a board.
    pub(crate) fn create(memory: Arc<Mapping>, slots: usize) -> Board {
        assert!(memory.bytes() >= Board::bytes(slots), "the board's memory is too small");
        let board = Board::over(memory, slots, 0);
        board.word(8).store(slots as u64, Ordering::Relaxed);
        board.word(0).store(MAGIC, Ordering::Release);
        board
    }

    /// The board that a peer made in this memory.
    pub(crate) fn of_peer(memory: Arc<Mapping>) -> Result<Board, BoardError> {
        let bytes = memory.bytes();
        let mut board = Board::over(memory, 0, u32::MAX);
        if bytes < SLOTS_AT || board.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(BoardError { bytes });
        }
        // read once: the peer could change it after the check
        let slots = board.word(8).load(Ordering::Relaxed);
        let needed = slots.checked_mul(8).and_then(|slots| slots.checked_add(SLOTS_AT));
        if slots > u64::from(u32::MAX) || needed.is_none_or(|needed| needed > bytes) {
            return Err(BoardError { bytes });
        }
        board.slots = slots as usize; // fits: at most u32::MAX
        Ok(board)
    }

    fn over(memory: Arc<Mapping>, slots: usize, allocated: u32) -> Board {
        Board {
            memory,
            slots,
            allocated: AtomicU32::new(allocated),
            elsewhere: OnceLock::new(),
            #[cfg(loom)]
            doorbell: Doorbell::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// A slot that nobody has yet.
    pub(crate) fn alloc_slot(&self) -> Option<crate::api::ArrivalSlot> {
        let free = |next: u32| (u64::from(next) < self.slots as u64).then(|| next + 1);
        let slot = self.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        slot.ok().map(crate::api::ArrivalSlot)
    }

    /// How many slots somebody has: those below this index.
    pub(crate) fn allocated(&self) -> u32 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Acquire: pairs with [`Board::raise`].
    pub(crate) fn epoch(&self, slot: u32) -> u64 {
        self.slot(slot).load(Ordering::Acquire)
    }

    /// Raises a slot to at least `epoch`, after everything this thread wrote before, and rings.
    pub(crate) fn raise(&self, slot: u32, epoch: u64) {
        // no store: a late signal of an aborted step never takes an epoch back. Nor a fetch_max, which ThreadSanitizer does not see
        let later = |now: u64| (now < epoch).then_some(epoch);
        let _ = self.slot(slot).fetch_update(Ordering::Release, Ordering::Relaxed, later);
        self.ring();
    }

    pub(crate) fn ring(&self) {
        self.doorbell().ring();
        if let Some(elsewhere) = self.elsewhere.get() {
            elsewhere.rouse();
        }
    }

    /// Rings for one more waiter from now on. Only of a board that no other process rings.
    pub(crate) fn sleeps_elsewhere(&self, elsewhere: Elsewhere) {
        // who asks twice has the first
        let _ = self.elsewhere.set(elsewhere);
    }

    pub(crate) fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.get()
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.doorbell().ticket()
    }

    #[cfg(loom)]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    #[cfg(not(loom))]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        // SAFETY: the doorbell's two atomic words lie inside the mapping (checked by `create` and
        // `of_peer`: at least SLOTS_AT bytes) at a multiple of 64 from a page's start, live as long
        // as `self.memory`, are valid for any bits, and are accessed as atomics by every process.
        unsafe { &*self.memory.at(DOORBELL_AT).cast::<Doorbell>() }
    }

    fn slot(&self, slot: u32) -> &AtomicU64 {
        assert!((slot as usize) < self.slots, "slot {slot} of an arrival table of {}", self.slots);
        self.word(SLOTS_AT + u64::from(slot) * 8)
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        self.memory.word(offset)
    }
}

/// One waiter of this process that sleeps not at the doorbell, but until its eventfd is written, or something else happens.
///
/// **Why no wake-up is lost.** The waiter says that it falls asleep, and looks at the doorbell's sequence then; the ringer raises
/// the sequence first, and looks for a sleeper then. Both are sequentially consistent, as those of [`Doorbell`].
#[derive(Debug)]
pub(crate) struct Elsewhere {
    sleeper: AtomicU32,
    wake: OwnedFd,
}

/// What the sleeper does.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Its sleep is about to end.
const ROUSED: u32 = 2;

impl Elsewhere {
    /// `wake`: the eventfd that the waiter looks at in its sleep.
    pub(crate) fn new(wake: OwnedFd) -> Elsewhere {
        Elsewhere { sleeper: AtomicU32::new(AWAKE), wake }
    }

    /// To be called before the last look at the doorbell.
    pub(crate) fn falls_asleep(&self) {
        self.sleeper.store(ASLEEP, Ordering::SeqCst);
    }

    pub(crate) fn wakes_up(&self) {
        self.sleeper.store(AWAKE, Ordering::SeqCst);
    }

    fn rouse(&self) {
        let order = Ordering::SeqCst;
        if self.sleeper.compare_exchange(ASLEEP, ROUSED, order, order).is_ok() {
            self.write();
        }
    }

    /// Rouses the sleeper if it may still sleep, for whoever was woken in its place; true if so.
    pub(crate) fn rouse_once_more(&self) -> bool {
        let sleeps = self.sleeper.load(Ordering::SeqCst) != AWAKE;
        if sleeps {
            self.write();
        }
        sleeps
    }

    fn write(&self) {
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64) -> Arc<Mapping> {
        Arc::new(Mapping::private(bytes).unwrap())
    }

    #[test]
    fn a_slot_only_rises() {
        let board = Board::create(memory(Board::bytes(4)), 4);
        let peer = Board::of_peer(board.memory.clone()).unwrap();
        peer.raise(3, 7);
        peer.raise(3, 5);
        assert_eq!((board.epoch(3), board.epoch(2)), (7, 0));
    }

    #[test]
    fn slots_run_out() {
        let board = Board::create(memory(Board::bytes(2)), 2);
        assert_ne!(board.alloc_slot().unwrap(), board.alloc_slot().unwrap());
        assert_eq!(board.alloc_slot(), None);
    }

    #[test]
    fn a_peers_memory_is_checked_before_use() {
        assert!(Board::of_peer(memory(4096)).is_err(), "no magic");
        assert!(Board::of_peer(memory(64)).is_err(), "too small");
        let lying = Board::create(memory(4096), 4);
        lying.word(8).store(1 << 40, Ordering::Relaxed);
        assert!(Board::of_peer(lying.memory.clone()).is_err(), "more slots than memory");
        lying.word(8).store(u64::MAX, Ordering::Relaxed);
        assert!(Board::of_peer(lying.memory.clone()).is_err(), "overflow");
    }
}
