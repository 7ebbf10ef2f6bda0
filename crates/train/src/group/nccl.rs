//! A group whose GPUs reduce by NCCL: how they find each other, and a session's all-reduces as their port. NCCL makes its own
//! connections; what one finds the others by goes over the job's sealed control connections, and to nobody else.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_cuda::{CudaKernels, Nccl, NcclError, NcclId, NcclReduction, OpenedGpus};
use tensorwire_graph::{NodeId, Op, Part as PlanPart};
use tensorwire_launch::{Member, Role};
use tensorwire_memory::Buffer;
use tensorwire_runtime::{Events, ExchangeError, GroupOps, Ports};
use tensorwire_tensor::DType;

use super::ClientError;
use crate::carried::Carried;
use crate::config::TrainConfig;
use crate::topology::Topology;

/// How often to ask whether something has happened.
const ASK_AGAIN: Duration = Duration::from_micros(50);

/// NCCL in a worker, and by what its group's members will find each other, if they are to be told here.
pub(crate) struct NcclLibrary {
    nccl: Arc<Nccl>,
    made: Option<NcclId>,
}

/// A member's place in a communicator that is to be.
pub(crate) struct NcclPlace {
    nccl: Arc<Nccl>,
    id: NcclId,
    me: usize,
    size: usize,
}

impl NcclLibrary {
    /// Loads it, if the member is a worker.
    pub(crate) fn open(
        member: &Member,
        config: &TrainConfig,
        topology: &Topology,
    ) -> Result<Option<NcclLibrary>, ClientError> {
        let (Role::Worker(worker), Some(search)) =
            (topology.role(member.rank()), config.cuda_libraries.search())
        else {
            return Ok(None);
        };
        let nccl = Nccl::find(&search)?;
        let is_first = topology.group_of(worker).first() == Some(&member.rank());
        let made = is_first.then(|| nccl.make_id()).transpose()?;
        let (version, from) = (nccl.version(), nccl.looked_for());
        // the others' own words come with their errors
        let _ = member.say(&format!("gradients are all-reduced by NCCL {version} ({from})"));
        Ok(Some(NcclLibrary { nccl, made }))
    }

    /// What all members of the job are told.
    pub(crate) fn word(&self) -> String {
        self.made.map_or(String::new(), |id| id.word())
    }

    /// The place of a member in its group, with what all have told.
    pub(crate) fn place(
        self,
        me: Rank,
        ranks: &[Rank],
        words: &[Option<String>],
    ) -> Result<NcclPlace, ClientError> {
        let first = ranks.first().and_then(|first| words.get(first.index())?.as_deref());
        let id = first.and_then(NcclId::of_word).ok_or(ClientError::NcclId)?;
        let me = ranks.iter().position(|rank| *rank == me).ok_or(ClientError::NcclId)?;
        Ok(NcclPlace { nccl: self.nccl, id, me, size: ranks.len() })
    }
}

/// Has a worker's GPU join the others of its group; returns the ports by which it does what is its part of the plan. All
/// members do so.
pub(crate) fn nccl_ports(
    place: &NcclPlace,
    gpus: &OpenedGpus,
    part: &PlanPart,
    carried: Carried,
    deadline: Deadline,
) -> Result<Ports, ClientError> {
    let NcclPlace { nccl, id, me, size } = place;
    let joined = gpus.with_first(|gpu| gpu.join((nccl, id), (*me, *size), deadline));
    joined.unwrap_or(Err(NcclError::Aborted))?;
    let operations = NcclOps {
        gpus: gpus.clone(),
        size: *size,
        calls: calls(part),
        waiting: HashMap::new(),
        telling: Vec::new(),
        carried,
    };
    Ok(Ports::new(NcclEvents { gpus: gpus.clone() }).with_group(operations))
}

/// An all-reduce of a part, and with which others it is told.
#[derive(Clone, Copy, Debug)]
struct Call {
    vector: u32,
    dtype: DType,
    /// The number of the call to NCCL.
    call: usize,
    /// How many are told by it.
    count: usize,
}

/// The all-reduces of a part, by node. Those that wait for the same one are told at once.
fn calls(part: &PlanPart) -> HashMap<NodeId, Call> {
    let graph = &part.graph;
    let is_reduced = |id: &NodeId| matches!(graph.node(*id).op, Op::AllReduce { .. });
    let mut together: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
    for (id, node) in graph.nodes().filter(|(id, _)| is_reduced(id)) {
        let before = node.controls.iter().copied().find(is_reduced);
        together.entry(before).or_default().push(id);
    }
    let mut calls = HashMap::new();
    for (call, nodes) in together.into_values().enumerate() {
        let count = nodes.len();
        for id in nodes {
            let Some(vector) = graph.node(id).op.vector() else { continue };
            let dtype = graph.fact(id.into()).dtype;
            calls.insert(id, Call { vector, dtype, call, count });
        }
    }
    calls
}

/// The all-reduces of a session.
struct NcclOps {
    gpus: OpenedGpus,
    size: usize,
    calls: HashMap<NodeId, Call>,
    /// By the number of their call: vectors that wait for others that are told with them, by their numbers.
    waiting: HashMap<usize, BTreeMap<u32, (NodeId, Buffer, DType)>>,
    /// What NCCL tells the GPU now.
    telling: Vec<NodeId>,
    carried: Carried,
}

impl NcclOps {
    fn on_gpu<T>(
        &self,
        with: impl FnOnce(&mut CudaKernels) -> Result<T, NcclError>,
    ) -> Result<T, ExchangeError> {
        on_gpu(&self.gpus, with)
    }
}

fn on_gpu<T>(
    gpus: &OpenedGpus,
    with: impl FnOnce(&mut CudaKernels) -> Result<T, NcclError>,
) -> Result<T, ExchangeError> {
    let done = gpus.with_first(with).unwrap_or(Err(NcclError::Aborted));
    done.map_err(|error| {
        let what = error.to_string();
        match error.is_of_others() {
            true => ExchangeError::Others { what },
            false => ExchangeError::Other { peer: None, what },
        }
    })
}

/// The GPU comes free of its group before the memory of its vectors goes.
impl Drop for NcclOps {
    fn drop(&mut self) {
        self.gpus.with_first(CudaKernels::abandon_group);
    }
}

impl GroupOps for NcclOps {
    fn start(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError> {
        let unknown = |what| ExchangeError::Other { peer: None, what };
        let Some(Call { vector, dtype, call, count }) = self.calls.get(&node).copied() else {
            return Err(unknown(format!("node {} is none that the group knows", node.0)));
        };
        let waiting = self.waiting.entry(call).or_default();
        waiting.insert(vector, (node, tensor.clone(), dtype));
        if waiting.len() < count {
            return Ok(());
        }
        let all: Vec<_> = std::mem::take(waiting).into_values().collect();
        let mut vectors = Vec::with_capacity(all.len());
        for (_, tensor, dtype) in &all {
            self.carried.reduced(tensor.bytes(), self.size);
            // lent while NCCL is asked. Until it has told the stream nobody else tells it anything (`holds`), and the stream's
            // order stands for the vector then
            let loan = tensor.lend_to_device_for_writing();
            vectors.push((loan.map_err(|error| unknown(error.to_string()))?, *dtype));
        }
        self.on_gpu(|gpu| gpu.start_all_reduces(vectors, NcclReduction::Mean))?;
        self.telling = all.into_iter().map(|(node, ..)| node).collect();
        Ok(())
    }

    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        if self.holds() && self.on_gpu(CudaKernels::has_told_group)? {
            finished.append(&mut self.telling);
        }
        Ok(())
    }

    fn holds(&self) -> bool {
        !self.telling.is_empty()
    }
}

/// What happens on a GPU and in its group, as a source of [`Events`]: nobody tells, so that it is asked.
struct NcclEvents {
    gpus: OpenedGpus,
}

impl Events for NcclEvents {
    fn observe(&mut self) {}

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        std::thread::sleep(ASK_AGAIN.min(deadline.remaining()));
        on_gpu(&self.gpus, CudaKernels::has_told_group).map(drop)
    }
}
