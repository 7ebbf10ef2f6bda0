//! Posting: a small payload is copied by the poster, a large one by a copier thread; then the peer's
//! slot is raised and the memcpy completes.

use std::sync::Arc;

use tensorwire_base::sync::atomic::{AtomicUsize, Ordering};
use tensorwire_base::sync::{Mutex, MutexGuard};
use tensorwire_base::{Deadline, Rank};

use super::copier::Copiers;
use crate::api::{Completion, Direction, Posted, Signal};
use crate::board::Board;
use crate::common::{Core, Credits, Peer};
use crate::device::Work;
use crate::error::PostError;
use crate::mapping::Mapping;

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;

/// From here on a copy takes longer than waking a thread for it, many times over. Loom's models copy little.
const COPIER_BYTES_MIN: u64 = if cfg!(loom) { 64 } else { 4 << 20 };

/// All queue pairs to one peer.
#[derive(Debug)]
pub(super) struct QueuePairs {
    core: Arc<Core>,
    peer: Arc<Peer>,
    board: Arc<Board>,
    copiers: Arc<Copiers>,
    pairs: Vec<Arc<QueuePair>>,
}

#[derive(Debug)]
struct QueuePair {
    credits: Arc<Credits>,
    /// Held while copying: two posts of one queue pair take effect one after the other.
    order: Mutex<()>,
    /// Memcpys that a copier has not finished; while there are any, all others go behind them.
    queued: AtomicUsize,
}

impl QueuePairs {
    pub(super) fn new(
        core: Arc<Core>,
        peer: Arc<Peer>,
        board: Board,
        copiers: Arc<Copiers>,
    ) -> QueuePairs {
        let depth = core.config().queue_depth;
        let pair = |_| {
            let (order, queued) = (Mutex::new(()), AtomicUsize::new(0));
            Arc::new(QueuePair { credits: Credits::new(depth), order, queued })
        };
        let pairs = (0..core.config().queue_pairs_per_peer).map(pair).collect();
        QueuePairs { core, peer, board: Arc::new(board), copiers, pairs }
    }

    /// A small one is over at once, if no other is in its way.
    pub(super) fn post_now(&self, queue_pair: usize, work: Work) -> Result<Posted, PostError> {
        self.check(&work)?;
        let pair = &self.pairs[queue_pair];
        let ordered = pair.order.lock();
        if work.bytes >= COPIER_BYTES_MIN || pair.queued.load(Ordering::Acquire) != 0 {
            drop(ordered);
            return self.post(queue_pair, work).map(|()| Posted::Queued);
        }
        self.count(&work);
        carry_out(&work, &self.board);
        Ok(Posted::Done)
    }

    /// The board stays mapped when the peer is gone. False if it has no such slot.
    pub(super) fn raise(&self, signal: Signal) -> bool {
        // fits: usize is 64 bits wide
        let is_there = (signal.slot.index() as usize) < self.board.slots();
        if is_there {
            self.board.raise(signal.slot.index(), signal.epoch);
        }
        is_there
    }

    fn count(&self, work: &Work) {
        let counters = self.core.counters();
        counters.posted(work.direction, work.bytes);
        counters.add(|counters| &counters.bytes_near, work.bytes);
    }

    fn check(&self, work: &Work) -> Result<(), PostError> {
        self.peer.check()?;
        // fits: usize is 64 bits wide
        work.check_slot(self.peer.member.rank, self.board.slots() as u64)
    }

    pub(super) fn post(&self, queue_pair: usize, work: Work) -> Result<(), PostError> {
        self.check(&work)?;
        let peer = self.peer.member.rank;
        let pair = &self.pairs[queue_pair];
        pair.credits.take()?;
        self.count(&work);
        let ordered = pair.order.lock();
        let memcpy = Accepted {
            core: self.core.clone(),
            board: self.board.clone(),
            pair: pair.clone(),
            work,
        };
        if memcpy.work.bytes < COPIER_BYTES_MIN && pair.queued.load(Ordering::Acquire) == 0 {
            memcpy.run(peer, ordered);
            return Ok(());
        }
        pair.queued.fetch_add(1, Ordering::Relaxed);
        // the next peer's queue pair of the same number goes to the next copier
        let lane = queue_pair + peer.index();
        self.copiers.push(
            lane,
            Box::new(move || {
                let pair = memcpy.pair.clone();
                memcpy.run(peer, pair.order.lock());
                // Release: a poster that sees 0 copies after us, and may do it itself
                pair.queued.fetch_sub(1, Ordering::Release);
            }),
        );
        Ok(())
    }

    /// Waits until no copier has anything for this peer; false if the deadline came first.
    pub(super) fn drain(&self, deadline: Deadline) -> bool {
        let busy = || self.pairs.iter().any(|pair| pair.queued.load(Ordering::Acquire) > 0);
        while busy() {
            if deadline.passed() {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        true
    }
}

/// An accepted memcpy.
struct Accepted {
    core: Arc<Core>,
    board: Arc<Board>,
    pair: Arc<QueuePair>,
    work: Work,
}

impl Accepted {
    fn run(&self, peer: Rank, ordered: MutexGuard<'_, ()>) {
        carry_out(&self.work, &self.board);
        drop(ordered);
        let completion = Completion { token: self.work.token, peer, result: Ok(()) };
        self.core.complete(completion, &self.pair.credits);
    }
}

/// Copies, and then signals.
fn carry_out(work: &Work, board: &Board) {
    let remote = work.remote.mapping().expect("shm maps every region that it opens");
    copy(work, remote);
    if let Some(signal) = work.signal {
        board.raise(signal.slot.index(), signal.epoch);
    }
}

fn copy(work: &Work, remote: &Mapping) {
    let local = (work.local.mapping(), work.local_offset);
    let remote = (remote, work.remote_offset);
    match work.direction {
        Direction::Write => Mapping::write(local, remote, work.bytes),
        Direction::Read => Mapping::copy(remote, local, work.bytes),
    }
}
