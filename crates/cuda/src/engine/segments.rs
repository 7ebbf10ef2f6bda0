//! Launches that come in the same order again and again, as one graph. What is started waits for the next moment at which
//! the host looks at the stream; by then it is a segment. One that was told twice alike is captured the next time, and
//! launched as a whole from then on. Where that cannot be done, and where sizes change, its launches are told one by one. A
//! step that waits for others is made of graphs from the first time on, or is not told.

use std::collections::HashMap;
use std::sync::Arc;

use tensorwire_device::{DeviceError, Graph, Stream};
use tensorwire_graph::NodeId;

/// Shorter ones gain nothing.
const CALLS_MIN: usize = 4;
/// More segments than any run of a session has: whoever has more makes them anew in each step.
const SEGMENTS_MAX: usize = 256;

/// What a stream is told, so that two that are equal are told alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// An operator, and how often what it is given was made anew.
    Operator(NodeId, u64),
    /// A copy of a step's: the two addresses, and how much.
    Copy { from: usize, to: usize, bytes: usize },
    /// A gate of a step's.
    Wait(usize),
    /// A signal of a step's.
    Signal(usize),
    /// The host may write again what a step has copied from it: so often that was said in the step.
    Fed(u32),
}

/// What a segment is known by: its first and last call, whatever they were given, and their number.
type Key = ((u8, usize), (u8, usize), usize);

impl Call {
    fn name(&self) -> (u8, usize) {
        match *self {
            Call::Operator(node, _) => (0, node.index()),
            Call::Copy { to, .. } => (1, to),
            Call::Wait(gate) => (2, gate),
            Call::Signal(signal) => (3, signal),
            // fits: usize is 64 bits wide
            Call::Fed(times) => (4, times as usize),
        }
    }
}

/// What was started and not told the stream yet, and the segments of before.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pending: Vec<Call>,
    known: HashMap<Key, Segment>,
    launched: u64,
    /// The driver refused one.
    is_refused: bool,
}

#[derive(Debug)]
struct Segment {
    calls: Vec<Call>,
    state: State,
}

#[derive(Debug)]
enum State {
    Seen,
    Captured(Arc<Graph>),
    /// The driver does not capture it.
    Refused,
}

/// Tells a stream the launches of calls, one by one.
pub(super) type Tell<'a> = &'a mut dyn FnMut(&Stream, &[Call]) -> Result<(), DeviceError>;

impl Segments {
    /// True if the operator waits to be told.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.pending
            .iter()
            .any(|call| matches!(call, Call::Operator(pending, _) if *pending == node))
    }

    /// True if anything waits to be told.
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Forgets the segments of before.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    pub(super) fn add(&mut self, call: Call) {
        self.pending.push(call);
    }

    /// How often a graph was launched in the place of its launches.
    pub(super) fn launched(&self) -> u64 {
        self.launched
    }

    /// True as long as the driver made a graph of every segment that came again.
    pub(super) fn are_captured(&self) -> bool {
        !self.is_refused
    }

    /// Returns what is pending, which it is no more.
    pub(super) fn take(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.pending)
    }

    /// True if these calls are known as a graph.
    pub(super) fn has_graph(&self, calls: &[Call]) -> bool {
        self.known_graph(calls).is_some()
    }

    fn known_graph(&self, calls: &[Call]) -> Option<&Arc<Graph>> {
        let segment = self.known.get(&key(calls)?).filter(|segment| segment.calls == calls)?;
        match &segment.state {
            State::Captured(graph) => Some(graph),
            State::Seen | State::Refused => None,
        }
    }

    /// Makes room for so many graphs more, of which none is forgotten before all of them are there.
    pub(super) fn make_room(&mut self, graphs: usize) {
        if self.known.len() + graphs > SEGMENTS_MAX {
            self.known.clear();
        }
    }

    /// Returns the calls as one graph, also if they come for the first time; none if the driver makes none. The stream is told
    /// nothing.
    pub(super) fn graph(
        &mut self,
        stream: &Stream,
        calls: Vec<Call>,
        tell: Tell<'_>,
    ) -> Option<Arc<Graph>> {
        if let Some(graph) = self.known_graph(&calls) {
            return Some(graph.clone());
        }
        let key = key(&calls)?;
        // what goes with a graph of before may wait for the stream, which waits for nobody yet
        self.known.remove(&key);
        let Some(graph) = captured(stream, &calls, tell).map(Arc::new) else {
            self.is_refused = true;
            return None;
        };
        self.known.insert(key, Segment { calls, state: State::Captured(graph.clone()) });
        Some(graph)
    }

    /// Tells the stream a graph.
    pub(super) fn launch(&mut self, stream: &Stream, graph: &Graph) -> Result<(), DeviceError> {
        graph.launch(stream)?;
        self.launched += 1;
        Ok(())
    }

    /// Tells the stream what is pending.
    pub(super) fn flush(&mut self, stream: &Stream, tell: Tell<'_>) -> Result<(), DeviceError> {
        let calls = std::mem::take(&mut self.pending);
        let Some(key) = key(&calls) else { return Ok(()) };
        if calls.len() < CALLS_MIN {
            return tell(stream, &calls);
        }
        match self.known.get_mut(&key).filter(|segment| segment.calls == calls) {
            Some(Segment { state: State::Captured(graph), .. }) => {
                graph.launch(stream)?;
                self.launched += 1;
            }
            Some(Segment { state: State::Refused, .. }) => tell(stream, &calls)?,
            Some(segment) => match captured(stream, &calls, tell) {
                Some(graph) => {
                    graph.launch(stream)?;
                    self.launched += 1;
                    segment.state = State::Captured(Arc::new(graph));
                }
                None => {
                    segment.state = State::Refused;
                    self.is_refused = true;
                    tell(stream, &calls)?;
                }
            },
            None => {
                tell(stream, &calls)?;
                if self.known.len() >= SEGMENTS_MAX {
                    self.known.clear();
                }
                self.known.insert(key, Segment { calls, state: State::Seen });
            }
        }
        Ok(())
    }
}

/// None of no calls.
fn key(calls: &[Call]) -> Option<Key> {
    Some((calls.first()?.name(), calls.last()?.name(), calls.len()))
}

/// The launches as a graph; none where the driver makes none of them.
fn captured(stream: &Stream, calls: &[Call], tell: Tell<'_>) -> Option<Graph> {
    stream.begin_capture().ok()?;
    let told = tell(stream, calls);
    // a capture that was begun is ended, whatever became of it
    let graph = stream.end_capture();
    told.ok()?;
    graph.ok()
}
