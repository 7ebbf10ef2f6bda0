//! Runs that a device can be told as a whole: each part's share of a run in one line, so that streams which do all in that order,
//! and wait where a tensor is to come, never wait for each other in a ring. The lines of all parts are pieces of one order of
//! the whole run, which every process makes alike. No thread, no clock, no memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tensorwire_base::Space;
use tensorwire_graph::{EdgeId, Kind, NodeId, Op, Output, Part, Plan, RunId};
use tensorwire_tensor::Fact;

/// What a stream is told next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Item {
    Node(NodeId),
    /// From here on what a Send has sent may be written again: the exchange has done with it.
    Sent(NodeId),
}

/// Says why a device cannot be told of an edge ahead, if so.
pub(crate) type Ways<'a> = &'a dyn Fn(EdgeId) -> Option<&'static str>;

/// One part's share of a run, in an order that fits those of all others.
///
/// # Errors
/// When there is no such order: parts wait for each other in a ring. Says where.
pub(crate) fn line(plan: &Plan, run: RunId, part: usize) -> Result<Vec<Item>, String> {
    let nodes = &plan.runs[run.0].nodes;
    // by part and item: how many it waits for, and who waits for it
    let mut waits: HashMap<(usize, Item), u32> = HashMap::new();
    let mut after: HashMap<(usize, Item), Vec<(usize, Item)>> = HashMap::new();
    for (at, ids) in nodes.iter().enumerate() {
        for id in ids {
            waits.entry((at, Item::Node(*id))).or_default();
            if plan.parts[at].graph.node(*id).op.is_send() {
                waits.entry((at, Item::Sent(*id))).or_default();
            }
        }
    }
    let mut add = |first: (usize, Item), then: (usize, Item)| {
        if let Some(count) = waits.get_mut(&then) {
            *count += 1;
            after.entry(first).or_default().push(then);
        }
    };
    for (at, ids) in nodes.iter().enumerate() {
        let Part { graph, order, .. } = &plan.parts[at];
        let is_here = |id: &NodeId| ids.binary_search(id).is_ok();
        let done = |id: NodeId| match graph.node(id).op.is_send() {
            true => (at, Item::Sent(id)),
            false => (at, Item::Node(id)),
        };
        for id in ids {
            for before in graph.predecessors(*id).into_iter().filter(is_here) {
                add(done(before), (at, Item::Node(*id)));
            }
            if graph.node(*id).op.is_send() {
                add((at, Item::Node(*id)), (at, Item::Sent(*id)));
            }
        }
        for (first, then) in order.iter().filter(|(first, then)| is_here(first) && is_here(then)) {
            add(done(*first), (at, Item::Node(*then)));
        }
    }
    for edge in &plan.edges {
        if nodes[edge.from].binary_search(&edge.send).is_ok() {
            add((edge.from, Item::Node(edge.send)), (edge.to, Item::Node(edge.recv)));
        }
    }
    let rank = |at: usize, item: Item| match item {
        // a stream waits as late as it can: whatever anybody can do before is told before
        Item::Sent(_) => 2,
        Item::Node(id) => match plan.parts[at].graph.node(id).op.facts().kind {
            Kind::Recv => 2,
            Kind::Kernel(_) | Kind::Group => 1,
            Kind::State | Kind::View | Kind::Order | Kind::Send | Kind::Copy => 0,
        },
    };
    let ready = |(at, item): (usize, Item)| Reverse((rank(at, item), item, at));
    let free = waits.iter().filter(|(_, count)| **count == 0).map(|(item, _)| ready(*item));
    let mut free: BinaryHeap<_> = free.collect();
    let (mut line, mut reached) = (Vec::new(), 0);
    while let Some(Reverse((_, item, at))) = free.pop() {
        reached += 1;
        if at == part {
            line.push(item);
        }
        for then in after.remove(&(at, item)).into_iter().flatten() {
            let Some(count) = waits.get_mut(&then) else { continue };
            *count -= 1;
            if *count == 0 {
                free.push(ready(then));
            }
        }
    }
    if reached == waits.len() {
        return Ok(line);
    }
    let stuck = waits.iter().filter(|(_, count)| **count > 0).map(|(item, _)| *item).min();
    Err(match stuck {
        Some((at, Item::Node(id) | Item::Sent(id))) => {
            let Part { task, graph, .. } = &plan.parts[at];
            let name = &graph.node(id).name;
            format!(
                "'{name}' of {task} is in a ring of parts that wait for each other, or behind one"
            )
        }
        None => "its parts have no common order".to_owned(),
    })
}

/// Why a device is not told a part's share of a run as a whole; none: it can be.
pub(crate) fn why_in_parts(part: &Part, nodes: &[NodeId], ways: Ways<'_>) -> Option<String> {
    let computes = |id: &&NodeId| {
        let node = part.graph.node(**id);
        node.op.is_computed() && node.space.is_device()
    };
    if nodes.iter().find(computes).is_none() {
        return Some("the device computes nothing of it".to_owned());
    }
    let why = |id: &NodeId| Some((why_not(part, nodes, *id, ways)?, &part.graph.node(*id).name));
    nodes.iter().find_map(why).map(|(why, name)| format!("'{name}' {why}"))
}

fn why_not(part: &Part, nodes: &[NodeId], id: NodeId, ways: Ways<'_>) -> Option<&'static str> {
    let graph = &part.graph;
    let node = graph.node(id);
    let lies = |space: Space| matches!(space, Space::Device(0));
    if node.space.is_device() && !lies(node.space) {
        return Some("is on another device of the process");
    }
    // fits: operators have a dozen outputs at most
    let mut outputs = (0..node.facts.len() as u32).map(|index| Output { node: id, index });
    let is_placed = |output: Output| part.memory.spot(output).is_some();
    let is_fixed = outputs.all(is_placed);
    match &node.op {
        Op::Send { edge } if !is_signal(part, id) && !lies(node.space) => {
            ways(*edge).or(Some("is sent from the host's memory"))
        }
        Op::Recv { edge, fact } if !is_empty(fact) && !lies(node.space) => {
            ways(*edge).or(Some("comes to the host's memory"))
        }
        Op::Send { edge } | Op::Recv { edge, .. } => ways(*edge),
        op if op.is_view() => None,
        _ if !is_fixed => Some("has a size that is not known before"),
        Op::CopyTo { .. } => {
            let source = node.inputs.first().copied().map(|input| graph.node(input.node));
            let from = source.map_or(Space::Host, |source| source.space);
            let is_used = |user: &NodeId| graph.predecessors(*user).contains(&id);
            match (from, node.space) {
                (Space::Host, Space::Device(_)) => None,
                (Space::Device(_), Space::Host) if nodes.iter().any(is_used) => {
                    Some("is used on the host")
                }
                (Space::Device(_), Space::Host) => None,
                _ => Some("is copied from device to device"),
            }
        }
        op => match op.facts().kind {
            Kind::Kernel(_) if !node.space.is_device() => Some("is computed by the host"),
            Kind::Group | Kind::Send | Kind::Recv => Some("is done with others"),
            _ => None,
        },
    }
}

/// True if no bytes cross by a Send.
fn is_signal(part: &Part, send: NodeId) -> bool {
    part.graph.node(send).inputs.is_empty()
}

/// True if no bytes cross by a Recv.
fn is_empty(fact: &Fact) -> bool {
    fact.spec().is_some_and(|spec| spec.is_ok_and(|spec| spec.bytes() == 0))
}

/// True if a device has to wait for a Recv: somebody in the run comes behind it but the run's end.
pub(crate) fn is_awaited(part: &Part, nodes: &[NodeId], recv: NodeId) -> bool {
    let Part { graph, order, .. } = part;
    nodes.iter().any(|id| {
        let is_behind = graph.predecessors(*id).contains(&recv) || order.contains(&(recv, *id));
        let is_end = matches!(graph.node(*id).op, Op::NoOp);
        is_behind && (!is_end || is_awaited(part, nodes, *id))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use tensorwire_graph::{
        Cluster, Graph, Hint, Placement, PlanOptions, RunSpec, place, plan as planned,
    };

    /// Two workers, each of which waits for the other six times in turn.
    fn ping_pong() -> Plan {
        let mut graph = Graph::new();
        let mut before: Option<NodeId> = None;
        for turn in 0..12 {
            let hint = Hint::Replica(turn % 2);
            let id = graph.add(&format!("turn {turn}"), hint, Op::NoOp, &[]).unwrap();
            before.into_iter().for_each(|before| graph.control(before, id));
            before = Some(id);
        }
        let cluster = Cluster::Workers { workers: 2 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let roots = vec![before.unwrap()];
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![] };
        planned(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
    }

    /// Streams do their lines, each in its order, a Recv when its Send is done: how many items nobody comes to.
    fn left(plan: &Plan, mut lines: Vec<Vec<Item>>) -> usize {
        let mut sent: HashSet<EdgeId> = HashSet::new();
        lines.iter_mut().for_each(|line| line.reverse());
        let mut any = true;
        while std::mem::take(&mut any) {
            for (part, line) in plan.parts.iter().zip(&mut lines) {
                while let Some(item) = line.last() {
                    let Item::Node(id) = item else {
                        line.pop();
                        continue;
                    };
                    match part.graph.node(*id).op {
                        Op::Recv { edge, .. } if !sent.contains(&edge) => break,
                        Op::Send { edge } => drop(sent.insert(edge)),
                        _ => {}
                    }
                    line.pop();
                    any = true;
                }
            }
        }
        lines.iter().map(Vec::len).sum()
    }

    #[test]
    fn streams_that_do_their_lines_in_order_come_to_the_end() {
        let plan = ping_pong();
        let lines = || (0..plan.parts.len()).map(|part| line(&plan, RunId(0), part).unwrap());
        let nodes: usize = plan.runs[0].nodes.iter().map(Vec::len).sum();
        let of_nodes =
            |line: Vec<Item>| line.iter().filter(|item| matches!(item, Item::Node(_))).count();
        assert_eq!(lines().map(of_nodes).sum::<usize>(), nodes);
        assert_eq!(left(&plan, lines().collect()), 0);
        // as it would be if all waits came first
        let is_recv = |part: usize, item: &Item| match item {
            Item::Node(id) => plan.parts[part].graph.node(*id).op.is_recv(),
            Item::Sent(_) => false,
        };
        let waits_first = lines().enumerate().map(|(part, mut line)| {
            line.sort_by_key(|item| !is_recv(part, item));
            line
        });
        assert!(left(&plan, waits_first.collect()) > 0);
    }

    #[test]
    fn parts_that_wait_for_each_other_in_a_ring_have_no_line() {
        let mut plan = ping_pong();
        let nodes = plan.runs[0].nodes[0].clone();
        let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
        plan.parts[0].order.extend([(first, last), (last, first)]);
        for part in 0..plan.parts.len() {
            let why = line(&plan, RunId(0), part).unwrap_err();
            assert!(why.contains("in a ring"), "{why}");
        }
    }
}
