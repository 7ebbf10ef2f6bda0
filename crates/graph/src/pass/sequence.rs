//! One after another: a process computes one kernel at a time, so a worker's are given one order, in which
//! they were written. That costs nothing, and is what proves that a tensor is dead before another is
//! made: without it the gradients of all activations would be alive at once. Sends and receives stay
//! free, and so do the servers, whose updates come in the order in which gradients arrive; and no kernel
//! comes behind one that waits for a tensor which it does not need itself: what can run, runs (Xue et al.
//! §4's polling-async operators).

use std::collections::{HashMap, HashSet};

use crate::graph::{Graph, Job, NodeId, Task};
use crate::op::Op;
use crate::pass::schedule::Schedule;

/// Pairs (first, then) of each part that put a worker's kernels of each run in the order of the graph. Every
/// dependency goes from an earlier node of the whole graph to a later one, and so does this order: it
/// closes no circle.
///
/// Where one part is all there is, an update comes as soon as it can, behind what it waits for (`order`
/// too): the gradient is dead then.
pub(crate) fn in_sequence(
    graphs: &[Graph],
    tasks: &[Task],
    order: &[Vec<(NodeId, NodeId)>],
    schedules: &[Schedule],
) -> Vec<Vec<(NodeId, NodeId)>> {
    let of_part = |(part, (graph, task)): (usize, (&Graph, &Task))| {
        if task.job != Job::Worker {
            return Vec::new();
        }
        let mut pairs = Vec::new();
        for schedule in schedules {
            let here = schedule.order.iter().filter(|(at, _)| *at == part).map(|(_, id)| *id);
            let members: HashSet<NodeId> = here.collect();
            let alone = graphs.len() == 1;
            let updates = alone.then(|| updates(graph, &order[part], &members));
            let place = |id: NodeId| {
                let update = updates.as_ref().and_then(|updates| updates.get(&id));
                update.map_or((id, None), |after| (*after, Some(id)))
            };
            let mut kernels: Vec<NodeId> =
                members.iter().copied().filter(|id| computes(&graph.node(*id).op)).collect();
            kernels.sort_unstable_by_key(|id| place(*id));
            let needs = Needs::new(graph, &schedule.of_part(part));
            // the last of each line of kernels, of which each waits for all that the one before waits for
            let mut ends: Vec<NodeId> = Vec::new();
            for id in kernels {
                ends.retain(|end| {
                    let follows = needs.include(id, *end);
                    pairs.extend(follows.then_some((*end, id)));
                    !follows
                });
                ends.push(id);
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    };
    graphs.iter().zip(tasks).enumerate().map(of_part).collect()
}

/// For each node of a part, the Recvs of a run that it waits for.
struct Needs {
    words: usize,
    sets: Vec<u64>,
}

impl Needs {
    /// `run`: the part's nodes with what they wait for, in an order in which each comes after that.
    fn new(graph: &Graph, run: &[(NodeId, Vec<NodeId>)]) -> Needs {
        let is_recv =
            |id: NodeId| matches!(graph.node(id).op, Op::Recv { .. } | Op::RecvDyn { .. });
        let recvs = run.iter().filter(|(id, _)| is_recv(*id)).count();
        let words = recvs.div_ceil(64);
        let mut needs = Needs { words, sets: vec![0; graph.len() * words] };
        let mut seen = 0;
        for (id, before) in run {
            for earlier in before {
                for word in 0..words {
                    let bits = needs.sets[earlier.index() * words + word];
                    needs.sets[id.index() * words + word] |= bits;
                }
            }
            if is_recv(*id) {
                needs.sets[id.index() * words + seen / 64] |= 1 << (seen % 64);
                seen += 1;
            }
        }
        needs
    }

    /// Does a node wait for all that another waits for?
    fn include(&self, node: NodeId, other: NodeId) -> bool {
        let set = |id: NodeId| &self.sets[id.index() * self.words..][..self.words];
        set(node).iter().zip(set(other)).all(|(mine, others)| others & !mine == 0)
    }
}

/// The nodes of a run that change variables, each with the last of the run's that it comes behind. State is
/// there from the start, wherever in the graph it was declared.
fn updates(
    graph: &Graph,
    order: &[(NodeId, NodeId)],
    members: &HashSet<NodeId>,
) -> HashMap<NodeId, NodeId> {
    let is_update = |id: &NodeId| members.contains(id) && graph.node(*id).op.mutated_inputs() > 0;
    let counts = |id: &NodeId| {
        let is_state = matches!(graph.node(*id).op, Op::Input { .. } | Op::Variable { .. });
        members.contains(id) && !is_state
    };
    let mut last: HashMap<NodeId, NodeId> = HashMap::new();
    let waits = graph
        .ids()
        .filter(is_update)
        .flat_map(|id| graph.predecessors(id).into_iter().map(move |before| (before, id)));
    let order = order.iter().copied().filter(|(_, then)| is_update(then));
    for (before, id) in waits.chain(order).filter(|(before, _)| counts(before)) {
        let after = last.entry(id).or_insert(before);
        *after = (*after).max(before);
    }
    last
}

fn computes(op: &Op) -> bool {
    let is_state = matches!(op, Op::Input { .. } | Op::Variable { .. });
    !is_state && !matches!(op, Op::NoOp | Op::Reshape { .. }) && op.edge().is_none()
}
