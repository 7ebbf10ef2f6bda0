//! Where messages are taken, on whatever thread they come: what the plan has a place for is copied there, the
//! rest is kept. Shared by all sessions of a process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Bell, ContentSink, MessageError, MessageSink};
use parking_lot::Mutex;
use tensorwire_base::Rank;
use tensorwire_graph::EdgeId;
use tensorwire_memory::{Buffer, Loan, WriteLoan};
use tensorwire_tensor::{Fact, TensorSpec};

use super::head;

/// Lane and edge.
type Key = (u32, EdgeId);

/// The inbox of a process. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Inbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bell: Bell,
    /// Largest tensor of unknown size that is taken.
    dynamic_bytes_max: usize,
    bytes_sent: AtomicU64,
    bytes_copied: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    inbound: HashMap<Key, Inbound>,
    /// By session: edges whose tensors may be written again.
    over: HashMap<u32, Vec<EdgeId>>,
    fault: Option<MessageError>,
}

/// An edge that a session receives, or one that it sends and is told of when its tensor is taken.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) from: Rank,
    pub(super) name: String,
    pub(super) place: Placing,
    /// The last that has come.
    epoch: u64,
    unplaced: BTreeMap<u64, Unplaced>,
}

/// Where an edge's tensors go.
#[derive(Clone, Debug)]
pub(super) enum Placing {
    /// Nothing comes but the news.
    Nowhere,
    Buffer(Buffer),
    /// The size is known when they come.
    Unknown(Fact),
}

/// A tensor that has come and has no place yet.
#[derive(Debug)]
pub(super) struct Unplaced {
    pub(super) spec: TensorSpec,
    bytes: Vec<u8>,
}

impl Inbound {
    pub(super) fn new(from: Rank, name: String, place: Placing) -> Inbound {
        Inbound { from, name, place, epoch: 0, unplaced: BTreeMap::new() }
    }
}

impl Inbox {
    pub(super) fn new(inbound: HashMap<Key, Inbound>, dynamic_bytes_max: usize) -> Inbox {
        Inbox(Arc::new(Inner {
            bell: Bell::default(),
            dynamic_bytes_max,
            bytes_sent: AtomicU64::new(0),
            bytes_copied: AtomicU64::new(0),
            state: Mutex::new(State { inbound, ..State::default() }),
        }))
    }

    pub(super) fn arrived(&self, session: u32, edge: EdgeId, epoch: u64) -> bool {
        let state = self.0.state.lock();
        state.inbound.get(&(session, edge)).is_some_and(|inbound| match inbound.place {
            Placing::Unknown(_) => inbound.unplaced.contains_key(&epoch),
            _ => inbound.epoch >= epoch,
        })
    }

    /// The tensor of unknown size that has arrived for an epoch.
    pub(super) fn take(&self, session: u32, edge: EdgeId, epoch: u64) -> Option<Unplaced> {
        self.0.state.lock().inbound.get_mut(&(session, edge))?.unplaced.remove(&epoch)
    }

    /// Copies a tensor to its place, which has its size.
    pub(super) fn place(&self, tensor: &Unplaced, into: &mut [u8]) {
        into.copy_from_slice(&tensor.bytes);
        self.0.bytes_copied.fetch_add(into.len() as u64, Ordering::Relaxed);
    }

    /// A tensor on its way: its edge is over when this is dropped.
    pub(super) fn lent(&self, session: u32, edge: EdgeId, loan: Loan) -> Lent {
        let bytes = loan.as_ref().len() as u64;
        self.0.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        Lent { loan: Some(loan), inbox: self.clone(), key: (session, edge) }
    }

    /// The session's edges whose tensors may be written again since the last call.
    pub(super) fn take_over(&self, session: u32) -> Vec<EdgeId> {
        self.0.state.lock().over.remove(&session).unwrap_or_default()
    }

    pub(super) fn fault(&self) -> Option<MessageError> {
        self.0.state.lock().fault.clone()
    }

    pub(super) fn bytes_sent(&self) -> u64 {
        self.0.bytes_sent.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_copied(&self) -> u64 {
        self.0.bytes_copied.load(Ordering::Relaxed)
    }
}

impl MessageSink for Inbox {
    fn open(&self, from: Rank, head: &[u8], bytes: usize) -> Result<Box<dyn ContentSink>, String> {
        let head::Head { session, edge, epoch, spec } = head::decode(head)?;
        let state = self.0.state.lock();
        let inbound = state.inbound.get(&(session, edge)).filter(|inbound| inbound.from == from);
        let inbound = inbound.ok_or("a tensor that the plan does not know")?;
        let wrong = |what: String| format!("'{}': {what}", inbound.name);
        let to = match &inbound.place {
            Placing::Nowhere if bytes == 0 => To::Nowhere,
            Placing::Buffer(buffer) if buffer.bytes() == bytes => {
                let loan = buffer.lend_for_writing();
                To::Place { loan: loan.map_err(|error| wrong(error.to_string()))?, at: 0 }
            }
            Placing::Unknown(fact) => {
                let spec = spec.ok_or_else(|| wrong("its size is not told".to_string()))?;
                head::check(&spec, fact).map_err(wrong)?;
                let most = self.0.dynamic_bytes_max;
                if spec.bytes() != bytes || bytes > most {
                    return Err(wrong(format!(
                        "{spec} in a message of {bytes} bytes; dynamic tensors may take {most} here; raise \
                         --dynamic-memory"
                    )));
                }
                let mut memory = Vec::new();
                let reserved = memory.try_reserve_exact(bytes);
                reserved.map_err(|error| wrong(error.to_string()))?;
                To::Memory(Unplaced { spec, bytes: memory })
            }
            _ => return Err(wrong(format!("{bytes} bytes are not its size"))),
        };
        Ok(Box::new(Arriving { inbox: self.clone(), key: (session, edge), epoch, to }))
    }

    fn fail(&self, error: MessageError) {
        self.0.state.lock().fault.get_or_insert(error);
        self.0.bell.ring();
    }

    fn bell(&self) -> &Bell {
        &self.0.bell
    }
}

/// A message that comes.
struct Arriving {
    inbox: Inbox,
    key: Key,
    epoch: u64,
    to: To,
}

enum To {
    Nowhere,
    Place { loan: WriteLoan, at: usize },
    Memory(Unplaced),
}

impl ContentSink for Arriving {
    fn write(&mut self, bytes: &[u8]) {
        self.inbox.0.bytes_copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match &mut self.to {
            To::Nowhere => {}
            To::Place { loan, at } => {
                loan[*at..*at + bytes.len()].copy_from_slice(bytes);
                *at += bytes.len();
            }
            To::Memory(tensor) => tensor.bytes.extend_from_slice(bytes),
        }
    }

    fn done(self: Box<Self>) {
        let Arriving { inbox, key, epoch, to } = *self;
        let mut state = inbox.0.state.lock();
        if let Some(inbound) = state.inbound.get_mut(&key) {
            match to {
                // whoever learns that it is there may read it
                To::Place { loan, .. } => drop(loan),
                To::Memory(tensor) => drop(inbound.unplaced.insert(epoch, tensor)),
                To::Nowhere => {}
            }
            inbound.epoch = inbound.epoch.max(epoch);
        }
        drop(state);
        inbox.0.bell.ring();
    }
}

/// A tensor that a transport sends from where it lies.
pub(super) struct Lent {
    loan: Option<Loan>,
    inbox: Inbox,
    key: Key,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.loan.as_ref().map(AsRef::as_ref).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // whoever learns that it is over may write it
        self.loan = None;
        let (session, edge) = self.key;
        self.inbox.0.state.lock().over.entry(session).or_default().push(edge);
        self.inbox.0.bell.ring();
    }
}
