//! A session: one part of a plan with its memory, its kernels and its ports; runs it again and again.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_graph::{Lane, NodeId, Op, Output, Part, Plan, RunId};
use tensorwire_kernels::Kernels;
use tensorwire_memory::{Copies, ReadGuard, WriteGuard};
use tensorwire_tensor::{Dim, TensorSpec};

use crate::dynamic::LaneUse;
use crate::error::{RunError, SessionError};
use crate::executor::{Advance, Counters, Executor};
use crate::frontier::Frontier;
use crate::ports::Ports;
use crate::storage::{Storage, Tensor};
use crate::timeline::Timeline;

/// What a session may be told.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Longest a run may wait without any progress. A dead peer is noticed long before.
    pub step_deadline: Duration,
    /// Record when each node ran.
    pub timeline: bool,
    /// Most bytes of each of the two arenas (registered, private) that hold tensors whose size is known
    /// only when they exist. They grow as they are needed.
    pub dynamic_bytes_max: usize,
    /// Other sessions of this process change the variables: an update waits while one is being sent.
    pub variables_shared: bool,
}

/// One process's share of a plan.
pub struct Session {
    part: Part,
    frontiers: Vec<Frontier>,
    executor: Executor,
    run: RunId,
}

impl Session {
    /// Makes a session for `plan.parts[part]`. `ports` may be none where nothing crosses.
    ///
    /// # Errors
    /// When edges cross and there is no exchange; when a node is a collective operation and there is no group.
    pub fn new(
        plan: &Plan,
        part: usize,
        storage: Storage,
        kernels: Arc<Kernels>,
        ports: Option<Ports>,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let here = plan.parts[part].clone();
        check_ports(plan, part, ports.as_ref())?;
        let frontiers = plan.runs.iter().map(|r| Frontier::new(&here, &r.nodes[part])).collect();
        let executor = Executor::new(plan, part, storage, kernels, ports, options);
        Ok(Session { part: here, frontiers, executor, run: RunId(0) })
    }

    /// Runs one run of the plan once, to its end. Every other process must run the same one.
    ///
    /// # Errors
    /// When a kernel refuses, a peer is lost, or nothing happens for too long.
    pub fn run(&mut self, run: RunId) -> Result<(), RunError> {
        self.start(run);
        loop {
            match self.advance()? {
                Advance::Progress => {}
                Advance::Blocked => self.wait()?,
                Advance::Finished => return Ok(()),
            }
        }
    }

    /// Begins a run, to be driven by [`Session::advance`]: for a thread that has several sessions.
    pub fn start(&mut self, run: RunId) {
        self.run = run;
        self.executor.start(&mut self.frontiers[run.0]);
    }

    /// Gives nodes of the run that was started their turns until one did something, or none can; never
    /// blocks.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn advance(&mut self) -> Result<Advance, RunError> {
        self.executor.advance(&self.part, &mut self.frontiers[self.run.0])
    }

    /// Blocks until something may have arrived since [`Session::advance`] last did something.
    ///
    /// # Errors
    /// When a peer is lost, or nothing has happened for [`SessionOptions::step_deadline`].
    pub fn wait(&mut self) -> Result<(), RunError> {
        let until = self.patience()?;
        self.wait_until(until)
    }

    /// Until when [`Session::wait`] would block at most.
    pub(crate) fn patience(&mut self) -> Result<Deadline, RunError> {
        self.executor.patience(&self.part)
    }

    pub(crate) fn wait_until(&mut self, until: Deadline) -> Result<(), RunError> {
        self.executor.wait_until(until)
    }

    /// From now on a run may wait this long without any progress.
    pub fn set_step_deadline(&mut self, patience: Duration) {
        self.executor.set_step_deadline(patience);
    }

    /// From now on optimizers change variables at `factor` times their rate.
    pub fn set_rate_factor(&mut self, factor: f64) {
        self.executor.rate_factor = factor;
    }

    /// From now on a run does everything but arithmetic: what operators make holds whatever was there. To measure
    /// what is left.
    pub fn leave_out_kernels(&mut self) {
        self.executor.leaves_out_kernels = true;
    }

    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The node of this name.
    ///
    /// # Errors
    /// When this part has none.
    pub fn node(&self, name: &str) -> Result<NodeId, SessionError> {
        self.part.graph.find(name).ok_or_else(|| SessionError::NoSuchNode {
            name: name.to_string(),
            task: self.part.task.to_string(),
        })
    }

    /// A tensor's spec and bytes, between runs.
    ///
    /// # Errors
    /// When the part has no such tensor, does not keep it after a run, or is still sending it.
    pub fn read(&self, output: Output) -> Result<(&TensorSpec, ReadGuard<'_>), SessionError> {
        let tensor = self.kept(output)?;
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        Ok((&tensor.spec, tensor.buffer.read().map_err(lent)?))
    }

    /// A tensor's spec and bytes, to be filled in place between runs: an input or a variable.
    ///
    /// # Errors
    /// As [`Session::read`]; and when a variable is read by peers where it lies, after the first run: who
    /// still reads it then is not known.
    pub fn write(&self, output: Output) -> Result<(&TensorSpec, WriteGuard<'_>), SessionError> {
        let tensor = self.kept(output)?;
        let is_variable = matches!(self.part.graph.node(output.node).op, Op::Variable { .. });
        let has_run = self.executor.counters.steps > 0;
        if is_variable && has_run && self.part.memory.is_read_by_peers(output) {
            return Err(SessionError::ReadByPeers { name: self.name(output) });
        }
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        Ok((&tensor.spec, tensor.buffer.write().map_err(lent)?))
    }

    /// As [`Session::write`], for an input some of whose dimensions are dynamic: gives it `dims` and memory
    /// of that size, which holds whatever was there before.
    ///
    /// # Errors
    /// When the dimensions do not fit what the graph says, or there is no memory.
    pub fn feed(
        &mut self,
        output: Output,
        dims: &[usize],
    ) -> Result<(&TensorSpec, WriteGuard<'_>), SessionError> {
        let node = self.part.graph.node(output.node);
        let name = || node.name.clone();
        let fact = self.part.graph.fact(output);
        let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Known(known) if known != size);
        if fact.dims.len() != dims.len() || !fact.dims.iter().zip(dims).all(fits) {
            let (fact, dims) = (fact.clone(), dims.to_vec());
            return Err(SessionError::Dims { name: name(), fact, dims });
        }
        if self.part.memory.spot(output).is_none() {
            let spec = TensorSpec::new(fact.dtype, dims);
            let spec = spec.map_err(|_| {
                let (fact, dims) = (fact.clone(), dims.to_vec());
                SessionError::Dims { name: name(), fact, dims }
            })?;
            let fed = self.executor.feed(output, spec);
            fed.map_err(|source| SessionError::Memory { name: name(), source })?;
        }
        self.write(output)
    }

    /// What the executor did so far.
    pub fn counters(&self) -> Counters {
        self.executor.counters
    }

    /// Returns the bytes that the session itself copied: all of them for [`CopyPurpose::Staging`].
    ///
    /// [`CopyPurpose::Staging`]: tensorwire_memory::CopyPurpose::Staging
    pub fn copies(&self) -> &Copies {
        &self.executor.workspace.copies
    }

    /// The memory that tensors take in a lane whose size is known only when they exist.
    pub fn dynamic_use(&self, lane: Lane) -> LaneUse {
        self.executor.workspace.dynamic_use(lane)
    }

    /// When nodes ran, if [`SessionOptions::timeline`] asked for it.
    pub fn timeline(&mut self) -> Option<&mut Timeline> {
        self.executor.timeline.as_mut()
    }

    /// Stops recording: from now on it costs nothing. Returns what is recorded.
    pub fn stop_timeline(&mut self) -> Option<Timeline> {
        self.executor.timeline.take()
    }

    fn kept(&self, output: Output) -> Result<&Tensor, SessionError> {
        let missing = || SessionError::NoSuchNode {
            name: format!("{output:?}"),
            task: self.part.task.to_string(),
        };
        let is_there = output.node.index() < self.part.graph.len();
        let facts = is_there.then(|| self.part.graph.node(output.node).facts.len());
        if facts.is_none_or(|facts| output.index as usize >= facts) {
            return Err(missing());
        }
        let not_kept = || SessionError::NotKept { name: self.name(output) };
        if !self.part.memory.is_kept(output) {
            return Err(not_kept());
        }
        self.executor.workspace.storage.tensor(output).ok_or_else(not_kept)
    }

    fn name(&self, output: Output) -> String {
        self.part.graph.node(output.node).name.clone()
    }
}

/// Fails if `plan.parts[part]` needs a port that is not there.
fn check_ports(plan: &Plan, part: usize, ports: Option<&Ports>) -> Result<(), SessionError> {
    let edges = plan.edges.iter().filter(|e| e.from == part || e.to == part).count();
    if edges > 0 && ports.is_none_or(|ports| ports.exchange.is_none()) {
        return Err(SessionError::NoExchange { part, edges });
    }
    let mut nodes = plan.parts[part].graph.nodes();
    match nodes.find(|(_, node)| node.op.vector().is_some()) {
        Some((_, node)) if ports.is_none_or(|ports| ports.group.is_none()) => {
            Err(SessionError::NoGroup { part, node: node.name.clone() })
        }
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("task", &self.part.task).finish_non_exhaustive()
    }
}
