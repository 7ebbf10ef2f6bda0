//! Memory spaces: which nodes compute on a device, and the copies between a device's memory and the host's that this
//! takes. What is fed lies in the host's memory, and so does what a group reduces that is none of devices; a variable lies where
//! its task computes. Of a task with several devices each copy of the model is on its own, and what is no copy's on the first.
//! What crosses between processes goes by way of the host, or from device to device of the same number.
//! Each tensor is copied at most once to the host and to each device, whoever uses it there.

use std::collections::HashMap;

use tensorwire_base::Space;

use super::infer::infer;
use super::reduce::AllReduceBy;
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Job, Node, NodeId, Output, Task};
use crate::op::{Family, Kind, Op};
use crate::plan::RunSpec;

/// Which processes compute on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceTasks {
    #[default]
    None,
    /// The workers do, and servers on the host.
    Workers,
    /// All do.
    All,
}

/// How tensors go from one process's device to another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceCrossing {
    /// By way of the host's memory, at both ends.
    #[default]
    ByHost,
    /// From device to device, by whatever their exchange has.
    Direct,
}

impl DeviceTasks {
    /// True if the task computes on a device.
    pub fn has(self, task: Task) -> bool {
        match self {
            DeviceTasks::None => false,
            DeviceTasks::Workers => task.job == Job::Worker,
            DeviceTasks::All => true,
        }
    }
}

/// A placed graph in which every node has its space, with copies where tensors go from one to the other, and the runs on
/// its nodes.
///
/// # Errors
/// When a node has no task.
pub(crate) fn spread_over_spaces(
    placed: &Graph,
    runs: &[RunSpec],
    (devices, crossing, all_reduce): (DeviceTasks, DeviceCrossing, AllReduceBy),
) -> Result<(Graph, Vec<RunSpec>), GraphError> {
    if devices == DeviceTasks::None {
        return Ok((placed.clone(), runs.to_vec()));
    }
    let mut spreader = Spreader {
        placed,
        devices,
        crossing,
        reduces_on_devices: matches!(all_reduce, AllReduceBy::Devices { .. }),
        out: Graph::continued(placed),
        moved: Vec::with_capacity(placed.len()),
        devices_of: devices_of(placed),
        counts: device_counts(placed),
        copies: HashMap::new(),
    };
    for id in placed.ids() {
        spreader.take(id)?;
    }
    let fetches = runs.iter().filter_map(|run| run.fetch_to.map(|to| (run, to)));
    let fetches = fetches.flat_map(|(run, to)| run.roots.iter().map(move |root| (*root, to)));
    let fetches: Vec<(NodeId, Task)> = fetches.collect();
    let runs = runs.iter().map(|run| spreader.run(run, &fetches)).collect::<Result<_, _>>()?;
    Ok((spreader.out, runs))
}

struct Spreader<'a> {
    placed: &'a Graph,
    devices: DeviceTasks,
    crossing: DeviceCrossing,
    /// Devices all-reduce among themselves.
    reduces_on_devices: bool,
    out: Graph,
    /// By node of `placed`: the same in `out`.
    moved: Vec<NodeId>,
    /// By node of `placed`: which of its task's devices it is on, should that have some.
    devices_of: Vec<u32>,
    /// By task: how many devices it has, should it have some.
    counts: HashMap<Task, u32>,
    /// What an output of `out` is copied to at a task.
    copies: HashMap<(Output, Task, Space), Output>,
}

impl Spreader<'_> {
    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.placed.node(id);
        let task = task_of(node)?;
        let space = self.space_of(node, task, self.devices_of[id.index()]);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            let input = Output { node: self.moved[input.node.index()], index: input.index };
            inputs.push(self.at(input, task, space)?);
        }
        let moved = |id: &NodeId| self.moved[id.index()];
        let controls = node.controls.iter().map(moved).collect();
        let hint = match node.hint {
            Hint::With(other) => Hint::With(moved(&other)),
            hint => hint,
        };
        let new = self.out.push(Node { inputs, controls, hint, space, ..node.clone() })?;
        self.moved.push(new);
        Ok(())
    }

    /// Where a node computes, or keeps what it holds.
    fn space_of(&self, node: &Node, task: Task, device: u32) -> Space {
        if !self.devices.has(task) {
            return Space::Host;
        }
        match node.op.facts().kind {
            // a user's own kernels compute on slices, where nothing else is said
            Kind::Kernel(Family::Custom) if !computes_on_devices(&node.op) => Space::Host,
            Kind::Kernel(_) => Space::Device(device),
            Kind::Group if self.reduces_on_devices && matches!(node.op, Op::AllReduce { .. }) => {
                Space::Device(device)
            }
            Kind::State if matches!(node.op, Op::Variable { .. }) => Space::Device(device),
            Kind::View => match node.inputs.first() {
                Some(input) => {
                    let input = Output { node: self.moved[input.node.index()], index: input.index };
                    match self.comes_in(input, task) {
                        // what comes from several devices is joined on one
                        Space::Device(_) if node.op == Op::Join => Space::Device(device),
                        space => space,
                    }
                }
                None => Space::Host,
            },
            _ => Space::Host,
        }
    }

    /// The space in which an output is at a task without a copy made there.
    fn comes_in(&self, output: Output, task: Task) -> Space {
        let node = self.out.node(output.node);
        let is_known = self.out.fact(output).spec().is_some();
        let reaches = match self.crossing {
            DeviceCrossing::ByHost => false,
            // of first devices alone what has no size yet
            DeviceCrossing::Direct => is_known || node.space == Space::Device(0),
        };
        // peers have it on the device of that number
        let count = self.counts.get(&task).copied().unwrap_or(1);
        let goes = reaches
            && self.devices.has(task)
            && matches!(node.space, Space::Device(device) if device < count);
        match node.task == Some(task) || goes {
            true => node.space,
            false => Space::Host,
        }
    }

    /// An output as a node at `task` takes it that computes in `space`.
    fn at(&mut self, output: Output, task: Task, space: Space) -> Result<Output, GraphError> {
        let home = task_of(self.out.node(output.node))?;
        let comes_in = self.comes_in(output, task);
        let there = self.out.node(output.node).space;
        if comes_in == space {
            return Ok(if there == comes_in {
                output
            } else {
                self.copy(output, home, Space::Host)?
            });
        }
        if comes_in.is_device() && space.is_device() {
            // from one of the task's devices to another
            return self.copy(output, task, space);
        }
        let host = match there {
            Space::Device(_) => self.copy(output, home, Space::Host)?,
            Space::Host => output,
        };
        match space {
            Space::Device(_) => self.copy(host, task, space),
            Space::Host => Ok(host),
        }
    }

    fn copy(&mut self, of: Output, task: Task, to: Space) -> Result<Output, GraphError> {
        if let Some(&copy) = self.copies.get(&(of, task, to)) {
            return Ok(copy);
        }
        let node = self.out.node(of.node);
        let index = if of.index == 0 { String::new() } else { format!(":{}", of.index) };
        let name = match to {
            Space::Host => format!("{}{index} to the host", node.name),
            Space::Device(0) => format!("{}{index} to {task}'s device", node.name),
            Space::Device(device) => format!("{}{index} to {task}'s device {device}", node.name),
        };
        let op = Op::CopyTo { space: to };
        let facts = infer(&name, &op, &[self.out.fact(of).clone()])?;
        // with whoever made it where both are on one task
        let hint = if node.task == Some(task) { Hint::With(of.node) } else { Hint::Task(task) };
        let made = self.out.push(Node {
            name,
            op,
            inputs: vec![of],
            controls: vec![],
            hint,
            task: Some(task),
            facts,
            piece: None,
            space: to,
        })?;
        self.copies.insert((of, task, to), made.into());
        Ok(made.into())
    }

    /// A run on what became of its nodes. What is fetched from a device of another task comes by way of its host, if the two
    /// share no memory. What is fetched and used on a device is copied there once, and is given from then on.
    fn run(&mut self, run: &RunSpec, fetches: &[(NodeId, Task)]) -> Result<RunSpec, GraphError> {
        let mut roots = Vec::with_capacity(run.roots.len());
        for root in &run.roots {
            let root = self.moved[root.index()];
            let node = self.out.node(root);
            let goes = run.fetch_to.filter(|to| node.task != Some(*to) && !node.facts.is_empty());
            let by_host = goes.is_some_and(|to| self.comes_in(root.into(), to) != node.space);
            roots.push(match by_host {
                true => {
                    let home = task_of(node)?;
                    self.copy(root.into(), home, Space::Host)?.node
                }
                false => root,
            });
            if let (Some(_), false) = (goes, by_host) {
                // what the host has of it is used there as well
                let home = task_of(self.out.node(root))?;
                let copy = self.copies.get(&(root.into(), home, Space::Host));
                roots.extend(copy.map(|copy| copy.node));
            }
            roots.extend(run.fetch_to.and_then(|to| self.copied_to_device(root, to)));
        }
        let mut given = Vec::with_capacity(run.given.len());
        for old in &run.given {
            let id = self.moved[old.index()];
            given.push(id);
            let home = task_of(self.out.node(id))?;
            // where it was sent, it came from the host
            given.extend(self.copies.get(&(id.into(), home, Space::Host)).map(|copy| copy.node));
            let fetched = fetches.iter().filter(|(fetched, _)| fetched == old);
            given.extend(fetched.filter_map(|(_, to)| self.copied_to_device(id, *to)));
        }
        Ok(RunSpec { roots, given, ..run.clone() })
    }

    /// The copy of a node's first output on the first device of a task, which evaluates, if something there uses it.
    fn copied_to_device(&self, id: NodeId, task: Task) -> Option<NodeId> {
        let node = self.out.node(id);
        let (home, of) = (node.task?, Output::from(id));
        let from = match home == task && node.space.is_device() {
            // from another of its devices
            true => of,
            false => self.copies.get(&(of, home, Space::Host)).copied().unwrap_or(of),
        };
        let copy = self.copies.get(&(from, task, Space::Device(0)))?.node;
        (home != task || node.space.is_device()).then_some(copy)
    }
}

/// By node: which of its task's devices it is on, should that have some.
pub(in crate::pass) fn devices_of(placed: &Graph) -> Vec<u32> {
    let mut devices = Vec::with_capacity(placed.len());
    for (_, node) in placed.nodes() {
        devices.push(match node.hint {
            Hint::Device { device, .. } => device,
            // it comes after that one
            Hint::With(other) => devices.get(other.index()).copied().unwrap_or_default(),
            Hint::Shared | Hint::Replica(_) | Hint::Task(_) => 0,
        });
    }
    devices
}

/// Which of its task's devices a node is on, as [`devices_of`] says of all.
pub(in crate::pass) fn device_of(placed: &Graph, id: NodeId) -> u32 {
    match placed.node(id).hint {
        Hint::Device { device, .. } => device,
        Hint::With(other) => device_of(placed, other),
        Hint::Shared | Hint::Replica(_) | Hint::Task(_) => 0,
    }
}

/// By task: how many devices its nodes are on.
fn device_counts(placed: &Graph) -> HashMap<Task, u32> {
    let mut counts = HashMap::new();
    for ((_, node), device) in placed.nodes().zip(devices_of(placed)) {
        let Some(task) = node.task else { continue };
        let count = counts.entry(task).or_insert(1);
        *count = (*count).max(device + 1);
    }
    counts
}

fn task_of(node: &Node) -> Result<Task, GraphError> {
    node.task.ok_or_else(|| GraphError::Unplaced { node: node.name.clone() })
}

/// True of a user's operator that devices compute.
fn computes_on_devices(op: &Op) -> bool {
    matches!(op, Op::Custom(custom) if custom.computes_on_devices())
}
