//! Steps that the stream is told as a whole, with what crosses in them: copies are told among the launches, and the stream
//! waits at gates and gives signals, words in pinned memory. A gate is open at 1; who waits there shuts it, so that the graph
//! can be launched again. Who gives up a step opens all gates, so that no stream waits for good. A step is told as a graph, or, where
//! that would be a large one, as several: a stream takes so many launches behind a shut gate, about 1,024, and then holds the
//! thread that tells it, which is the one that would open the gate. So a graph is told when all gates of those before it are open.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tensorwire_base::Space;
use tensorwire_device::{Device, DeviceError, Graph, Stream, Until, Word, WritesOrdering};
use tensorwire_kernels::{CopyId, DeviceFailure};
use tensorwire_memory::{Arena, DeviceLoan, DeviceWriteLoan, Place};

use super::flights::{Loans, part};
use super::prepared::Prepared;
use super::segments::Call;
use super::{CudaKernels, FAULT_OFFSET, Failed};
use crate::DeviceFault;

/// From one word to the next: the host asks for one while the GPU writes another.
const WORD_BYTES: usize = 64;
const OPEN: u32 = 1;
const SHUT: u32 = 0;

/// Whether what a NIC has written to a GPU's memory is flushed before a stream goes on that waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteWrites {
    /// Where the GPU says that it does not order them itself, and the driver flushes them.
    #[default]
    AsNeeded,
    /// Wherever the driver flushes them.
    Flushed,
    /// Nowhere: what is used may not be there yet. For tests of what comes of that.
    Unflushed,
}

/// The words of steps, and what the present one holds.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// A session tells them.
    is_taken: bool,
    gates: Vec<Word>,
    signals: Vec<Word>,
    copies: Vec<StepCopy>,
    loans: Vec<Loans>,
    /// What it copies from the host, held until `fed` says that all of it is copied: the host fills it for the next step then.
    held: Vec<Loans>,
    fed: Option<Word>,
    /// How often the present step writes `fed`, and whether it copies from the host behind the last time.
    told: u32,
    is_feeding: bool,
    /// It copies what came ahead, behind something of its own: the stream waits before the step until that has come.
    takes_ahead: bool,
    /// A step is being told.
    is_open: bool,
    /// The graphs of the step that the stream was not told yet.
    rest: VecDeque<StepGraph>,
    /// What is over when all of the step is; none once the stream was told so.
    end: Option<CopyId>,
    /// Gates that the stream was told to wait at, and nobody has opened.
    shut: HashSet<usize>,
    /// Gates that were opened in this step.
    opened: HashSet<usize>,
    /// Copies for the step behind, from the host, to where the rest takes what came ahead.
    kept_back: Vec<(DeviceLoan, DeviceWriteLoan)>,
}

/// A part of a step that is told at once.
#[derive(Debug)]
struct StepGraph {
    graph: Arc<Graph>,
    gates: Vec<usize>,
}

/// A copy of the step that is being told.
#[derive(Clone, Debug)]
struct StepCopy {
    from: Arc<DeviceLoan>,
    to: Arc<DeviceWriteLoan>,
}

impl Steps {
    fn prepare(
        &mut self,
        device: &Arc<Device>,
        gates: usize,
        signals: usize,
    ) -> Result<(), DeviceError> {
        let count = gates + signals + 1;
        let slab = device.pinned(count * WORD_BYTES)?;
        let all = [Place { offset: 0, bytes: count * WORD_BYTES }];
        let buffers = Arena::new(&slab, &all).expect("the slab is new, and has room for them");
        let loan = buffers.into_buffers().remove(0).lend_to_device_for_writing();
        let loan = Arc::new(loan.expect("the buffer is new"));
        let mut words: Vec<Word> = (0..count).map(|at| Word::new(&loan, at * WORD_BYTES)).collect();
        for word in &words {
            word.store(SHUT);
        }
        self.fed = words.pop();
        self.signals = words.split_off(gates);
        self.gates = words;
        self.is_taken = true;
        Ok(())
    }

    pub(super) fn release(&mut self) {
        self.is_taken = false;
    }

    /// True from a step's begin to its end.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Tells a stream a call of a step.
    pub(super) fn tell(&self, stream: &Stream, call: Call) -> Result<(), DeviceError> {
        match call {
            Call::Wait(gate) => {
                stream.wait_value32(&self.gates[gate], Until::Equal(OPEN))?;
                stream.write_value32(&self.gates[gate], SHUT)
            }
            Call::Signal(signal) => stream.write_value32(&self.signals[signal], OPEN),
            Call::Fed(times) => match &self.fed {
                Some(fed) => stream.write_value32(fed, times),
                None => Ok(()),
            },
            Call::Copy { .. } => {
                let copy = self.copies.iter().find(|copy| copy.call() == call);
                copy.map_or(Ok(()), |copy| copy.tell(stream))
            }
            Call::Operator(..) => Ok(()),
        }
    }

    /// What comes next in the step, if what the host feeds was copied just before.
    fn says_fed(&mut self) -> Option<Call> {
        let is_due = std::mem::take(&mut self.is_feeding) && self.fed.is_some();
        is_due.then(|| {
            self.told += 1;
            Call::Fed(self.told)
        })
    }

    /// Gives back what was copied from the host.
    pub(super) fn land(&mut self) {
        let is_fed = self.fed.as_ref().is_some_and(|fed| fed.load() == Some(self.told));
        if is_fed && !self.is_feeding {
            self.held.clear();
        }
    }

    /// Keeps a copy that is to come ahead back, if it would write over what the present step has not taken; else gives it back.
    pub(super) fn keep_back(
        &mut self,
        from: DeviceLoan,
        to: DeviceWriteLoan,
    ) -> Option<(DeviceLoan, DeviceWriteLoan)> {
        if !(self.takes_ahead && self.has_rest()) {
            return Some((from, to));
        }
        self.kept_back.push((from, to));
        None
    }

    /// True if copies are kept back.
    pub(super) fn keeps_back(&self) -> bool {
        !self.kept_back.is_empty()
    }

    /// Keeps none back that goes to the memory at this address.
    pub(super) fn forget_kept_back(&mut self, address: usize) {
        self.kept_back.retain(|(_, to)| to.address() != address);
    }

    /// True while a part of a step is not told.
    pub(super) fn has_rest(&self) -> bool {
        self.end.is_some()
    }

    /// The next graph that the stream may be told: it waits at no gate that is shut.
    fn take_next(&mut self) -> Option<Arc<Graph>> {
        let StepGraph { graph, gates } =
            if self.shut.is_empty() { self.rest.pop_front() } else { None }?;
        let shut = gates.into_iter().filter(|gate| !self.opened.contains(gate));
        self.shut.extend(shut);
        Some(graph)
    }

    fn open_all(&self) {
        for gate in &self.gates {
            gate.store(OPEN);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.open_all();
    }
}

impl StepCopy {
    fn call(&self) -> Call {
        let StepCopy { from, to } = self;
        Call::Copy { from: from.address(), to: to.address(), bytes: from.bytes().min(to.bytes()) }
    }

    fn tell(&self, stream: &Stream) -> Result<(), DeviceError> {
        let StepCopy { from, to } = self;
        let bytes = 0..from.bytes().min(to.bytes());
        match (from.space(), to.space()) {
            (Space::Host, Space::Device(_)) => stream.copy_to_device(from, bytes, to, 0),
            (Space::Device(_), Space::Device(_)) => stream.copy_within_device(from, bytes, to, 0),
            (Space::Device(_), Space::Host) => stream.copy_to_host(from, bytes, to, 0),
            // the stream has no word for it, and the runtime asks for none
            (Space::Host, Space::Host) => Ok(()),
        }
    }
}

impl CudaKernels {
    pub(super) fn steps_prepared(
        &mut self,
        gates: usize,
        signals: usize,
    ) -> Result<(), DeviceFailure> {
        let facts = self.device.facts();
        if !facts.memory_operations {
            let why = format!("streams of GPU {} do not wait for words", facts.ordinal);
            return Err(DeviceFailure::Device(why.into()));
        }
        if self.steps.is_taken {
            let why = format!("another session tells GPU {} whole steps", facts.ordinal);
            return Err(DeviceFailure::Device(why.into()));
        }
        // graphs of a session before wait for its words
        self.segments.forget();
        self.steps = Steps::default();
        Ok(self.steps.prepare(&self.device, gates, signals).map_err(Failed::from)?)
    }

    pub(super) fn step_begun(&mut self) -> Result<(), Failed> {
        self.check()?;
        self.flush()?;
        self.steps.copies.clear();
        self.steps.loans.clear();
        self.steps.held.clear();
        // the step before is over, and nothing waits at a gate
        self.outgrown.clear();
        (self.steps.told, self.steps.is_feeding) = (0, false);
        (self.steps.takes_ahead, self.steps.is_open) = (false, true);
        self.steps.shut.clear();
        self.steps.opened.clear();
        if let Some(fed) = &self.steps.fed {
            fed.store(0);
        }
        Ok(())
    }

    pub(super) fn step_copied(&mut self, from: DeviceLoan, to: DeviceWriteLoan) {
        let (from, to) = (Arc::new(from), Arc::new(to));
        match (from.space(), to.space()) {
            (Space::Host, _) => {
                self.steps.held.push(Loans::From { _from: from.clone() });
                self.steps.is_feeding = true;
            }
            (_, Space::Host) => self.steps.loans.push(Loans::To { _to: to.clone() }),
            // the stream's order stands for both
            _ => {}
        }
        // what lies on the GPU is used by others of this step, in the stream's order
        let from = if from.space().is_device() { Arc::new(relent(&from)) } else { from };
        let to = if to.space().is_device() { Arc::new(relent_to(&to)) } else { to };
        self.add_copy(StepCopy { from, to });
    }

    /// True if what is taken now has something of the step before it, which must not be told apart from the rest. Else it is
    /// copied before the step, so that what comes ahead next need not wait until the step is over.
    pub(super) fn takes_in_step(&self) -> bool {
        self.steps.is_open && self.segments.are_pending()
    }

    pub(super) fn step_took(&mut self, from: DeviceLoan, to: DeviceWriteLoan) {
        self.steps.takes_ahead = true;
        self.step_copied(from, to);
    }

    fn add_copy(&mut self, copy: StepCopy) {
        self.segments.add(copy.call());
        self.steps.copies.push(copy);
    }

    pub(super) fn add_to_step(&mut self, call: Call) {
        if let Some(fed) = self.steps.says_fed() {
            self.segments.add(fed);
        }
        self.segments.add(call);
    }

    /// None where the driver makes no graph of the step: the stream was told nothing of it.
    pub(super) fn step_ended(&mut self) -> Result<Option<CopyId>, Failed> {
        self.check()?;
        self.steps.is_open = false;
        if let Some(fed) = self.steps.says_fed() {
            self.segments.add(fed);
        }
        let fault = self.flights.free_place().filter(|_| self.has_checks);
        if let Some((_, place)) = &fault {
            let words = part(&self.words.slab(), FAULT_OFFSET, size_of::<DeviceFault>());
            let from = Arc::new(words.lend_to_device().expect("the buffer is new"));
            self.add_copy(StepCopy { from, to: place.clone() });
        }
        let pieces = self.pieces()?;
        self.steps.copies.clear();
        let loans = std::mem::take(&mut self.steps.loans);
        let Some(pieces) = pieces else {
            self.steps.held.clear();
            self.steps.told = 0;
            return Ok(None);
        };
        if self.steps.takes_ahead {
            self.ahead.come_before(&self.stream)?;
        }
        self.steps.rest = pieces;
        let end = self.flights.open(loans, fault)?;
        self.steps.end = Some(end);
        self.tell_rest()?;
        Ok(Some(end))
    }

    /// The step as graphs, each of so many launches that the stream takes them behind a shut gate; one where it waits for
    /// nobody. None where the driver makes none.
    fn pieces(&mut self) -> Result<Option<VecDeque<StepGraph>>, Failed> {
        let calls = self.segments.take();
        let waits = calls.iter().any(|call| matches!(call, Call::Wait(_)));
        let most = if waits { self.launches_behind_gate_max } else { usize::MAX };
        let cut = cut(calls, most, |call| self.launches_of(call));
        let new = cut.iter().filter(|calls| !self.segments.has_graph(calls)).count();
        self.segments.make_room(new);
        let mut pieces = VecDeque::with_capacity(cut.len());
        for calls in cut {
            let gates = calls.iter().filter_map(|call| match call {
                Call::Wait(gate) => Some(*gate),
                _ => None,
            });
            let gates = gates.collect();
            let graph =
                self.told(|segments, stream, tell| Ok(segments.graph(stream, calls, tell)))?;
            let Some(graph) = graph else { return Ok(None) };
            pieces.push_back(StepGraph { graph, gates });
        }
        Ok(Some(pieces))
    }

    /// What the stream is told of a call.
    fn launches_of(&self, call: &Call) -> usize {
        match call {
            Call::Operator(node, _) => self.prepared.get(node).map_or(0, Prepared::launches_max),
            Call::Wait(_) => 2,
            Call::Copy { .. } | Call::Signal(_) | Call::Fed(_) => 1,
        }
    }

    /// Tells the stream what it may be told of the step, and its end when that is all.
    fn tell_rest(&mut self) -> Result<(), Failed> {
        while let Some(graph) = self.steps.take_next() {
            self.segments.launch(&self.stream, &graph)?;
        }
        if !self.steps.rest.is_empty() {
            return Ok(());
        }
        let Some(end) = self.steps.end.take() else { return Ok(()) };
        if self.steps.takes_ahead {
            self.ahead.are_taken(&self.stream)?;
        }
        self.flights.mark_end(&self.stream, end)?;
        for (from, to) in std::mem::take(&mut self.steps.kept_back) {
            self.ahead.start(from, &to)?;
        }
        Ok(())
    }

    pub(super) fn gate_opened(&mut self, gate: usize, is_remote: bool) -> Result<(), Failed> {
        self.check()?;
        if is_remote {
            self.remote_writes_flushed()?;
        }
        self.steps.gates[gate].store(OPEN);
        self.steps.opened.insert(gate);
        self.steps.shut.remove(&gate);
        self.tell_rest()
    }

    pub(super) fn are_remote_writes_seen(&self) -> bool {
        let facts = self.device.facts();
        let is_left = self.remote_writes == RemoteWrites::Unflushed;
        is_left || facts.ordering != WritesOrdering::None || facts.flush
    }

    /// Sees to it that a stream that waits already sees what a NIC has written (CUDA's guide to GPUDirect RDMA).
    fn remote_writes_flushed(&self) -> Result<(), DeviceError> {
        let facts = self.device.facts();
        let is_due = match self.remote_writes {
            RemoteWrites::AsNeeded => facts.ordering == WritesOrdering::None,
            RemoteWrites::Flushed => true,
            RemoteWrites::Unflushed => false,
        };
        if is_due && facts.flush { self.device.flush_remote_writes() } else { Ok(()) }
    }

    pub(super) fn signal_taken(&mut self, signal: usize) -> bool {
        let signal = &self.steps.signals[signal];
        let is_given = signal.load() == Some(OPEN);
        if is_given {
            signal.store(SHUT);
        }
        is_given
    }

    pub(super) fn step_discarded(&mut self) {
        self.steps.open_all();
        self.steps.rest.clear();
        self.steps.kept_back.clear();
        if let Some(end) = self.steps.end.take() {
            // the word that says that they are copied may be in what is not told
            self.flights.hold(end, std::mem::take(&mut self.steps.held));
            // a stream that takes no mark has failed, and nobody waits for what it has
            let _ = self.flights.mark_end(&self.stream, end);
        }
    }
}

/// The calls in pieces of at most so many launches each, but where one call has more.
fn cut(calls: Vec<Call>, most: usize, launches: impl Fn(&Call) -> usize) -> Vec<Vec<Call>> {
    let (mut pieces, mut count): (Vec<Vec<Call>>, usize) = (Vec::new(), 0);
    for call in calls {
        let more = launches(&call);
        match pieces.last_mut().filter(|_| count + more <= most) {
            Some(piece) => {
                count += more;
                piece.push(call);
            }
            None => {
                count = more;
                pieces.push(vec![call]);
            }
        }
    }
    pieces
}

fn relent(loan: &DeviceLoan) -> DeviceLoan {
    let slab = loan.slab();
    let part = part(slab, loan.address() - slab.address(), loan.bytes());
    part.lend_to_device().expect("the buffer is new")
}

fn relent_to(loan: &DeviceWriteLoan) -> DeviceWriteLoan {
    let slab = loan.slab();
    let part = part(slab, loan.address() - slab.address(), loan.bytes());
    part.lend_to_device_for_writing().expect("the buffer is new")
}
