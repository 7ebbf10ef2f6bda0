//! Tensors whose size is known only when they exist, from one process's device to another's (Xue et al. §3.3, §3.5): what is
//! told of them is in the host's memory; the receiver allocates memory of its device then. Its device copies the sender's once, where
//! it maps it; its NIC reads it there; or it comes in pieces by memory of the host.

use std::sync::Arc;

use tensorwire_base::{Clock, Deadline};
use tensorwire_graph::{EdgeId, NodeId, Part};
use tensorwire_memory::{Buffer, CopyPurpose, DeviceWriteLoan, LoanError};
use tensorwire_tensor::TensorSpec;

use super::{Copying, Then, number_of};
use crate::error::{AllocError, ExchangeError, RunError};
use crate::executor::{Executor, Flight, Turn};
use crate::ports::{AnnouncedWay, Sending, TensorExchange};
use crate::storage::Tensor;

/// A tensor that is read in pieces of the host's memory, from which the device copies it.
pub(in crate::executor) struct Fetching {
    tensor: Tensor,
    target: Arc<DeviceWriteLoan>,
    pieces: Arc<[Buffer]>,
    /// Pieces that the exchange was asked for, and that the device was told to copy.
    asked: usize,
    told: usize,
    start_ns: u64,
}

impl Fetching {
    /// True if there is a piece that the device was not told of.
    pub(in crate::executor) fn has_more(
        &self,
        exchange: &(dyn TensorExchange + 'static),
        edge: EdgeId,
    ) -> bool {
        exchange.pieces_fetched(edge) > self.told
    }
}

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

    /// Has what is to be announced lie where peers reach it; returns where the device is to copy it for that, if it is.
    pub(super) fn prepare_announcement(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        tensor: &Tensor,
    ) -> Result<Option<Buffer>, RunError> {
        let no_memory = self.no_memory(part, id);
        let Some(exchange) = self.exchange.as_deref_mut() else { return Ok(None) };
        let input = part.graph.node(id).inputs.first().copied();
        if let Some(copy) = input.and_then(|input| self.shown.get(&input)) {
            // for another peer the device was told of it before
            self.prepared.insert(edge, copy.clone());
            return Ok(None);
        }
        let copy = self.workspace.sendable_on_device(tensor, exchange).map_err(no_memory)?;
        let target = copy.as_ref().map(|copy| copy.buffer.clone());
        self.shown.extend(input.zip(copy.clone()));
        self.prepared.insert(edge, copy.unwrap_or_else(|| tensor.clone()));
        Ok(target.filter(|target| target.bytes() > 0))
    }

    /// Has the device copy what is to be announced to the host's memory, in pieces that are announced one after the other.
    pub(super) fn announce_in_pieces(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        piece_bytes: usize,
    ) -> Result<Turn, RunError> {
        let no_memory = self.no_memory(part, id);
        let input = part.graph.node(id).inputs.first().copied();
        let found = input.zip(input.and_then(|input| self.workspace.storage.tensor(input)));
        let Some((input, tensor)) = found else {
            let node = part.graph.node(id).name.clone();
            return Err(RunError::NotFed { step: self.counters.steps, node });
        };
        let spec = tensor.spec.clone();
        let Some(exchange) = self.exchange.as_deref_mut() else { return Ok(Turn::NotYet) };
        let pieces = match self.given.get(&input) {
            Some(pieces) => pieces.clone(),
            None => {
                let size = (spec.bytes(), piece_bytes);
                let pieces = self.workspace.alloc_pinned(size, exchange).map_err(no_memory)?;
                self.given.insert(input, pieces.clone());
                pieces
            }
        };
        exchange.announce_in_pieces(edge, &spec, pieces.clone());
        self.stage(part, id, edge, &pieces)
    }

    /// Learns what was announced, and has it come to memory of the device.
    fn receive_on_device(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        if self.fetching.contains_key(&edge) {
            return self.fetch_pieces(part, id, edge);
        }
        if !self.has_arrived(edge)? {
            return Ok(Turn::NotYet);
        }
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Turn::NotYet) };
        let spec = exchange.announced(edge, epoch);
        let spec = spec.map_err(|source| RunError::Exchange { step, source })?;
        match exchange.way_of_announced(edge) {
            AnnouncedWay::Read => self.read_by_nic(part, id, edge, spec),
            AnnouncedWay::InPieces { piece_bytes } if spec.bytes() > 0 => {
                self.begin_pieces(part, id, edge, (spec, piece_bytes))?;
                self.fetch_pieces(part, id, edge)
            }
            AnnouncedWay::Mapped | AnnouncedWay::InPieces { .. } => {
                self.read_by_device(part, id, edge, spec)
            }
        }
    }

    /// Allocates memory of the device, and has the device read there what its sender's has.
    fn read_by_device(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        spec: TensorSpec,
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let name = || part.graph.node(id).name.clone();
        let exchange_error = |source| RunError::Exchange { step, source };
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let no_memory = self.no_memory(part, id);
        let deadline = Deadline::after(self.options.step_deadline);
        let Some(exchange) = &mut self.exchange else { return Ok(Turn::NotYet) };
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
        let tensor = made.map_err(no_memory)?;
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
        let then = Then::Read { edge };
        self.copying.push_back(Copying { node: id, copy, start_ns, then, device });
        Ok(Turn::Started)
    }

    /// Allocates memory of the device that the NIC reaches, for it to read into once the device has done with what was there before.
    fn read_by_nic(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        spec: TensorSpec,
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let no_memory = self.no_memory(part, id);
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = self.exchange.as_deref_mut() else { return Ok(Turn::NotYet) };
        let readable = exchange.pieces_arrived(edge, epoch);
        if readable.map_err(|source| RunError::Exchange { step, source })? == 0 {
            return Ok(Turn::NotYet);
        }
        let tensor = self.workspace.alloc_shown(spec, exchange).map_err(no_memory)?;
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        // of this memory the device knows an order, and the NIC none
        let marked = device.lock().mark();
        let copy = marked.map_err(|source| self.device_failed(part, id, source))?;
        self.prepared.insert(edge, tensor);
        let then = Then::Fetch { edge };
        self.copying.push_back(Copying { node: id, copy, start_ns, then, device: None });
        Ok(Turn::Started)
    }

    /// Allocates memory of the device, and pieces of the host's by which a tensor gets there.
    fn begin_pieces(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        (spec, piece_bytes): (TensorSpec, usize),
    ) -> Result<(), RunError> {
        let no_memory = self.no_memory(part, id);
        let start_ns = Clock::now_ns();
        let (own, bytes) = (number_of(part.graph.node(id).space).unwrap_or_default(), spec.bytes());
        let Some(exchange) = self.exchange.as_deref_mut() else { return Ok(()) };
        let pieces = self.workspace.alloc_pinned((bytes, piece_bytes), exchange);
        let pieces = pieces.map_err(&no_memory)?;
        let made = self.workspace.alloc_on_device(own, id.into(), spec, Some(exchange));
        let tensor = made.map_err(&no_memory)?;
        let lent = tensor.buffer.lend_to_device_for_writing();
        let target = Arc::new(lent.map_err(|source| self.lent(part, id, source))?);
        let (asked, told) = (0, 0);
        self.fetching.insert(edge, Fetching { tensor, target, pieces, asked, told, start_ns });
        Ok(())
    }

    /// Starts to read the pieces that can be read, and has the device copy those that are here.
    fn fetch_pieces(&mut self, part: &Part, id: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let deadline = Deadline::after(self.options.step_deadline);
        let exchange_error = |source| RunError::Exchange { step, source };
        let Some(mut fetching) = self.fetching.remove(&edge) else { return Ok(Turn::NotYet) };
        let Some(exchange) = &mut self.exchange else { return Ok(Turn::NotYet) };
        let readable = exchange.pieces_arrived(edge, epoch).map_err(exchange_error)?;
        while fetching.asked < readable {
            let piece = &fetching.pieces[fetching.asked];
            match exchange.fetch_piece(edge, piece, deadline).map_err(exchange_error)? {
                Sending::Started => fetching.asked += 1,
                Sending::Full => break,
            }
        }
        let fetched = exchange.pieces_fetched(edge);
        while fetching.told < fetched {
            self.copy_fetched(part, id, edge, &mut fetching)?;
        }
        if fetching.told == fetching.pieces.len() {
            self.prepared.insert(edge, fetching.tensor);
            return Ok(Turn::Started);
        }
        if fetching.asked > 0 {
            // from the first on there are completions to look for
            let start_ns = fetching.start_ns;
            self.flights.entry(edge).or_insert(Flight { node: id, start_ns, tensor: None });
        }
        self.fetching.insert(edge, fetching);
        Ok(Turn::NotYet)
    }

    /// Has the device copy the next piece that is here.
    fn copy_fetched(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        fetching: &mut Fetching,
    ) -> Result<(), RunError> {
        let Fetching { target, pieces, told, start_ns, .. } = fetching;
        let piece = &pieces[*told];
        let at: usize = pieces[..*told].iter().map(Buffer::bytes).sum();
        let from = Arc::new(piece.lend_to_device().map_err(|why| self.lent(part, id, why))?);
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let device_number = number_of(target.space());
        let mut device = device.lock();
        let followed = self.gates.follow(&mut *device, id, device_number.unwrap_or_default());
        let started =
            followed.and_then(|()| device.copy_piece((&from, 0), (&*target, at), piece.bytes()));
        drop(device);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        // fits: a length is at most isize::MAX
        self.workspace.copies.add(CopyPurpose::ToDevice, piece.bytes() as u64);
        *told += 1;
        let then = if *told == pieces.len() { Then::Read { edge } } else { Then::More };
        let (start_ns, device) = (*start_ns, device_number);
        self.copying.push_back(Copying { node: id, copy, start_ns, then, device });
        Ok(())
    }

    fn lent(&self, part: &Part, id: NodeId, source: LoanError) -> RunError {
        let node = part.graph.node(id).name.clone();
        RunError::Lent { step: self.counters.steps, node, source }
    }

    /// The error of a node for whose tensor there is no memory.
    fn no_memory<'a>(
        &self,
        part: &'a Part,
        id: NodeId,
    ) -> impl Fn(AllocError) -> RunError + use<'a> {
        let step = self.counters.steps;
        move |source| {
            let node = part.graph.node(id).name.clone();
            RunError::Memory { step, node, source }
        }
    }

    /// Tells a sender that all was read that it announced.
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
