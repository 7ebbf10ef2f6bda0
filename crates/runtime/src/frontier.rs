//! Which nodes may run: in-degrees in, ready nodes out. No thread, no clock, no I/O.

use tensorwire_graph::{NodeId, Part};

use crate::readers::Readers;
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
    total: usize,
    waiting: Vec<u32>,
    done: usize,
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
            total: nodes.len(),
            waiting,
            done: 0,
        }
    }

    /// Begins a run: the nodes that wait for nothing.
    pub(crate) fn start(&mut self) -> &[NodeId] {
        self.waiting.copy_from_slice(&self.predecessors);
        self.readers.start();
        self.done = 0;
        &self.sources
    }

    /// What the run does with outputs that the plan gave no place.
    pub(crate) fn transients(&self) -> &Transients {
        &self.transients
    }

    /// Marks a node as done and calls `ready` with each node that waited for it alone.
    pub(crate) fn complete(&mut self, node: NodeId, mut ready: impl FnMut(NodeId)) {
        self.done += 1;
        for next in &self.successors[node.index()] {
            let waiting = &mut self.waiting[next.index()];
            *waiting -= 1;
            if *waiting == 0 {
                ready(*next);
            }
        }
    }

    /// Who reads what is received.
    pub(crate) fn readers(&mut self) -> &mut Readers {
        &mut self.readers
    }

    pub(crate) fn finished(&self) -> bool {
        self.done == self.total
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
