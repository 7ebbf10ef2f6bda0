//! The baselines under the same graph, plan and executor: a tensor crosses as a message. An implementation
//! of [`TensorExchange`] over any [`MessageTransport`]: gRPC, rings over the fabric, ZeroMQ. What is of known size goes where
//! the plan wants it as it comes; the rest waits in memory of its own until there is a place for it.
//!
//! A write at the moment of arrival is what the plan proves safe for one-sided writes, so nothing is added
//! here. A tensor of unknown size is acknowledged once it is taken, so that no sender runs ahead of its receiver.

mod head;
mod inbox;
mod open;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{EdgeId, Transfer};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_runtime::{Events, ExchangeError, Ports, Sending, TensorExchange};
use tensorwire_tensor::TensorSpec;

use crate::baseline::Baseline;
use crate::{Bytes, MessageError, MessageSink, MessageTransport};
use inbox::{Inbox, Unplaced};

pub(crate) use head::fuzz_heads;
pub use open::{MessageEnd, MessageOptions, OpenMessagesError, open, open_zmq};

/// What all sessions of a process send by.
type SharedTransport = Arc<Mutex<Box<dyn MessageTransport>>>;

/// A [`TensorExchange`] of messages.
#[derive(Debug)]
pub struct MessageExchange {
    transport: SharedTransport,
    inbox: Inbox,
    /// Tells the messages of one session from another's: the rank of its first part.
    session: u32,
    baseline: Baseline,
    outbound: HashMap<EdgeId, Outbound>,
    /// Edges of unknown size that this part receives, and from whom.
    announcers: HashMap<EdgeId, Rank>,
    /// Tensors of unknown size that are not taken yet.
    flights: HashMap<EdgeId, Flight>,
    /// By edge: what was announced, and not yet fetched.
    announced: HashMap<EdgeId, Unplaced>,
    /// What was over at once.
    ended: Vec<EdgeId>,
}

/// An edge that this part sends.
#[derive(Debug)]
struct Outbound {
    name: String,
    to: Rank,
    transfer: Transfer,
}

/// A tensor that was announced.
#[derive(Debug)]
struct Flight {
    epoch: u64,
    /// Its memory may be written again.
    is_sent: bool,
}

impl MessageExchange {
    fn push(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: Option<&TensorSpec>,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        check(&self.inbox)?;
        let head = head::encode(self.session, edge, epoch, spec);
        let Outbound { name, to, .. } = &self.outbound[&edge];
        let content = match tensor {
            None => {
                self.ended.push(edge);
                Bytes::new()
            }
            Some(tensor) => {
                if let Some(what) = self.baseline.refusal(name, tensor.bytes()) {
                    return Err(ExchangeError::Other { peer: None, what });
                }
                let loan = tensor.lend();
                let loan =
                    loan.map_err(|source| ExchangeError::Lent { edge: name.clone(), source })?;
                Bytes::from_owner(self.inbox.lent(self.session, edge, loan))
            }
        };
        self.transport.lock().send(*to, &head, content).map_err(failed)?;
        Ok(Sending::Started)
    }
}

fn failed(MessageError { peer, what }: MessageError) -> ExchangeError {
    ExchangeError::Other { peer, what }
}

fn check(inbox: &Inbox) -> Result<(), ExchangeError> {
    inbox.fault().map_or(Ok(()), |fault| Err(failed(fault)))
}

impl TensorExchange for MessageExchange {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        let is_signal = self.outbound[&edge].transfer == Transfer::Signal;
        self.push(edge, epoch, None, tensor.filter(|_| !is_signal))
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        let sending = self.push(edge, epoch, Some(spec), Some(tensor))?;
        self.flights.insert(edge, Flight { epoch, is_sent: false });
        Ok(sending)
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        Ok(self.inbox.arrived(self.session, edge, epoch))
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        let taken = self.inbox.take(self.session, edge, epoch);
        let gone =
            || "a tensor that has arrived is not there: a defect of this program".to_string();
        let taken = taken.ok_or_else(|| ExchangeError::Other { peer: None, what: gone() })?;
        let spec = taken.spec.clone();
        self.announced.insert(edge, taken);
        Ok(spec)
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        _deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        let tensor = self.announced.remove(&edge).expect("announced before it is fetched");
        let lent = |source| ExchangeError::Lent { edge: format!("edge {}", edge.0), source };
        self.inbox.place(&tensor, &mut into.write().map_err(lent)?);
        let taken = head::encode(self.session, edge, epoch, None);
        self.transport.lock().send(self.announcers[&edge], &taken, Bytes::new()).map_err(failed)?;
        self.ended.push(edge);
        Ok(Sending::Started)
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        check(&self.inbox)?;
        finished.append(&mut self.ended);
        let MessageExchange { inbox, flights, session, .. } = self;
        for edge in inbox.take_over(*session) {
            match flights.get_mut(&edge) {
                Some(flight) => flight.is_sent = true,
                None => finished.push(edge),
            }
        }
        flights.retain(|edge, flight| {
            let is_over = flight.is_sent && inbox.arrived(*session, *edge, flight.epoch);
            if is_over {
                finished.push(*edge);
            }
            !is_over
        });
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        let failed = |error: tensorwire_memory::SlabError| error.to_string();
        Slab::anonymous(bytes)
            .map_err(|error| ExchangeError::Other { peer: None, what: failed(error) })
    }

    fn free(&mut self, _slab: &Slab) {}
}

/// What a transport of messages brings, as a source of [`Events`].
#[derive(Debug)]
struct MessageEvents {
    transport: SharedTransport,
    inbox: Inbox,
    /// What the bell had counted at the last look.
    seen: u64,
}

impl Events for MessageEvents {
    fn observe(&mut self) {
        self.seen = self.inbox.bell().count();
        if let Err(fault) = self.transport.lock().observe() {
            self.inbox.fail(fault);
        }
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        check(&self.inbox)?;
        // another session may have looked meanwhile, and taken what came for this one
        if self.inbox.bell().count() == self.seen {
            self.transport.lock().wait(deadline).map_err(failed)?;
        }
        check(&self.inbox)
    }
}

impl From<MessageExchange> for Ports {
    fn from(exchange: MessageExchange) -> Ports {
        let (transport, inbox) = (exchange.transport.clone(), exchange.inbox.clone());
        Ports::new(MessageEvents { transport, inbox, seen: 0 }).with_exchange(exchange)
    }
}
