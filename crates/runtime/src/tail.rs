//! The tail of a run: what a group reduces or an exchange sends, and what waits for that. While these have it, the next run of the
//! same nodes may begin; here stands which of its nodes wait for which of the tail, since they use the same memory. No thread, no
//! clock, no I/O.

use std::collections::HashMap;

use tensorwire_graph::{Lane, NodeId, Op, Output, Part};

use crate::readers::received;

/// What goes on while nobody gives a session turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoesOn {
    pub(crate) reductions: bool,
    pub(crate) sends: bool,
}

/// The tail of the runs of some nodes, and what is left of the last one's.
#[derive(Debug)]
pub(crate) struct Tail {
    /// By node: it is of the tail.
    is_in: Vec<bool>,
    /// By node of the tail: those of the next run that wait for it, itself among them.
    then: HashMap<NodeId, Vec<NodeId>>,
    /// Nodes of a run that are not of the tail.
    pub(crate) others: usize,
    /// The memory of the tail's nodes.
    spans: Vec<Span>,
    /// By node: it is of the present run's tail, and not done.
    is_open: Vec<bool>,
    /// By node: it is of the tail of the run before, and not done; how many are, and what each still waits for.
    is_left: Vec<bool>,
    left: usize,
    pub(crate) waiting: Vec<u32>,
}

/// Bytes that a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    lane: Lane,
    start: usize,
    end: usize,
    is_written: bool,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.lane == other.lane && self.start < other.end && other.start < self.end
    }

    /// True if one of them must come behind the other.
    fn excludes(&self, other: &Span) -> bool {
        (self.is_written || other.is_written) && self.meets(other)
    }
}

impl Tail {
    /// The tail of a run of `nodes`, each with its `successors` among them; none if there is none. Where a device computes, or
    /// something crosses in another way than what `goes_on`, there is no tail.
    pub(crate) fn new(
        part: &Part,
        nodes: &[NodeId],
        successors: &[Vec<NodeId>],
        goes_on: GoesOn,
    ) -> Option<Tail> {
        let op = |id: NodeId| &part.graph.node(id).op;
        let allows = |id: &NodeId| {
            let crosses = op(*id).is_send() || op(*id).is_recv();
            (goes_on.sends || !crosses) && !part.graph.node(*id).space.is_device()
        };
        if !nodes.iter().all(allows) {
            return None;
        }
        let count = part.graph.len();
        let used: HashMap<NodeId, Used> =
            nodes.iter().map(|id| (*id, Used::by(part, *id))).collect();
        let is_fed = |id: &&NodeId| matches!(op(**id), Op::Input { .. });
        let fed = nodes.iter().filter(is_fed).filter_map(|id| span(part, (*id).into(), true));
        let fed: Vec<Span> = fed.collect();
        // what has no place that is known, or reads what the next run is fed, is not left, nor is what comes before it. Nor is a send
        // of what this run received, or one that others wait for: all sends of a run are started when it is over
        let stays_a_send = |id: NodeId| {
            let inputs = &part.graph.node(id).inputs;
            let is_received = |input: &Output| !received(part, *input).is_empty();
            op(id).is_send()
                && (!successors[id.index()].is_empty() || inputs.iter().any(is_received))
        };
        let mut stays_behind = vec![false; count];
        for id in backwards(nodes, successors) {
            let is_later = |next: &NodeId| stays_behind[next.index()];
            stays_behind[id.index()] = !used[&id].is_known
                || stays_a_send(id)
                || used[&id].spans.iter().any(|own| fed.iter().any(|fed| fed.meets(own)))
                || successors[id.index()].iter().any(is_later);
        }
        let is_root = |id: &NodeId| match op(*id) {
            Op::AllReduce { .. } => goes_on.reductions,
            Op::Send { .. } => goes_on.sends,
            _ => false,
        };
        let roots = nodes.iter().copied().filter(is_root).collect();
        let mut is_in = behind(roots, part.graph.len(), successors);
        is_in.iter_mut().zip(&stays_behind).for_each(|(is_in, stays)| *is_in &= !stays);
        let tail: Vec<NodeId> = nodes.iter().copied().filter(|id| is_in[id.index()]).collect();
        if tail.is_empty() {
            return None;
        }
        let mut then = HashMap::new();
        for id in &tail {
            // what a reduction of the tail was given from elsewhere was copied to its vector when it was started: before the run was over
            let node = part.graph.node(*id);
            let is_started = node.op.vector().is_some()
                && !part.graph.predecessors(*id).iter().any(|before| is_in[before.index()]);
            let counts = |span: &&Span| !is_started || span.is_written;
            let own: Vec<Span> = used[id].spans.iter().filter(counts).copied().collect();
            let excludes = |other: &&NodeId| {
                let meets = |span: &Span| own.iter().any(|own| own.excludes(span));
                *other == id || used[*other].spans.iter().any(meets)
            };
            then.insert(*id, nodes.iter().filter(excludes).copied().collect());
        }
        Some(Tail {
            then,
            others: nodes.len() - tail.len(),
            spans: tail.iter().flat_map(|id| used[id].spans.iter().copied()).collect(),
            is_open: vec![false; count],
            is_left: vec![false; count],
            left: 0,
            waiting: vec![0; count],
            is_in,
        })
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.is_in[node.index()]
    }

    /// How many nodes of the run before are not done.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// True if a node's next turn is that of the run before.
    pub(crate) fn is_left(&self, node: NodeId) -> bool {
        self.is_left[node.index()]
    }

    /// Begins another run of nodes that wait for as many as `predecessors` says, with what each still waited for in the one before.
    pub(crate) fn carry(&mut self, waiting: &mut [u32], predecessors: &[u32]) {
        self.is_left.copy_from_slice(&self.is_open);
        self.left = self.is_left.iter().filter(|is_left| **is_left).count();
        self.waiting.copy_from_slice(waiting);
        self.is_open.copy_from_slice(&self.is_in);
        waiting.copy_from_slice(predecessors);
        let left = self.then.iter().filter(|(id, _)| self.is_left[id.index()]);
        left.flat_map(|(_, then)| then).for_each(|next| waiting[next.index()] += 1);
    }

    /// Marks a node of the run before as done; returns those of the present one that waited for it.
    pub(crate) fn complete_left(&mut self, node: NodeId) -> &[NodeId] {
        self.is_left[node.index()] = false;
        self.left -= 1;
        &self.then[&node]
    }

    /// Marks a node of the present run as done.
    pub(crate) fn complete(&mut self, node: NodeId) {
        self.is_open[node.index()] = false;
    }

    /// True if nodes of the tail use an output's memory.
    pub(crate) fn uses(&self, part: &Part, output: Output) -> bool {
        let span = span(part, output, true);
        span.is_some_and(|span| self.spans.iter().any(|used| used.meets(&span)))
    }
}

/// By node of `count`: it is one of `open`, or waits for one.
fn behind(mut open: Vec<NodeId>, count: usize, successors: &[Vec<NodeId>]) -> Vec<bool> {
    let mut is_behind = vec![false; count];
    while let Some(id) = open.pop() {
        if !std::mem::replace(&mut is_behind[id.index()], true) {
            open.extend(&successors[id.index()]);
        }
    }
    is_behind
}

/// Nodes of a run, each before those that it waits for.
fn backwards(nodes: &[NodeId], successors: &[Vec<NodeId>]) -> Vec<NodeId> {
    let mut waiting: HashMap<NodeId, usize> =
        nodes.iter().map(|id| (*id, successors[id.index()].len())).collect();
    let mut before: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    for id in nodes {
        successors[id.index()].iter().for_each(|next| before.entry(*next).or_default().push(*id));
    }
    let mut out: Vec<NodeId> = nodes.iter().copied().filter(|id| waiting[id] == 0).collect();
    let mut at = 0;
    while at < out.len() {
        for earlier in before.get(&out[at]).into_iter().flatten() {
            let waits = waiting.entry(*earlier).or_default();
            *waits -= 1;
            if *waits == 0 {
                out.push(*earlier);
            }
        }
        at += 1;
    }
    out
}

/// The memory that a node uses.
struct Used {
    spans: Vec<Span>,
    /// There is no more: the plan gave all that it uses a place. What has none has memory of its own while it is needed.
    is_known: bool,
}

impl Used {
    fn by(part: &Part, id: NodeId) -> Used {
        let node = part.graph.node(id);
        // they are there, and nobody computes them
        if node.op.is_state() || matches!(node.op, Op::NoOp) {
            return Used { spans: Vec::new(), is_known: true };
        }
        let changes = node.op.mutated_inputs().max(usize::from(part.memory.is_in_place(id)));
        let inputs = node.inputs.iter().enumerate().map(|(at, input)| (*input, at < changes));
        let is_made = !node.op.is_view();
        // fits: operators have a dozen outputs at most
        let outputs = (0..node.facts.len() as u32).map(|index| Output { node: id, index });
        let all: Vec<Option<Span>> = inputs
            .chain(outputs.map(|output| (output, is_made)))
            .map(|(output, is_written)| span(part, output, is_written))
            .collect();
        let is_known = all.iter().all(Option::is_some);
        Used { spans: all.into_iter().flatten().collect(), is_known }
    }
}

fn span(part: &Part, output: Output, is_written: bool) -> Option<Span> {
    let spot = part.memory.spot(output)?;
    let (start, end) = (spot.offset, spot.offset + spot.spec.bytes());
    Some(Span { lane: spot.lane, start, end, is_written })
}
