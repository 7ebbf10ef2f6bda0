//! Tensors whose size is known only when they exist, from one process's device to another's (Xue et al. §3.3, §3.5): what is
//! told of them is in the host's memory; the receiver allocates memory of its device then, which reads the sender's once.

use std::sync::Arc;

use tensorwire_base::{Clock, Deadline};
use tensorwire_graph::{EdgeId, NodeId, Part};
use tensorwire_memory::{Buffer, CopyPurpose, LoanError};

use super::{Copying, Then, number_of};
use crate::error::{ExchangeError, RunError};
use crate::executor::{Executor, Flight, Turn};
use crate::ports::Sending;
use crate::storage::Tensor;

impl Executor {
    /// Takes what was announced to where the plan has it.
    pub(in crate::executor) fn receive_anywhere(
        &mut self,
        part: &Part,
        node: NodeId,
        edge: EdgeId,
    ) -> Result<Turn, RunError> {
        match part.graph.node(node).space.is_device() {
            true => self.receive_on_device(part, node, edge),
            false => self.receive(node, edge),
        }
    }

    /// Has what is to be announced lie where peers map it; returns where the device is to copy it for that, if it is.
    pub(super) fn prepare_announcement(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        tensor: &Tensor,
    ) -> Result<Option<Buffer>, RunError> {
        let step = self.counters.steps;
        let Some(exchange) = self.exchange.as_deref_mut() else { return Ok(None) };
        let copy = self.workspace.sendable_on_device(tensor, exchange).map_err(|source| {
            RunError::Memory { step, node: part.graph.node(id).name.clone(), source }
        })?;
        let target = copy.as_ref().map(|copy| copy.buffer.clone());
        self.prepared.insert(edge, copy.unwrap_or_else(|| tensor.clone()));
        Ok(target.filter(|target| target.bytes() > 0))
    }

    /// Learns what was announced, allocates memory of the device for it, and has the device read it where its sender's has it.
    fn receive_on_device(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let name = || part.graph.node(id).name.clone();
        let exchange_error = |source| RunError::Exchange { step, source };
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        if !self.has_arrived(edge)? {
            return Ok(Turn::NotYet);
        }
        let start_ns = Clock::now_ns();
        let epoch = self.epochs[edge.index()] + 1;
        let deadline = Deadline::after(self.options.step_deadline);
        let Some(exchange) = &mut self.exchange else { return Ok(Turn::NotYet) };
        let spec = exchange.announced(edge, epoch).map_err(exchange_error)?;
        let there = match spec.bytes() {
            0 => None,
            _ => {
                let there = exchange.on_peer(edge, deadline).map_err(exchange_error)?;
                let edge = || self.edge_names[edge.index()].clone();
                let there = there.ok_or_else(|| ExchangeError::NotOnDevice { edge: edge() });
                Some(there.map_err(exchange_error)?)
            }
        };
        let own = number_of(part.graph.node(id).space).unwrap_or_default();
        let exchange = self.exchange.as_deref_mut();
        let made = self.workspace.alloc_on_device(own, id.into(), spec, exchange);
        let tensor = made.map_err(|source| RunError::Memory { step, node: name(), source })?;
        let loans = match there {
            Some((from, offset)) => {
                let from = Arc::new(from.lend_to_device().map_err(lent)?);
                let to = Arc::new(tensor.buffer.lend_to_device_for_writing().map_err(lent)?);
                Some((from, offset, to))
            }
            None => None,
        };
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let bytes = tensor.buffer.bytes();
        let mut device = device.lock();
        let started = self.gates.follow(&mut *device, id, own).and_then(|()| match &loans {
            Some((from, offset, to)) => device.copy_piece((from, *offset), (to, 0), bytes),
            None => device.mark(),
        });
        drop(device);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        // fits: a length is at most isize::MAX
        self.workspace.copies.add(CopyPurpose::FromPeers, bytes as u64);
        self.prepared.insert(edge, tensor);
        let device = loans.map(|_| own);
        self.copying.push_back(Copying {
            node: id,
            copy,
            start_ns,
            then: Then::Read { edge },
            device,
        });
        Ok(Turn::Started)
    }

    /// Tells a sender that what it announced was read.
    pub(super) fn acknowledge(
        &mut self,
        node: NodeId,
        edge: EdgeId,
        start_ns: u64,
    ) -> Result<Sending, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Sending::Full) };
        let sending = exchange.acknowledge(edge, epoch);
        let sending = sending.map_err(|source| RunError::Exchange { step, source })?;
        if sending == Sending::Started {
            self.epochs[edge.index()] = epoch;
            let tensor = self.prepared.remove(&edge);
            self.flights.insert(edge, Flight { node, start_ns, tensor });
        }
        Ok(sending)
    }
}
