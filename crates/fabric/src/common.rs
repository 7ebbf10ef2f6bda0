//! What every backend's fabric has: its board, regions, completions, inbox, peers, first fault and
//! counters. Does not know how bytes travel.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::RwLock;
use rustix::io::Errno;
use tensorwire_base::sync::atomic::{AtomicUsize, Ordering};
use tensorwire_base::sync::{Mutex, OnceLock};
use tensorwire_base::{Deadline, Rank};

use crate::api::{Completion, Direction, Message};
use crate::board::Board;
use crate::config::{FabricConfig, Identity, PeerAddress};
use crate::doorbell::{Ticket, Wake};
use crate::error::{FaultCause, OpenFabricError, PeerFault, PostError, RegionError};
use crate::mapping::{Mapping, SharedMapping};
use crate::pulse;
use crate::region::RegionTable;

/// Most arrival slots of a process: 2 GiB of them.
pub(crate) const ARRIVAL_SLOTS_MAX: usize = 1 << 28;

/// The part of a fabric that its threads share.
#[derive(Debug)]
pub(crate) struct Core {
    config: FabricConfig,
    board: Board,
    regions: Arc<RegionTable>,
    completions: CompletionQueue,
    inbox: Inbox,
    peers: RwLock<BTreeMap<Rank, Arc<Peer>>>,
    fault: OnceLock<PeerFault>,
    counters: Counters,
}

/// A peer, and whether it can still be talked to.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) member: Identity,
    gone: OnceLock<Gone>,
}

/// How a peer left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It said goodbye.
    Departed,
    /// It was lost without a goodbye.
    Lost(FaultCause),
    /// This process said goodbye.
    Closed,
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Gone::Departed => f.write_str("it left in good order, before the others"),
            Gone::Closed => f.write_str("this fabric is closed"),
            Gone::Lost(cause) => cause.fmt(f),
        }
    }
}

/// Completions that nobody has polled yet. Its length is bounded by the credits of its queue pairs.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueue {
    queue: Mutex<VecDeque<(Completion, Arc<Credits>)>>,
}

/// How many memcpys of a queue pair are posted and not polled.
#[derive(Debug)]
pub(crate) struct Credits {
    depth: usize,
    taken: AtomicUsize,
}

/// Messages that nobody has received yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: Mutex<(VecDeque<Message>, usize)>,
}

/// Counts of what a fabric did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// Memcpys posted, by direction, and their bytes.
    pub writes: u64,
    pub reads: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Of these bytes, what went through shared memory.
    pub bytes_near: u64,
    /// Messages sent and received.
    pub messages: u64,
    /// Waits that ended with an event, and waits that went to sleep in the kernel.
    pub wakes: u64,
    pub blocked_waits: u64,
    /// Connections that were turned away: strangers, other jobs, stale processes.
    pub connections_refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_near: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) blocked_waits: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
}

impl Core {
    pub(crate) fn new(config: FabricConfig, board: Board) -> Arc<Core> {
        Arc::new(Core {
            config,
            board,
            regions: Arc::default(),
            completions: CompletionQueue::default(),
            inbox: Inbox::default(),
            peers: RwLock::default(),
            fault: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// A core whose board no other process maps.
    pub(crate) fn private(config: FabricConfig) -> Result<Arc<Core>, OpenFabricError> {
        check_config(&config)?;
        let memory = Mapping::private(Board::bytes(config.arrival_slots))
            .map_err(|error| no_board(error.into()))?;
        let board = Board::create(Arc::new(memory), config.arrival_slots);
        Ok(Core::new(config, board))
    }

    /// A core whose board peers of this host map, and the board's memory.
    pub(crate) fn shared(config: FabricConfig) -> Result<(Arc<Core>, OwnedFd), OpenFabricError> {
        check_config(&config)?;
        let shared = SharedMapping::create("tensorwire-board", Board::bytes(config.arrival_slots))
            .map_err(|error| no_board(error.into()))?;
        let board = Board::create(Arc::new(shared.mapping), config.arrival_slots);
        Ok((Core::new(config, board), shared.fd))
    }

    /// Memory for a region, and what peers of this host map of it where they do.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(Mapping, Option<OwnedFd>), RegionError> {
        let made = match self.config.host {
            None => Mapping::private(bytes).map(|mapping| (mapping, None)),
            Some(_) => shared_memory(bytes).map(|shared| (shared.mapping, Some(shared.fd))),
        };
        made.map_err(|error| not_allocated(bytes, error))
    }

    /// Memory for a region that peers of this host map.
    pub(crate) fn allocate_shared(bytes: u64) -> Result<SharedMapping, RegionError> {
        shared_memory(bytes).map_err(|error| not_allocated(bytes, error))
    }

    pub(crate) fn config(&self) -> &FabricConfig {
        &self.config
    }

    pub(crate) fn me(&self) -> Identity {
        self.config.me
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    pub(crate) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn fault(&self) -> Option<&PeerFault> {
        self.fault.get()
    }

    pub(crate) fn peer(&self, rank: Rank) -> Option<Arc<Peer>> {
        self.peers.read().get(&rank).cloned()
    }

    /// Makes a peer reachable through channels; its backend must be ready to post.
    pub(crate) fn enter_peer(&self, peer: &Arc<Peer>) {
        self.peers.write().insert(peer.member.rank, peer.clone());
    }

    /// Ends the peer's life here; the first word counts. True if it was this one.
    pub(crate) fn peer_gone(&self, peer: &Peer, gone: Gone) -> bool {
        let rank = peer.member.rank;
        let first = peer.gone.set(gone.clone()).is_ok();
        if first {
            match gone {
                Gone::Departed => tracing::debug!(%rank, "peer said goodbye"),
                Gone::Closed => {}
                Gone::Lost(cause) => {
                    let fault = PeerFault { rank, cause };
                    // whoever uses the fabric gets the fault, and knows what it means
                    tracing::info!(me = %self.me().rank, "{fault}");
                    // only the first fault is kept: what follows is mostly its consequence
                    let _ = self.fault.set(fault);
                }
            }
            self.board.ring();
        }
        first
    }

    /// Pushes a completion and rings.
    pub(crate) fn complete(&self, completion: Completion, credits: &Arc<Credits>) {
        self.completions.queue.lock().push_back((completion, credits.clone()));
        self.board.ring();
    }

    /// Pushes a received message and rings.
    pub(crate) fn deliver(&self, message: Message) {
        self.counters.add(|c| &c.messages, 1);
        self.inbox.push(message);
        self.board.ring();
    }

    /// Waits until nobody is `missing`; returns who still is when the deadline passes.
    pub(crate) fn await_all(
        &self,
        deadline: Deadline,
        missing: impl Fn() -> Vec<Rank>,
    ) -> Vec<Rank> {
        loop {
            let ticket = self.board.ticket();
            let mut ranks = missing();
            // the queue pairs of a peer stand in a row
            ranks.dedup();
            if ranks.is_empty() || self.wait(ticket, deadline) == Wake::TimedOut {
                return ranks;
            }
        }
    }

    /// Waits on the doorbell.
    pub(crate) fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        let (mut spin, mut blocked) = (self.config.spin, false);
        loop {
            pulse::beat();
            let slice = deadline.min(Deadline::after(pulse::BEAT));
            let waited = self.board.doorbell().wait(ticket, spin, slice);
            blocked |= waited.blocked;
            if waited.wake == Wake::Event || deadline.passed() {
                self.count_wait(waited.wake, blocked);
                return waited.wake;
            }
            spin = Duration::ZERO;
        }
    }

    /// Counts a wait that has ended so, and whether it blocked.
    pub(crate) fn count_wait(&self, wake: Wake, blocked: bool) {
        self.counters.add(|c| &c.blocked_waits, u64::from(blocked));
        self.counters.add(|c| &c.wakes, u64::from(wake == Wake::Event));
    }
}

fn shared_memory(bytes: u64) -> Result<SharedMapping, Errno> {
    SharedMapping::create("tensorwire-region", bytes)
}

fn not_allocated(bytes: u64, error: Errno) -> RegionError {
    RegionError::System { doing: "allocate", bytes, source: error.into() }
}

fn no_board(source: std::io::Error) -> OpenFabricError {
    OpenFabricError::System { doing: "allocate the arrival table", source }
}

/// Refuses what no fabric can work with.
pub(crate) fn check_config(config: &FabricConfig) -> Result<(), OpenFabricError> {
    let check = |what, found: usize, max: usize, range| match found {
        found if (1..=max).contains(&found) => Ok(()),
        // fits: usize is 64 bits wide on every platform with memfd and epoll that we build for
        found => Err(OpenFabricError::Config { what, range, found: found as u64 }),
    };
    check("completion_queues", config.completion_queues, 256, "1..=256")?;
    check("queue_pairs_per_peer", config.queue_pairs_per_peer, 1024, "1..=1024")?;
    check("queue_depth", config.queue_depth, 1 << 20, "1..=1048576")?;
    check("arrival_slots", config.arrival_slots, ARRIVAL_SLOTS_MAX, "1..=268435456")
}

/// Refuses an arrival mode where the backend has one rule.
pub(crate) fn check_no_mode(
    config: &FabricConfig,
    backend: &'static str,
) -> Result<(), OpenFabricError> {
    config.arrival.map_or(Ok(()), |mode| Err(OpenFabricError::NoArrivalModes { mode, backend }))
}

impl Peer {
    pub(crate) fn new(address: &PeerAddress) -> Arc<Peer> {
        Arc::new(Peer { member: address.member(), gone: OnceLock::new() })
    }

    pub(crate) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    /// The error for a post to a peer that is gone.
    pub(crate) fn check(&self) -> Result<(), PostError> {
        match self.gone.get() {
            None => Ok(()),
            Some(gone) => {
                Err(PostError::PeerLost { peer: self.member.rank, cause: gone.to_string() })
            }
        }
    }

    /// Why the peer cannot be talked to.
    pub(crate) fn cause(&self) -> String {
        self.gone.get().map_or_else(|| "the connection broke".into(), Gone::to_string)
    }
}

impl CompletionQueue {
    pub(crate) fn drain(&self, completions: &mut Vec<Completion>) -> usize {
        let mut queue = self.queue.lock();
        let count = queue.len();
        completions.extend(queue.drain(..).map(|(completion, credits)| {
            credits.give_back();
            completion
        }));
        count
    }
}

impl Credits {
    pub(crate) fn new(depth: usize) -> Arc<Credits> {
        Arc::new(Credits { depth, taken: AtomicUsize::new(0) })
    }

    pub(crate) fn take(&self) -> Result<(), PostError> {
        let take = |taken: usize| (taken < self.depth).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| PostError::Full { depth: self.depth })
    }

    pub(crate) fn give_back(&self) {
        let before = self.taken.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "gave back a credit that was not taken");
    }
}

impl Inbox {
    fn push(&self, message: Message) {
        let mut messages = self.messages.lock();
        messages.1 += message.body.len();
        messages.0.push_back(message);
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        let mut messages = self.messages.lock();
        let message = messages.0.pop_front()?;
        messages.1 -= message.body.len();
        Some(message)
    }

    /// Messages waiting, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let messages = self.messages.lock();
        (messages.0.len(), messages.1)
    }
}

impl Counters {
    pub(crate) fn add(&self, which: impl Fn(&Counters) -> &AtomicU64, count: u64) {
        which(self).fetch_add(count, Ordering::Relaxed);
    }

    /// Counts an accepted memcpy.
    pub(crate) fn posted(&self, direction: Direction, bytes: u64) {
        let (count, sum) = match direction {
            Direction::Write => (&self.writes, &self.bytes_written),
            Direction::Read => (&self.reads, &self.bytes_read),
        };
        count.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> FabricStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FabricStats {
            writes: read(&self.writes),
            reads: read(&self.reads),
            bytes_written: read(&self.bytes_written),
            bytes_read: read(&self.bytes_read),
            bytes_near: read(&self.bytes_near),
            messages: read(&self.messages),
            wakes: read(&self.wakes),
            blocked_waits: read(&self.blocked_waits),
            connections_refused: read(&self.connections_refused),
        }
    }
}
