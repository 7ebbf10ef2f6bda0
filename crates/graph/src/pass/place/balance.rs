//! Which server (or worker, where workers are servers too) gets which variable: the largest first, each to the one that
//! holds least (Graham 1969, longest processing time first). What would bring one above its equal share is cut into runs of
//! rows that fill them up.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use tensorwire_tensor::Fact;

use super::is_variable;
use crate::graph::{Graph, Hint, Job, Node, NodeId, Task};
use crate::op::Op;

/// Runs of rows begin at multiples of this, in bytes: where the plan may put a tensor.
const ALIGNMENT: usize = 64;

/// What one task gets of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pass) struct Share {
    pub(in crate::pass) holder: Task,
    /// Which of its devices, should it have some.
    pub(in crate::pass) device: u32,
    /// Rows of it; none: all of it.
    pub(in crate::pass) rows: Option<Range<usize>>,
}

/// What becomes of each shared node, in the order of rows.
pub(in crate::pass) type Shares = HashMap<NodeId, Vec<Share>>;

pub(super) fn round_robin(shared: &[NodeId], holders: &[Task]) -> Shares {
    let turns = holders.iter().cycle();
    let whole = |(id, holder): (&NodeId, &Task)| {
        (*id, vec![Share { holder: *holder, device: 0, rows: None }])
    };
    shared.iter().zip(turns).map(whole).collect()
}

/// What decides who gets what.
pub(in crate::pass) struct Balance<'a> {
    pub(in crate::pass) graph: &'a Graph,
    /// The tasks of the nodes that have a place of their own.
    pub(in crate::pass) fixed: &'a [Option<Task>],
    /// Who holds variables.
    pub(in crate::pass) holders: &'a [Task],
    /// What has no more bytes stays whole.
    pub(in crate::pass) split_above: usize,
}

/// A variable is split if it would bring a server above its equal share by more than a part in so many.
const SLACK: u64 = 20;

impl Balance<'_> {
    /// Gives each of `shared` to those who hold variables.
    pub(super) fn of(&self, shared: &[NodeId]) -> Shares {
        let sizes = sizes(self.graph);
        let sized = shared.iter().map(|id| (*id, sizes[id.index()])).collect();
        let holders: Vec<(Task, u32)> = self.holders.iter().map(|task| (*task, 0)).collect();
        spread(self.graph, sized, &holders, &mut self.pinned(), |id| self.may_split(id))
    }

    /// By holder: the bytes of variables that are pinned to it.
    fn pinned(&self) -> Vec<u64> {
        let mut loads = vec![0; self.holders.len()];
        for (id, _) in self.graph.nodes().filter(|(_, node)| is_variable(&node.op)) {
            let at = self.holders.iter().position(|holder| self.fixed[id.index()] == Some(*holder));
            if let Some(at) = at {
                loads[at] += bytes(self.graph, id) as u64;
            }
        }
        loads
    }

    /// True if a variable is large enough to be split, only workers read it, and one update by elements changes it.
    pub(in crate::pass) fn may_split(&self, id: NodeId) -> bool {
        let graph = self.graph;
        let dims = &graph.fact(id.into()).dims;
        let with = |node: &Node| node.hint == Hint::With(id);
        let goes_along = |at: NodeId| at != id && with(graph.node(at));
        let mut updates = 0;
        for (user, node) in graph.nodes() {
            if matches!(node.op, Op::ClipScale { .. }) {
                // takes the sums of pieces as it takes those of wholes
                continue;
            }
            let reads = node.inputs.iter().filter(|input| input.node == id).count();
            let on_worker = self.fixed[user.index()].is_some_and(|task| task.job == Job::Worker);
            let by_elements = match node.op {
                Op::Apply { rule, .. } => !rule.method.needs_whole(),
                _ => false,
            };
            let is_update = by_elements && with(node) && reads == 1;
            let is_slot = |node: &Node| {
                let of_its_shape = |fact: &Fact| fact.dims == *dims || fact.dims.is_empty();
                is_variable(&node.op) && node.facts.iter().all(of_its_shape)
            };
            let along = node.inputs.iter().any(|input| goes_along(input.node))
                || node.controls.iter().any(|before| *before == id || goes_along(*before))
                || matches!(node.hint, Hint::With(other) if goes_along(other));
            let fits = match (reads > 0, with(node)) {
                // a slot is its update's alone
                _ if along && !is_update => false,
                (true, true) => is_update,
                (true, false) => on_worker,
                (false, true) => is_slot(node) || matches!(node.op, Op::SquareSums),
                (false, false) => true,
            };
            if !fits {
                return false;
            }
            updates += usize::from(is_update);
        }
        updates == 1 && bytes(graph, id) > self.split_above
    }
}

/// Gives each node, of so many bytes, to `holders`, devices of tasks who hold `loads` already: the largest first, each to the one
/// that holds least, whose load it is then. What would bring one above its equal share is cut into runs of rows, where it may be.
pub(in crate::pass) fn spread(
    graph: &Graph,
    mut sized: Vec<(NodeId, u64)>,
    holders: &[(Task, u32)],
    loads: &mut [u64],
    may_split: impl Fn(NodeId) -> bool,
) -> Shares {
    let share = level(loads, sized.iter().map(|(_, size)| size).sum());
    // equals in the order of the graph
    sized.sort_by_key(|(id, size)| (Reverse(*size), *id));
    let give = |(id, size): (NodeId, u64)| {
        let least = least(loads);
        let is_above = loads[least] + size > share + share / SLACK;
        let runs = match is_above && may_split(id) {
            true => runs(graph, id, size, share, loads),
            false => Vec::new(),
        };
        let given = match &runs[..] {
            [] | [_] => vec![(least, None)],
            runs => runs.iter().map(|(at, rows)| (*at, Some(rows.clone()))).collect(),
        };
        let mut shares = Vec::with_capacity(given.len());
        for (at, run) in given {
            loads[at] += match &run {
                None => size,
                Some(run) => part(size, run.len(), rows(graph, id)),
            };
            let (holder, device) = holders[at];
            shares.push(Share { holder, device, rows: run });
        }
        (id, shares)
    };
    sized.into_iter().map(give).collect()
}

/// By node: the bytes of a variable and of what lies with it.
fn sizes(graph: &Graph) -> Vec<u64> {
    let mut sizes = vec![0; graph.len()];
    for (id, node) in graph.nodes().filter(|(_, node)| is_variable(&node.op)) {
        let home = match node.hint {
            Hint::With(other) => other,
            _ => id,
        };
        sizes[home.index()] += bytes(graph, id) as u64;
    }
    sizes
}

pub(in crate::pass) fn bytes(graph: &Graph, id: NodeId) -> usize {
    graph.fact(id.into()).spec().and_then(Result::ok).map_or(0, |spec| spec.bytes())
}

/// The rows of a variable of `size` bytes, slots included, in runs that fill those who hold variables up to their share,
/// the emptiest first: by run, whose it is by its place in `loads`. One run, or none: it cannot be split.
fn runs(
    graph: &Graph,
    id: NodeId,
    size: u64,
    share: u64,
    loads: &[u64],
) -> Vec<(usize, Range<usize>)> {
    let rows = rows(graph, id);
    let row_bytes = bytes(graph, id) / rows.max(1);
    let step = ALIGNMENT / gcd(ALIGNMENT, row_bytes.max(1));
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    let mut start = 0;
    while start < rows {
        let free = (0..loads.len()).filter(|at| runs.iter().all(|(of, _)| of != at));
        let free: Vec<usize> = free.collect();
        let Some(holder) = free.iter().copied().min_by_key(|at| loads[*at]) else { break };
        let room = share.saturating_sub(loads[holder]);
        // fits: rows of a tensor in memory
        let fill = (u128::from(room) * rows as u128 / u128::from(size.max(1))) as usize;
        let end = start.saturating_add(fill / step * step);
        // what would be left is not worth another write
        let is_last = free.len() == 1 || rows.saturating_sub(end) < step.max(rows / 64);
        let end = if end == start || is_last { rows } else { end };
        runs.push((holder, start..end));
        start = end;
    }
    runs
}

/// How far those who hold variables are filled when so many bytes more are spread evenly.
fn level(loads: &[u64], bytes: u64) -> u64 {
    let mut loads = loads.to_vec();
    loads.sort_unstable();
    let mut filled = bytes;
    for (index, load) in loads.iter().enumerate() {
        filled += load;
        // fits: servers are few
        let level = filled.div_ceil(index as u64 + 1);
        if loads.get(index + 1).is_none_or(|next| *next >= level) {
            return level;
        }
    }
    filled
}

/// The bytes of `some` of `rows`.
fn part(size: u64, some: usize, rows: usize) -> u64 {
    // fits: no more than size
    (u128::from(size) * some as u128 / rows.max(1) as u128) as u64
}

/// The one that holds least, the first of equals.
fn least(loads: &[u64]) -> usize {
    (0..loads.len()).min_by_key(|at| loads[*at]).unwrap_or_default()
}

fn rows(graph: &Graph, id: NodeId) -> usize {
    let spec = graph.fact(id.into()).spec().and_then(Result::ok);
    spec.and_then(|spec| spec.dims().first().copied()).unwrap_or_default()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Init;
    use tensorwire_tensor::{DType, TensorSpec};

    fn variable(dims: &[usize]) -> (Graph, NodeId) {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, dims).unwrap();
        let id = graph.variable("v", spec, Init::Zeros).unwrap().node;
        (graph, id)
    }

    #[test]
    fn runs_cover_all_rows_and_begin_where_a_tensor_may_lie() {
        for (dims, servers) in [([25088, 4096], 2), ([1000, 3], 3), ([999, 7], 4), ([640, 16], 5)] {
            let (graph, id) = variable(&dims);
            let size = bytes(&graph, id) as u64;
            let share = size.div_ceil(servers);
            let found = runs(&graph, id, size, share, &vec![0; servers as usize]);
            let rows: Vec<Range<usize>> = found.iter().map(|(_, rows)| rows.clone()).collect();
            assert_eq!((rows[0].start, rows.last().unwrap().end), (0, dims[0]));
            assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start), "{rows:?}");
            assert!(rows.iter().all(|run| run.start * dims[1] * 4 % ALIGNMENT == 0), "{rows:?}");
            let holders: Vec<usize> = found.iter().map(|(holder, _)| *holder).collect();
            assert!(holders.iter().copied().eq(0..holders.len()), "{holders:?}");
        }
    }

    #[test]
    fn rows_go_where_there_is_room() {
        let (graph, id) = variable(&[100, 16]);
        let loads = [3200, 0, 4000];
        let share = level(&loads, 6400);
        assert_eq!(share, (3200u64 + 4000 + 6400).div_ceil(3));
        let found = runs(&graph, id, 6400, share, &loads);
        assert_eq!(found, [(1, 0..70), (0, 70..90), (2, 90..100)]);
        assert_eq!(level(&[10, 900], 40), 50, "who has more than that gets nothing");
    }

    #[test]
    fn a_variable_of_few_rows_stays_whole() {
        for dims in [[10, 3], [1, 1 << 21]] {
            let (graph, id) = variable(&dims);
            let size = bytes(&graph, id) as u64;
            assert!(runs(&graph, id, size, size / 2, &[0, 0]).len() <= 1, "{dims:?}");
        }
    }
}
