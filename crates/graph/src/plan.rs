//! The plan: what every process of a job does, as data. Made by each process on its own from the same
//! graph, and the same everywhere.

mod digest;
mod draft;
mod planner;

use std::sync::Arc;

use tensorwire_base::Space;
use tensorwire_tensor::{DType, Fact};

use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Task};
use crate::op::{EdgeId, Op};
use crate::pass::memory::{MemoryPlan, SendFrom};
use crate::pass::reduce::AllReduceBy;
use crate::pass::reference::{Transfer, WhyWrite};
use crate::pass::rings::AmongDevices;
use crate::pass::space::{DeviceCrossing, DeviceTasks};
use crate::pass::verify::verify;
use planner::Planner;

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

/// How an edge's memory is kept from being overwritten while it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The graph's own dependencies order the next write behind the last read.
    Proved,
    /// They do not, for the named readers: a credit (a control edge back) was added.
    Credit { readers: Vec<String> },
    /// The receiver says when it has read the tensor; until then the sender keeps it.
    Acknowledged,
    /// Nothing was proved and nothing added: [`ReuseRule::Trusted`].
    Trusted,
    /// Nothing to overwrite: no bytes cross.
    Empty,
}

/// What is done where the graph's own dependencies do not guard an edge's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReuseRule {
    /// A credit is added.
    #[default]
    Proved,
    /// Nothing: the paper's argument (§4) is taken on trust. Reads torn data where it does not hold;
    /// kept to show that it does.
    Trusted,
}

/// Whether a tensor can be read where its sender keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// The parts share no memory.
    #[default]
    None,
    /// All parts do, and no use is to be made of it.
    Unused,
    /// All parts do.
    Used,
    /// Those whose tasks are on one host do: by task, the number of its host.
    UsedOnHosts(Arc<[u32]>),
}

impl SharedMemory {
    /// True if a tensor of one part can be read by the other where it lies.
    fn between(&self, part: usize, other: usize) -> bool {
        match self {
            SharedMemory::None => false,
            SharedMemory::Unused | SharedMemory::Used => true,
            SharedMemory::UsedOnHosts(hosts) => {
                hosts.get(part).is_some_and(|host| hosts.get(other) == Some(host))
            }
        }
    }
}

/// What a plan may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    pub send_from: SendFrom,
    pub shared_memory: SharedMemory,
    /// Variables are changed by others than this plan's nodes, at any time: the lanes of asynchronous
    /// training.
    pub variables_shared: bool,
    pub reuse: ReuseRule,
    /// Who computes on a device.
    pub devices: DeviceTasks,
    pub device_crossing: DeviceCrossing,
    /// Who reduces what the devices of one worker have.
    pub among_devices: AmongDevices,
    /// Who does what groups all-reduce.
    pub all_reduce: AllReduceBy,
    /// What tensors of f32 cross as, where that is another type.
    pub wire: Option<DType>,
    /// A tensor that several tasks of another host need crosses to it once: the task that it comes to first sends it on to the
    /// others. Of tasks that share memory by their hosts ([`SharedMemory::UsedOnHosts`]) alone.
    pub relays: bool,
}

impl PlanOptions {
    /// By task, the number of its host, where what comes to one of a host is sent on from there.
    fn relaying_hosts(&self) -> Option<&[u32]> {
        match &self.shared_memory {
            SharedMemory::UsedOnHosts(hosts) if self.relays => Some(hosts),
            _ => None,
        }
    }
}

/// An edge between two parts.
#[derive(Clone, Debug)]
pub struct Edge {
    pub id: EdgeId,
    /// The tensor's name: that of the node that makes it; `^name` for a control.
    pub name: String,
    pub fact: Fact,
    /// Part (index into [`Plan::parts`]) and node that send and receive.
    pub from: usize,
    pub to: usize,
    pub send: NodeId,
    pub recv: NodeId,
    pub transfer: Transfer,
    pub reuse: Reuse,
    /// Where the tensor lies, at both ends.
    pub space: Space,
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
    pub send_from: SendFrom,
}

/// What crosses in one run, in both directions, and what is copied for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTraffic {
    /// Bytes that are written into receivers' buffers.
    pub written: u64,
    /// Bytes that are read where their sender keeps them.
    pub by_reference: u64,
    /// Tensors whose size is known when they exist.
    pub dynamic: usize,
    /// Sends, those of no bytes included.
    pub sends: usize,
    /// Bytes that are copied between the host's memory and a device's, as far as their sizes are known.
    pub to_device: u64,
    pub to_host: u64,
    /// Bytes that are copied between devices of one process.
    pub between_devices: u64,
}

impl Edge {
    /// The tensor's bytes, none where they are known only when it exists.
    pub fn bytes(&self) -> Option<usize> {
        // the plan checked every static size
        self.fact.spec().and_then(Result::ok).map(|spec| spec.bytes())
    }
}

impl Plan {
    /// What crosses and is copied in one run.
    pub fn traffic(&self, run: RunId) -> RunTraffic {
        let mut sum = RunTraffic::default();
        for edge in &self.edges {
            if self.runs[run.0].nodes[edge.from].binary_search(&edge.send).is_err() {
                continue;
            }
            sum.sends += 1;
            // fits: the sums are of sizes that are each allocated here
            let bytes = edge.bytes().unwrap_or_default() as u64;
            match edge.transfer {
                Transfer::Write(_) => sum.written += bytes,
                Transfer::Reference => sum.by_reference += bytes,
                Transfer::Dynamic => sum.dynamic += 1,
                Transfer::Signal => {}
            }
        }
        for (part, nodes) in self.parts.iter().zip(&self.runs[run.0].nodes) {
            for &id in nodes {
                let node = part.graph.node(id);
                let Op::CopyTo { space } = node.op else { continue };
                let from = node.inputs.first().map(|input| part.graph.node(input.node).space);
                let bytes = part.graph.fact(id.into()).spec().and_then(Result::ok);
                // fits: as above
                let bytes = bytes.map_or(0, |spec| spec.bytes()) as u64;
                match (from, space) {
                    (Some(Space::Device(_)), Space::Device(_)) => sum.between_devices += bytes,
                    (_, Space::Device(_)) => sum.to_device += bytes,
                    (_, Space::Host) => sum.to_host += bytes,
                }
            }
        }
        sum
    }
}

/// Plans a placed graph over `tasks`.
///
/// # Errors
/// When a size does not fit an address space, or nodes wait for each other in a circle.
pub fn plan(
    graph: &Graph,
    tasks: &[Task],
    runs: &[RunSpec],
    options: PlanOptions,
) -> Result<Plan, GraphError> {
    verify(graph, "place")?;
    let with =
        |written: Option<WhyWrite>| Planner { tasks, options: &options, written }.plan(graph, runs);
    match (&options.shared_memory, options.send_from) {
        (SharedMemory::None, _) => with(Some(WhyWrite::Apart)),
        (SharedMemory::Unused, _) | (_, SendFrom::Staging) => with(Some(WhyWrite::Told)),
        (SharedMemory::Used | SharedMemory::UsedOnHosts(_), SendFrom::Origin) => match with(None) {
            // waiting for readers at the other end may close a circle that writing does not
            Err(GraphError::Cycle { .. }) => with(Some(WhyWrite::Circle)),
            planned => planned,
        },
    }
}
