//! A session: one part of a plan with its memory, its kernels and its ports; runs it again and again.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Deadline, Space};
use tensorwire_fabric::pulse;
use tensorwire_graph::{Lane, NodeId, Op, Output, Part, Plan, RunId};
use tensorwire_kernels::{DeviceFailure, Kernels, SharedDevice};
use tensorwire_memory::{Buffer, Copies, CopyPurpose, Keepalive};
use tensorwire_tensor::{Dim, TensorSpec};

use crate::ahead::comes_ahead_to;
use crate::dynamic::LaneUse;
use crate::error::{RunError, SessionError};
use crate::executor::{Advance, Counters, Executor};
use crate::frontier::Frontier;
use crate::mirrors::{MirrorError, Mirrors, Reading, Writing};
use crate::ports::Ports;
use crate::standing::Standing;
use crate::storage::{Storage, Tensor};
use crate::timeline::{EventKind, Timeline};

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

/// Who computes.
#[derive(Clone, Debug)]
pub struct Computing {
    /// What the host computes.
    pub kernels: Arc<Kernels>,
    /// What the plan has on a device.
    pub device: Option<SharedDevice>,
}

impl From<Arc<Kernels>> for Computing {
    fn from(kernels: Arc<Kernels>) -> Computing {
        Computing { kernels, device: None }
    }
}

/// One process's share of a plan.
pub struct Session {
    part: Part,
    frontiers: Vec<Frontier>,
    executor: Executor,
    /// Of what lies in a device's memory, if there is one.
    mirrors: Option<Mirrors>,
    run: RunId,
    /// What begins once the tail of another run is over.
    next: Option<RunId>,
}

impl Session {
    /// Makes a session for `plan.parts[part]`. `ports` may be none where nothing crosses.
    ///
    /// # Errors
    /// When edges cross and there is no exchange; when a node is a collective operation and there is no group; when a node
    /// is on a device, and there is none or its memory does not suffice.
    pub fn new(
        plan: &Plan,
        part: usize,
        mut storage: Storage,
        computing: impl Into<Computing>,
        ports: Option<Ports>,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let computing = computing.into();
        let here = plan.parts[part].clone();
        check_ports(plan, part, ports.as_ref())?;
        let frontiers = plan.runs.iter().map(|r| Frontier::new(&here, &r.nodes[part])).collect();
        let mut is_pinned = true;
        let mirrors = match &computing.device {
            Some(device) => {
                for (number, bytes) in (0..).zip(&here.memory.device_bytes) {
                    if storage.is_on_device(number) {
                        continue;
                    }
                    let memory = device.lock().alloc(number, *bytes);
                    let failed =
                        |source| SessionError::Device { name: here.task.to_string(), source };
                    storage.cut(&here, Lane::Device(number), &memory.map_err(failed)?)?;
                }
                // without it copies take longer, and are as right
                let pinned = storage.on_host().map(|slab| device.lock().pin(slab));
                let pinned: Vec<Result<Keepalive, DeviceFailure>> = pinned.collect();
                is_pinned = pinned.iter().all(Result::is_ok);
                let pinned = pinned.into_iter().filter_map(Result::ok).collect();
                Some(Mirrors::new(device.clone(), pinned, options.step_deadline))
            }
            None if here.graph.nodes().any(|(_, node)| node.space.is_device()) => {
                return Err(SessionError::NoDevice { part });
            }
            None => None,
        };
        let mut executor = Executor::new(plan, part, storage, computing, ports, options);
        executor.plan_steps(plan, part, is_pinned);
        Ok(Session { part: here, frontiers, executor, mirrors, run: RunId(0), next: None })
    }

    /// Runs one run of the plan once, to its end. Every other process must run the same one.
    ///
    /// # Errors
    /// When a kernel refuses, a peer is lost, or nothing happens for too long.
    pub fn run(&mut self, run: RunId) -> Result<(), RunError> {
        let _awake = pulse::awake();
        self.start(run);
        self.drive()
    }

    fn drive(&mut self) -> Result<(), RunError> {
        loop {
            match self.advance()? {
                Advance::Progress => {}
                Advance::Blocked => self.wait()?,
                Advance::Finished => return Ok(()),
            }
        }
    }

    /// Finds the *tail* of a run: what the group reduces or the exchange sends, and what waits for that. False where there is none
    /// that could be left to the next run: nothing moves these while nobody gives this session turns, something else crosses, or a
    /// device computes. Before the first run.
    pub fn find_tail(&mut self, run: RunId) -> bool {
        let goes_on = self.executor.goes_on();
        !self.executor.steps.has(run) && self.frontiers[run.0].find_tail(&self.part, goes_on)
    }

    /// The run `run` that is started next is over before its tail. The tail goes on in the next run of it, of which each node
    /// begins when what it needs of the tail is done; or in [`Session::settle`]. Until then nobody may read or write what the tail
    /// changes. Every other run waits for the tail.
    pub fn leave_tail(&mut self, run: RunId, leaves_tail: bool) {
        self.frontiers[run.0].leave_tail(leaves_tail);
    }

    /// Waits for what was left of the last run.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn settle(&mut self) -> Result<(), RunError> {
        if !self.is_unsettled() {
            return Ok(());
        }
        let _awake = pulse::awake();
        self.frontiers[self.run.0].leave_tail(false);
        self.drive()
    }

    /// True if the last run is over but for its tail.
    fn is_unsettled(&self) -> bool {
        self.frontiers[self.run.0].is_unsettled()
    }

    /// Begins a run, to be driven by [`Session::advance`]: for a thread that has several sessions.
    pub fn start(&mut self, run: RunId) {
        if run != self.run && self.is_unsettled() {
            self.frontiers[self.run.0].leave_tail(false);
            self.next = Some(run);
            return;
        }
        self.run = run;
        match self.executor.steps.has(run) && !self.executor.leaves_out_kernels {
            true => self.executor.start_step(run, &self.frontiers[run.0]),
            false => self.executor.start(&mut self.frontiers[run.0]),
        }
    }

    /// Gives nodes of the run that was started their turns until one did something, or none can; never
    /// blocks.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn advance(&mut self) -> Result<Advance, RunError> {
        if let Some(source) = self.mirrors.as_ref().and_then(Mirrors::failure) {
            let (step, node) = (self.executor.counters.steps, self.part.task.to_string());
            return Err(RunError::Device { step, node, source });
        }
        let advance = self.executor.advance(&self.part, &mut self.frontiers[self.run.0])?;
        if advance == Advance::Finished && !self.executor.leaves_out_kernels {
            self.executor.steps.was_done(self.run);
        }
        match self.next.take_if(|_| advance == Advance::Finished) {
            Some(run) => {
                self.start(run);
                Ok(Advance::Progress)
            }
            None => Ok(advance),
        }
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
        self.executor.set_rate_factor(factor);
    }

    /// From now on variables leave in the order in which the run before changed them, and not in the order of their declaration,
    /// which is that in which they are needed. To measure what the latter gains.
    pub fn send_as_changed(&mut self) {
        self.executor.send_as_changed();
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
    /// When the part has no such tensor, does not keep it after a run, or is still sending it; when it lies in a device's memory
    /// and a peer gave up a step.
    pub fn read(&self, output: Output) -> Result<(&TensorSpec, Reading<'_>), SessionError> {
        let Tensor { spec, buffer, .. } = self.kept(output)?;
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        let reading = match (&self.mirrors, buffer.space()) {
            (Some(mirrors), Space::Device(_)) => {
                let mirrored = mirrors.read(output, buffer);
                let mirrored = mirrored.map_err(|error| self.not_mirrored(output, error))?;
                // a peer that gave up a step later than this part's last may write what was read just now
                let checked = self.executor.check_peers();
                checked.map_err(|source| SessionError::Peer { name: self.name(output), source })?;
                Reading::mirrored(mirrored)
            }
            _ => Reading::there(buffer.read().map_err(lent)?),
        };
        Ok((spec, reading))
    }

    /// A tensor's spec and bytes, to be filled in place between runs: an input or a variable.
    ///
    /// # Errors
    /// As [`Session::read`]; and when a variable is read by peers where it lies, after the first run: who
    /// still reads it then is not known.
    pub fn write(&self, output: Output) -> Result<(&TensorSpec, Writing<'_>), SessionError> {
        let Tensor { spec, buffer, .. } = self.kept(output)?;
        let is_variable = matches!(self.part.graph.node(output.node).op, Op::Variable { .. });
        let has_run = self.executor.counters.steps > 0;
        if is_variable && has_run && self.part.memory.is_read_by_peers(output) {
            return Err(SessionError::ReadByPeers { name: self.name(output) });
        }
        if let Some(device) = &self.executor.workspace.device {
            let patience = Deadline::after(self.executor.step_deadline());
            let forgotten = self.executor.ahead.forget(device, output, patience);
            forgotten.map_err(|error| self.not_mirrored(output, error.into()))?;
        }
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        let writing = match (&self.mirrors, buffer.space()) {
            (Some(mirrors), Space::Device(_)) => {
                let mirrored = mirrors.write(output, buffer);
                mirrored.map_err(|error| self.not_mirrored(output, error))?
            }
            _ => Writing::there(buffer.write().map_err(lent)?),
        };
        Ok((spec, writing))
    }

    /// Where a tensor lies, between runs: for whoever has the device move it there, in the device's order.
    ///
    /// # Errors
    /// When the part has no such tensor, or does not keep it after a run.
    pub fn buffer(&self, output: Output) -> Result<Buffer, SessionError> {
        Ok(self.kept(output)?.buffer.clone())
    }

    /// Sees to it that inputs can be fed while the run before theirs computes ([`Session::send_ahead`]). False where one of
    /// them cannot: no device uses it alone, its size is not known, or the device has no memory for it.
    pub fn prepare_ahead(&mut self, inputs: &[Output]) -> bool {
        let Some(devices) = self.executor.workspace.device.clone() else { return false };
        inputs.iter().all(|input| {
            let bytes = self.kept(*input).map(|tensor| tensor.buffer.bytes());
            let Some((bytes, device)) = bytes.ok().zip(comes_ahead_to(&self.part, *input)) else {
                return false;
            };
            self.executor.ahead.prepare(&devices, (*input, device), bytes).is_ok()
        })
    }

    /// True if inputs may be filled for the next run: the present one has no use for what they hold. Does not wait.
    ///
    /// # Errors
    /// When the device fails.
    pub fn may_fill(&self, inputs: &[Output]) -> Result<bool, SessionError> {
        let Some(device) = &self.executor.workspace.device else { return Ok(false) };
        for input in inputs {
            let landed = self.executor.ahead.is_free(device, *input);
            let is_free = landed.map_err(|error| self.not_mirrored(*input, error.into()))?;
            if !is_free || self.kept(*input)?.buffer.write().is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Starts to copy an input that was filled for the next run that uses it, beside the one that computes. Only of inputs
    /// that were [prepared](Session::prepare_ahead).
    ///
    /// # Errors
    /// When the device fails.
    pub fn send_ahead(&mut self, input: Output) -> Result<(), SessionError> {
        let start_ns = Clock::now_ns();
        let buffer = self.kept(input)?.buffer.clone();
        let Some(device) = self.executor.workspace.device.clone() else { return Ok(()) };
        let sent = self.executor.ahead.send(&device, input, &buffer);
        sent.map_err(|error| self.not_mirrored(input, error))?;
        // fits: a length is at most isize::MAX
        self.executor.workspace.copies.add(CopyPurpose::ToDevice, buffer.bytes() as u64);
        self.executor.record(EventKind::CopyAhead(input.node), start_ns, Clock::now_ns());
        Ok(())
    }

    /// Returns the bytes of `bytes_copied_to_device` that were copied while another run computed.
    pub fn bytes_copied_ahead(&self) -> u64 {
        self.executor.ahead.bytes()
    }

    fn not_mirrored(&self, output: Output, error: MirrorError) -> SessionError {
        let name = self.name(output);
        match error {
            MirrorError::Lent(source) => SessionError::Lent { name, source },
            MirrorError::Memory(source) => SessionError::Memory { name, source },
            MirrorError::Device(source) => SessionError::Device { name, source },
        }
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
    ) -> Result<(&TensorSpec, Writing<'_>), SessionError> {
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

    /// Returns where it stands, to be looked at by another thread.
    pub fn standing(&self) -> Arc<Standing> {
        self.executor.standing.clone()
    }

    /// What the executor did so far.
    pub fn counters(&self) -> Counters {
        self.executor.counters
    }

    /// Returns the bytes that the session itself copied: for [`CopyPurpose::Staging`], and between a device's memory and
    /// the host's.
    ///
    /// [`CopyPurpose::Staging`]: tensorwire_memory::CopyPurpose::Staging
    pub fn copies(&self) -> Copies {
        let mut all = self.executor.workspace.copies;
        self.mirrors.iter().for_each(|mirrors| all.merge(&mirrors.copies()));
        all
    }

    /// Returns how often a device was told a graph in the place of single kernels.
    pub fn graphs_launched(&self) -> u64 {
        let device = self.executor.workspace.device.as_ref();
        device.map_or(0, |device| device.lock().graphs_launched())
    }

    /// Says how a device is told a run: as a whole, but for the first time, or in parts, between which the host looks at what it
    /// did, and why. None where there is no device.
    pub fn how_told(&self, run: RunId) -> Option<String> {
        let makes_graphs = self.executor.workspace.device.as_ref()?.lock().makes_graphs();
        let what = if makes_graphs { "graph" } else { "list of single launches" };
        Some(match self.executor.steps.why_in_parts(run) {
            None => "whole steps, as graphs".to_owned(),
            Some(why) => format!("a {what} between two looks of the host: {why}"),
        })
    }

    /// Returns how many matrix products and convolutions a device left to a library.
    pub fn library_calls(&self) -> u64 {
        let device = self.executor.workspace.device.as_ref();
        device.map_or(0, |device| device.lock().library_calls())
    }

    /// Returns how often a device computed what a library that it has does not take.
    pub fn library_refusals(&self) -> u64 {
        let device = self.executor.workspace.device.as_ref();
        device.map_or(0, |device| device.lock().library_refusals())
    }

    /// Returns how many vectors a device reduced with those of other processes by a library.
    pub fn reductions(&self) -> u64 {
        let device = self.executor.workspace.device.as_ref();
        device.map_or(0, |device| device.lock().reductions())
    }

    /// The memory that tensors take in a lane whose size is known only when they exist.
    pub fn dynamic_use(&self, lane: Lane) -> LaneUse {
        self.executor.workspace.dynamic_use(lane)
    }

    /// How many tensors of the device were allocated where peers map them, since what their operator makes is sent (Xue et al.
    /// §3.4).
    pub fn placed_to_send(&self) -> u64 {
        self.executor.workspace.placed_to_send
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
        if self.is_unsettled() && self.frontiers[self.run.0].tail_uses(&self.part, output) {
            return Err(SessionError::Unsettled { name: self.name(output) });
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
