//! The plan: what every process of a job does, as data. Made by each process on its own from the same
//! graph, and the same everywhere.

use std::collections::{HashMap, HashSet, VecDeque};

use tensorwire_tensor::TensorSpec;

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Task};
use crate::op::{EdgeId, Op};
use crate::pass::memory::{MemoryPlan, SendFrom, plan_memory};
use crate::pass::order::write_after_read;
use crate::pass::partition::{Cut, Partition, partition};
use crate::pass::reuse::{At, Schedule, TaskSets};
use crate::pass::verify::verify;

/// A subset of the graph that is run at once, by name: training, fetching the weights, evaluating.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub name: &'static str,
    /// Nodes that must be computed.
    pub roots: Vec<NodeId>,
    /// Where the roots' outputs must be; none: where they are computed.
    pub fetch_to: Option<Task>,
    /// Nodes whose values an earlier run has left in place, here and where it sent them.
    pub given: Vec<NodeId>,
    /// Runs (indices) that may come next in a process's life.
    pub followed_by: Vec<usize>,
}

/// Index of a run in [`Plan::runs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub usize);

/// One run, cut along the tasks.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: &'static str,
    /// For each part, the nodes it runs, ascending.
    pub nodes: Vec<Vec<NodeId>>,
}

/// How an edge's receive buffer is kept from being overwritten while it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The graph's own dependencies order the next write behind the last read.
    Proved,
    /// They do not, for the named readers: a credit (a control edge back) was added.
    Credit { readers: Vec<String> },
    /// Nothing to overwrite: no bytes cross.
    Empty,
}

/// An edge between two parts.
#[derive(Clone, Debug)]
pub struct Edge {
    pub id: EdgeId,
    /// The tensor's name: that of the node that makes it; `^name` for a control.
    pub name: String,
    pub spec: TensorSpec,
    /// Part (index into [`Plan::parts`]) and node that send and receive.
    pub from: usize,
    pub to: usize,
    pub send: NodeId,
    pub recv: NodeId,
    pub reuse: Reuse,
}

/// What one task computes, and where it keeps it.
#[derive(Clone, Debug)]
pub struct Part {
    pub task: Task,
    pub graph: Graph,
    /// Pairs (first, then) that hold in every run that has both.
    pub order: Vec<(NodeId, NodeId)>,
    pub memory: MemoryPlan,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub parts: Vec<Part>,
    pub edges: Vec<Edge>,
    pub runs: Vec<Run>,
}

impl Plan {
    /// Bytes that cross in one run, in both directions.
    pub fn bytes_crossing(&self, run: RunId) -> u64 {
        let sends =
            |edge: &&Edge| self.runs[run.0].nodes[edge.from].binary_search(&edge.send).is_ok();
        // fits: the sum is of sizes that are each allocated here
        self.edges.iter().filter(sends).map(|edge| edge.spec.bytes() as u64).sum()
    }
}

/// Plans a placed graph over `tasks`.
///
/// # Errors
/// When an edge's size is unknown, or nodes wait for each other in a circle.
pub fn plan(
    graph: &Graph,
    tasks: &[Task],
    runs: &[RunSpec],
    send_from: SendFrom,
) -> Result<Plan, GraphError> {
    verify(graph, "place")?;
    let Guarded { graph, runs, credits } = guard(graph, tasks, runs)?;
    let draft = Draft::new(&graph, tasks, &runs)?;
    let unproved = draft.unproved(&runs);
    if let Some((cut, readers)) = unproved.first() {
        return Err(GraphError::Invalid {
            node: draft.partition.cuts[*cut].name.clone(),
            what: format!("its buffer may be overwritten under {readers:?} in spite of a credit"),
        });
    }
    draft.finish(tasks, &runs, &credits, send_from)
}

/// A graph whose receive buffers are all guarded.
struct Guarded {
    graph: Graph,
    runs: Vec<RunSpec>,
    /// For the edges that needed a credit (by [`edge_key`]), the readers it waits for.
    credits: HashMap<String, Vec<String>>,
}

/// Adds a credit wherever the graph's own dependencies do not guard a receive buffer: a node on the
/// sender's task that waits for the buffer's readers, in the run of these readers.
fn guard(graph: &Graph, tasks: &[Task], runs: &[RunSpec]) -> Result<Guarded, GraphError> {
    let (mut graph, mut runs) = (graph.clone(), runs.to_vec());
    let mut credits = HashMap::new();
    let draft = Draft::new(&graph, tasks, &runs)?;
    // one credit for all that one task reads of another's in one run
    let mut waits: Vec<((usize, usize, usize), HashSet<NodeId>)> = Vec::new();
    for (cut, readers) in draft.unproved(&runs) {
        let Cut { from, to, name, .. } = &draft.partition.cuts[cut];
        let names: &mut Vec<String> = credits.entry(edge_key(name, *from, *to)).or_default();
        for (run, reader) in readers {
            let reader = draft.whole_id(*to, reader);
            names.push(graph.node(reader).name.clone());
            match waits.iter_mut().find(|(key, _)| *key == (run, *from, *to)) {
                Some((_, nodes)) => drop(nodes.insert(reader)),
                None => waits.push(((run, *from, *to), HashSet::from([reader]))),
            }
        }
        names.sort();
        names.dedup();
    }
    for ((run, from, to), readers) in waits {
        let mut controls: Vec<NodeId> = readers.into_iter().collect();
        controls.sort_unstable();
        let credit = graph.push(Node {
            name: format!("credit/{}/{} to {}", runs[run].name, tasks[to], tasks[from]),
            op: Op::NoOp,
            inputs: vec![],
            controls,
            hint: Hint::Shared,
            task: Some(tasks[from]),
            facts: vec![],
        })?;
        runs[run].roots.push(credit);
    }
    Ok(Guarded { graph, runs, credits })
}

fn edge_key(name: &str, from: usize, to: usize) -> String {
    format!("{name} {from} {to}")
}

/// A partition with the nodes of each run, before its memory is planned.
struct Draft {
    partition: Partition,
    order: Vec<Vec<(NodeId, NodeId)>>,
    schedules: Vec<Schedule>,
}

impl Draft {
    fn new(graph: &Graph, tasks: &[Task], runs: &[RunSpec]) -> Result<Draft, GraphError> {
        let partition = partition(graph, tasks)?;
        for part in &partition.graphs {
            verify(part, "partition")?;
        }
        let order: Vec<_> = partition.graphs.iter().map(write_after_read).collect();
        let schedules: Result<Vec<_>, _> =
            runs.iter().map(|run| schedule(graph, &partition, &order, tasks, run)).collect();
        Ok(Draft { order, schedules: schedules?, partition })
    }

    /// Cuts whose buffer a later run may overwrite under a reader: (cut, [(run, reader)]).
    fn unproved(&self, runs: &[RunSpec]) -> Vec<(usize, Vec<(usize, NodeId)>)> {
        let sizes: Vec<usize> = self.partition.graphs.iter().map(Graph::len).collect();
        let sets = |of: fn(&Schedule, &[usize]) -> TaskSets| -> Vec<TaskSets> {
            self.schedules.iter().map(|schedule| of(schedule, &sizes)).collect()
        };
        let (after, before) = (sets(TaskSets::of_descendants), sets(TaskSets::of_ancestors));
        let members: Vec<HashSet<At>> =
            self.schedules.iter().map(|s| s.order.iter().copied().collect()).collect();
        let successors: Vec<_> = self.partition.graphs.iter().map(Graph::successors).collect();
        let mut found = Vec::new();
        for (index, cut) in self.partition.cuts.iter().enumerate() {
            let mut readers = Vec::new();
            for (read_run, later) in later_runs(runs) {
                let writes =
                    later.into_iter().filter(|r| members[*r].contains(&(cut.from, cut.send)));
                let writes: Vec<usize> = writes.collect();
                for &reader in &successors[cut.to][cut.recv.index()] {
                    let at = (cut.to, reader);
                    let is_torn = |&write: &usize| {
                        !after[read_run].meet(at, &before[write], (cut.from, cut.send))
                    };
                    if members[read_run].contains(&at) && writes.iter().any(is_torn) {
                        readers.push((read_run, reader));
                    }
                }
            }
            if !readers.is_empty() && cut.carries_bytes() {
                found.push((index, readers));
            }
        }
        found
    }

    /// The node of the whole graph that a part's node was made of.
    fn whole_id(&self, part: usize, node: NodeId) -> NodeId {
        let moved = self.partition.moved[part].iter().find(|(_, to)| **to == node);
        *moved.expect("the readers of a Recv are nodes of the whole graph").0
    }

    fn finish(
        self,
        tasks: &[Task],
        runs: &[RunSpec],
        credits: &HashMap<String, Vec<String>>,
        send_from: SendFrom,
    ) -> Result<Plan, GraphError> {
        let Draft { partition, order, schedules } = self;
        let mut edges = Vec::with_capacity(partition.cuts.len());
        for (index, cut) in partition.cuts.into_iter().enumerate() {
            edges.push(edge(index, cut, tasks, credits)?);
        }
        let runs = runs.iter().zip(&schedules).map(|(run, schedule)| {
            let mut nodes = vec![Vec::new(); tasks.len()];
            for &(part, node) in &schedule.order {
                nodes[part].push(node);
            }
            nodes.iter_mut().for_each(|part| part.sort_unstable());
            Run { name: run.name, nodes }
        });
        let runs = runs.collect();
        let mut parts = Vec::with_capacity(tasks.len());
        for ((task, graph), order) in tasks.iter().zip(partition.graphs).zip(order) {
            let memory = plan_memory(&graph, send_from)?;
            parts.push(Part { task: *task, graph, order, memory });
        }
        Ok(Plan { parts, edges, runs })
    }
}

fn edge(
    index: usize,
    cut: Cut,
    tasks: &[Task],
    credits: &HashMap<String, Vec<String>>,
) -> Result<Edge, GraphError> {
    let Some(spec) = cut.fact.spec() else {
        let (from, to) = (tasks[cut.from], tasks[cut.to]);
        return Err(GraphError::DynamicEdge { node: cut.name, from, to, fact: cut.fact });
    };
    let spec = spec.map_err(|source| GraphError::Shape { node: cut.name.clone(), source })?;
    let reuse = match credits.get(&edge_key(&cut.name, cut.from, cut.to)) {
        _ if spec.bytes() == 0 => Reuse::Empty,
        Some(readers) => Reuse::Credit { readers: readers.clone() },
        None => Reuse::Proved,
    };
    // fits: the partitioner counted the cuts in u32
    let id = EdgeId(index as u32);
    let Cut { name, from, to, send, recv, .. } = cut;
    Ok(Edge { id, name, spec, from, to, send, recv, reuse })
}

impl Cut {
    fn carries_bytes(&self) -> bool {
        !matches!(self.fact.spec(), Some(Ok(spec)) if spec.bytes() == 0)
    }
}

/// For each run, the runs that may come after it, directly or later.
fn later_runs(runs: &[RunSpec]) -> Vec<(usize, Vec<usize>)> {
    let reach = |from: usize| {
        let mut seen = vec![false; runs.len()];
        let mut open = runs[from].followed_by.clone();
        while let Some(run) = open.pop() {
            if !std::mem::replace(&mut seen[run], true) {
                open.extend(&runs[run].followed_by);
            }
        }
        (0..runs.len()).filter(|&run| seen[run]).collect()
    };
    (0..runs.len()).map(|run| (run, reach(run))).collect()
}

/// The nodes of a run in all parts, in an order in which each comes after what it waits for.
fn schedule(
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
    given_at.extend(cuts.filter(|c| given.contains(&c.source)).map(|c| (c.to, c.recv)));
    let mut open = Vec::new();
    for root in &run.roots {
        let name = || graph.node(*root).name.clone();
        let home = graph.node(*root).task.and_then(|task| index.get(&task).copied());
        let home = home.ok_or_else(|| GraphError::Unplaced { node: name() })?;
        let target = run.fetch_to.and_then(|task| index.get(&task).copied()).unwrap_or(home);
        if target == home {
            open.push((home, partition.moved[home][root]));
            continue;
        }
        // not the cut of a control of the same source, which carries nothing
        let brings = |c: &&Cut| {
            c.source == *root && c.to == target && graph.node(*root).facts.contains(&c.fact)
        };
        let cut = partition.cuts.iter().find(brings).ok_or_else(|| GraphError::Invalid {
            node: name(),
            what: format!("is to be fetched to {}, where nothing uses it", tasks[target]),
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
    if let Op::Recv { edge, .. } = graph.node(node).op {
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
