//! The nodes of one run in all parts: which are needed, and an order in which each comes after what it
//! waits for.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Task};
use crate::op::Op;
use crate::pass::partition::{Cut, Partition};
use crate::plan::RunSpec;

/// A node of a partition: its part, and its id there.
pub(crate) type At = (usize, NodeId);

/// The nodes of one run, in an order in which each comes after all it waits for, with those.
pub(crate) struct Schedule {
    pub(crate) order: Vec<At>,
    pub(crate) before: Vec<Vec<At>>,
}

impl Schedule {
    /// The nodes of one part, each with what it waits for in that part.
    pub(crate) fn of_part(&self, part: usize) -> Vec<(NodeId, Vec<NodeId>)> {
        let here = self.order.iter().zip(&self.before).filter(|((p, _), _)| *p == part);
        let local = |before: &Vec<At>| {
            before.iter().filter(|(p, _)| *p == part).map(|(_, id)| *id).collect::<Vec<_>>()
        };
        here.map(|((_, id), before)| (*id, local(before))).collect()
    }

    /// All nodes that are done when a node starts.
    pub(crate) fn ancestors(&self, at: At) -> HashSet<At> {
        let mut found = HashSet::new();
        let mut open: HashSet<At> = HashSet::from([at]);
        // backwards: whoever waits for a node comes after it
        for (node, before) in self.order.iter().zip(&self.before).rev() {
            if open.remove(node) {
                open.extend(before);
                found.extend(before);
            }
        }
        found
    }
}

/// The nodes of a run in all parts, in an order in which each comes after what it waits for.
pub(crate) fn schedule(
    graph: &Graph,
    partition: &Partition,
    order: &[Vec<(NodeId, NodeId)>],
    tasks: &[Task],
    run: &RunSpec,
) -> Result<Schedule, GraphError> {
    let needed = closure(graph, partition, tasks, run)?;
    let mut before: HashMap<At, Vec<At>> = HashMap::new();
    for &at in &needed {
        let mut waits = predecessors(partition, at);
        waits.retain(|at| needed.contains(at));
        before.insert(at, waits);
    }
    for (part, pairs) in order.iter().enumerate() {
        for &(first, then) in pairs {
            if needed.contains(&(part, first))
                && let Some(waits) = before.get_mut(&(part, then))
            {
                waits.push((part, first));
            }
        }
    }
    sort(partition, before)
}

/// All nodes that the roots of a run need, without what is given.
fn closure(
    graph: &Graph,
    partition: &Partition,
    tasks: &[Task],
    run: &RunSpec,
) -> Result<HashSet<At>, GraphError> {
    let index: HashMap<Task, usize> = tasks.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    let given: HashSet<NodeId> = run.given.iter().copied().collect();
    let mut given_at: HashSet<At> = HashSet::new();
    for (part, moved) in partition.moved.iter().enumerate() {
        given_at.extend(given.iter().filter_map(|id| moved.get(id).map(|to| (part, *to))));
    }
    let cuts = partition.cuts.iter();
    given_at.extend(cuts.filter(|c| given.contains(&c.source())).map(|c| (c.to, c.recv)));
    let mut open = Vec::new();
    for root in &run.roots {
        let name = || graph.node(*root).name.clone();
        let home = graph.node(*root).task.and_then(|task| index.get(&task).copied());
        let home = home.ok_or_else(|| GraphError::Unplaced { node: name() })?;
        // a credit has no output: it is waited for where it is
        let fetch_to = run.fetch_to.filter(|_| !matches!(graph.node(*root).op, Op::NoOp));
        let target = fetch_to.and_then(|task| index.get(&task).copied()).unwrap_or(home);
        if target == home {
            open.push((home, partition.moved[home][root]));
            continue;
        }
        let brings = |c: &&Cut| c.brings(*root) && c.to == target;
        let cut = partition.cuts.iter().find(brings).ok_or_else(|| GraphError::Invalid {
            node: name(),
            what: format!("is to be fetched to {}, and has nothing to be fetched", tasks[target]),
        })?;
        open.push((target, cut.recv));
    }
    let mut needed = HashSet::new();
    while let Some(at) = open.pop() {
        if !given_at.contains(&at) && needed.insert(at) {
            open.extend(predecessors(partition, at));
        }
    }
    Ok(needed)
}

/// What a node waits for: inputs and controls in its part, and for a Recv its Send.
fn predecessors(partition: &Partition, (part, node): At) -> Vec<At> {
    let graph = &partition.graphs[part];
    let mut before: Vec<At> = graph.predecessors(node).into_iter().map(|id| (part, id)).collect();
    let op = &graph.node(node).op;
    if let (true, Some(edge)) = (op.is_recv(), op.edge()) {
        let cut = &partition.cuts[edge.index()];
        before.push((cut.from, cut.send));
    }
    before
}

/// Kahn's algorithm; what remains waits in a circle.
fn sort(partition: &Partition, before: HashMap<At, Vec<At>>) -> Result<Schedule, GraphError> {
    let mut after: HashMap<At, Vec<At>> = HashMap::new();
    let mut waiting: HashMap<At, usize> = HashMap::new();
    for (&at, waits) in &before {
        waiting.insert(at, waits.len());
        waits.iter().for_each(|earlier| after.entry(*earlier).or_default().push(at));
    }
    let mut free: Vec<At> = waiting.iter().filter(|(_, n)| **n == 0).map(|(at, _)| *at).collect();
    free.sort_unstable();
    let mut free = VecDeque::from(free);
    let mut order = Vec::with_capacity(before.len());
    while let Some(at) = free.pop_front() {
        order.push(at);
        let mut next = after.remove(&at).unwrap_or_default();
        next.sort_unstable();
        for later in next {
            let count = waiting.entry(later).or_default();
            *count -= 1;
            if *count == 0 {
                free.push_back(later);
            }
        }
    }
    if order.len() < before.len() {
        let done: HashSet<At> = order.iter().copied().collect();
        let mut stuck: Vec<&At> = before.keys().filter(|at| !done.contains(at)).collect();
        stuck.sort_unstable();
        let name = |at: &At| partition.graphs[at.0].node(at.1).name.clone();
        let names: Vec<String> = stuck.iter().take(5).map(|at| name(at)).collect();
        return Err(GraphError::Cycle { node: name(stuck[0]), cycle: names.join(" → ") });
    }
    let before = order.iter().map(|at| before[at].clone()).collect();
    Ok(Schedule { order, before })
}
