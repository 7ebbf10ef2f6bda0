//! Messages over private rings of registered memory, as FaRM sends them and TensorFlow's gRPC over RDMA does
//! (Xue et al. §2.2, §5): each direction between two peers has a ring of fixed size at the receiver. A message
//! is cut into fragments of at most a slot; each is copied into a mirror of the ring, with a header, and
//! written by one one-sided write. The receiver copies it out to where it belongs, and says how far it came.
//!
//! * The order: everything of one direction goes over one queue pair.
//! * Who may overwrite: the sender a slot of its mirror once the slot's write is over; a slot of the ring once
//!   the receiver's count says that it was copied out.
//! * Who does it: the caller, whenever it sends, looks or waits; and while it computes, whoever runs the
//!   [`RingTender`], on a thread of its own.
//!
//! | file | what |
//! |---|---|
//! | `fragment.rs` | a fragment's header as bytes |
//! | `peer.rs` | one peer: a ring each way |

mod fragment;
mod peer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Completion, Fabric, Ticket};

use crate::transport::{MessageError, MessageSink, MessageTransport};
use peer::{Introduction, Opening, Peer};

pub(crate) use fragment::fuzz_fragments;

/// How a peer introduces its ring.
pub(crate) fn fuzz_introductions(bytes: &[u8]) {
    if let Ok(introduction) = Introduction::decode(bytes) {
        assert_eq!(introduction.encode(), bytes);
    }
}

/// Slots of a ring. More did not make a message faster, and fewer let its ends wait for each other.
const SLOTS: usize = 16;
/// Of a fragment with its header: a share of a core's second cache, and large enough that headers, writes
/// and signals weigh nothing.
const SLOT_BYTES: usize = 256 << 10;

/// Largest content of a message: what the paper's gRPC over RDMA could take (§5.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 30;

/// How often a tender looks whether the caller does. As long may a message stand still while it computes.
const TICK: Duration = Duration::from_millis(1);

/// A [`MessageTransport`] over a fabric, whose completions and messages it takes for itself.
pub struct RingTransport {
    shared: Arc<Shared>,
    ticket: Ticket,
}

/// Moves what there is while the transport's owner does not look.
pub struct RingTender(Arc<Shared>);

struct Shared {
    fabric: Fabric,
    sink: Arc<dyn MessageSink>,
    rings: Mutex<Rings>,
    /// Times that the caller looked; odd while it waits, as it looks after each event then.
    looks: AtomicU64,
    ends: AtomicBool,
    ended: (Mutex<()>, Condvar),
}

struct Rings {
    peers: BTreeMap<Rank, Peer>,
    /// Kept for its memory.
    completions: Vec<Completion>,
}

impl RingTransport {
    /// Opens rings with all `peers`, who must do so too; the fabric is connected to them.
    ///
    /// # Errors
    /// When memory is short, or a peer is lost, of another mind or late.
    pub fn open(
        fabric: Fabric,
        peers: &[Rank],
        sink: Arc<dyn MessageSink>,
        deadline: Deadline,
    ) -> Result<RingTransport, MessageError> {
        // all are told before any is heard
        let mut openings = BTreeMap::new();
        for rank in peers {
            openings.insert(*rank, Opening::new(&fabric, *rank, deadline)?);
        }
        let mut opened = BTreeMap::new();
        while let Some(rank) = openings.keys().next().copied() {
            let message = fabric.receive_message(deadline);
            let failed = |error: tensorwire_fabric::ReceiveError| MessageError::with(rank, error);
            let message = message.map_err(failed)?;
            let from = message.from;
            let twice = || MessageError::with(from, "it speaks twice, or has no ring with us");
            let opening = openings.remove(&from).ok_or_else(twice)?;
            let theirs = Introduction::decode(&message.body);
            let theirs = theirs.map_err(|what| MessageError::with(from, what))?;
            opened.insert(from, opening.complete(theirs, deadline)?);
        }
        let ticket = fabric.ticket();
        let shared = Arc::new(Shared {
            fabric,
            sink,
            rings: Mutex::new(Rings { peers: opened, completions: Vec::new() }),
            looks: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            ended: (Mutex::new(()), Condvar::new()),
        });
        Ok(RingTransport { shared, ticket })
    }

    /// Whoever has a thread for it lets it tend the rings.
    pub fn tender(&self) -> RingTender {
        RingTender(self.shared.clone())
    }

    fn end_tending(&self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.ended.1.notify_all();
    }
}

impl MessageTransport for RingTransport {
    fn send(&mut self, to: Rank, head: &[u8], content: Bytes) -> Result<(), MessageError> {
        let mut rings = self.shared.rings.lock();
        let unknown = || MessageError::with(to, "it is not connected");
        rings.peers.get_mut(&to).ok_or_else(unknown)?.queue(head, content)?;
        self.shared.progress(&mut rings);
        Ok(())
    }

    fn observe(&mut self) -> Result<(), MessageError> {
        self.shared.looks.fetch_add(2, Ordering::Relaxed);
        self.ticket = self.shared.fabric.ticket();
        self.shared.progress(&mut self.shared.rings.lock());
        Ok(())
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        self.shared.looks.fetch_add(1, Ordering::Relaxed);
        self.shared.fabric.wait(self.ticket, deadline);
        self.shared.looks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn bytes_copied(&self) -> u64 {
        self.shared.rings.lock().peers.values().map(Peer::bytes_copied).sum()
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        loop {
            self.observe()?;
            if self.shared.rings.lock().peers.values().all(Peer::is_idle) {
                break;
            }
            if deadline.passed() {
                let what = "not all messages have left; is a peer stopped?".to_string();
                return Err(MessageError { peer: None, what });
            }
            self.wait(deadline.min(Deadline::after(TICK)))?;
        }
        self.end_tending();
        let closed = self.shared.fabric.close(deadline);
        closed.map_err(|error| MessageError { peer: None, what: error.to_string() })
    }
}

impl std::fmt::Debug for RingTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingTransport").field("fabric", &self.shared.fabric).finish_non_exhaustive()
    }
}

impl Drop for RingTransport {
    fn drop(&mut self) {
        self.end_tending();
    }
}

impl Shared {
    /// All that can be done now.
    fn progress(&self, rings: &mut Rings) {
        let Rings { peers, completions } = rings;
        self.fabric.poll(completions);
        for completion in completions.drain(..) {
            let Some(peer) = peers.get_mut(&completion.peer) else { continue };
            peer.complete(completion.token);
            if let Err(error) = completion.result {
                self.fail(completion.peer, &error);
            }
        }
        for (rank, peer) in peers {
            if let Err(what) = peer.progress(&self.fabric, &*self.sink) {
                self.fail(*rank, &what);
            }
        }
    }

    /// The first fault says more than what it made of our writes; one that left waits for nothing.
    fn fail(&self, rank: Rank, what: &dyn std::fmt::Display) {
        if matches!(self.fabric.gone(rank), Some(tensorwire_fabric::Gone::Departed)) {
            return;
        }
        self.sink.fail(match self.fabric.fault() {
            Some(fault) => MessageError { peer: Some(fault.rank), what: fault.to_string() },
            None => MessageError::with(rank, what),
        });
    }
}

impl RingTender {
    /// Until the transport is closed or dropped.
    pub fn tend(&self) {
        let RingTender(shared) = self;
        let mut looks = 0;
        while !shared.ends.load(Ordering::SeqCst) {
            let now = shared.looks.load(Ordering::Relaxed);
            let is_attended = now != looks || now % 2 == 1;
            looks = now;
            if is_attended {
                let (lock, ended) = &shared.ended;
                ended.wait_for(&mut lock.lock(), TICK);
                continue;
            }
            let ticket = shared.fabric.ticket();
            shared.progress(&mut shared.rings.lock());
            shared.fabric.wait(ticket, Deadline::after(TICK));
        }
    }
}

impl std::fmt::Debug for RingTender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingTender").finish_non_exhaustive()
    }
}
