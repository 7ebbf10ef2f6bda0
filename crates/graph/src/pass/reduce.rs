//! All-reduces as part of the graph, where the tasks of a group reach each other's memory: a reduce-scatter and an
//! all-gather of nodes and edges like any other. Each task makes the means of its share of a group's vectors, in the order of
//! the workers, of what all others have; all use them, so that all have the same bits. A vector is one task's, or by rows
//! several tasks', who fill each other's memory with them. Where the first of a group alone deals with others, all vectors are
//! that one's, and what it broadcasts the others have from it in the same way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::ops::Range;

use tensorwire_base::Space;
use tensorwire_tensor::DType;

use super::expand::is_expanded;
use super::infer::infer;
use super::place::balance::{Share, Shares, bytes, spread};
use super::place::split::hint_of;
use super::space::devices_of;
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Task};
use crate::op::Op;
use crate::plan::RunSpec;

/// Who does the all-reduces of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduceBy {
    /// The group that a process belongs to, beside the graph.
    #[default]
    Group,
    /// The tasks, by nodes and edges of the graph: worker w is in group w mod `groups`. Vectors of more than `split_above` bytes
    /// may be spread over a group by rows.
    Edges { groups: u32, split_above: usize },
    /// As `Edges`, but the first task of each group makes all means, and what it broadcasts crosses likewise: it alone deals with
    /// who is in no group.
    Firsts { groups: u32 },
    /// The devices of the tasks, who are told all in the same order, up to `together` bytes of small vectors at once.
    Devices { together: usize },
}

/// A placed graph whose all-reduces are edges, if they are to be, and the runs on its nodes. Means of gradients of which less was made
/// cross as `wire`, if that is given, and all members have them so: also who made them.
///
/// # Errors
/// When a node has no task, or members of a group all-reduce in such an order that each waits for the other.
pub(crate) fn reduce_by_edges(
    placed: &Graph,
    runs: &[RunSpec],
    by: AllReduceBy,
    wire: Option<DType>,
) -> Result<(Graph, Vec<RunSpec>), GraphError> {
    let vectors = match by {
        AllReduceBy::Edges { groups, .. } | AllReduceBy::Firsts { groups } => {
            vectors(placed, groups, matches!(by, AllReduceBy::Firsts { .. }))?
        }
        AllReduceBy::Group | AllReduceBy::Devices { .. } => {
            return Ok((placed.clone(), runs.to_vec()));
        }
    };
    let shares = match by {
        AllReduceBy::Edges { split_above, .. } => shares(placed, &vectors, split_above)?,
        _ => at_firsts(placed, &vectors)?,
    };
    let mut of_member = HashMap::new();
    for members in vectors.values() {
        of_member.extend(members.iter().map(|id| (*id, members.clone())));
    }
    let mut reducer = Reducer {
        placed,
        wire,
        shares,
        devices: devices_of(placed),
        vectors: of_member,
        out: Graph::continued(placed),
        moved: HashMap::with_capacity(placed.len()),
        means: HashMap::new(),
    };
    for id in reducer.order()? {
        reducer.take(id)?;
    }
    let runs = runs.iter().map(|run| reducer.run(run)).collect();
    Ok((reducer.out, runs))
}

/// The all-reduces, or broadcasts, that are one, by group and vector; in each the members in the order of the workers.
type Vectors = BTreeMap<(u32, u32), Vec<NodeId>>;

fn vectors(placed: &Graph, groups: u32, with_broadcasts: bool) -> Result<Vectors, GraphError> {
    let mut vectors = Vectors::new();
    for (id, node) in placed.nodes() {
        let is_broadcast = matches!(node.op, Op::Broadcast { .. });
        if let Some(vector) = node.op.vector().filter(|_| with_broadcasts || !is_broadcast) {
            let group = task_of(node)?.index % groups.max(1);
            vectors.entry((group, vector)).or_default().push(id);
        }
    }
    for members in vectors.values_mut() {
        members.sort_unstable_by_key(|id| placed.node(*id).task.map(|task| task.index));
    }
    Ok(vectors)
}

/// The tasks of a group, each with a device, and their vectors by the first members, with their bytes.
type Shared = (Vec<(Task, u32)>, Vec<(NodeId, u64)>);

/// Who makes the mean of which rows of a vector, by its first member: as many bytes at each of a group. What is on a worker's
/// second device is so on the second devices of the others: as many bytes for the links of each.
fn shares(placed: &Graph, vectors: &Vectors, split_above: usize) -> Result<Shares, GraphError> {
    let mut shares = Shares::new();
    let devices = devices_of(placed);
    let mut of_group: BTreeMap<(u32, u32), Shared> = BTreeMap::new();
    for ((group, _), members) in vectors {
        let device = members.first().map_or(0, |first| devices[first.index()]);
        let (holders, sized) = of_group.entry((*group, device)).or_default();
        for id in members {
            let holder = (task_of(placed.node(*id))?, device);
            if !holders.contains(&holder) {
                holders.push(holder);
            }
        }
        // fits: usize is 64 bits wide
        sized.extend(members.first().map(|first| (*first, bytes(placed, *first) as u64)));
    }
    for (mut holders, sized) in of_group.into_values() {
        holders.sort_unstable();
        let mut loads = vec![0; holders.len()];
        let may_split = |id| bytes(placed, id) > split_above;
        shares.extend(spread(placed, sized, &holders, &mut loads, may_split));
    }
    Ok(shares)
}

/// All of each vector at the first task of its group.
fn at_firsts(placed: &Graph, vectors: &Vectors) -> Result<Shares, GraphError> {
    let devices = devices_of(placed);
    let firsts = vectors.values().filter_map(|members| members.first());
    let share = |first: &NodeId| {
        let (holder, device) = (task_of(placed.node(*first))?, devices[first.index()]);
        Ok((*first, vec![Share { holder, device, rows: None }]))
    };
    firsts.map(share).collect()
}

struct Reducer<'a> {
    placed: &'a Graph,
    wire: Option<DType>,
    shares: Shares,
    /// By node of `placed`: which of its task's devices it is on.
    devices: Vec<u32>,
    /// By all-reduce, or broadcast: all that are one with it.
    vectors: HashMap<NodeId, Vec<NodeId>>,
    out: Graph,
    /// What became of a node of `placed`.
    moved: HashMap<NodeId, NodeId>,
    /// What became of one that is a root: the means that are made instead, wherever.
    means: HashMap<NodeId, Vec<NodeId>>,
}

impl Reducer<'_> {
    /// The nodes of `placed` in an order in which each comes after what it waits for, and an all-reduce after what all
    /// its members give; but for that as they were.
    fn order(&self) -> Result<Vec<NodeId>, GraphError> {
        let before = |id: NodeId| {
            let mut before = self.placed.predecessors(id);
            if let Hint::With(other) = self.placed.node(id).hint {
                before.push(other);
            }
            before
        };
        let mut waiting = vec![0usize; self.placed.len()];
        let mut after: Vec<Vec<NodeId>> = vec![Vec::new(); self.placed.len()];
        for id in self.placed.ids() {
            let members = self.vectors.get(&id).map_or(std::slice::from_ref(&id), |all| all);
            let awaited: HashSet<NodeId> = members.iter().copied().flat_map(before).collect();
            waiting[id.index()] = awaited.len();
            awaited.into_iter().for_each(|earlier| after[earlier.index()].push(id));
        }
        let free = self.placed.ids().filter(|id| waiting[id.index()] == 0).map(Reverse);
        let mut free: BinaryHeap<Reverse<NodeId>> = free.collect();
        let mut order = Vec::with_capacity(self.placed.len());
        while let Some(Reverse(id)) = free.pop() {
            order.push(id);
            for later in &after[id.index()] {
                waiting[later.index()] -= 1;
                if waiting[later.index()] == 0 {
                    free.push(Reverse(*later));
                }
            }
        }
        match self.placed.nodes().find(|(id, _)| waiting[id.index()] > 0) {
            None => Ok(order),
            Some((_, node)) => Err(GraphError::Invalid {
                node: node.name.clone(),
                what: "waits for an all-reduce that waits for it at another member".to_string(),
            }),
        }
    }

    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        if self.moved.contains_key(&id) {
            return Ok(());
        }
        if let Some(members) = self.vectors.get(&id) {
            let members = members.clone();
            return match self.placed.node(id).op {
                Op::Broadcast { .. } => self.broadcast(&members),
                _ => self.reduce(&members),
            };
        }
        let node = self.placed.node(id);
        let inputs = node.inputs.iter().map(|input| self.same(*input)).collect();
        let controls = node.controls.iter().map(|before| self.moved[before]).collect();
        let hint = match node.hint {
            Hint::With(other) => {
                let other = self.moved[&other];
                match (node.task, self.out.node(other).task) {
                    // it was with its member's all-reduce
                    (Some(here), there) if there != Some(here) => {
                        hint_of(here, self.devices[id.index()])
                    }
                    _ => Hint::With(other),
                }
            }
            hint => hint,
        };
        let new = self.out.push(Node { inputs, controls, hint, ..node.clone() })?;
        self.moved.insert(id, new);
        Ok(())
    }

    /// Puts means and what brings them together in the place of the all-reduces of a vector.
    fn reduce(&mut self, members: &[NodeId]) -> Result<(), GraphError> {
        let shares = members.first().and_then(|first| self.shares.get(first));
        let shares = shares.cloned().unwrap_or_default();
        let mut means = Vec::with_capacity(shares.len());
        let given = members.iter().filter_map(|id| self.placed.node(*id).inputs.first());
        let narrow = self.wire.filter(|_| {
            let mut given = given.clone();
            given.all(|given| is_expanded(self.placed, *given))
        });
        for share in &shares {
            let mean = self.mean(members, share)?;
            means.push(match narrow {
                Some(to) => self.cast(mean, to, share)?,
                None => mean,
            });
        }
        for &member in members {
            let used = match means[..] {
                [whole] => whole,
                _ => self.join(member, &means)?,
            };
            let used = match narrow {
                Some(_) => self.widened(member, used)?,
                None => used,
            };
            self.moved.insert(member, used);
            self.means.insert(member, means.clone());
        }
        Ok(())
    }

    /// Puts a copy of what the first member has in the place of the broadcasts of a vector: what comes to it from elsewhere the
    /// others have from it.
    fn broadcast(&mut self, members: &[NodeId]) -> Result<(), GraphError> {
        let given =
            members.iter().find_map(|id| Some((*id, *self.placed.node(*id).inputs.first()?)));
        let Some((first, given)) = given else {
            let names = members.iter().map(|id| self.placed.node(*id).name.clone());
            let (node, what) = (names.take(1).collect(), "is broadcast by no member".to_string());
            return Err(GraphError::Invalid { node, what });
        };
        let node = self.placed.node(first);
        let at = (task_of(node)?, self.devices[first.index()]);
        let copy = self.push(&node.name, Op::Mean, vec![self.same(given)], at)?;
        for &member in members {
            self.moved.insert(member, copy);
            self.means.insert(member, vec![copy]);
        }
        Ok(())
    }

    /// The mean of what all members give, or of some rows of it, at one of them.
    fn mean(&mut self, members: &[NodeId], share: &Share) -> Result<NodeId, GraphError> {
        let (holder, rows) = (share.holder, share.rows.as_ref());
        let mut parts = Vec::with_capacity(members.len());
        for &member in members {
            let given = self.placed.node(member).inputs[0];
            parts.push(match rows {
                None => self.same(given),
                Some(rows) => self.rows_of(given, rows)?,
            });
        }
        let is_there = |id: &NodeId| self.placed.node(*id).task == Some(holder);
        let there = members.iter().copied().find(is_there).unwrap_or(members[0]);
        let name = named(&self.placed.node(there).name, rows);
        self.push(&name, Op::Mean, parts, (holder, share.device))
    }

    /// A mean, rounded where it is made.
    fn cast(&mut self, mean: NodeId, to: DType, share: &Share) -> Result<NodeId, GraphError> {
        let name = format!("{} as {to}", self.out.node(mean).name);
        let at = (share.holder, share.device);
        self.push(&name, Op::Cast { to }, vec![mean.into()], at)
    }

    /// A mean that was rounded, as a member computes with it.
    fn widened(&mut self, member: NodeId, mean: NodeId) -> Result<NodeId, GraphError> {
        let node = self.placed.node(member);
        let name = format!("{} as {}", node.name, DType::F32);
        let at = (task_of(node)?, self.devices[member.index()]);
        self.push(&name, Op::Cast { to: DType::F32 }, vec![mean.into()], at)
    }

    /// All of a vector at a member.
    fn join(&mut self, member: NodeId, means: &[NodeId]) -> Result<NodeId, GraphError> {
        let node = self.placed.node(member);
        let pieces = means.iter().map(|mean| Output::from(*mean)).collect();
        let at = (task_of(node)?, self.devices[member.index()]);
        self.push(&node.name, Op::Join, pieces, at)
    }

    /// Some rows of what a member gives, where it is made.
    fn rows_of(&mut self, given: Output, rows: &Range<usize>) -> Result<Output, GraphError> {
        let node = self.placed.node(given.node);
        let index = if given.index == 0 { String::new() } else { format!(":{}", given.index) };
        let name = named(&format!("{}{index}", node.name), Some(rows));
        if let Some(there) = self.out.find(&name) {
            return Ok(there.into());
        }
        let op = Op::Rows { start: rows.start, length: rows.len() };
        let at = (task_of(node)?, self.devices[given.node.index()]);
        Ok(self.push(&name, op, vec![self.same(given)], at)?.into())
    }

    fn same(&self, output: Output) -> Output {
        Output { node: self.moved[&output.node], index: output.index }
    }

    fn push(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<Output>,
        (task, device): (Task, u32),
    ) -> Result<NodeId, GraphError> {
        let facts: Vec<_> = inputs.iter().map(|input| self.out.fact(*input).clone()).collect();
        let facts = infer(name, &op, &facts)?;
        let (controls, piece, space) = (Vec::new(), None, Space::Host);
        let (name, hint, task) = (name.to_string(), hint_of(task, device), Some(task));
        self.out.push(Node { name, op, inputs, controls, hint, task, facts, piece, space })
    }

    /// A run on what became of its nodes. Whoever gives his part and needs no mean has others make it.
    fn run(&self, run: &RunSpec) -> RunSpec {
        let moved = |ids: &[NodeId]| {
            let mut all: Vec<NodeId> = Vec::with_capacity(ids.len());
            for id in ids {
                match self.means.get(id) {
                    Some(means) => all.extend(means),
                    None => all.push(self.moved[id]),
                }
            }
            let mut seen = HashSet::new();
            all.retain(|id| seen.insert(*id));
            all
        };
        RunSpec { roots: moved(&run.roots), given: moved(&run.given), ..run.clone() }
    }
}

fn named(name: &str, rows: Option<&Range<usize>>) -> String {
    match rows {
        None => name.to_string(),
        Some(Range { start, end }) => format!("{name}[{start}..{end}]"),
    }
}

fn task_of(node: &Node) -> Result<Task, GraphError> {
    node.task.ok_or_else(|| GraphError::Unplaced { node: node.name.clone() })
}
