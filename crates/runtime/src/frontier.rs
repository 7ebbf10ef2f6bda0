//! Which nodes may run: in-degrees in, ready nodes out. No thread, no clock, no I/O.

use tensorwire_graph::{NodeId, Output, Part};

use crate::readers::Readers;
use crate::tail::{GoesOn, Tail};
use crate::workspace::Transients;

/// The dependencies among the nodes that one run of one part executes.
#[derive(Debug)]
pub(crate) struct Frontier {
    /// Nodes without a predecessor in the run, ascending.
    sources: Vec<NodeId>,
    /// By node: how many predecessors it has in the run.
    predecessors: Vec<u32>,
    /// By node: the nodes that wait for it.
    successors: Vec<Vec<NodeId>>,
    transients: Transients,
    readers: Readers,
    nodes: Vec<NodeId>,
    waiting: Vec<u32>,
    done: usize,
    /// What may be left to the next run, once that was asked for.
    tail: Option<Tail>,
    /// The present run is over before its tail.
    leaves_tail: bool,
    /// Of the present run, those done that are not of the tail.
    others_done: usize,
    /// Those that wait for nothing at the beginning of a run that goes on with a tail. Kept for its memory.
    first: Vec<NodeId>,
}

impl Frontier {
    /// The frontier of `nodes`, a run's share of `part`; what is outside the run is not waited for.
    pub(crate) fn new(part: &Part, nodes: &[NodeId]) -> Frontier {
        let count = part.graph.len();
        let mut member = vec![false; count];
        nodes.iter().for_each(|id| member[id.index()] = true);
        let mut before: Vec<Vec<NodeId>> = vec![Vec::new(); count];
        for &id in nodes {
            before[id.index()] = part.graph.predecessors(id);
        }
        for &(first, then) in &part.order {
            before[then.index()].push(first);
        }
        let (mut predecessors, mut successors) = (vec![0; count], vec![Vec::new(); count]);
        for &id in nodes {
            let waits = &mut before[id.index()];
            waits.sort_unstable();
            waits.dedup();
            for first in waits.iter().filter(|first| member[first.index()]) {
                predecessors[id.index()] += 1;
                successors[first.index()].push(id);
            }
        }
        let sources = nodes.iter().copied().filter(|id| predecessors[id.index()] == 0).collect();
        let waiting = predecessors.clone();
        let transients = Transients::new(part, nodes);
        let readers = Readers::new(part, nodes);
        Frontier {
            sources,
            predecessors,
            successors,
            transients,
            readers,
            nodes: nodes.to_vec(),
            waiting,
            done: 0,
            tail: None,
            leaves_tail: false,
            others_done: 0,
            first: Vec::new(),
        }
    }

    /// Finds what of a run may be left to the next one; false if there is nothing. Before the first run.
    pub(crate) fn find_tail(&mut self, part: &Part, goes_on: GoesOn) -> bool {
        self.tail = Tail::new(part, &self.nodes, &self.successors, goes_on);
        self.tail.is_some()
    }

    /// Whether the present run is over before its tail.
    pub(crate) fn leave_tail(&mut self, leaves_tail: bool) {
        self.leaves_tail = leaves_tail && self.tail.is_some();
    }

    /// Begins a run: the nodes that wait for nothing, neither of this run nor of the tail of the one before.
    pub(crate) fn start(&mut self) -> &[NodeId] {
        self.readers.start();
        (self.done, self.others_done) = (0, 0);
        let Some(tail) = &mut self.tail else {
            self.waiting.copy_from_slice(&self.predecessors);
            return &self.sources;
        };
        tail.carry(&mut self.waiting, &self.predecessors);
        let waiting = &self.waiting;
        self.first.clear();
        self.first.extend(self.sources.iter().filter(|id| waiting[id.index()] == 0));
        &self.first
    }

    /// How many nodes of the run before are not done.
    pub(crate) fn left(&self) -> usize {
        self.tail.as_ref().map_or(0, Tail::left)
    }

    /// True if a node's next turn is that of the run before.
    pub(crate) fn is_left(&self, node: NodeId) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.is_left(node))
    }

    /// True if nothing of the present run is left but its tail, which the next one may go on with.
    pub(crate) fn is_at_tail(&self) -> bool {
        self.leaves_tail && self.has_come_to_tail()
    }

    fn has_come_to_tail(&self) -> bool {
        let has_come = |tail: &Tail| tail.left() == 0 && self.others_done == tail.others;
        self.tail.as_ref().is_some_and(has_come)
    }

    /// True if the last run is over, and its tail is not. Between two runs.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.has_come_to_tail() && self.done < self.nodes.len()
    }

    /// True if an output's memory is used by what may be left of a run.
    pub(crate) fn tail_uses(&self, part: &Part, output: Output) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.uses(part, output))
    }

    /// What the run does with outputs that the plan gave no place.
    pub(crate) fn transients(&self) -> &Transients {
        &self.transients
    }

    /// Marks a node as done and calls `ready` with each node that waited for it alone.
    pub(crate) fn complete(&mut self, node: NodeId, mut ready: impl FnMut(NodeId)) {
        let successors = &self.successors[node.index()];
        match &mut self.tail {
            Some(tail) if tail.is_left(node) => {
                // what waits for it in its own run is of the tail, too
                release(&mut tail.waiting, successors, &mut ready);
                release(&mut self.waiting, tail.complete_left(node), &mut ready);
                return;
            }
            Some(tail) if tail.has(node) => tail.complete(node),
            _ => self.others_done += 1,
        }
        self.done += 1;
        release(&mut self.waiting, successors, &mut ready);
    }

    /// Who reads what is received.
    pub(crate) fn readers(&mut self) -> &mut Readers {
        &mut self.readers
    }

    /// True if all nodes of the present run are done, and of the one before.
    pub(crate) fn finished(&self) -> bool {
        self.done == self.nodes.len() && self.left() == 0
    }
}

/// One less is to be waited for by `nodes`: calls `ready` with those that waited for that alone.
fn release(waiting: &mut [u32], nodes: &[NodeId], ready: &mut impl FnMut(NodeId)) {
    for node in nodes {
        let waiting = &mut waiting[node.index()];
        *waiting -= 1;
        if *waiting == 0 {
            ready(*node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{
        Cluster, Graph, Hint, Op, Placement, PlanOptions, RunSpec, place, plan,
    };

    /// a → b → d, a → c → d, and e alone.
    fn diamond() -> Part {
        let mut graph = Graph::new();
        let add = |graph: &mut Graph, name: &str, after: &[NodeId]| {
            let id = graph.add(name, Hint::Replica(0), Op::NoOp, &[]).unwrap();
            after.iter().for_each(|before| graph.control(*before, id));
            id
        };
        let a = add(&mut graph, "a", &[]);
        let b = add(&mut graph, "b", &[a]);
        let c = add(&mut graph, "c", &[a]);
        let d = add(&mut graph, "d", &[b, c]);
        let e = add(&mut graph, "e", &[]);
        let placed = place(&graph, Cluster::Local, Placement::RoundRobin).unwrap();
        let roots = vec![d, e];
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![] };
        let tasks = Cluster::Local.tasks();
        plan(&placed, &tasks, &[run], PlanOptions::default()).unwrap().parts.remove(0)
    }

    #[test]
    fn a_node_is_ready_when_all_before_it_are_done() {
        let part = diamond();
        let nodes: Vec<NodeId> = part.graph.ids().collect();
        let mut frontier = Frontier::new(&part, &nodes);
        for _step in 0..2 {
            assert_eq!(frontier.start(), [NodeId(0), NodeId(4)]);
            let mut ready = Vec::new();
            frontier.complete(NodeId(0), |id| ready.push(id));
            assert_eq!(ready, [NodeId(1), NodeId(2)]);
            frontier.complete(NodeId(2), |id| ready.push(id));
            frontier.complete(NodeId(4), |id| ready.push(id));
            assert_eq!(ready.len(), 2, "d still waits for b");
            frontier.complete(NodeId(1), |id| ready.push(id));
            assert_eq!(ready.pop(), Some(NodeId(3)));
            assert!(!frontier.finished());
            frontier.complete(NodeId(3), |_| panic!("nothing waits for d"));
            assert!(frontier.finished());
        }
    }

    #[test]
    fn what_is_not_in_the_run_is_not_waited_for() {
        let part = diamond();
        let mut frontier = Frontier::new(&part, &[NodeId(2), NodeId(3)]);
        assert_eq!(frontier.start(), [NodeId(2)]);
        let mut ready = Vec::new();
        frontier.complete(NodeId(2), |id| ready.push(id));
        assert_eq!(ready, [NodeId(3)]);
    }
}
