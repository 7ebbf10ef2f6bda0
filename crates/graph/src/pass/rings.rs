//! What the devices of one worker reduce among themselves: a *tensor* (Mamidala et al. §6), the vectors that they hold, one of
//! each. In the multi-ring each device makes a share of the means over the devices, and is one member of a ring of its own: it
//! reduces its share with the devices of the same number at other workers, updates the variables of its share, and gives them to
//! the others of its worker. So each device's links carry as much as any other's. A share is whole vectors, or some rows of a large
//! one. What is added to what, in which order, is as it is where the first device does all.

use std::collections::{BTreeMap, HashMap};

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
    /// The first, which has the variables, and whose links carry all.
    #[default]
    First,
    /// Each a share, if the worker has the variables: the multi-ring. Vectors of more than `split_above` bytes may be spread
    /// over devices by rows.
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
    let tensors = Tensors::of(placed);
    let shares = tensors.shares(placed, split_above);
    let mut moved = placed.clone();
    for (tensor, shares) in &shares {
        if let [Share { device, .. }] = shares[..] {
            let at = |node: NodeId| placed.node(node).task.map(|task| hint_of(task, device));
            for node in [Some(tensor.variable), Some(tensor.mean), tensor.all_reduce] {
                if let Some((node, hint)) = node.and_then(|node| Some((node, at(node)?))) {
                    moved.node_mut(node).hint = hint;
                }
            }
        }
    }
    let mut split = Split::default();
    let mut number = placed.nodes().filter_map(|(_, node)| node.op.vector()).max().unwrap_or(0);
    for (tensor, shares) in shares.iter().filter(|(_, shares)| shares.len() > 1) {
        split.shares.insert(tensor.variable, shares);
        split.along.insert(tensor.mean, tensor.variable);
        let Some(all_reduce) = tensor.all_reduce else { continue };
        split.along.insert(all_reduce, tensor.variable);
        for index in 0..shares.len() {
            let Op::AllReduce { vector } = placed.node(all_reduce).op else { continue };
            split.vectors.entry((vector, index)).or_insert_with(|| {
                number += 1;
                number
            });
        }
    }
    let splitter = Splitter::new(&moved, split).all()?;
    let of_all = |ids: &[NodeId]| ids.iter().flat_map(|id| splitter.moved(*id)).collect();
    let runs = runs.iter().map(|run| {
        let (roots, given) = (of_all(&run.roots), of_all(&run.given));
        RunSpec { roots, given, ..run.clone() }
    });
    let runs = runs.collect();
    Ok((splitter.out, runs))
}

/// A tensor of a worker: what becomes of it.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    /// Over the devices.
    mean: NodeId,
    /// Over the workers.
    all_reduce: Option<NodeId>,
    /// What is updated by that, at the same worker.
    variable: NodeId,
    devices: u32,
}

/// What is one over all workers: the number of its vector, or without one its place among those of its worker.
type Key = (bool, u32);

/// By key: the tensors of all workers, in the order of the workers.
struct Tensors(BTreeMap<Key, Vec<Tensor>>);

impl Tensors {
    fn of(placed: &Graph) -> Tensors {
        let devices = devices_of(placed);
        let users = placed.successors();
        let mut all: BTreeMap<Key, Vec<Tensor>> = BTreeMap::new();
        let mut counts: HashMap<Option<Task>, u32> = HashMap::new();
        for (id, node) in placed.nodes().filter(|(_, node)| node.op == Op::Mean) {
            let of_devices = node.inputs.iter().map(|input| {
                let from = placed.node(input.node);
                (from.task == node.task).then_some(devices[input.node.index()])
            });
            // fits: devices of a process are few
            let count = node.inputs.len() as u32;
            if count < 2
                || !matches!(node.hint, Hint::Replica(_))
                || !of_devices.eq((0..count).map(Some))
            {
                continue;
            }
            let (all_reduce, reduced) = match users[id.index()][..] {
                [user] if matches!(placed.node(user).op, Op::AllReduce { .. }) => {
                    (Some(user), user)
                }
                _ => (None, id),
            };
            let Some(variable) = updated(placed, &users[reduced.index()], reduced) else {
                continue;
            };
            let key = match all_reduce.map(|id| &placed.node(id).op) {
                Some(Op::AllReduce { vector }) => (true, *vector),
                _ => {
                    let count = counts.entry(node.task).or_default();
                    *count += 1;
                    (false, *count)
                }
            };
            let tensor = Tensor { mean: id, all_reduce, variable, devices: count };
            all.entry(key).or_default().push(tensor);
        }
        let mut of_variable: HashMap<NodeId, usize> = HashMap::new();
        for tensor in all.values().flatten() {
            *of_variable.entry(tensor.variable).or_default() += 1;
        }
        // what several replicas of one process change is reduced on the first device of all
        all.retain(|_, tensors| tensors.iter().all(|tensor| of_variable[&tensor.variable] == 1));
        for tensors in all.values_mut() {
            tensors.sort_unstable_by_key(|tensor| placed.node(tensor.mean).task);
        }
        Tensors(all)
    }

    /// Which devices have which of each: as many bytes at each, and the same at all workers.
    fn shares(&self, placed: &Graph, split_above: usize) -> Vec<(Tensor, Vec<Share>)> {
        let fixed: Vec<Option<Task>> = placed.nodes().map(|(_, node)| node.task).collect();
        let balance = Balance { graph: placed, fixed: &fixed, holders: &[], split_above };
        let firsts = self.0.values().filter_map(|tensors| tensors.first());
        let count = firsts.clone().map(|tensor| tensor.devices).max().unwrap_or(0);
        // fits: usize is 64 bits wide
        let sized = firsts.map(|first| (first.variable, bytes(placed, first.variable) as u64));
        let wholes: HashMap<NodeId, bool> = self
            .0
            .values()
            .filter_map(|tensors| {
                let is_clipped = |tensor: &Tensor| {
                    let updates = |op: &Op| matches!(op, Op::Apply { clipped: true, .. });
                    let mut users = placed.nodes();
                    users.any(|(_, node)| {
                        node.hint == Hint::With(tensor.variable) && updates(&node.op)
                    })
                };
                // its norm would be added in another order
                let stays =
                    |tensor: &Tensor| !balance.may_split(tensor.variable) || is_clipped(tensor);
                Some((tensors.first()?.variable, tensors.iter().any(stays)))
            })
            .collect();
        let holders: Vec<(Task, u32)> =
            (0..count).map(|device| (Task::worker(0), device)).collect();
        let loads = vec![0; holders.len()];
        let shares = spread(placed, sized.collect(), &holders, loads, |id| !wholes[&id]);
        let mut all = Vec::new();
        for tensors in self.0.values() {
            let Some(of_first) = tensors.first().and_then(|first| shares.get(&first.variable))
            else {
                continue;
            };
            for tensor in tensors {
                let Some(task) = placed.node(tensor.variable).task else { continue };
                let of_task = |share: &Share| Share { holder: task, ..share.clone() };
                all.push((*tensor, of_first.iter().map(of_task).collect()));
            }
        }
        all
    }
}

/// The variable of the same task that is changed by `reduced`, if nothing else uses that but for what lies with the variable.
fn updated(placed: &Graph, users: &[NodeId], reduced: NodeId) -> Option<NodeId> {
    let task = placed.node(reduced).task;
    let mut variables = users.iter().filter_map(|user| match placed.node(*user).op {
        Op::Apply { .. } => placed.node(*user).inputs.first().map(|variable| variable.node),
        _ => None,
    });
    let variable = variables.next().filter(|_| variables.next().is_none())?;
    let node = placed.node(variable);
    let is_own = match node.hint {
        Hint::Replica(_) => true,
        Hint::Shared => placed.nodes().all(|(_, other)| other.task == task),
        _ => false,
    };
    let is_own = is_own && matches!(node.op, Op::Variable { .. }) && node.task == task;
    let goes_along = |user: &NodeId| placed.node(*user).hint == Hint::With(variable);
    (is_own && users.iter().all(goes_along)).then_some(variable)
}
