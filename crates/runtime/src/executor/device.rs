//! Turns of nodes that a device computes or copies. A kernel is done for the executor once it is started: whatever uses
//! its output on the device comes behind it there, and what the host or another device uses comes by a copy, which is done
//! when it is over, but for what came ahead: that is moved within the device, as by a kernel. What else waits for a kernel, on another device, has that device wait for it ([`Gates`]).

mod reading;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Space};
use tensorwire_graph::{EdgeId, Graph, Kind, NodeId, Op, Output, Part};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceFailure, DeviceKernels, DeviceOperand};
use tensorwire_memory::{Buffer, CopyPurpose, DeviceLoan, DeviceWriteLoan, LoanError};

pub(super) use reading::Fetching;

use super::{Executor, Flight, Turn};
use crate::ahead::viewed;
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
    /// Who copies: what one device was told is over in that order. None: all devices were marked.
    device: Option<u32>,
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
    /// The node is a Recv of what a peer announced, which may be told now that it was read.
    Read { edge: EdgeId },
    /// The node is such a Recv, into memory that the device uses no more: a NIC may read now.
    Fetch { edge: EdgeId },
}

impl Then {
    /// Of which edge something is to be posted.
    fn edge(self) -> Option<EdgeId> {
        match self {
            Then::Piece { edge, .. } | Then::Read { edge } | Then::Fetch { edge } => Some(edge),
            Then::Done | Then::Open | Then::More => None,
        }
    }
}

/// A tensor that comes in pieces.
pub(super) struct Landing {
    /// Pieces that the device was told to copy.
    told: usize,
    start_ns: u64,
    target: Arc<DeviceWriteLoan>,
}

/// Who waits for what is done for the executor before a device has done it: Sends that tell others of it, and what another
/// device does behind it.
#[derive(Debug)]
pub(super) struct Gates {
    /// By node: it is such a Send, to be posted when the devices have done what they were told.
    gated: Vec<bool>,
    /// By node: the other devices that its own is to wait for.
    behind: Vec<Vec<u32>>,
    /// Those whose turn it is to be posted.
    open: HashSet<NodeId>,
}

impl Gates {
    pub(super) fn new(graph: &Graph, order: &[(NodeId, NodeId)]) -> Gates {
        // by node: the devices that may not have done yet what is done for the executor
        let mut pending: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
        let mut gated = vec![false; graph.len()];
        let mut behind = vec![Vec::new(); graph.len()];
        for (id, node) in graph.nodes() {
            let before = graph.predecessors(id);
            let waits = before.iter().flat_map(|before| pending[before.index()].iter().copied());
            let mut waits: Vec<u32> = waits.collect();
            waits.sort_unstable();
            waits.dedup();
            match node.op.facts().kind {
                Kind::Kernel(_) | Kind::Group => {
                    pending[id.index()].extend(number_of(node.space));
                    behind[id.index()] = waits;
                }
                Kind::View | Kind::Order => pending[id.index()] = waits,
                Kind::Send => {
                    gated[id.index()] = node.space.is_device() || !waits.is_empty();
                    behind[id.index()] = waits;
                }
                Kind::Copy => behind[id.index()] = waits,
                Kind::State | Kind::Recv => {}
            }
        }
        // in a run that has both, the second comes behind the first; it need not come behind it in the graph
        for (first, then) in order {
            behind[then.index()].extend(&pending[first.index()]);
        }
        for (id, node) in graph.nodes() {
            // a copy comes behind both of its ends
            let source = node.inputs.first().and_then(|input| {
                let is_copy = node.op.facts().kind == Kind::Copy;
                number_of(graph.node(input.node).space).filter(|_| is_copy)
            });
            let behind = &mut behind[id.index()];
            behind.retain(|other| ![number_of(node.space), source].contains(&Some(*other)));
            behind.sort_unstable();
            behind.dedup();
        }
        Gates { gated, behind, open: HashSet::new() }
    }

    /// Has a device wait for the others that a node on it comes behind.
    pub(super) fn follow(
        &self,
        devices: &mut dyn DeviceKernels,
        id: NodeId,
        own: u32,
    ) -> Result<(), DeviceFailure> {
        self.behind[id.index()].iter().try_for_each(|other| devices.follow(own, *other))
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
        let Some((device, number)) = self.workspace.device.as_ref().zip(number_of(node.space))
        else {
            return Err(self.without_device(part, id));
        };
        let call = DeviceCall {
            node: id,
            device: number,
            op: &node.op,
            inputs: &inputs,
            outputs: &outputs,
            in_place,
        };
        let mut device = device.lock();
        let followed = self.gates.follow(&mut *device, id, number);
        let started = followed.and_then(|()| device.start(call));
        started.map_err(|source| self.device_failed(part, id, source))
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
        let to = made.first().ok_or_else(unfed)?;
        if let Some(ahead) = self.ahead.take(viewed(part, *input)) {
            let loans = (ahead.lend_to_device(), to.buffer.lend_to_device_for_writing());
            let (from, to) = (loans.0.map_err(lent)?, loans.1.map_err(lent)?);
            let Some(device) = &self.workspace.device else {
                return Err(self.without_device(part, id));
            };
            let mut device = device.lock();
            let own = number_of(node.space).unwrap_or_default();
            let followed = self.gates.follow(&mut *device, id, own);
            let taken = followed.and_then(|()| device.take(from, to));
            drop(device);
            taken.map_err(|source| self.device_failed(part, id, source))?;
            self.hold(part, id, made);
            // whatever uses it on the device comes behind
            return Ok(Turn::Done);
        }
        let from = self.workspace.storage.tensor(*input).ok_or_else(unfed)?;
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
        let (source, target) = (number_of(from_loan.space()), number_of(node.space));
        let copies = target.or(source);
        let mut device = device.lock();
        let followed = self.gates.follow(&mut *device, id, copies.unwrap_or_default());
        let started = followed.and_then(|()| device.copy(from_loan, to_loan));
        drop(device);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        let purpose = match (source, target) {
            (Some(_), Some(_)) => CopyPurpose::BetweenDevices,
            (None, _) => CopyPurpose::ToDevice,
            (_, None) => CopyPurpose::ToHost,
        };
        self.workspace.copies.add(purpose, bytes);
        self.hold(part, id, made);
        let copying = Copying { node: id, copy, start_ns, then: Then::Done, device: copies };
        self.copying.push_back(copying);
        Ok(Turn::Started)
    }

    /// Has the device do what comes before a Send, and write the tensor where the receiver has it, if it goes there.
    pub(super) fn shut(&mut self, part: &Part, id: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let way = self.exchange.as_ref().map(|exchange| exchange.way_from_device(edge));
        let mut target = match way {
            Some(DeviceWay::Copied(target)) => Some(target),
            Some(DeviceWay::Staged(pieces)) => return self.stage(part, id, edge, &pieces),
            Some(DeviceWay::AnnouncedInPieces { piece_bytes }) => {
                return self.announce_in_pieces(part, id, edge, piece_bytes);
            }
            _ => None,
        };
        let source = node.inputs.first().and_then(|input| self.workspace.storage.tensor(*input));
        let source = source.cloned();
        if let (Op::SendDynamic { .. }, Space::Device(_), Some(tensor)) =
            (&node.op, node.space, &source)
        {
            target = self.prepare_announcement(part, id, edge, tensor)?;
        }
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
        // where a peer has it, the first device writes
        let copies = loans.as_ref().and_then(|(_, to)| number_of(to.space()));
        // what is announced is copied within the device, and counted as that
        if let (Op::Send { .. }, Some((_, to))) = (&node.op, &loans) {
            // fits: a length is at most isize::MAX
            self.workspace.copies.add(CopyPurpose::ToPeers, to.bytes() as u64);
        }
        let mut device = device.lock();
        let started = match loans {
            Some((from, to)) => {
                let followed = self.gates.follow(&mut *device, id, copies.unwrap_or_default());
                followed.and_then(|()| device.copy(from, to))
            }
            None => device.mark(),
        };
        drop(device);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        let gate = Copying { node: id, copy, start_ns, then: Then::Open, device: copies };
        self.copying.push_back(gate);
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
            let own = number_of(from.space()).unwrap_or_default();
            let followed = self.gates.follow(&mut *device.lock(), id, own);
            followed.map_err(|source| self.device_failed(part, id, source))?;
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
            Copying { node: id, copy: *copy, start_ns, then, device: number_of(node.space) }
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
        let own = number_of(landing.target.space()).unwrap_or_default();
        let followed = self.gates.follow(&mut *device.lock(), id, own);
        followed.map_err(|source| self.device_failed(part, id, source))?;
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
            let device = number_of(landing.target.space());
            self.copying.push_back(Copying { node: id, copy, start_ns, then, device });
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
        let mut any = self.post_held()?;
        while let Some(at) = self.first_over(part)? {
            let Some(copied) = self.copying.remove(at) else { break };
            if let Some(edge) = copied.then.edge() {
                // behind the edge's own pieces alone: another peer's queue may have room
                let is_behind = self.held.iter().any(|piece| piece.then.edge() == Some(edge));
                if is_behind || !self.post_copied(&copied)? {
                    self.held.push_back(copied);
                } else {
                    any = true;
                }
                continue;
            }
            let Copying { node, start_ns, then, .. } = copied;
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
                Then::More | Then::Piece { .. } | Then::Read { .. } | Then::Fetch { .. } => {}
            }
            any = true;
        }
        Ok(any)
    }

    /// Posts what had no room in a queue before; returns true if any has now.
    fn post_held(&mut self) -> Result<bool, RunError> {
        let mut full: Vec<EdgeId> = Vec::new();
        let count = self.held.len();
        for piece in std::mem::take(&mut self.held) {
            let edge = piece.then.edge();
            let is_behind = edge.is_some_and(|edge| full.contains(&edge));
            if is_behind || !self.post_copied(&piece)? {
                full.extend(edge);
                self.held.push_back(piece);
            }
        }
        Ok(self.held.len() < count)
    }

    /// Posts a piece that is copied, reads what was announced or tells that it was read; false if the peer's queue is full.
    fn post_copied(&mut self, copied: &Copying) -> Result<bool, RunError> {
        let Copying { node, start_ns, then, .. } = *copied;
        let (edge, index, is_last) = match then {
            Then::Piece { edge, index, is_last } => (edge, index, is_last),
            Then::Read { edge } => {
                return Ok(self.acknowledge(node, edge, start_ns)? == Sending::Started);
            }
            Then::Fetch { edge } => {
                return Ok(self.fetch(node, edge, start_ns)? == Sending::Started);
            }
            Then::Done | Then::Open | Then::More => return Ok(true),
        };
        if self.post_piece(edge, index)? == Sending::Full {
            return Ok(false);
        }
        match is_last {
            true => self.posted(node, edge, start_ns, None),
            // from the first piece on there are completions to look for: the queue may be full of them
            false => {
                self.flights.entry(edge).or_insert(Flight { node, start_ns, tensor: None });
            }
        }
        Ok(true)
    }

    fn post_piece(&mut self, edge: EdgeId, index: usize) -> Result<Sending, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Sending::Full) };
        let sending = exchange.send_piece(edge, epoch, index);
        sending.map_err(|source| RunError::Exchange { step, source })
    }

    /// Asks for the copies, or for the step that was told as a whole, for a moment; true if there is news.
    pub(super) fn spin_for_device(&mut self, part: &Part) -> Result<bool, RunError> {
        let begun = Clock::now_ns();
        while Clock::now_ns() - begun < SPIN_NS {
            if self.first_over(part)?.is_some() || self.has_news_of_step(part)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Which of the copies is over, if one is: each device's in the order in which they were started.
    fn first_over(&self, part: &Part) -> Result<Option<usize>, RunError> {
        let mut asked: Vec<Option<u32>> = Vec::new();
        for (at, copying) in self.copying.iter().enumerate() {
            if asked.contains(&copying.device) {
                continue;
            }
            if self.is_over(part, copying)? {
                return Ok(Some(at));
            }
            asked.push(copying.device);
        }
        Ok(None)
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

    pub(super) fn without_device(&self, part: &Part, id: NodeId) -> RunError {
        let source = DeviceFailure::Device("there is no device".into());
        self.device_failed(part, id, source)
    }
}

/// The device in whose memory an output lies, if it does in one's.
pub(crate) fn device_of(part: &Part, output: Output) -> Option<u32> {
    number_of(part.graph.node(output.node).space)
}

pub(super) fn number_of(space: Space) -> Option<u32> {
    match space {
        Space::Device(device) => Some(device),
        Space::Host => None,
    }
}
