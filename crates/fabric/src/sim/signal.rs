//! How a signal reaches its receiver in the simulated network, in each arrival mode. Does not know when.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tensorwire_base::Rank;

use super::progress::Entry;
use super::queue_pair::Lane;
use crate::api::{ArrivalSlot, Direction, Signal};
use crate::arrival::ArrivalMode;
use crate::device::Work;
use crate::region::in_bounds;

/// What brings a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// A completion at the receiver, for which it must have room.
    Immediate,
    /// A write of its own, into the flag table that the receiver has for the queue pair.
    Flag,
    /// The last 8 bytes of the payload's write, `at` this byte of the region of that key.
    Tail { key: u64, at: u64 },
}

/// A signal, who brings it and on which queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub(super) lane: Lane,
    pub(super) signal: Signal,
    pub(super) delivery: Delivery,
}

/// The highest epoch that each queue pair wrote for each slot: what its sender remembers.
#[derive(Debug, Default)]
pub(super) struct Written {
    highest: BTreeMap<(Lane, ArrivalSlot), u64>,
}

impl Delivery {
    /// As the sender's mode says. Only a write that ends where an epoch can lie has a tail: any other
    /// signal goes as a flag, which is looked at for every slot.
    pub(super) fn of(mode: ArrivalMode, work: &Work) -> Delivery {
        let is_tail = work.signal.is_some_and(|signal| signal.slot.is_tail());
        let at = work.remote_offset + work.bytes;
        let is_room =
            at.is_multiple_of(8) && in_bounds(at, ArrivalSlot::TAIL_BYTES, work.remote.bytes());
        match mode {
            ArrivalMode::WriteImm => Delivery::Immediate,
            ArrivalMode::FlagTail if is_tail && is_room && work.direction == Direction::Write => {
                Delivery::Tail { key: work.remote.key(), at }
            }
            ArrivalMode::FlagSeparate | ArrivalMode::FlagTail => Delivery::Flag,
        }
    }

    pub(super) fn is_tail(self) -> bool {
        matches!(self, Delivery::Tail { .. })
    }
}

impl Carried {
    /// The signal is there. A flag or a tail lies in memory now and rings nobody.
    pub(super) fn land(self, receiver: &Entry, written: &mut Written) {
        let Carried { lane, signal, delivery } = self;
        let epoch = match delivery {
            Delivery::Immediate => signal.epoch,
            Delivery::Flag | Delivery::Tail { .. } => written.raise(lane, signal),
        };
        self.place(receiver, epoch);
    }

    /// An old write comes once more. A reliable connection drops what comes again behind an epoch that
    /// nobody has seen yet; behind one that was seen, memory falls back.
    pub(super) fn land_again(self, receiver: &Entry) {
        let seen = receiver.core.board().epoch(self.signal.slot.index());
        if self.found(receiver) <= seen.max(self.signal.epoch) {
            self.place(receiver, self.signal.epoch);
        }
    }

    fn place(&self, receiver: &Entry, epoch: u64) {
        let slot = self.signal.slot.index();
        match self.delivery {
            Delivery::Immediate => receiver.core.board().raise(slot, epoch),
            Delivery::Flag => {
                if let Some(table) = self.table(receiver) {
                    table.write(slot, epoch);
                }
            }
            Delivery::Tail { key, at } => {
                // the region may be gone when an old write comes once more
                if let Ok(memory) = receiver.core.regions().check(key, at, ArrivalSlot::TAIL_BYTES)
                {
                    memory.mapping().word(at).store(epoch, Ordering::Release);
                }
            }
        }
    }

    /// The epoch that lies where this one goes.
    fn found(&self, receiver: &Entry) -> u64 {
        let slot = self.signal.slot.index();
        match self.delivery {
            Delivery::Immediate => receiver.core.board().epoch(slot),
            Delivery::Flag => self.table(receiver).map_or(0, |table| table.written(slot)),
            Delivery::Tail { key, at } => {
                let memory = receiver.core.regions().check(key, at, ArrivalSlot::TAIL_BYTES);
                memory.map_or(0, |memory| memory.mapping().word(at).load(Ordering::Acquire))
            }
        }
    }

    fn table(&self, receiver: &Entry) -> Option<crate::flags::FlagTable> {
        receiver.watched.table(Rank(self.lane.from), self.lane.queue_pair)
    }
}

impl Written {
    /// What to write for a signal: never less than was written for its slot before.
    fn raise(&mut self, lane: Lane, signal: Signal) -> u64 {
        let highest = self.highest.entry((lane, signal.slot)).or_insert(0);
        *highest = (*highest).max(signal.epoch);
        *highest
    }

    /// `rank` has left.
    pub(super) fn remove(&mut self, rank: Rank) {
        self.highest.retain(|(lane, _), _| lane.from != rank.0 && lane.to != rank.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sender_writes_never_falls() {
        let mut written = Written::default();
        let [lane, other] = [0, 1].map(|queue_pair| Lane { from: 0, to: 1, queue_pair });
        let mut raise =
            |lane, slot, epoch| written.raise(lane, Signal { slot: ArrivalSlot(slot), epoch });
        assert_eq!(raise(lane, 3, 9), 9);
        assert_eq!(raise(lane, 3, 4), 9, "the same word");
        assert_eq!((raise(lane, 2, 4), raise(other, 3, 4)), (4, 4), "words of their own");
        assert_eq!(raise(lane, 3, 1 << 40), 1 << 40);
    }
}
