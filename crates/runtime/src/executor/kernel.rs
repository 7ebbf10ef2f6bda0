//! One kernel's turn: its operands are lent to it, with memory for what the plan gave no place.

use tensorwire_base::Clock;
use tensorwire_graph::{NodeId, Output, Part};
use tensorwire_memory::{LoanError, TensorMut, TensorRef};

use super::device::device_of;
use super::{Executor, Turn};
use crate::error::RunError;
use crate::storage::Tensor;
use crate::timeline::EventKind;
use crate::workspace::is_transient;

impl Executor {
    pub(super) fn kernel(&mut self, part: &Part, id: NodeId) -> Result<Turn, RunError> {
        let start_ns = if self.timeline.is_some() { Clock::now_ns() } else { 0 };
        let made = self.outputs(part, id)?;
        let launched = match self.leaves_out_kernels {
            true => Ok(()),
            false if part.graph.node(id).space.is_device() => self.start_on_device(part, id, &made),
            false => self.launch(part, id, &made),
        };
        match launched {
            // another session is sending the variable that this node changes
            Err(RunError::Lent { source: LoanError::Lent, .. })
                if self.waits_for_lanes(part, id) =>
            {
                return Ok(Turn::NotYet);
            }
            launched => launched?,
        }
        self.hold(part, id, made);
        self.counters.kernels += 1;
        if self.timeline.is_some() {
            self.record(EventKind::Kernel(id), start_ns, Clock::now_ns());
        }
        Ok(Turn::Done)
    }

    fn waits_for_lanes(&self, part: &Part, id: NodeId) -> bool {
        self.options.variables_shared && part.graph.node(id).op.mutated_inputs() > 0
    }

    fn launch(&self, part: &Part, id: NodeId, made: &[Tensor]) -> Result<(), RunError> {
        let step = self.counters.steps;
        let node = part.graph.node(id);
        let name = || node.name.clone();
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let bad = |source| RunError::Tensor { step, node: name(), source };
        let in_place = part.memory.is_in_place(id);
        let (written, read) = self.operands(part, id, made)?;
        let mut writes = Vec::with_capacity(written.len());
        for tensor in &written {
            writes.push(tensor.buffer.write().map_err(lent)?);
        }
        let mut reads = Vec::with_capacity(read.len());
        for tensor in &read {
            reads.push(tensor.buffer.read().map_err(lent)?);
        }
        let mut outputs = Vec::with_capacity(writes.len());
        for (tensor, bytes) in written.iter().zip(&mut writes) {
            outputs.push(TensorMut::new(&tensor.spec, bytes).map_err(bad)?);
        }
        let mut inputs = Vec::with_capacity(reads.len());
        for (tensor, bytes) in read.iter().zip(&reads) {
            inputs.push(TensorRef::new(&tensor.spec, bytes).map_err(bad)?);
        }
        let op = node.op.at_rate(if self.is_late { self.late_rate } else { self.present_rate });
        let done = match in_place {
            true => self.kernels.run_in_place(&op, &inputs, &mut outputs),
            false => self.kernels.run(&op, &inputs, &mut outputs),
        };
        done.map_err(|source| RunError::Kernel { step, node: name(), source })
    }

    /// The tensors that a kernel writes, the variables that it changes first, and those that it reads.
    #[allow(clippy::type_complexity)] // a pair of what the doc says
    pub(super) fn operands<'a>(
        &'a self,
        part: &Part,
        id: NodeId,
        made: &'a [Tensor],
    ) -> Result<(Vec<&'a Tensor>, Vec<&'a Tensor>), RunError> {
        let node = part.graph.node(id);
        let unfed = || RunError::NotFed { step: self.counters.steps, node: node.name.clone() };
        let storage = &self.workspace.storage;
        let tensor = |input: &Output| storage.tensor(*input).ok_or_else(unfed);
        let (changed, read) = node.inputs.split_at(node.op.mutated_inputs());
        let read = if part.memory.is_in_place(id) { &read[1..] } else { read };
        let written: Result<Vec<&Tensor>, _> = changed.iter().map(tensor).collect();
        let mut written = written?;
        written.extend(made);
        let read: Result<Vec<&Tensor>, _> = read.iter().map(tensor).collect();
        Ok((written, read?))
    }

    /// The tensors that a node will make: planned ones, and fresh or taken-over memory for the rest.
    pub(super) fn outputs(&mut self, part: &Part, id: NodeId) -> Result<Vec<Tensor>, RunError> {
        let step = self.counters.steps;
        let node = part.graph.node(id);
        // fits: operators have a dozen outputs at most
        let all = (0..node.facts.len() as u32).map(|index| Output { node: id, index });
        let all: Vec<Output> = all.collect();
        if all.iter().all(|output| !is_transient(part, *output)) {
            let planned = |output: &Output| {
                let tensor = self.workspace.storage.tensor(*output);
                tensor.expect("the plan gave it a place").clone()
            };
            return Ok(all.iter().map(planned).collect());
        }
        let mut made = Vec::with_capacity(all.len());
        for (output, spec) in all.into_iter().zip(self.workspace.infer(node, step)?) {
            let storage = &self.workspace.storage;
            let takes_over = output.index == 0 && part.memory.is_in_place(id);
            let there = match is_transient(part, output) {
                false => storage.tensor(output).cloned(),
                true if takes_over => {
                    let input = storage.tensor(node.inputs[0]).cloned();
                    input.map(|tensor| Tensor { spec: spec.clone(), ..tensor })
                }
                true => None,
            };
            let memory = |source| RunError::Memory { step, node: node.name.clone(), source };
            made.push(match there {
                Some(tensor) => tensor,
                None => {
                    let exchange = self.exchange.as_deref_mut();
                    let made = match device_of(part, output) {
                        Some(device) => {
                            self.workspace.alloc_on_device(device, output, spec, exchange)
                        }
                        None => self.workspace.alloc(output, spec, exchange),
                    };
                    made.map_err(memory)?
                }
            });
        }
        Ok(made)
    }

    pub(super) fn hold(&mut self, part: &Part, id: NodeId, made: Vec<Tensor>) {
        for (index, tensor) in (0..).zip(made) {
            let output = Output { node: id, index };
            if is_transient(part, output) {
                self.workspace.hold(part, output, tensor);
            }
        }
    }
}
