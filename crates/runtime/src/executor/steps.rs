//! Steps that a device is told as a whole: all of a run in one line, in which its stream waits at a gate where a tensor is to come
//! and gives a signal where one is to go. What is left to the host is to open gates when tensors have come, and to post what
//! signals tell of. A run is told in parts the first time: what a device does once and waits for, such as loading a kernel, must
//! not come behind a gate that the same thread opens.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tensorwire_base::{Clock, Deadline};
use tensorwire_fabric::pulse;
use tensorwire_graph::{EdgeId, NodeId, Op, Output, Part, Plan, RunId};
use tensorwire_kernels::{CopyId, DeviceFailure};
use tensorwire_memory::{Copies, CopyPurpose, LoanError};

use super::device::number_of;
use super::{Advance, Counters, Executor};
use crate::ahead::viewed;
use crate::error::RunError;
use crate::frontier::Frontier;
use crate::ports::{DeviceWay, Sending};
use crate::timeline::EventKind;
use crate::whole::{Item, is_awaited, line, why_in_parts};

/// How long whoever gives up a step waits at most for a NIC that reads the device's memory, whatever the step deadline is. It fails
/// sooner: verbs notice within a second that a peer does not answer, build the queue pair anew for 4.2 s, and drain it within
/// another. Until then they may write again what the peer did not get, and behind open gates that would be what the stream has
/// computed meanwhile, with the right signal.
const LETS_GO: Duration = Duration::from_secs(10);

/// The runs that are told as a whole, and the one that is under way.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// By run: what the stream is told, in this order; or why it is told in parts.
    lines: HashMap<RunId, Result<Vec<Item>, String>>,
    /// By run: the Recvs that its stream waits for.
    awaited: HashMap<RunId, Vec<NodeId>>,
    /// Those that were done once, in parts.
    done: HashSet<RunId>,
    present: Option<Step>,
    /// The device was made ready to be told some.
    is_ready: bool,
}

/// A step.
#[derive(Debug)]
struct Step {
    run: RunId,
    start_ns: u64,
    /// What was counted before it.
    before: (Counters, Copies),
    /// Inputs whose values came ahead, and were taken.
    taken: Vec<Output>,
    /// There once the device was told.
    end: Option<CopyId>,
    is_over: bool,
    /// Tensors that have not come, with true where a gate is opened then.
    to_come: Vec<(NodeId, EdgeId, bool)>,
    /// Sends that were not posted, with true for those whose signal was given.
    to_go: Vec<(NodeId, EdgeId, bool)>,
    /// Sends that the stream waits for until they are over.
    held: Vec<EdgeId>,
}

/// What a step waits for.
pub(super) enum Missing {
    Arrival(EdgeId),
    Node(NodeId),
}

impl Steps {
    pub(crate) fn add(&mut self, part: &Part, run: RunId, line: Result<Vec<Item>, String>) {
        if let Ok(line) = &line {
            let node = |item: &Item| match item {
                Item::Node(id) => Some(*id),
                Item::Sent(_) => None,
            };
            let mut nodes: Vec<NodeId> = line.iter().filter_map(node).collect();
            nodes.sort_unstable();
            let is_recv = |id: &&NodeId| matches!(part.graph.node(**id).op, Op::Recv { .. });
            let recvs = nodes.iter().filter(is_recv);
            let awaited = recvs.filter(|id| is_awaited(part, &nodes, **id)).copied().collect();
            self.awaited.insert(run, awaited);
        }
        self.lines.insert(run, line);
    }

    /// Forgets that anything can be told as a whole.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.lines.values_mut().for_each(|line| *line = Err(why.to_owned()));
    }

    /// Why a run is not told as a whole; none: it is.
    pub(crate) fn why_in_parts(&self, run: RunId) -> Option<&str> {
        match self.lines.get(&run)? {
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }

    /// True if the run is told as a whole now.
    pub(crate) fn has(&self, run: RunId) -> bool {
        self.done.contains(&run) && matches!(self.lines.get(&run), Some(Ok(_)))
    }

    /// Takes note that all operators of a run were done.
    pub(crate) fn was_done(&mut self, run: RunId) {
        self.done.insert(run);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.present.is_some()
    }

    pub(super) fn waits_for_others(&self) -> bool {
        self.present.as_ref().is_some_and(|step| !step.to_come.is_empty())
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = Missing> {
        let step = self.present.iter();
        step.flat_map(|step| {
            let come = step.to_come.iter().map(|(_, edge, _)| Missing::Arrival(*edge));
            come.chain(step.to_go.iter().map(|(node, ..)| Missing::Node(*node)))
        })
    }
}

impl Executor {
    /// Finds out which runs of the part a device can be told as a whole.
    pub(crate) fn plan_steps(&mut self, plan: &Plan, part: usize, is_pinned: bool) {
        let Some(device) = self.workspace.device.clone() else { return };
        let here = &plan.parts[part];
        let exchange = self.exchange.as_ref();
        let is_flushed = device.lock().sees_remote_writes();
        let ways = |edge| match exchange {
            Some(exchange) if exchange.is_written_by_nic(edge) && !is_flushed => {
                Some("is written by a NIC, and the driver flushes no such writes")
            }
            Some(exchange) => exchange.why_in_parts(edge),
            None => None,
        };
        let mut lines = Vec::new();
        for (at, run) in plan.runs.iter().enumerate() {
            let why = match (self.options.variables_shared, is_pinned) {
                (true, _) => Some("several sessions change its variables".to_owned()),
                (_, false) => Some("the host's memory is not pinned".to_owned()),
                _ => why_in_parts(here, &run.nodes[part], &ways),
            };
            let line = why.map_or_else(|| line(plan, RunId(at), part), Err);
            lines.push((RunId(at), line));
        }
        let is_any = lines.iter().any(|(_, line)| line.is_ok());
        lines.into_iter().for_each(|(run, line)| self.steps.add(here, run, line));
        let crosses = plan.edges.iter().any(|edge| edge.from == part || edge.to == part);
        let edges = if crosses { plan.edges.len() } else { 0 };
        if is_any {
            match device.lock().prepare_steps(2 * edges, edges) {
                Ok(()) => self.steps.is_ready = true,
                Err(why) => self.steps.refuse(&why.to_string()),
            }
        }
    }

    /// Begins a run that is told as a whole.
    pub(crate) fn start_step(&mut self, run: RunId, frontier: &Frontier) {
        let before = (self.counters, self.workspace.copies);
        self.workspace.begin(frontier.transients());
        self.counters.steps += 1;
        self.counters.whole_steps += 1;
        self.steps.present = Some(Step {
            run,
            start_ns: Clock::now_ns(),
            before,
            taken: Vec::new(),
            end: None,
            is_over: false,
            to_come: Vec::new(),
            to_go: Vec::new(),
            held: Vec::new(),
        });
        self.moves();
    }

    pub(super) fn advance_step(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<Advance, RunError> {
        let Some(mut step) = self.steps.present.take() else { return Ok(Advance::Finished) };
        let advanced = match step.end {
            None => match self.tell_step(part, &mut step) {
                Ok(false) => {
                    self.start_in_parts(&step, frontier);
                    return Ok(Advance::Progress);
                }
                told => told,
            },
            Some(end) => self.serve_step(part, &mut step, end),
        };
        let is_done = step.is_over
            && step.to_come.is_empty()
            && step.to_go.is_empty()
            && self.flights.is_empty();
        self.steps.present = Some(step);
        let any = advanced?;
        if is_done {
            self.steps.present = None;
            return self.finish_run();
        }
        match any {
            true => {
                self.moves();
                Ok(Advance::Progress)
            }
            false => Ok(Advance::Blocked),
        }
    }

    /// Begins a step again that the device is not told as a whole, nor is it any more of its run.
    fn start_in_parts(&mut self, step: &Step, frontier: &mut Frontier) {
        let why = "the driver makes no graph of it".to_owned();
        self.steps.lines.insert(step.run, Err(why));
        (self.counters, self.workspace.copies) = step.before;
        step.taken.iter().for_each(|input| self.ahead.put_back(*input));
        self.start(frontier);
    }

    /// Tells the device all of a step; false if it is not told any of it.
    fn tell_step(&mut self, part: &Part, step: &mut Step) -> Result<bool, RunError> {
        let line = match self.steps.lines.get(&step.run) {
            Some(Ok(line)) => line.clone(),
            _ => Vec::new(),
        };
        let awaited = self.steps.awaited.get(&step.run).cloned().unwrap_or_default();
        let Some(first) = line.iter().find_map(|item| match item {
            Item::Node(id) => Some(*id),
            Item::Sent(_) => None,
        }) else {
            return Ok(true);
        };
        self.with_device(part, first, |device| device.begin_step())?;
        for item in line {
            pulse::beat();
            match item {
                Item::Node(id) => {
                    self.tell_node(part, step, id, &awaited)?;
                    self.workspace.release(part, id);
                }
                Item::Sent(id) => self.tell_sent(part, step, id)?,
            }
        }
        step.end = self.with_device(part, first, |device| device.end_step())?;
        Ok(step.end.is_some())
    }

    fn tell_node(
        &mut self,
        part: &Part,
        step: &mut Step,
        id: NodeId,
        awaited: &[NodeId],
    ) -> Result<(), RunError> {
        let start_ns = Clock::now_ns();
        match &part.graph.node(id).op {
            Op::Input { .. } => self.fed(part, id).map(|_| ()),
            Op::Variable { .. } | Op::NoOp => Ok(()),
            op if op.is_view() => self.view(part, id).map(|_| ()),
            Op::CopyTo { .. } => self.copy_in_step(part, step, id),
            Op::Recv { edge, .. } => {
                let is_awaited = awaited.contains(&id);
                step.to_come.push((id, *edge, is_awaited));
                match is_awaited {
                    true => self.with_device(part, id, |d| d.wait_at_gate(edge.index())),
                    false => Ok(()),
                }
            }
            Op::Send { edge } => {
                self.write_in_step(part, id, *edge)?;
                step.to_go.push((id, *edge, false));
                self.with_device(part, id, |device| device.give_signal(edge.index()))
            }
            _ => {
                let made = self.outputs(part, id)?;
                self.start_on_device(part, id, &made)?;
                self.counters.kernels += 1;
                self.record(EventKind::Kernel(id), start_ns, Clock::now_ns());
                Ok(())
            }
        }
    }

    /// What a Send has sent may be written again when the exchange has moved it; what the device itself moved is gone.
    fn tell_sent(&mut self, part: &Part, step: &mut Step, id: NodeId) -> Result<(), RunError> {
        let Op::Send { edge } = part.graph.node(id).op else { return Ok(()) };
        let way = self.exchange.as_ref().map(|exchange| exchange.way_from_device(edge));
        if !part.graph.node(id).space.is_device() || !matches!(way, Some(DeviceWay::Sent)) {
            return Ok(());
        }
        step.held.push(edge);
        let gate = self.epochs.len() + edge.index();
        self.with_device(part, id, |device| device.wait_at_gate(gate))
    }

    fn copy_in_step(&mut self, part: &Part, told: &mut Step, id: NodeId) -> Result<(), RunError> {
        let step = self.counters.steps;
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let unfed = || RunError::NotFed { step, node: node.name.clone() };
        let made = self.outputs(part, id)?;
        let input = node.inputs.first().ok_or_else(unfed)?;
        let to = made.first().ok_or_else(unfed)?;
        let to_loan = to.buffer.lend_to_device_for_writing().map_err(lent)?;
        let viewed = viewed(part, *input);
        if let Some(ahead) = self.ahead.take(viewed) {
            told.taken.push(viewed);
            let from = ahead.lend_to_device().map_err(lent)?;
            return self.with_device(part, id, |device| device.take(from, to_loan));
        }
        let from = self.workspace.storage.tensor(*input).ok_or_else(unfed)?;
        let from_loan = from.buffer.lend_to_device().map_err(lent)?;
        let purpose = match number_of(node.space) {
            Some(_) => CopyPurpose::ToDevice,
            None => CopyPurpose::ToHost,
        };
        // fits: a length is at most isize::MAX
        self.workspace.copies.add(purpose, to.buffer.bytes() as u64);
        self.with_device(part, id, |device| device.copy_in_step(from_loan, to_loan))
    }

    /// Has the device write a tensor where the receiver has it, if it goes there.
    fn write_in_step(&mut self, part: &Part, id: NodeId, edge: EdgeId) -> Result<(), RunError> {
        let step = self.counters.steps;
        let node = part.graph.node(id);
        let lent = |source: LoanError| RunError::Lent { step, node: node.name.clone(), source };
        let way = self.exchange.as_ref().map(|exchange| exchange.way_from_device(edge));
        let Some(DeviceWay::Copied(to)) = way else { return Ok(()) };
        let source = node.inputs.first().and_then(|input| self.workspace.storage.tensor(*input));
        let Some(from) = source else { return Ok(()) };
        let from = from.buffer.lend_to_device().map_err(lent)?;
        let to = to.lend_to_device_for_writing().map_err(lent)?;
        // fits: a length is at most isize::MAX
        self.workspace.copies.add(CopyPurpose::ToPeers, to.bytes() as u64);
        self.with_device(part, id, |device| device.copy_in_step(from, to))
    }

    /// Opens gates of what has come, posts what signals tell of, and asks whether the step is over; true if anything was done.
    fn serve_step(&mut self, part: &Part, step: &mut Step, end: CopyId) -> Result<bool, RunError> {
        pulse::beat();
        self.observe();
        let mut any = false;
        let mut at = 0;
        while let Some((node, edge, is_awaited)) = step.to_come.get(at).copied() {
            if !self.has_arrived(edge)? {
                at += 1;
                continue;
            }
            step.to_come.remove(at);
            self.epochs[edge.index()] += 1;
            any = true;
            let epoch = self.epochs[edge.index()];
            self.record(EventKind::Recv { node, epoch }, step.start_ns, Clock::now_ns());
            if let Some(exchange) = self.exchange.as_ref().filter(|_| is_awaited) {
                let is_remote = exchange.is_written_by_nic(edge);
                self.with_device(part, node, |d| d.open_gate(edge.index(), is_remote))?;
            }
        }
        let mut at = 0;
        while let Some((node, edge, was_given)) = step.to_go.get(at).copied() {
            let is_given = was_given
                || self.with_device(part, node, |device| Ok(device.takes_signal(edge.index())))?;
            step.to_go[at].2 = is_given;
            if is_given && self.post_in_step(part, node, edge)? == Sending::Started {
                step.to_go.remove(at);
                any = true;
            } else {
                at += 1;
            }
        }
        any |= self.finish_in_step(part, step)?;
        if !step.is_over && self.is_step_over(part, end)? {
            (step.is_over, any) = (true, true);
        }
        Ok(any)
    }

    fn post_in_step(
        &mut self,
        part: &Part,
        node: NodeId,
        edge: EdgeId,
    ) -> Result<Sending, RunError> {
        let (step, start_ns) = (self.counters.steps, Clock::now_ns());
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Sending::Full) };
        let moves = matches!(exchange.way_from_device(edge), DeviceWay::Sent);
        let source = part.graph.node(node).inputs.first().filter(|_| moves);
        let tensor = source.and_then(|source| self.workspace.storage.tensor(*source));
        let sending = exchange.send(edge, epoch, tensor.map(|tensor| &tensor.buffer));
        let sending = sending.map_err(|source| RunError::Exchange { step, source })?;
        if sending == Sending::Started {
            self.posted(node, edge, start_ns, None);
        }
        Ok(sending)
    }

    /// Takes note of the sends that are over.
    fn finish_in_step(&mut self, part: &Part, step: &Step) -> Result<bool, RunError> {
        let number = self.counters.steps;
        let Some(exchange) = self.exchange.as_mut().filter(|_| !self.flights.is_empty()) else {
            return Ok(false);
        };
        let finished = exchange.finished(&mut self.finished);
        finished.map_err(|source| RunError::Exchange { step: number, source })?;
        let mut any = false;
        while let Some(edge) = self.finished.pop() {
            let Some(flight) = self.flights.remove(&edge) else { continue };
            any = true;
            let (node, epoch) = (flight.node, self.epochs[edge.index()]);
            self.record(EventKind::Send { node, epoch }, flight.start_ns, Clock::now_ns());
            if step.held.contains(&edge) {
                let gate = self.epochs.len() + edge.index();
                self.with_device(part, node, |device| device.open_gate(gate, false))?;
            }
        }
        Ok(any)
    }

    fn is_step_over(&self, part: &Part, end: CopyId) -> Result<bool, RunError> {
        // of whatever node: a kernel that found something wrong names its own
        let node = part.graph.ids().next().unwrap_or(NodeId(0));
        self.with_device(part, node, |device| device.is_over(end))
    }

    /// True if there is something new of the step that is under way.
    pub(super) fn has_news_of_step(&mut self, part: &Part) -> Result<bool, RunError> {
        let Some(mut step) = self.steps.present.take() else { return Ok(false) };
        let served = match step.end {
            Some(end) => self.serve_step(part, &mut step, end),
            None => Ok(false),
        };
        self.steps.present = Some(step);
        let any = served?;
        if any {
            self.moves();
        }
        Ok(any)
    }

    /// Gives up a step that was told and is not over: its stream waits for nothing any more.
    fn discard_step(&mut self) {
        let is_told = self.steps.present.as_ref().is_some_and(|step| !step.is_over);
        let Some(device) = self.workspace.device.as_ref().filter(|_| is_told) else { return };
        // before the stream goes on
        if let Some(exchange) = &mut self.exchange {
            exchange.give_up(Deadline::after(LETS_GO));
        }
        device.lock().discard_step();
    }

    fn with_device<T>(
        &self,
        part: &Part,
        id: NodeId,
        asked: impl FnOnce(&mut dyn tensorwire_kernels::DeviceKernels) -> Result<T, DeviceFailure>,
    ) -> Result<T, RunError> {
        let Some(device) = &self.workspace.device else {
            return Err(self.without_device(part, id));
        };
        let answer = asked(&mut *device.lock());
        answer.map_err(|source| self.device_failed(part, id, source))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // before memory goes, for which the stream is waited for
        self.discard_step();
        if let Some(device) = self.workspace.device.as_ref().filter(|_| self.steps.is_ready) {
            device.lock().release_steps();
        }
    }
}
