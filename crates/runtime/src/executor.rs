//! Runs ready nodes in three modes (Xue et al. §4). *Synchronous*: a kernel runs to its end.
//! *Asynchronous*: a Send is posted, and is done when its completion comes. *Polling-async*: a Recv
//! whose tensor is not there yet goes back to the tail of the ready queue, so that polling never
//! delays a node that could run; when a whole round found nothing, the executor blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Deadline};
use tensorwire_graph::{EdgeId, NodeId, Op, Output, Part, Plan};
use tensorwire_kernels::Kernels;
use tensorwire_memory::{CopyCounter, LoanError, TensorMut, TensorRef};

use crate::error::RunError;
use crate::frontier::Frontier;
use crate::ports::{Exchange, Sending};
use crate::session::SessionOptions;
use crate::storage::{Storage, Tensor};
use crate::timeline::{Event, Timeline, What};

/// How long to wait before a send that found the queue full is tried again, if nothing happens.
const RETRY_FULL: Duration = Duration::from_millis(1);

/// What an executor did, summed over its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Runs begun; also the number of the present step, from 1.
    pub steps: u64,
    pub kernels: u64,
    pub sends: u64,
    /// Times a Recv was asked whether its tensor is there, and how often it was not.
    pub polls: u64,
    pub poll_misses: u64,
    /// Times there was nothing to do but wait for the exchange.
    pub waits: u64,
    /// Time lost: in polls that found nothing, and blocked in waits.
    pub poll_ns: u64,
    pub wait_ns: u64,
}

/// How a node's turn ended.
enum Turn {
    Done,
    /// Done when its completion comes.
    Started,
    /// Ask again later.
    NotYet,
}

pub(crate) struct Executor {
    kernels: Arc<Kernels>,
    exchange: Option<Box<dyn Exchange>>,
    options: SessionOptions,
    /// By edge: how often it was sent or received here.
    epochs: Vec<u64>,
    edge_names: Vec<String>,
    ready: VecDeque<NodeId>,
    /// By node: is it a Send, or does a Send wait for it?
    urgent: Vec<bool>,
    /// Sends that were posted and are not over, with when they were.
    in_flight: HashMap<EdgeId, (NodeId, u64)>,
    finished: Vec<EdgeId>,
    /// Edges whose tensor was copied to its staging place and is not under way yet.
    staged: HashSet<EdgeId>,
    pub(crate) copies: CopyCounter,
    pub(crate) counters: Counters,
    pub(crate) timeline: Option<Timeline>,
}

impl Executor {
    pub(crate) fn new(
        plan: &Plan,
        part: usize,
        kernels: Arc<Kernels>,
        exchange: Option<Box<dyn Exchange>>,
        options: SessionOptions,
    ) -> Executor {
        let name =
            |e: &tensorwire_graph::Edge| format!("'{}' from {}", e.name, plan.parts[e.from].task);
        let graph = &plan.parts[part].graph;
        let is_send = |id: &NodeId| matches!(graph.node(*id).op, Op::Send { .. });
        let successors = graph.successors();
        let urgent =
            graph.ids().map(|id| is_send(&id) || successors[id.index()].iter().any(is_send));
        Executor {
            kernels,
            exchange,
            options,
            epochs: vec![0; plan.edges.len()],
            edge_names: plan.edges.iter().map(name).collect(),
            ready: VecDeque::new(),
            urgent: urgent.collect(),
            in_flight: HashMap::new(),
            finished: Vec::new(),
            staged: HashSet::new(),
            copies: CopyCounter::default(),
            counters: Counters::default(),
            timeline: options.timeline.then(Timeline::default),
        }
    }

    pub(crate) fn run(
        &mut self,
        part: &Part,
        storage: &Storage,
        frontier: &mut Frontier,
    ) -> Result<(), RunError> {
        self.counters.steps += 1;
        self.ready.clear();
        self.ready.extend(frontier.start());
        // when the wait began that nothing has ended yet
        let mut deadline: Option<Deadline> = None;
        // polls in a row that found nothing; a round of them means that nothing can run
        let mut misses = 0;
        while !frontier.finished() {
            let progress = match self.ready.pop_front() {
                Some(node) => {
                    if misses == 0 {
                        self.observe();
                    }
                    match self.turn(part, storage, node)? {
                        Turn::Done => {
                            self.complete(frontier, node);
                            true
                        }
                        Turn::Started => true,
                        Turn::NotYet => {
                            self.ready.push_back(node);
                            false
                        }
                    }
                }
                None => {
                    self.observe();
                    false
                }
            };
            let progress = self.collect_sent(frontier)? || progress;
            misses = if progress { 0 } else { misses + 1 };
            if progress {
                deadline = None;
            } else if misses >= self.ready.len() {
                let patience = self.options.step_deadline;
                self.wait(part, *deadline.get_or_insert_with(|| Deadline::after(patience)))?;
                misses = 0;
            }
        }
        Ok(())
    }

    fn observe(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.observe();
        }
    }

    /// Sends go first, and what they send before all else: the sooner a tensor is under way, the
    /// more computation hides its way.
    fn complete(&mut self, frontier: &mut Frontier, node: NodeId) {
        let Executor { ready, urgent, .. } = self;
        frontier.complete(node, |next| match urgent[next.index()] {
            true => ready.push_front(next),
            false => ready.push_back(next),
        });
    }

    fn turn(&mut self, part: &Part, storage: &Storage, node: NodeId) -> Result<Turn, RunError> {
        match &part.graph.node(node).op {
            Op::Input { .. } | Op::Variable { .. } | Op::NoOp => Ok(Turn::Done),
            Op::Send { edge } => self.send(part, storage, node, *edge),
            Op::Recv { edge, .. } => Ok(self.poll(node, *edge)),
            _ => self.kernel(part, storage, node).map(|()| Turn::Done),
        }
    }

    fn poll(&mut self, node: NodeId, edge: EdgeId) -> Turn {
        let epoch = self.epochs[edge.index()] + 1;
        let start_ns = Clock::now_ns();
        let arrived = self.exchange.as_mut().is_some_and(|e| e.arrived(edge, epoch));
        self.counters.polls += 1;
        if !arrived {
            self.counters.poll_misses += 1;
            self.counters.poll_ns += Clock::now_ns() - start_ns;
            return Turn::NotYet;
        }
        self.epochs[edge.index()] = epoch;
        if self.timeline.is_some() {
            self.record(What::Recv { node, epoch }, start_ns, Clock::now_ns());
        }
        Turn::Done
    }

    fn send(
        &mut self,
        part: &Part,
        storage: &Storage,
        node: NodeId,
        edge: EdgeId,
    ) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        let sent = part.graph.node(node).inputs.first().and_then(|input| storage.tensor(*input));
        let buffer = match (sent, storage.staging(node)) {
            (Some(tensor), Some(staging)) => {
                let lent = |source| {
                    let node = part.graph.node(node).name.clone();
                    RunError::Lent { step, node, source }
                };
                // once: a send that found the queue full comes here again
                if self.staged.insert(edge) {
                    let source = tensor.buffer.read().map_err(lent)?;
                    self.copies.copy(&source, &mut staging.write().map_err(lent)?);
                }
                Some(staging)
            }
            (Some(tensor), None) => Some(&tensor.buffer),
            (None, _) => None,
        };
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else {
            return Ok(Turn::NotYet);
        };
        let sending = exchange
            .send(edge, epoch, buffer)
            .map_err(|source| RunError::Exchange { step, source })?;
        if sending == Sending::Full {
            return Ok(Turn::NotYet);
        }
        self.staged.remove(&edge);
        self.epochs[edge.index()] = epoch;
        self.counters.sends += 1;
        self.in_flight.insert(edge, (node, start_ns));
        Ok(Turn::Started)
    }

    /// Completes the Sends that are over; true if there were any.
    fn collect_sent(&mut self, frontier: &mut Frontier) -> Result<bool, RunError> {
        let step = self.counters.steps;
        if self.in_flight.is_empty() {
            return Ok(false);
        }
        let Some(exchange) = &mut self.exchange else {
            return Ok(false);
        };
        exchange.sent(&mut self.finished).map_err(|source| RunError::Exchange { step, source })?;
        let mut any = false;
        while let Some(edge) = self.finished.pop() {
            if let Some((node, start_ns)) = self.in_flight.remove(&edge) {
                if self.timeline.is_some() {
                    let epoch = self.epochs[edge.index()];
                    self.record(What::Send { node, epoch }, start_ns, Clock::now_ns());
                }
                self.complete(frontier, node);
                any = true;
            }
        }
        Ok(any)
    }

    fn wait(&mut self, part: &Part, deadline: Deadline) -> Result<(), RunError> {
        let step = self.counters.steps;
        self.counters.waits += 1;
        if deadline.passed() {
            let waited_s = self.options.step_deadline.as_secs();
            return Err(RunError::Stalled { step, waited_s, missing: self.missing(part) });
        }
        let Some(exchange) = &mut self.exchange else {
            let missing = self.missing(part);
            return Err(RunError::Stalled { step, waited_s: 0, missing });
        };
        // a full queue may have room again without any news for us
        let is_send = |node: &NodeId| matches!(part.graph.node(*node).op, Op::Send { .. });
        let until = match self.ready.iter().any(is_send) {
            true => deadline.min(Deadline::after(RETRY_FULL)),
            false => deadline,
        };
        let start_ns = Clock::now_ns();
        let waited = exchange.wait(until);
        let end_ns = Clock::now_ns();
        self.counters.wait_ns += end_ns - start_ns;
        self.record(What::Wait, start_ns, end_ns);
        waited.map_err(|source| RunError::Exchange { step, source })
    }

    /// What the run waits for, for people.
    fn missing(&self, part: &Part) -> String {
        let name = |node: NodeId| part.graph.node(node).name.clone();
        let waiting = self.ready.iter().map(|node| match part.graph.node(*node).op {
            Op::Recv { edge, .. } => self.edge_names[edge.index()].clone(),
            _ => format!("room in the queue for '{}'", name(*node)),
        });
        let sends =
            self.in_flight.values().map(|(node, _)| format!("the end of '{}'", name(*node)));
        let mut missing: Vec<String> = waiting.chain(sends).collect();
        let more = missing.len().saturating_sub(4);
        missing.truncate(4);
        let list = missing.join(", ");
        if more == 0 { list } else { format!("{list} and {more} more") }
    }

    fn kernel(&mut self, part: &Part, storage: &Storage, id: NodeId) -> Result<(), RunError> {
        let step = self.counters.steps;
        let start_ns = if self.timeline.is_some() { Clock::now_ns() } else { 0 };
        let node = part.graph.node(id);
        let name = || node.name.clone();
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let bad = |source| RunError::Tensor { step, node: name(), source };
        let tensor = |output: Output| storage.tensor(output).expect("the plan placed every output");
        let (changed, read) = node.inputs.split_at(node.op.mutated_inputs());
        // fits: operators have at most two outputs
        let made = (0..node.facts.len() as u32).map(|index| Output { node: id, index });
        let written: Vec<&Tensor> = changed.iter().copied().chain(made).map(tensor).collect();
        let read: Vec<&Tensor> = read.iter().copied().map(tensor).collect();
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
        self.kernels.run(&node.op, &inputs, &mut outputs).map_err(|source| RunError::Kernel {
            step,
            node: name(),
            source,
        })?;
        self.counters.kernels += 1;
        if self.timeline.is_some() {
            self.record(What::Kernel(id), start_ns, Clock::now_ns());
        }
        Ok(())
    }

    fn record(&mut self, what: What, start_ns: u64, end_ns: u64) {
        let step = self.counters.steps;
        if let Some(timeline) = &mut self.timeline {
            timeline.record(Event { step, what, start_ns, end_ns });
        }
    }
}
