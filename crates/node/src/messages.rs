//! The baselines under the same graph, plan and executor: a tensor crosses as a message. An implementation
//! of [`Exchange`] over any [`Carrier`]: gRPC, rings over the fabric, ZeroMQ. What is of known size goes where
//! the plan wants it as it comes; the rest waits in memory of its own until there is a place for it.
//!
//! A write at the moment of arrival is what the plan proves safe for one-sided writes, so nothing is added
//! here. A tensor of unknown size is acknowledged once it is taken, so that no sender runs ahead of its receiver.

mod desk;
mod head;
mod open;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{EdgeId, Transfer};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_rpc::{Bytes, Carrier, CarrierError, Desk};
use tensorwire_runtime::{Events, Exchange, ExchangeError, Ports, Sending};
use tensorwire_tensor::TensorSpec;

use crate::config::TensorLimit;
use desk::{MessageDesk, Unplaced};

pub(crate) use open::MessageEnd;

/// What all lanes of a process send by.
type SharedCarrier = Arc<Mutex<Box<dyn Carrier>>>;

/// An [`Exchange`] of messages.
#[derive(Debug)]
pub(crate) struct MessageExchange {
    carrier: SharedCarrier,
    desk: MessageDesk,
    /// Tells the messages of one lane from another's: the rank of its first part.
    lane: u32,
    /// Largest tensor that a message can have.
    limit: Option<TensorLimit>,
    outbound: HashMap<EdgeId, Outbound>,
    /// Edges of unknown size that this part receives, and from whom.
    announcers: HashMap<EdgeId, Rank>,
    /// Tensors of unknown size that are not taken yet.
    flights: HashMap<EdgeId, Flight>,
    /// By edge: what was announced, and not yet fetched.
    announced: HashMap<EdgeId, Unplaced>,
    /// What was over at once.
    over: Vec<EdgeId>,
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
        check(&self.desk)?;
        let head = head::encode(self.lane, edge, epoch, spec);
        let Outbound { name, to, .. } = &self.outbound[&edge];
        let content = match tensor {
            None => {
                self.over.push(edge);
                Bytes::new()
            }
            Some(tensor) => {
                if let Some(what) =
                    self.limit.and_then(|limit| limit.exceeded(name, tensor.bytes()))
                {
                    return Err(ExchangeError::Other { peer: None, what });
                }
                let loan = tensor.lend();
                let loan =
                    loan.map_err(|source| ExchangeError::Lent { edge: name.clone(), source })?;
                Bytes::from_owner(self.desk.lent(self.lane, edge, loan))
            }
        };
        self.carrier.lock().send(*to, &head, content).map_err(failed)?;
        Ok(Sending::Started)
    }
}

fn failed(CarrierError { peer, what }: CarrierError) -> ExchangeError {
    ExchangeError::Other { peer, what }
}

fn check(desk: &MessageDesk) -> Result<(), ExchangeError> {
    desk.fault().map_or(Ok(()), |fault| Err(failed(fault)))
}

impl Exchange for MessageExchange {
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
        Ok(self.desk.arrived(self.lane, edge, epoch))
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        let taken = self.desk.take(self.lane, edge, epoch);
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
        self.desk.place(&tensor, &mut into.write().map_err(lent)?);
        let taken = head::encode(self.lane, edge, epoch, None);
        self.carrier.lock().send(self.announcers[&edge], &taken, Bytes::new()).map_err(failed)?;
        self.over.push(edge);
        Ok(Sending::Started)
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        check(&self.desk)?;
        finished.append(&mut self.over);
        let MessageExchange { desk, flights, lane, .. } = self;
        for edge in desk.take_over(*lane) {
            match flights.get_mut(&edge) {
                Some(flight) => flight.is_sent = true,
                None => finished.push(edge),
            }
        }
        flights.retain(|edge, flight| {
            let is_over = flight.is_sent && desk.arrived(*lane, *edge, flight.epoch);
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

/// What a carrier brings, as a source of [`Events`].
#[derive(Debug)]
struct MessageEvents {
    carrier: SharedCarrier,
    desk: MessageDesk,
    /// What the bell had counted at the last look.
    seen: u64,
}

impl Events for MessageEvents {
    fn observe(&mut self) {
        self.seen = self.desk.bell().count();
        if let Err(fault) = self.carrier.lock().observe() {
            self.desk.fail(fault);
        }
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        check(&self.desk)?;
        // another lane may have looked meanwhile, and taken what came for this one
        if self.desk.bell().count() == self.seen {
            self.carrier.lock().wait(deadline).map_err(failed)?;
        }
        check(&self.desk)
    }
}

impl From<MessageExchange> for Ports {
    fn from(exchange: MessageExchange) -> Ports {
        let (carrier, desk) = (exchange.carrier.clone(), exchange.desk.clone());
        Ports::new(MessageEvents { carrier, desk, seen: 0 }).with_exchange(exchange)
    }
}
