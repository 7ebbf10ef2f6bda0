//! Turns of nodes that a device computes or copies. A kernel is done for the executor once it is started: whatever uses
//! its output on the device comes behind it there, and what the host uses comes by a copy, which is done when it is over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Space};
use tensorwire_graph::{EdgeId, Graph, Kind, NodeId, Op, Output, Part};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceFailure, DeviceOperand};
use tensorwire_memory::{Buffer, CopyPurpose, DeviceLoan, DeviceWriteLoan, LoanError};

use super::{Executor, Flight, Turn};
use crate::error::RunError;
use crate::frontier::Frontier;
use crate::ports::{DeviceWay, Sending};
use crate::storage::Tensor;
use crate::timeline::EventKind;

/// How often to ask for a copy that is not over.
pub(super) const ASK_AGAIN: Duration = Duration::from_micros(100);
/// How long to ask without a pause: a small copy is over by then.
const SPIN_NS: u64 = 50_000;

/// A copy that is not over.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) node: NodeId,
    copy: CopyId,
    start_ns: u64,
    then: Then,
}

/// What a copy that is over is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The node is done.
    Done,
    /// The node is a Send, which may be posted now.
    Open,
    /// The node is a Send, of which this piece may be posted now.
    Piece { edge: EdgeId, index: usize, is_last: bool },
    /// The node is a Recv, of which more pieces come.
    More,
}

/// A tensor that comes in pieces.
pub(super) struct Landing {
    /// Pieces that the device was told to copy.
    told: usize,
    start_ns: u64,
    target: Arc<DeviceWriteLoan>,
}

/// Sends that tell others of what a device does: they are posted when it has done that.
#[derive(Debug)]
pub(super) struct Gates {
    /// By node: it is such a Send.
    gated: Vec<bool>,
    /// Those whose turn it is to be posted.
    open: HashSet<NodeId>,
}

impl Gates {
    pub(super) fn new(graph: &Graph) -> Gates {
        // what is done for the executor before the device has done it
        let mut is_pending = vec![false; graph.len()];
        let mut gated = vec![false; graph.len()];
        for (id, node) in graph.nodes() {
            let waits = || graph.predecessors(id).iter().any(|before| is_pending[before.index()]);
            let kind = node.op.facts().kind;
            match kind {
                Kind::Kernel(_) => is_pending[id.index()] = node.space == Space::Device,
                Kind::View | Kind::Order => is_pending[id.index()] = waits(),
                Kind::Send => {
                    gated[id.index()] = node.space == Space::Device || waits();
                }
                Kind::State | Kind::Copy | Kind::Recv | Kind::Group => {}
            }
        }
        Gates { gated, open: HashSet::new() }
    }

    pub(super) fn begin(&mut self) {
        self.open.clear();
    }

    /// True if a Send has to wait for the device first.
    pub(super) fn is_shut(&self, send: NodeId) -> bool {
        self.gated[send.index()] && !self.open.contains(&send)
    }

    pub(super) fn posted(&mut self, send: NodeId) {
        self.open.remove(&send);
    }
}

impl Executor {
    /// Starts a kernel.
    pub(super) fn start_on_device(
        &self,
        part: &Part,
        id: NodeId,
        made: &[Tensor],
    ) -> Result<(), RunError> {
        let step = self.counters.steps;
        let node = part.graph.node(id);
        let name = || node.name.clone();
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let in_place = part.memory.is_in_place(id);
        let (written, read) = self.operands(part, id, made)?;
        // what is lent is nobody else's until the kernel is started; then the device's order stands for it
        let writes: Result<Vec<DeviceWriteLoan>, _> =
            written.iter().map(|tensor| tensor.buffer.lend_to_device_for_writing()).collect();
        let writes = writes.map_err(lent)?;
        let reads: Result<Vec<DeviceLoan>, _> =
            read.iter().map(|tensor| tensor.buffer.lend_to_device()).collect();
        let reads = reads.map_err(lent)?;
        let inputs: Vec<DeviceOperand<'_>> = read
            .iter()
            .zip(&reads)
            .map(|(tensor, loan)| DeviceOperand { spec: &tensor.spec, address: loan.address() })
            .collect();
        let outputs: Vec<DeviceOperand<'_>> = written
            .iter()
            .zip(&writes)
            .map(|(tensor, loan)| DeviceOperand { spec: &tensor.spec, address: loan.address() })
            .collect();
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let call =
            DeviceCall { node: id, op: &node.op, inputs: &inputs, outputs: &outputs, in_place };
        device.lock().start(call).map_err(|source| self.device_failed(part, id, source))
    }

    /// Starts a copy from one space to the other.
    pub(super) fn copy(&mut self, part: &Part, id: NodeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let made = self.outputs(part, id)?;
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let unfed = || RunError::NotFed { step, node: node.name.clone() };
        let input = node.inputs.first().ok_or_else(unfed)?;
        let from = self.workspace.storage.tensor(*input).ok_or_else(unfed)?;
        let to = made.first().ok_or_else(unfed)?;
        let from_loan = match from.buffer.lend_to_device() {
            // another session is changing the variable
            Err(LoanError::BeingWritten) if self.options.variables_shared => {
                return Ok(Turn::NotYet);
            }
            loan => loan.map_err(lent)?,
        };
        let to_loan = to.buffer.lend_to_device_for_writing().map_err(lent)?;
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        // fits: a length is at most isize::MAX
        let bytes = to.buffer.bytes() as u64;
        let started = device.lock().copy(from_loan, to_loan);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        let purpose = match node.space {
            Space::Device => CopyPurpose::ToDevice,
            Space::Host => CopyPurpose::ToHost,
        };
        self.workspace.copies.add(purpose, bytes);
        self.hold(part, id, made);
        self.copying.push_back(Copying { node: id, copy, start_ns, then: Then::Done });
        Ok(Turn::Started)
    }

    /// Has the device do what comes before a Send, and write the tensor where the receiver has it, if it goes there.
    pub(super) fn shut(&mut self, part: &Part, id: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let way = self.exchange.as_ref().map(|exchange| exchange.way_from_device(edge));
        let target = match way {
            Some(DeviceWay::Copied(target)) => Some(target),
            Some(DeviceWay::Staged(pieces)) => return self.stage(part, id, edge, &pieces),
            _ => None,
        };
        let source = node.inputs.first().and_then(|input| self.workspace.storage.tensor(*input));
        let loans = match target.zip(source) {
            Some((to, from)) => {
                let from = from.buffer.lend_to_device().map_err(lent)?;
                let to = to.lend_to_device_for_writing().map_err(lent)?;
                Some((from, to))
            }
            None => None,
        };
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let mut device = device.lock();
        let started = match loans {
            Some((from, to)) => device.copy(from, to),
            None => device.mark(),
        };
        drop(device);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        self.copying.push_back(Copying { node: id, copy, start_ns, then: Then::Open });
        Ok(Turn::Started)
    }

    /// Has the device copy a tensor to the host's memory in pieces, each of which is sent as soon as it is there. What goes to
    /// several peers is copied once.
    fn stage(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        pieces: &[Buffer],
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let unfed = || RunError::NotFed { step, node: node.name.clone() };
        let input = *node.inputs.first().ok_or_else(unfed)?;
        if !self.staged.contains_key(&input) {
            let from = self.workspace.storage.tensor(input).ok_or_else(unfed)?;
            let from = Arc::new(from.buffer.lend_to_device().map_err(lent)?);
            let Some(device) = &self.workspace.device else {
                return Err(self.without_device(part, id));
            };
            let mut copies = Vec::with_capacity(pieces.len());
            let mut at = 0;
            for piece in pieces {
                let to = Arc::new(piece.lend_to_device_for_writing().map_err(lent)?);
                let started = device.lock().copy_piece((&from, at), (&to, 0), piece.bytes());
                copies.push(started.map_err(|source| self.device_failed(part, id, source))?);
                at += piece.bytes();
            }
            // fits: a length is at most isize::MAX
            self.workspace.copies.add(CopyPurpose::ToHost, at as u64);
            self.staged.insert(input, copies);
        }
        let copies = &self.staged[&input];
        let copying = copies.iter().enumerate().map(|(index, copy)| {
            let then = Then::Piece { edge, index, is_last: index + 1 == copies.len() };
            Copying { node: id, copy: *copy, start_ns, then }
        });
        self.copying.extend(copying);
        Ok(Turn::Started)
    }

    /// Has the device copy the pieces of a tensor that have arrived to where it belongs.
    pub(super) fn land(
        &mut self,
        part: &Part,
        id: NodeId,
        edge: EdgeId,
        pieces: &[Buffer],
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let name = || part.graph.node(id).name.clone();
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let start_ns = Clock::now_ns();
        let arrived = self.exchange.as_mut().map_or(Ok(0), |e| e.pieces_arrived(edge, epoch));
        let arrived = arrived.map_err(|source| RunError::Exchange { step, source })?;
        self.counters.polls += 1;
        let told = self.landing.get(&edge).map_or(0, |landing| landing.told);
        if arrived == told {
            self.counters.poll_misses += 1;
            self.counters.poll_ns += Clock::now_ns() - start_ns;
            return Ok(Turn::NotYet);
        }
        let landing = match self.landing.remove(&edge) {
            Some(landing) => landing,
            None => {
                let tensor = self.workspace.storage.tensor(id.into());
                let tensor = tensor.ok_or_else(|| RunError::NotFed { step, node: name() })?;
                let target = tensor.buffer.lend_to_device_for_writing().map_err(lent)?;
                Landing { told: 0, start_ns, target: Arc::new(target) }
            }
        };
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let mut at: usize = pieces[..told].iter().map(Buffer::bytes).sum();
        for (index, piece) in pieces[..arrived].iter().enumerate().skip(told) {
            let from = Arc::new(piece.lend_to_device().map_err(lent)?);
            let started =
                device.lock().copy_piece((&from, 0), (&landing.target, at), piece.bytes());
            let copy = started.map_err(|source| self.device_failed(part, id, source))?;
            // fits: a length is at most isize::MAX
            self.workspace.copies.add(CopyPurpose::ToDevice, piece.bytes() as u64);
            let then = if index + 1 == pieces.len() { Then::Done } else { Then::More };
            let start_ns = landing.start_ns;
            self.copying.push_back(Copying { node: id, copy, start_ns, then });
            at += piece.bytes();
        }
        if arrived == pieces.len() {
            self.epochs[edge.index()] = epoch;
            return Ok(Turn::Started);
        }
        self.landing.insert(edge, Landing { told: arrived, ..landing });
        Ok(Turn::NotYet)
    }

    /// Completes the copies that are over; returns true if there were any.
    pub(super) fn complete_copies(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<bool, RunError> {
        let mut any = false;
        self.is_held_up = false;
        // they are over in the order in which they were started
        while let Some(first) = self.copying.front() {
            if !self.is_over(part, first)? {
                break;
            }
            if let Then::Piece { edge, index, .. } = first.then
                && self.post_piece(edge, index)? == Sending::Full
            {
                self.is_held_up = true;
                break;
            }
            let Some(Copying { node, start_ns, then, .. }) = self.copying.pop_front() else {
                break;
            };
            if self.timeline.is_some() && matches!(then, Then::Done | Then::Open) {
                let what = match part.graph.node(node).op {
                    Op::Recv { edge, .. } => {
                        EventKind::Recv { node, epoch: self.epochs[edge.index()] }
                    }
                    _ => EventKind::Copy(node),
                };
                self.record(what, start_ns, Clock::now_ns());
            }
            match then {
                Then::Open => {
                    self.gates.open.insert(node);
                    self.ready.push_front(node);
                }
                Then::Done => self.complete(part, frontier, node),
                Then::Piece { edge, is_last: true, .. } => self.posted(node, edge, start_ns, None),
                Then::Piece { edge, .. } => {
                    // from the first piece on there are completions to look for: the queue may be full of them
                    self.flights.entry(edge).or_insert(Flight { node, start_ns, tensor: None });
                }
                Then::More => {}
            }
            any = true;
        }
        Ok(any)
    }

    fn post_piece(&mut self, edge: EdgeId, index: usize) -> Result<Sending, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Sending::Full) };
        let sending = exchange.send_piece(edge, epoch, index);
        sending.map_err(|source| RunError::Exchange { step, source })
    }

    /// Asks for the first copy for a moment; true if it is over.
    pub(super) fn spin_for_copy(&self, part: &Part) -> Result<bool, RunError> {
        let Some(first) = self.copying.front() else { return Ok(false) };
        let begun = Clock::now_ns();
        while Clock::now_ns() - begun < SPIN_NS {
            if self.is_over(part, first)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    fn is_over(&self, part: &Part, copying: &Copying) -> Result<bool, RunError> {
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, copying.node));
        };
        let over = device.lock().is_over(copying.copy);
        over.map_err(|source| self.device_failed(part, copying.node, source))
    }

    /// The error of whatever the device could not do, of the node that it names or that it was asked for.
    pub(super) fn device_failed(&self, part: &Part, id: NodeId, source: DeviceFailure) -> RunError {
        let step = self.counters.steps;
        match source {
            DeviceFailure::Kernel { node, source } => {
                let node = part.graph.node(node.unwrap_or(id)).name.clone();
                RunError::Kernel { step, node, source: *source }
            }
            source => RunError::Device { step, node: part.graph.node(id).name.clone(), source },
        }
    }

    fn without_device(&self, part: &Part, id: NodeId) -> RunError {
        let source = DeviceFailure::Device("there is no device".into());
        self.device_failed(part, id, source)
    }
}

/// True if the node's output lies in a device's memory.
pub(crate) fn is_on_device(part: &Part, output: Output) -> bool {
    part.graph.node(output.node).space == Space::Device
}
