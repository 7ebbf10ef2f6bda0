//! One after another: a process computes one kernel at a time, so a worker's are given one order, in which
//! they were written; if it has several devices, one for each. That costs nothing, and is what proves that a tensor is dead before another is
//! made: without it the gradients of all activations would be alive at once. Sends and receives stay
//! free, and so do the servers, whose updates come in the order in which gradients arrive. So does what runs
//! before a process has received all that it waits for: what can run, runs (Xue et al. §4's polling-async
//! operators).

use std::collections::{HashMap, HashSet};

use tensorwire_base::Space;

use crate::graph::{Graph, Job, NodeId, Task};
use crate::op::Op;
use crate::pass::schedule::{At, Schedule};

/// Pairs (first, then) of each part that put a worker's kernels of each run in the order of the graph: those that
/// wait for all that it receives. Every dependency goes from an earlier node of the whole graph to a later one,
/// and so does this order: it closes no circle. What makes a tensor for others comes right behind the last that it waits for, and
/// whatever waits for it is later still.
///
/// Where one part is all there is, an update comes as soon as it can, behind what it waits for (`order`
/// too): the gradient is dead then.
pub(crate) fn in_sequence(
    graphs: &[Graph],
    tasks: &[Task],
    order: &[Vec<(NodeId, NodeId)>],
    schedules: &[Schedule],
) -> Vec<Vec<(NodeId, NodeId)>> {
    let reduced: Vec<HashSet<At>> =
        schedules.iter().map(|schedule| behind_reductions(graphs, schedule)).collect();
    let of_part = |(part, (graph, task)): (usize, (&Graph, &Task))| {
        if task.job != Job::Worker {
            return Vec::new();
        }
        let mut pairs = Vec::new();
        let leaving = leaving(graph);
        for (schedule, reduced) in schedules.iter().zip(&reduced) {
            let here = schedule.order.iter().filter(|(at, _)| *at == part).map(|(_, id)| *id);
            let members: HashSet<NodeId> = here.collect();
            let alone = graphs.len() == 1;
            let updates = alone.then(|| updates(graph, &order[part], &members));
            let place = |id: NodeId| {
                // a gradient crosses as soon as it is there, and is dead then
                if let Some(behind) = leaving.get(&id) {
                    return (*behind, Some(id));
                }
                let update = updates.as_ref().and_then(|updates| updates.get(&id));
                update.map_or((id, None), |after| (*after, Some(id)))
            };
            let mut kernels: Vec<NodeId> =
                members.iter().copied().filter(|id| graph.node(*id).op.is_computed()).collect();
            kernels.sort_unstable_by_key(|id| place(*id));
            let reduced: HashSet<NodeId> =
                reduced.iter().filter(|(at, _)| *at == part).map(|(_, id)| *id).collect();
            let received = behind_all_receives(graph, &schedule.of_part(part), &reduced);
            let last = kernels.iter().map(|id| device_of(graph, *id)).max().unwrap_or(0);
            // a worker that holds variables updates each when its gradients are there, as a server does
            let serves = |id: &NodeId| !alone && is_of_update(&graph.node(*id).op);
            kernels.retain(|id| received.contains(id) && !reduced.contains(id) && !serves(id));
            for device in 0..=last {
                // among several devices the host's kernels wait for nobody else's turn
                let has_turn = |id: &NodeId| last == 0 || graph.node(*id).space.is_device();
                let on_it = kernels.iter().copied().filter(has_turn);
                let on_it = on_it.filter(|id| device_of(graph, *id) == device);
                let on_it: Vec<NodeId> = on_it.collect();
                pairs.extend(on_it.windows(2).map(|pair| (pair[0], pair[1])));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    };
    graphs.iter().zip(tasks).enumerate().map(of_part).collect()
}

/// Returns the casts, views and compressions whose results no kernel of the replica's own takes, but an update of its variables,
/// each with the node that it comes right behind.
fn leaving(graph: &Graph) -> HashMap<NodeId, NodeId> {
    let after = graph.successors();
    let mut leaves = vec![false; graph.len()];
    for id in graph.ids().rev() {
        let is_theirs = |then: &NodeId| {
            let op = &graph.node(*then).op;
            leaves[then.index()] || is_of_update(op) || !(op.is_computed() || op.is_view())
        };
        let then = &after[id.index()];
        let op = &graph.node(id).op;
        let may_leave = matches!(op, Op::Cast { .. }) || op.is_view();
        leaves[id.index()] =
            op.compresses() || (may_leave && !then.is_empty() && then.iter().all(is_theirs));
    }
    let mut behind: HashMap<NodeId, NodeId> = HashMap::new();
    for id in graph.ids().filter(|id| leaves[id.index()]) {
        let before = graph.predecessors(id);
        let made = before.iter().filter(|before| !graph.node(**before).op.is_state());
        let made = made.map(|before| behind.get(before).copied().unwrap_or(*before)).max();
        // state is there from the start, wherever in the graph it was declared
        if let Some(made) = made.or(before.last().copied()) {
            behind.insert(id, made);
        }
    }
    behind
}

/// The nodes of a part that wait for all that its kernels receive in a run: `run` has its nodes with what they wait
/// for, in an order in which each comes after that. What no kernel waits for does not count, or updates alone, or what comes
/// behind the reductions in `reduced`: a credit that is added later leaves the order, and with it all that the order proves, as
/// it was.
fn behind_all_receives(
    graph: &Graph,
    run: &[(NodeId, Vec<NodeId>)],
    reduced: &HashSet<NodeId>,
) -> HashSet<NodeId> {
    let mut awaited = vec![false; graph.len()];
    for (id, before) in run.iter().rev() {
        let op = &graph.node(*id).op;
        let is_late = is_of_update(op) || reduced.contains(id);
        if awaited[id.index()] || (op.is_computed() && !is_late) {
            before.iter().for_each(|earlier| awaited[earlier.index()] = true);
        }
    }
    let is_recv = |id: NodeId| {
        let op = &graph.node(id).op;
        awaited[id.index()] && (op.is_recv() || matches!(op, Op::Broadcast { .. }))
    };
    let recvs = run.iter().filter(|(id, _)| is_recv(*id)).count();
    let words = recvs.div_ceil(64);
    let mut sets = vec![0u64; graph.len() * words];
    let (mut seen, mut behind) = (0, HashSet::new());
    for (id, before) in run {
        let own = id.index() * words;
        for earlier in before {
            for word in 0..words {
                sets[own + word] |= sets[earlier.index() * words + word];
            }
        }
        if is_recv(*id) {
            sets[own + seen / 64] |= 1 << (seen % 64);
            seen += 1;
        }
        let waits_for: u32 = sets[own..own + words].iter().map(|word| word.count_ones()).sum();
        // fits: a part has fewer nodes than that
        if waits_for as usize == recvs {
            behind.insert(*id);
        }
    }
    behind
}

/// True if it changes a variable, or is of finding by how much: it waits for the gradients of others.
fn is_of_update(op: &Op) -> bool {
    op.is_update() || op.expands() || matches!(op, Op::SquareSums | Op::ClipScale { .. } | Op::Mean)
}

/// The device that a kernel has its place in the order of; the host's come between those of one device.
fn device_of(graph: &Graph, id: NodeId) -> u32 {
    match graph.node(id).space {
        Space::Device(device) => device,
        Space::Host => 0,
    }
}

/// What waits for an all-reduce, or for a mean of what several workers give, wherever that is made, or of what several devices of
/// one give, that mean itself included, comes when that is over, beside what is computed then: a place in the order would make
/// either wait for the other.
fn behind_reductions(graphs: &[Graph], schedule: &Schedule) -> HashSet<At> {
    let mut behind = HashSet::new();
    for (at, before) in schedule.order.iter().zip(&schedule.before) {
        let op = |(part, id): &At| &graphs[*part].node(*id).op;
        let reduces = |at: &At| matches!(op(at), Op::AllReduce { .. } | Op::Mean);
        let is_of_devices = || {
            *op(at) == Op::Mean
                && before.iter().any(|(part, id)| is_from_device(&graphs[*part], *id))
        };
        if before.iter().any(|earlier| reduces(earlier) || behind.contains(earlier))
            || is_of_devices()
        {
            behind.insert(*at);
        }
    }
    behind
}

/// True if it is a copy from one device to another.
fn is_from_device(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let from = node.inputs.first().map_or(Space::Host, |from| graph.node(from.node).space);
    matches!(node.op, Op::CopyTo { space: Space::Device(_) }) && from.is_device()
}

/// The nodes of a run that change variables, each with the last of the run's that it comes behind. State is
/// there from the start, wherever in the graph it was declared.
fn updates(
    graph: &Graph,
    order: &[(NodeId, NodeId)],
    members: &HashSet<NodeId>,
) -> HashMap<NodeId, NodeId> {
    let is_update = |id: &NodeId| members.contains(id) && graph.node(*id).op.is_update();
    let counts = |id: &NodeId| members.contains(id) && !graph.node(*id).op.is_state();
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
