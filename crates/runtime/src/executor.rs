//! Runs ready nodes in three modes (Xue et al. §4). *Synchronous*: a kernel runs to its end.
//! *Asynchronous*: a Send is posted, and is done when its completion comes. *Polling-async*: a Recv
//! whose tensor is not there yet goes back to the tail of the ready queue, so that polling never
//! delays a node that could run; when a whole round found nothing, the executor blocks.

mod collective;
mod device;
mod kernel;
mod steps;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Deadline};
use tensorwire_fabric::pulse;
use tensorwire_graph::{EdgeId, NodeId, Op, Output, Part, Plan};
use tensorwire_kernels::{CopyId, Kernels};
use tensorwire_memory::Buffer;
use tensorwire_tensor::TensorSpec;

use crate::ahead::Ahead;
use crate::error::{AllocError, ExchangeError, RunError};
use crate::frontier::Frontier;
use crate::ports::{DeviceWay, Events, GroupOps, Ports, Sending, TensorExchange};
use crate::session::{Computing, SessionOptions};
use crate::standing::Standing;
use crate::storage::{Storage, Tensor};
use crate::timeline::{Event, EventKind, Timeline};
use crate::under_way::UnderWay;
use crate::workspace::Workspace;
use device::{Copying, Fetching, Gates, Landing};
use steps::Steps;

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
    /// Runs that a device was told as a whole.
    pub whole_steps: u64,
    /// Kernels of a run that ended while something of the run before was under way ([`crate::Session::leave_tail`]).
    pub early_kernels: u64,
    /// Times there was nothing to do but wait for an event.
    pub waits: u64,
    /// Time lost: in polls that found nothing, and blocked in waits.
    pub poll_ns: u64,
    pub wait_ns: u64,
    /// Time in which something was under way: a tensor that was asked for in vain, a send, or what a group reduces.
    pub under_way_ns: u64,
}

/// How far a run got in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Something was done; there may be more.
    Progress,
    /// Nothing can be done until something arrives.
    Blocked,
    /// The run is over.
    Finished,
}

/// How a node's turn ended.
enum Turn {
    Done,
    /// Done when its completion comes.
    Started,
    /// Ask again later.
    NotYet,
}

/// A send or a fetch that is not over.
struct Flight {
    node: NodeId,
    start_ns: u64,
    /// What is sent, or what will be received.
    tensor: Option<Tensor>,
}

pub(crate) struct Executor {
    kernels: Arc<Kernels>,
    events: Option<Box<dyn Events>>,
    exchange: Option<Box<dyn TensorExchange>>,
    group: Option<Box<dyn GroupOps>>,
    options: SessionOptions,
    /// Kernels are as good as done when their turn comes.
    pub(crate) leaves_out_kernels: bool,
    /// Optimizers change variables at so many times their rate: in runs that begin from now on, in the present one, and in what is
    /// left of the one before.
    rate_factor: f64,
    present_rate: f64,
    late_rate: f64,
    /// The node whose turn it is is of the run before.
    is_late: bool,
    /// By node: which of all changes of the variable was the last, counted from 1; none: nobody asked for it.
    changed: Option<Vec<u64>>,
    changes: u64,
    pub(crate) workspace: Workspace,
    /// What is fed before its run.
    pub(crate) ahead: Ahead,
    /// By edge: how often it was sent or received here.
    epochs: Vec<u64>,
    edge_names: Vec<String>,
    ready: VecDeque<NodeId>,
    /// By node: true if it is a Send or a collective operation, or feeds one.
    urgent: Vec<bool>,
    flights: HashMap<EdgeId, Flight>,
    finished: Vec<EdgeId>,
    /// Collective operations under way, and since when.
    collectives: HashMap<NodeId, u64>,
    /// Behind the last of them that devices were told.
    reduced: Option<CopyId>,
    /// Copies under way, in the order in which they were started.
    copying: VecDeque<Copying>,
    /// Pieces that are copied and whose peer's queue had no room, in their order. Those of other peers go past them.
    held: VecDeque<Copying>,
    /// What the device was told to copy in this run to where several sends take it from, in pieces.
    staged: HashMap<Output, Vec<CopyId>>,
    /// Tensors of which some pieces have come.
    landing: HashMap<EdgeId, Landing>,
    /// By which tensors of unknown size go in this run to where peers read them in pieces.
    given: HashMap<Output, Arc<[Buffer]>>,
    /// What the device was told to copy in this run to where peers reach it: such tensors that were made elsewhere.
    shown: HashMap<Output, Tensor>,
    /// Tensors of unknown size that are read in pieces.
    fetching: HashMap<EdgeId, Fetching>,
    gates: Gates,
    pub(crate) steps: Steps,
    finished_nodes: Vec<NodeId>,
    /// What is to be sent or fetched as soon as the queue has room.
    prepared: HashMap<EdgeId, Tensor>,
    /// When the wait began that nothing has ended yet.
    deadline: Option<Deadline>,
    pub(crate) standing: Arc<Standing>,
    under_way: UnderWay,
    /// It is told what the run waits for.
    is_told: bool,
    pub(crate) counters: Counters,
    pub(crate) timeline: Option<Timeline>,
}

impl Executor {
    pub(crate) fn new(
        plan: &Plan,
        part: usize,
        storage: Storage,
        computing: Computing,
        ports: Option<Ports>,
        options: SessionOptions,
    ) -> Executor {
        let Computing { kernels, device } = computing;
        let (events, exchange, group) = match ports {
            Some(Ports { events, exchange, group }) => (Some(events), exchange, group),
            None => (None, None, None),
        };
        let name =
            |e: &tensorwire_graph::Edge| format!("'{}' from {}", e.name, plan.parts[e.from].task);
        let graph = &plan.parts[part].graph;
        let is_send = |id: &NodeId| {
            let op = &graph.node(*id).op;
            op.is_send() || op.vector().is_some()
        };
        let successors = graph.successors();
        let urgent =
            graph.ids().map(|id| is_send(&id) || successors[id.index()].iter().any(is_send));
        Executor {
            kernels,
            events,
            exchange,
            group,
            options,
            leaves_out_kernels: false,
            rate_factor: 1.0,
            present_rate: 1.0,
            late_rate: 1.0,
            is_late: false,
            changed: None,
            changes: 0,
            workspace: Workspace::new(storage, device, plan.send_from, options.dynamic_bytes_max),
            ahead: Ahead::default(),
            epochs: vec![0; plan.edges.len()],
            edge_names: plan.edges.iter().map(name).collect(),
            ready: VecDeque::new(),
            urgent: urgent.collect(),
            flights: HashMap::new(),
            finished: Vec::new(),
            collectives: HashMap::new(),
            reduced: None,
            copying: VecDeque::new(),
            held: VecDeque::new(),
            staged: HashMap::new(),
            landing: HashMap::new(),
            given: HashMap::new(),
            shown: HashMap::new(),
            fetching: HashMap::new(),
            gates: Gates::new(graph, &plan.parts[part].order),
            steps: Steps::default(),
            finished_nodes: Vec::new(),
            prepared: HashMap::new(),
            deadline: None,
            standing: Standing::of(&plan.parts[part]),
            under_way: UnderWay::new(graph.len()),
            is_told: false,
            counters: Counters::default(),
            timeline: options.timeline.then(Timeline::default),
        }
    }

    pub(crate) fn start(&mut self, frontier: &mut Frontier) {
        self.counters.steps += 1;
        self.counters.under_way_ns += self.under_way.so_far();
        self.late_rate = std::mem::replace(&mut self.present_rate, self.rate_factor);
        self.copying.clear();
        self.held.clear();
        self.staged.clear();
        self.landing.clear();
        self.given.clear();
        self.shown.clear();
        self.fetching.clear();
        self.gates.begin();
        self.workspace.begin(frontier.transients());
        self.ready.clear();
        self.ready.extend(frontier.start());
        if let Some(changed) = &self.changed {
            self.ready.make_contiguous().sort_by_key(|node| changed[node.index()]);
        }
        self.moves();
    }

    /// Something was done: whatever is waited for now is something else.
    fn moves(&mut self) {
        self.deadline = None;
        self.standing.moves();
        if std::mem::take(&mut self.is_told) {
            self.standing.goes_on();
        }
    }

    /// Gives nodes their turns until one of them did something, or all were asked in vain.
    pub(crate) fn advance(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<Advance, RunError> {
        if self.steps.is_whole() {
            return self.advance_step(part, frontier);
        }
        if self.group.as_ref().is_some_and(|group| group.holds()) {
            return self.hold_for_group(part, frontier);
        }
        // turns in a row that did nothing; a round of them means that nothing can run
        let mut misses = 0;
        while !frontier.finished() {
            if misses == 0 {
                pulse::beat();
                self.observe();
            }
            let mut progress = false;
            if let Some(node) = self.ready.pop_front() {
                self.is_late = frontier.is_left(node);
                let turn = self.turn(part, node);
                let is_late = std::mem::take(&mut self.is_late);
                let turn = turn?;
                self.under_way.asked(node, matches!(turn, Turn::NotYet));
                match turn {
                    Turn::Done => {
                        let is_early = !is_late && frontier.left() > 0;
                        if is_early && part.graph.node(node).op.is_computed() {
                            self.counters.early_kernels += 1;
                        }
                        self.complete(part, frontier, node);
                        progress = true;
                    }
                    Turn::Started => progress = true,
                    Turn::NotYet => self.ready.push_back(node),
                }
            }
            let completed = self.complete_finished(part, frontier)?;
            let is_more = !self.flights.is_empty() || !self.collectives.is_empty();
            self.counters.under_way_ns += self.under_way.goes_on(is_more);
            if completed || progress {
                self.moves();
                return Ok(Advance::Progress);
            }
            misses += 1;
            if misses >= self.ready.len() {
                match self.ready.is_empty() && frontier.is_at_tail() {
                    // what is left is the group's, or the exchange's
                    true => break,
                    false => return Ok(Advance::Blocked),
                }
            }
        }
        self.finish_run()
    }

    /// All of a run is done. It counts if no peer gave up its own, whose device may have written since what was read here.
    fn finish_run(&self) -> Result<Advance, RunError> {
        let step = self.counters.steps;
        self.check_peers().map_err(|source| RunError::Exchange { step, source })?;
        Ok(Advance::Finished)
    }

    /// As [`TensorExchange::check_peers`].
    pub(crate) fn check_peers(&self) -> Result<(), ExchangeError> {
        self.exchange.as_ref().map_or(Ok(()), |exchange| exchange.check_peers())
    }

    fn observe(&mut self) {
        if let Some(events) = &mut self.events {
            events.observe();
        }
    }

    /// Sends go first, and what they send before all else: the sooner a tensor is under way, the
    /// more computation hides its way.
    fn complete(&mut self, part: &Part, frontier: &mut Frontier, node: NodeId) {
        self.workspace.release(part, node);
        if let Some(changed) = &mut self.changed {
            let node = part.graph.node(node);
            for variable in &node.inputs[..node.op.mutated_inputs()] {
                self.changes += 1;
                changed[variable.node.index()] = self.changes;
            }
        }
        if let Some(exchange) = &mut self.exchange {
            frontier.readers().complete(node, |edge| exchange.released(edge));
        }
        let Executor { ready, urgent, .. } = self;
        frontier.complete(node, |next| match urgent[next.index()] {
            true => ready.push_front(next),
            false => ready.push_back(next),
        });
    }

    fn turn(&mut self, part: &Part, node: NodeId) -> Result<Turn, RunError> {
        match &part.graph.node(node).op {
            Op::Input { .. } => self.fed(part, node),
            Op::Variable { .. } | Op::NoOp => Ok(Turn::Done),
            op if op.is_view() => self.view(part, node),
            Op::CopyTo { .. } => self.copy(part, node),
            Op::Send { edge } | Op::SendDynamic { edge } if self.gates.is_shut(node) => {
                self.shut(part, node, *edge)
            }
            Op::Send { edge } | Op::SendDynamic { edge } => self.send(part, node, *edge),
            Op::Recv { edge, .. } => {
                match self.exchange.as_ref().and_then(|exchange| exchange.way_to_device(*edge)) {
                    Some(pieces) => self.land(part, node, *edge, &pieces),
                    None => self.poll(node, *edge),
                }
            }
            Op::RecvDynamic { edge, .. } => self.receive_anywhere(part, node, *edge),
            Op::AllReduce { .. } | Op::Broadcast { .. } => self.collective(part, node),
            op => {
                // a user's kernel may do anything
                let _resting = matches!(op, Op::Custom(_)).then(pulse::resting);
                self.standing.computes(node);
                let turn = self.kernel(part, node);
                self.standing.has_computed();
                turn
            }
        }
    }

    /// Gives an input memory of the size that it has now.
    pub(crate) fn feed(&mut self, output: Output, spec: TensorSpec) -> Result<(), AllocError> {
        self.workspace.storage.remove(output);
        let tensor = self.workspace.alloc(output, spec, self.exchange.as_deref_mut())?;
        self.workspace.storage.set(output, tensor);
        Ok(())
    }

    /// An input whose size nobody knew must have been given one.
    fn fed(&self, part: &Part, id: NodeId) -> Result<Turn, RunError> {
        match self.workspace.storage.tensor(id.into()) {
            Some(_) => Ok(Turn::Done),
            None => Err(RunError::NotFed {
                step: self.counters.steps,
                node: part.graph.node(id).name.clone(),
            }),
        }
    }

    fn view(&mut self, part: &Part, id: NodeId) -> Result<Turn, RunError> {
        let output = Output::from(id);
        let node = part.graph.node(id);
        if part.memory.spot(output).is_none() {
            let mut specs = self.workspace.infer(node, self.counters.steps)?;
            let viewed = self.workspace.storage.tensor(node.inputs[0]);
            let viewed = viewed.expect("inference found it").clone();
            let tensor = Tensor { spec: specs.remove(0), ..viewed };
            self.workspace.hold(part, output, tensor);
        }
        Ok(Turn::Done)
    }

    fn poll(&mut self, node: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let start_ns = Clock::now_ns();
        if !self.has_arrived(edge)? {
            return Ok(Turn::NotYet);
        }
        self.epochs[edge.index()] += 1;
        let epoch = self.epochs[edge.index()];
        if self.timeline.is_some() {
            let end_ns = Clock::now_ns();
            self.record(EventKind::Recv { node, epoch }, start_ns, end_ns);
            let asked_ns = self.exchange.as_ref().and_then(|exchange| exchange.asked_ns(edge));
            if let Some(asked_ns) = asked_ns {
                self.record(EventKind::Pull { node, epoch }, asked_ns, end_ns);
            }
        }
        Ok(Turn::Done)
    }

    fn has_arrived(&mut self, edge: EdgeId) -> Result<bool, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let start_ns = Clock::now_ns();
        let arrived = self.exchange.as_mut().map_or(Ok(false), |e| e.arrived(edge, epoch));
        let arrived = arrived.map_err(|source| RunError::Exchange { step, source })?;
        self.counters.polls += 1;
        if !arrived {
            self.counters.poll_misses += 1;
            self.counters.poll_ns += Clock::now_ns() - start_ns;
        }
        Ok(arrived)
    }

    /// Learns what was announced, allocates memory for it and starts to read it.
    fn receive(&mut self, node: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let exchange_error = |source| RunError::Exchange { step, source };
        let epoch = self.epochs[edge.index()] + 1;
        if !self.prepared.contains_key(&edge) {
            if !self.has_arrived(edge)? {
                return Ok(Turn::NotYet);
            }
            let Some(exchange) = &mut self.exchange else {
                return Ok(Turn::NotYet);
            };
            let spec = exchange.announced(edge, epoch).map_err(exchange_error)?;
            let tensor = self.workspace.alloc_registered(spec, self.exchange.as_deref_mut());
            let name = || self.edge_names[edge.index()].clone();
            let memory = |source| RunError::Memory { step, node: name(), source };
            self.prepared.insert(edge, tensor.map_err(memory)?);
        }
        match self.fetch(node, edge, Clock::now_ns())? {
            Sending::Full => Ok(Turn::NotYet),
            Sending::Started => Ok(Turn::Started),
        }
    }

    /// Starts to read what was announced into the memory that is prepared for it.
    fn fetch(&mut self, node: NodeId, edge: EdgeId, start_ns: u64) -> Result<Sending, RunError> {
        let step = self.counters.steps;
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else { return Ok(Sending::Full) };
        let deadline = Deadline::after(self.options.step_deadline);
        let fetch = exchange.fetch(edge, epoch, &self.prepared[&edge].buffer, deadline);
        let fetch = fetch.map_err(|source| RunError::Exchange { step, source })?;
        if fetch == Sending::Started {
            self.epochs[edge.index()] = epoch;
            let tensor = self.prepared.remove(&edge);
            self.flights.insert(edge, Flight { node, start_ns, tensor });
        }
        Ok(fetch)
    }

    fn send(&mut self, part: &Part, node: NodeId, edge: EdgeId) -> Result<Turn, RunError> {
        let step = self.counters.steps;
        let start_ns = Clock::now_ns();
        // prepared once: a send that found the queue full comes here again
        let on_device = part.graph.node(node).space.is_device();
        if !self.prepared.contains_key(&edge) && !on_device {
            let exchange = self.exchange.as_deref_mut();
            if let Some(tensor) = self.workspace.sendable(part, node, step, exchange)? {
                self.prepared.insert(edge, tensor);
            }
        }
        let tensor = self.prepared.get(&edge);
        let epoch = self.epochs[edge.index()] + 1;
        let Some(exchange) = &mut self.exchange else {
            return Ok(Turn::NotYet);
        };
        // what a device has is sent from there, if the exchange moves it
        let moves = on_device && matches!(exchange.way_from_device(edge), DeviceWay::Sent);
        let there = part.graph.node(node).inputs.first().filter(|_| moves);
        let there = there.and_then(|input| self.workspace.storage.tensor(*input));
        let tensor = tensor.or(there);
        let sending = match (&part.graph.node(node).op, tensor) {
            (Op::SendDynamic { .. }, Some(tensor)) => {
                exchange.announce(edge, epoch, &tensor.spec, &tensor.buffer)
            }
            _ => exchange.send(edge, epoch, tensor.map(|tensor| &tensor.buffer)),
        };
        match sending.map_err(|source| RunError::Exchange { step, source })? {
            Sending::Full => Ok(Turn::NotYet),
            Sending::Started => {
                self.gates.posted(node);
                let tensor = self.prepared.remove(&edge);
                self.posted(node, edge, start_ns, tensor);
                Ok(Turn::Started)
            }
        }
    }

    /// Takes note that a send is under way.
    fn posted(&mut self, node: NodeId, edge: EdgeId, start_ns: u64, tensor: Option<Tensor>) {
        self.epochs[edge.index()] += 1;
        self.counters.sends += 1;
        self.flights.insert(edge, Flight { node, start_ns, tensor });
    }

    /// Completes the sends, fetches and collective operations that are over; returns true if there were any.
    fn complete_finished(
        &mut self,
        part: &Part,
        frontier: &mut Frontier,
    ) -> Result<bool, RunError> {
        let step = self.counters.steps;
        let mut any = self.complete_collectives(part, frontier)?;
        any |= self.complete_copies(part, frontier)?;
        let Some(exchange) = self.exchange.as_mut().filter(|_| !self.flights.is_empty()) else {
            return Ok(any);
        };
        let finished = exchange.finished(&mut self.finished);
        finished.map_err(|source| RunError::Exchange { step, source })?;
        let exchange = &**exchange;
        any |= self.fetching.iter().any(|(edge, fetching)| fetching.has_more(exchange, *edge));
        while let Some(edge) = self.finished.pop() {
            let Some(Flight { node, start_ns, tensor }) = self.flights.remove(&edge) else {
                continue;
            };
            let epoch = self.epochs[edge.index()];
            let mut what = EventKind::Send { node, epoch };
            if let (Op::RecvDynamic { .. }, Some(tensor)) = (&part.graph.node(node).op, tensor) {
                self.workspace.hold(part, node.into(), tensor);
                what = EventKind::Recv { node, epoch };
            }
            if self.timeline.is_some() {
                self.is_late = frontier.is_left(node);
                self.record(what, start_ns, Clock::now_ns());
                self.is_late = false;
            }
            self.complete(part, frontier, node);
            any = true;
        }
        Ok(any)
    }

    pub(crate) fn set_rate_factor(&mut self, factor: f64) {
        if let Some(device) = self.workspace.device.as_ref().filter(|_| factor != self.rate_factor)
        {
            // a device that failed says so when it is told to compute
            let _ = device.lock().set_rate_factor(factor);
        }
        self.rate_factor = factor;
    }

    /// See [`crate::Session::send_as_changed`].
    pub(crate) fn send_as_changed(&mut self) {
        self.changed.get_or_insert_with(|| vec![0; self.urgent.len()]);
    }

    pub(crate) fn step_deadline(&self) -> Duration {
        self.options.step_deadline
    }

    pub(crate) fn set_step_deadline(&mut self, patience: Duration) {
        self.options.step_deadline = patience;
    }

    pub(crate) fn record(&mut self, what: EventKind, start_ns: u64, end_ns: u64) {
        let step = self.counters.steps - u64::from(self.is_late);
        if let Some(timeline) = &mut self.timeline {
            timeline.record(Event { step, what, start_ns, end_ns });
        }
    }
}
