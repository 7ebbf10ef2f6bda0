//! Turns of nodes that a device computes or copies. A kernel is done for the executor once it is started: whatever uses
//! its output on the device comes behind it there, and what the host uses comes by a copy, which is done when it is over.

use std::collections::HashSet;
use std::time::Duration;

use tensorwire_base::{Clock, Space};
use tensorwire_graph::{EdgeId, Graph, Kind, NodeId, Output, Part};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceFailure, DeviceOperand};
use tensorwire_memory::{CopyPurpose, DeviceLoan, DeviceWriteLoan, LoanError};

use super::{Executor, Turn};
use crate::ahead::viewed;
use crate::error::RunError;
use crate::frontier::Frontier;
use crate::ports::DeviceWay;
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
    /// The node is a Send, to be posted when it is over.
    is_gate: bool,
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
        let to = made.first().ok_or_else(unfed)?;
        if let Some(ahead) = self.ahead.take(viewed(part, *input)) {
            let loans = (ahead.lend_to_device(), to.buffer.lend_to_device_for_writing());
            let (from, to) = (loans.0.map_err(lent)?, loans.1.map_err(lent)?);
            let Some(device) = &self.workspace.device else {
                return Err(self.without_device(part, id));
            };
            let taken = device.lock().take(from, to);
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
        let started = device.lock().copy(from_loan, to_loan);
        let copy = started.map_err(|source| self.device_failed(part, id, source))?;
        let purpose = match node.space {
            Space::Device => CopyPurpose::ToDevice,
            Space::Host => CopyPurpose::ToHost,
        };
        self.workspace.copies.add(purpose, bytes);
        self.hold(part, id, made);
        self.copying.push_back(Copying { node: id, copy, start_ns, is_gate: false });
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
        self.copying.push_back(Copying { node: id, copy, start_ns, is_gate: true });
        Ok(Turn::Started)
    }

    /// Completes the copies that are over; returns true if there were any.
    pub(super) fn complete_copies(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<bool, RunError> {
        let mut any = false;
        // they are over in the order in which they were started
        while let Some(first) = self.copying.front() {
            if !self.is_over(part, first)? {
                break;
            }
            let Some(Copying { node, start_ns, is_gate, .. }) = self.copying.pop_front() else {
                break;
            };
            if self.timeline.is_some() {
                self.record(EventKind::Copy(node), start_ns, Clock::now_ns());
            }
            match is_gate {
                true => {
                    self.gates.open.insert(node);
                    self.ready.push_front(node);
                }
                false => self.complete(part, frontier, node),
            }
            any = true;
        }
        Ok(any)
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
