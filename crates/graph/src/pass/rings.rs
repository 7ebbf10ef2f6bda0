//! What the devices of one worker reduce among themselves: a *tensor* (Mamidala et al. §6), the vectors that they hold, one of
//! each. In the multi-ring each device makes a share of the means over the devices, and is the only one that deals with others
//! for it: it reduces its share with the devices of the same number at other workers, or gives it to those of servers; what
//! comes from there comes to it, and it gives that to the others of its worker. So each device's links carry as much as any
//! other's. A share is whole vectors, or some rows of a large one. Who has variables has a share of them on each device, too:
//! a server has as many as a worker. What is added to what, in which order, is as it is where the first device does all.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::place::balance::{Balance, Share, bytes, spread};
use super::place::split::{Split, Splitter, hint_of};
use super::space::devices_of;
use crate::error::GraphError;
use crate::graph::{Graph, Hint, NodeId, Task};
use crate::op::Op;
use crate::plan::RunSpec;

/// Who reduces what the devices of one worker have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AmongDevices {
    /// The first, whose links carry all.
    #[default]
    First,
    /// Each a share: the multi-ring. Vectors of more than `split_above` bytes may be spread over devices by rows.
    Shares { split_above: usize },
}

/// A placed graph in which each device of a worker has its share of what they reduce, if it is to, and the runs on its nodes.
///
/// # Errors
/// When a node has no task.
pub(crate) fn share_among_devices(
    placed: &Graph,
    runs: &[RunSpec],
    among: AmongDevices,
) -> Result<(Graph, Vec<RunSpec>), GraphError> {
    let AmongDevices::Shares { split_above } = among else {
        return Ok((placed.clone(), runs.to_vec()));
    };
    let tensors = tensors(placed);
    let shares = shares(placed, &tensors, split_above);
    let mut moved = placed.clone();
    // by variable that is cut
    let mut cut: Vec<(NodeId, Vec<Share>)> = Vec::new();
    let mut split = Split { first: Some(Task::worker(0)), ..Split::default() };
    let mut number = placed.nodes().filter_map(|(_, node)| node.op.vector()).max().unwrap_or(0);
    for (tensor, shares) in tensors.iter().zip(&shares) {
        if let [] | [_] = shares[..] {
            let device = shares.first().map_or(0, |share| share.device);
            for &id in tensor.variables.iter().chain(tensor.along()) {
                if let Some(task) = placed.node(id).task {
                    moved.node_mut(id).hint = hint_of(task, device);
                }
            }
            continue;
        }
        for &variable in &tensor.variables {
            let Some(holder) = placed.node(variable).task else { continue };
            let here = shares.iter().map(|share| Share { holder, ..share.clone() });
            cut.push((variable, here.collect()));
        }
        for &id in tensor.along() {
            split.along.extend(tensor.variables.first().map(|home| (id, *home)));
            let Some(vector) = placed.node(id).op.vector() else { continue };
            for index in 0..shares.len() {
                split.vectors.entry((vector, index)).or_insert_with(|| {
                    number += 1;
                    number
                });
            }
        }
    }
    split.shares.extend(cut.iter().map(|(variable, shares)| (*variable, &shares[..])));
    let splitter = Splitter::new(&moved, split).all()?;
    let of_all = |ids: &[NodeId]| ids.iter().flat_map(|id| splitter.moved(*id)).collect();
    let runs = runs.iter().map(|run| {
        let (roots, given) = (of_all(&run.roots), of_all(&run.given));
        RunSpec { roots, given, ..run.clone() }
    });
    let runs = runs.collect();
    Ok((splitter.out, runs))
}

/// All that the gradients of one parameter pass through until it has changed, at all workers: what moves to a device together.
#[derive(Debug, Default)]
struct Tensor {
    /// Over the devices, at each worker.
    means: Vec<NodeId>,
    /// What others make of those: all-reduces, means of workers, and what is broadcast of them or of the variable.
    reduced: Vec<NodeId>,
    /// One that all share, or one at each worker.
    variables: Vec<NodeId>,
    devices: u32,
}

impl Tensor {
    fn along(&self) -> impl Iterator<Item = &NodeId> {
        self.means.iter().chain(&self.reduced)
    }
}

/// How many devices of one worker a node makes a mean of, in their order, if it makes one.
pub(in crate::pass) fn devices_of_mean(placed: &Graph, devices: &[u32], id: NodeId) -> Option<u32> {
    let node = placed.node(id);
    let of_devices = node.inputs.iter().map(|input| {
        let from = placed.node(input.node);
        (from.task == node.task).then_some(devices[input.node.index()])
    });
    // fits: devices of a process are few
    let count = node.inputs.len() as u32;
    let is_mean = node.op == Op::Mean && count > 1 && matches!(node.hint, Hint::Replica(_));
    (is_mean && of_devices.eq((0..count).map(Some))).then_some(count)
}

/// All tensors whose devices may have shares of them.
fn tensors(placed: &Graph) -> Vec<Tensor> {
    let devices = devices_of(placed);
    let mut vectors: HashMap<u32, Vec<NodeId>> = HashMap::new();
    for (id, node) in placed.nodes() {
        if let Some(vector) = node.op.vector() {
            vectors.entry(vector).or_default().push(id);
        }
    }
    let finder = Finder { placed, devices, vectors, users: placed.successors() };
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for id in placed.ids() {
        if seen.contains(&id) || finder.of_devices(id).is_none() {
            continue;
        }
        let (mut tensor, mut fits) = (Tensor::default(), true);
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                fits &= finder.take(id, &mut tensor, &mut open);
            }
        }
        tensor.means.sort_unstable_by_key(|id| placed.node(*id).task);
        tensor.variables.sort_unstable_by_key(|id| placed.node(*id).task);
        let tasks: HashSet<Option<Task>> =
            tensor.means.iter().map(|id| placed.node(*id).task).collect();
        let counts = tensor.means.iter().map(|id| finder.of_devices(*id));
        let counts: HashSet<Option<u32>> = counts.collect();
        // what several replicas of one process change is reduced on the first device of all
        let is_one_each = tasks.len() == tensor.means.len() && counts.len() == 1;
        if fits && is_one_each && !tensor.variables.is_empty() {
            tensor.devices = counts.into_iter().flatten().next().unwrap_or(1);
            all.push(tensor);
        }
    }
    all
}

struct Finder<'a> {
    placed: &'a Graph,
    devices: Vec<u32>,
    /// By number: all-reduces, or broadcasts, that are one.
    vectors: HashMap<u32, Vec<NodeId>>,
    /// By node.
    users: Vec<Vec<NodeId>>,
}

impl Finder<'_> {
    fn of_devices(&self, id: NodeId) -> Option<u32> {
        devices_of_mean(self.placed, &self.devices, id)
    }

    /// Adds a node to the tensor that it is of, and what is of the same to `open`; false if that is used otherwise, too.
    fn take(&self, id: NodeId, tensor: &mut Tensor, open: &mut Vec<NodeId>) -> bool {
        let node = self.placed.node(id);
        match node.op {
            Op::Variable { .. } => {
                tensor.variables.push(id);
                return self.take_updates(id, open);
            }
            Op::Mean if self.of_devices(id).is_some() => tensor.means.push(id),
            Op::Mean | Op::AllReduce { .. } | Op::Broadcast { .. } => {
                tensor.reduced.push(id);
                open.extend(node.inputs.iter().map(|input| input.node));
            }
            // made of something else
            _ => return false,
        }
        let same = node.op.vector().and_then(|vector| self.vectors.get(&vector));
        open.extend(same.into_iter().flatten());
        let is_weight = |input: NodeId| matches!(self.placed.node(input).op, Op::Variable { .. });
        let may_be_weights = matches!(node.op, Op::Broadcast { .. })
            && node.inputs.iter().all(|input| is_weight(input.node));
        let mut fits = true;
        for &user in &self.users[id.index()] {
            let of_user = self.placed.node(user);
            match (&of_user.op, of_user.hint) {
                (Op::AllReduce { .. } | Op::Broadcast { .. }, _) => open.push(user),
                (Op::Mean, _) if self.of_devices(user).is_none() => open.push(user),
                (Op::Apply { .. } | Op::SquareSums, Hint::With(variable)) => open.push(variable),
                // whoever computes with them has them from there
                _ => fits &= may_be_weights,
            }
        }
        fits
    }

    /// As [`Finder::take`], of a variable: what changes it, and what is broadcast of it.
    fn take_updates(&self, id: NodeId, open: &mut Vec<NodeId>) -> bool {
        let mut updates = 0;
        for &user in &self.users[id.index()] {
            let node = self.placed.node(user);
            if let Op::Broadcast { .. } = node.op {
                open.push(user);
            }
            let state = node.op.mutated_inputs();
            if !node.inputs[..state].iter().any(|input| input.node == id) {
                continue;
            }
            let Op::Apply { .. } = node.op else { return false };
            updates += 1;
            let is_scale =
                |input: NodeId| matches!(self.placed.node(input).op, Op::ClipScale { .. });
            let gradients = node.inputs[state..].iter().map(|input| input.node);
            open.extend(gradients.filter(|input| !is_scale(*input)));
        }
        updates == 1
    }
}

/// Which devices have which of each tensor: as many bytes at each, and the same at all workers, and at each who has variables
/// for others as many at each of his.
fn shares(placed: &Graph, tensors: &[Tensor], split_above: usize) -> Vec<Vec<Share>> {
    let fixed: Vec<Option<Task>> = placed.nodes().map(|(_, node)| node.task).collect();
    let balance = Balance { graph: placed, fixed: &fixed, holders: &[], split_above };
    let is_clipped = |variable: NodeId| {
        let updates = |op: &Op| matches!(op, Op::Apply { clipped: true, .. });
        let mut nodes = placed.nodes();
        nodes.any(|(_, node)| node.hint == Hint::With(variable) && updates(&node.op))
    };
    let mut by_home: BTreeMap<Option<Task>, Vec<(NodeId, u64)>> = BTreeMap::new();
    let mut whole: HashSet<NodeId> = HashSet::new();
    for tensor in tensors {
        let Some(&first) = tensor.variables.first() else { continue };
        // fits: usize is 64 bits wide
        let sized = (first, bytes(placed, first) as u64);
        by_home.entry(placed.node(first).task).or_default().push(sized);
        let is_reduced = |id: &NodeId| matches!(placed.node(*id).op, Op::AllReduce { .. });
        // the norm of a clipped one would be added in another order
        let may_split = |id: &NodeId| balance.may_split(*id) && !is_clipped(*id);
        if !tensor.reduced.iter().all(is_reduced) || !tensor.variables.iter().all(may_split) {
            whole.insert(first);
        }
    }
    let count = tensors.iter().map(|tensor| tensor.devices).max().unwrap_or(0);
    let holders: Vec<(Task, u32)> = (0..count).map(|device| (Task::worker(0), device)).collect();
    let mut loads = vec![0; holders.len()];
    let mut found = HashMap::new();
    // of what one has each device gets as much, and what is left over at one goes where others left room
    for sized in by_home.into_values() {
        found.extend(spread(placed, sized, &holders, &mut loads, |id| !whole.contains(&id)));
    }
    let of_first = |tensor: &Tensor| found.remove(tensor.variables.first()?);
    tensors.iter().map(of_first).map(Option::unwrap_or_default).collect()
}
