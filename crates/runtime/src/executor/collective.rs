//! What a group does together at a node, with a vector in the host's memory or in a device's.

use tensorwire_base::Clock;
use tensorwire_fabric::pulse;
use tensorwire_graph::{NodeId, Op, Part};
use tensorwire_kernels::{DeviceCall, DeviceOperand};
use tensorwire_memory::LoanError;

use super::device::number_of;
use super::{Advance, Executor, Turn};
use crate::error::RunError;
use crate::frontier::Frontier;
use crate::storage::Tensor;
use crate::tail::GoesOn;
use crate::timeline::EventKind;

impl Executor {
    /// Starts what the group does together at a node.
    pub(super) fn collective(&mut self, part: &Part, id: NodeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let tensor = match part.graph.node(id).space.is_device() {
            true => self.vector_on_device(part, id)?,
            false => self.workspace.vector(part, id, step)?,
        };
        let Some(group) = &mut self.group else {
            return Ok(Turn::NotYet);
        };
        let started = group.start(id, &tensor.buffer);
        started.map_err(|source| RunError::Exchange { step, source })?;
        self.collectives.insert(id, start_ns);
        Ok(Turn::Started)
    }

    /// Completes the collective operations that are over; returns true if there were any.
    pub(super) fn complete_collectives(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<bool, RunError> {
        let step = self.counters.steps;
        let Some(group) = self.group.as_mut().filter(|_| !self.collectives.is_empty()) else {
            return Ok(false);
        };
        let finished = group.finished(&mut self.finished_nodes);
        finished.map_err(|source| RunError::Exchange { step, source })?;
        let is_on_device = |node: &&NodeId| part.graph.node(**node).space.is_device();
        if let Some(node) = self.finished_nodes.iter().find(is_on_device).copied() {
            self.mark_reduced(part, node)?;
        }
        let mut any = false;
        while let Some(node) = self.finished_nodes.pop() {
            let Some(start_ns) = self.collectives.remove(&node) else { continue };
            if self.timeline.is_some() {
                self.is_late = frontier.is_left(node);
                self.record(EventKind::Collective(node), start_ns, Clock::now_ns());
                self.is_late = false;
            }
            self.complete(part, frontier, node);
            any = true;
        }
        Ok(any)
    }

    /// What goes on while nobody gives this session turns.
    pub(crate) fn goes_on(&self) -> GoesOn {
        GoesOn {
            reductions: self.group.as_ref().is_some_and(|group| group.moves_alone()),
            sends: self.exchange.as_ref().is_some_and(|exchange| exchange.moves_alone()),
        }
    }

    /// Gives no turn while the group tells a device something.
    pub(super) fn hold_for_group(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<Advance, RunError> {
        pulse::beat();
        self.observe();
        if !self.complete_collectives(part, frontier)? {
            return Ok(Advance::Blocked);
        }
        self.moves();
        Ok(Advance::Progress)
    }

    /// The vector of a group of devices, behind all that this one was told, with what it is to reduce: where the plan has that
    /// elsewhere, since others use it too, the device moves it there.
    fn vector_on_device(&self, part: &Part, id: NodeId) -> Result<Tensor, RunError> {
        let node = part.graph.node(id);
        let unfed = || RunError::NotFed { step: self.counters.steps, node: node.name.clone() };
        let storage = &self.workspace.storage;
        let vector = storage.tensor(id.into()).ok_or_else(unfed)?.clone();
        let input = node.inputs.first().and_then(|input| storage.tensor(*input));
        let input = input.ok_or_else(unfed)?;
        let Some((device, number)) = self.workspace.device.as_ref().zip(number_of(node.space))
        else {
            return Err(self.without_device(part, id));
        };
        let lent = |source: LoanError| RunError::Lent {
            step: self.counters.steps,
            node: node.name.clone(),
            source,
        };
        let mut device = device.lock();
        let mut told = self.gates.follow(&mut *device, id, number);
        if input.buffer.address() != vector.buffer.address() {
            // lent until the device is told, as to a kernel
            let from = input.buffer.lend_to_device().map_err(lent)?;
            let to = vector.buffer.lend_to_device_for_writing().map_err(lent)?;
            let from = DeviceOperand { spec: &input.spec, address: from.address() };
            let to = DeviceOperand { spec: &vector.spec, address: to.address() };
            // the mean of one
            let (op, inputs, outputs) = (&Op::Mean, &[from][..], &[to][..]);
            let call =
                DeviceCall { node: id, device: number, op, inputs, outputs, in_place: false };
            told = told.and_then(|()| device.start(call));
        }
        told.map_err(|source| self.device_failed(part, id, source))?;
        Ok(vector)
    }

    /// Marks where the devices are once a group has reduced what they were told.
    fn mark_reduced(&mut self, part: &Part, id: NodeId) -> Result<(), RunError> {
        let Some(device) = &self.workspace.device else { return Ok(()) };
        let marked = device.lock().mark();
        self.reduced = Some(marked.map_err(|source| self.device_failed(part, id, source))?);
        Ok(())
    }

    /// True if a device is not over what its group reduces.
    pub(super) fn reduces(&self) -> bool {
        let (Some(mark), Some(device)) = (self.reduced, &self.workspace.device) else {
            return false;
        };
        // whoever asks next is told what has failed
        device.lock().is_over(mark).is_ok_and(|is_over| !is_over)
    }
}
