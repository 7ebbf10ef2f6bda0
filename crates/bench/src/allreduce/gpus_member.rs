//! A process of the measurement with a GPU: it fills its vector, meets the others, takes part, waits for its GPU, and compares
//! every element.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_collectives::{Collectives, Group, GroupError, GroupOptions};
use tensorwire_cuda::{
    CudaError, CudaKernels, CudaOptions, Gpus, Nccl, NcclError, NcclId, NcclReduction,
};
use tensorwire_graph::{
    AllReduceBy, Cluster, DeviceCrossing, DeviceTasks, Graph, GraphError, Hint, Op, Placement,
    Plan, PlanOptions, RunId, RunSpec, place, plan,
};
use tensorwire_kernels::{DeviceFailure, DeviceKernels, SharedDevice};
use tensorwire_launch::{Blame, JoinError, Member, MemberError, Peers, Transport, WireOptions};
use tensorwire_memory::{Arena, ArenaError, Buffer, LoanError, Place, Slab};
use tensorwire_runtime::{RunError, SessionError};
use tensorwire_tensor::{DType, Fact};
use tensorwire_train::{
    Exchange, KernelChoice, OpenPart, PartError, PartOptions, link_cost, open_part,
};

use super::gpus::{GPU_ALLREDUCE, GpuAllreduceSpec, GpuSystem};
use super::payload::Payload;

const SPIN: Duration = Duration::from_micros(200);
/// Longest that an operation may take: others may be comparing a large vector meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// All get what they give to their GPUs.
const GIVE: RunId = RunId(0);
/// All wait for each other.
const MEET: RunId = RunId(1);
const REDUCE: RunId = RunId(2);

/// Why a process of the measurement gave up.
#[derive(Debug, thiserror::Error)]
pub enum GpuAllreduceError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Device(#[from] DeviceFailure),
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error("NCCL is not to be looked for, or the first process told of no communicator")]
    NoNccl,
    #[error("cutting memory of the GPU: {0}")]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error(
        "step {step}: byte {at} of {bytes} after the all-reduce is not what was given: wrong data"
    )]
    Wrong { step: u64, at: usize, bytes: usize },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

/// What a member reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GpuReport {
    /// Of the measured operations.
    pub(super) times_ns: Vec<f64>,
    pub(super) vectors_verified: u64,
    pub(super) gpu: String,
    pub(super) gpus: usize,
    pub(super) version: Option<String>,
}

/// One process of the measurement, from its assignment to its report.
///
/// # Errors
/// When anything fails or an element was wrong; the launcher has been told then.
pub fn gpu_allreduce_member(member: &Member) -> Result<(), GpuAllreduceError> {
    let done = take_part(member);
    if let Err(error) = &done {
        let lost_peer = match error {
            GpuAllreduceError::Group(error) => error.lost_peer(),
            GpuAllreduceError::Part(error) => error.lost_peer(),
            GpuAllreduceError::Run(error) => error.lost_peer(),
            _ => None,
        };
        let blame = match error {
            GpuAllreduceError::Nccl(error) if error.is_of_others() => Blame::Others,
            _ => Blame::of(false, lost_peer),
        };
        member.fail(&error.to_string(), blame);
    }
    done
}

fn take_part(member: &Member) -> Result<(), GpuAllreduceError> {
    let spec: GpuAllreduceSpec = member.payload()?;
    let gpus = Gpus::find(spec.driver.as_deref())?;
    let ordinal = member.rank().index() % gpus.count().max(1);
    let options = CudaOptions { driver: spec.driver.clone(), ..CudaOptions::default() };
    let gpu = Arc::new(Mutex::new(CudaKernels::open(&options, ordinal)?));
    let mut report = GpuReport {
        times_ns: Vec::with_capacity(spec.repetitions),
        vectors_verified: 0,
        gpu: gpus.name(ordinal)?,
        gpus: gpus.count(),
        version: None,
    };
    match spec.system {
        GpuSystem::Tensorwire => {
            let mut edges = ByEdges::open(member, &spec, gpu)?;
            measure(&mut edges, member, &spec, &mut report)?;
            edges.part.close(soon())?;
        }
        GpuSystem::Nccl => {
            let mut nccl = ByNccl::open(member, &spec, gpu)?;
            report.version = Some(nccl.version.clone());
            measure(&mut nccl, member, &spec, &mut report)?;
            nccl.gpu.lock().leave();
            nccl.group.close(soon())?;
        }
    }
    member.finish(report)?;
    Ok(())
}

/// Who reduces here.
trait Subject {
    /// Puts into the GPU's vector what it gives.
    fn give(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), GpuAllreduceError>;
    /// Waits for all others.
    fn meet(&mut self) -> Result<(), GpuAllreduceError>;
    /// Reduces, and comes back when the GPU has the result.
    fn reduce(&mut self) -> Result<(), GpuAllreduceError>;
    /// Shows the result; returns what is made of it.
    fn result(
        &mut self,
        look: &mut dyn FnMut(&[u8]) -> Option<usize>,
    ) -> Result<Option<usize>, GpuAllreduceError>;
}

fn measure(
    subject: &mut dyn Subject,
    member: &Member,
    spec: &GpuAllreduceSpec,
    report: &mut GpuReport,
) -> Result<(), GpuAllreduceError> {
    let mut payload = Payload::new(spec.dtype, spec.ranks);
    let (own, all) = (payload.weight(Some(member.rank().0)), payload.weight(None));
    let bytes = spec.bytes;
    // fits: counts of repetitions
    let warm_up = spec.warm_up as u64;
    for step in 0..warm_up + spec.repetitions as u64 {
        subject.give(&mut |vector| payload.fill(vector, 0..bytes, own, step))?;
        subject.meet()?;
        let start_ns = Clock::now_ns();
        subject.reduce()?;
        let took_ns = Clock::now_ns().saturating_sub(start_ns);
        if step >= warm_up {
            // fits: durations far below 2^53
            report.times_ns.push(took_ns as f64);
        }
        let differs =
            subject.result(&mut |vector| payload.first_difference(vector, 0..bytes, all, step))?;
        if let Some(at) = differs {
            return Err(GpuAllreduceError::Wrong { step, at, bytes });
        }
        report.vectors_verified += 1;
    }
    // nobody leaves while others need its memory
    subject.meet()
}

/// By nodes and edges of a graph, as jobs have it.
struct ByEdges {
    part: OpenPart,
    device: SharedDevice,
    given: String,
    result: String,
}

/// Each worker has a vector of `spec`, and takes the sum of all; before that a word of all, so that all have met.
fn edges_plan(spec: &GpuAllreduceSpec) -> Result<Plan, GraphError> {
    let dtype = DType::from(spec.dtype);
    let mut graph = Graph::new();
    let [mut give, mut meet, mut reduce] = [const { Vec::new() }; 3];
    for worker in 0..spec.ranks {
        let hint = Hint::Replica(worker);
        let vectors = [(0, "word", 1), (1, "vector", spec.bytes / dtype.bytes())];
        for (vector, name, elements) in vectors {
            let named = |what: &str| format!("replica{worker}/{name}/{what}");
            let op = Op::Input { fact: Fact::known(dtype, &[elements]) };
            let fed = graph.add(&named("fed"), hint, op, &[])?;
            let given = graph.add(&named("given"), hint, Op::Scale { by: 1.0 }, &[fed.into()])?;
            // what a run is given goes nowhere: one pass over memory makes what does, and one, behind the mean, what each has
            // of its own
            let made = graph.add(&named("made"), hint, Op::Scale { by: 1.0 }, &[given.into()])?;
            let op = Op::AllReduce { vector };
            let mean = graph.add(&named("mean"), hint, op, &[made.into()])?;
            let by = f64::from(spec.ranks);
            let sum = graph.add(&named("sum"), hint, Op::Scale { by }, &[mean.into()])?;
            give.push(given);
            if vector == 0 { meet.push(sum) } else { reduce.push(sum) }
        }
    }
    let cluster = Cluster::Workers { workers: spec.ranks };
    let placed = place(&graph, cluster, Placement::default())?;
    let run = |name, roots, given, followed_by| RunSpec {
        name,
        roots,
        fetch_to: None,
        given,
        followed_by,
    };
    // placing keeps the nodes' ids
    let runs = [
        run("give", give.clone(), vec![], vec![1]),
        run("meet", meet, give.clone(), vec![2]),
        run("reduce", reduce, give, vec![0, 1]),
    ];
    let hosts = vec![0; spec.ranks as usize];
    let options = PlanOptions {
        devices: DeviceTasks::All,
        device_crossing: DeviceCrossing::Direct,
        all_reduce: AllReduceBy::Edges { groups: 1, split_above: Placement::SPLIT_ABOVE },
        ..Exchange::ZeroCopy.plan_options(Transport::Shm, &hosts)
    };
    plan(&placed, &cluster.tasks(), &runs, options)
}

impl ByEdges {
    fn open(
        member: &Member,
        spec: &GpuAllreduceSpec,
        gpu: Arc<Mutex<CudaKernels>>,
    ) -> Result<ByEdges, GpuAllreduceError> {
        let device: SharedDevice = gpu;
        let options = PartOptions {
            transport: Transport::Shm,
            exchange: Exchange::ZeroCopy,
            verbs: Default::default(),
            arrival: None,
            encrypt: false,
            spin: SPIN,
            kernels: KernelChoice::Cpu,
            // nothing is computed on the host
            threads: 1,
            step_deadline: PATIENCE,
            timeline: false,
            dynamic_bytes_max: 0,
            device: Some(device.clone()),
            devices_apart: false,
        };
        let part = open_part(member, &edges_plan(spec)?, options)?;
        let rank = member.rank();
        let name = |what: &str| format!("replica{rank}/vector/{what}");
        Ok(ByEdges { part, device, given: name("fed"), result: name("sum") })
    }

    fn run(&mut self, run: RunId) -> Result<(), GpuAllreduceError> {
        self.part.session.run(run)?;
        let mut device = self.device.lock();
        let mark = device.mark()?;
        Ok(device.wait(mark, soon())?)
    }
}

impl Subject for ByEdges {
    fn give(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), GpuAllreduceError> {
        let fed = self.part.session.node(&self.given)?;
        fill(&mut self.part.session.write(fed.into())?.1);
        self.run(GIVE)
    }

    fn meet(&mut self) -> Result<(), GpuAllreduceError> {
        self.run(MEET)
    }

    fn reduce(&mut self) -> Result<(), GpuAllreduceError> {
        self.run(REDUCE)
    }

    fn result(
        &mut self,
        look: &mut dyn FnMut(&[u8]) -> Option<usize>,
    ) -> Result<Option<usize>, GpuAllreduceError> {
        let sum = self.part.session.node(&self.result)?;
        let (_, bytes) = self.part.session.read(sum.into())?;
        Ok(look(&bytes))
    }
}

/// NCCL, called on one vector in its place, as its own tests do.
struct ByNccl {
    gpu: Arc<Mutex<CudaKernels>>,
    group: Group,
    vector: Buffer,
    /// In pinned memory.
    staged: Buffer,
    dtype: DType,
    version: String,
}

impl ByNccl {
    fn open(
        member: &Member,
        spec: &GpuAllreduceSpec,
        gpu: Arc<Mutex<CudaKernels>>,
    ) -> Result<ByNccl, GpuAllreduceError> {
        let nccl = Nccl::find(&spec.search().ok_or(GpuAllreduceError::NoNccl)?)?;
        let made = (member.rank() == Rank(0)).then(|| nccl.make_id()).transpose()?;
        let wire = WireOptions {
            transport: Transport::Shm,
            verbs: Default::default(),
            arrival: None,
            encrypt: false,
            spin: SPIN,
            queue_pairs: 1,
            peers: Peers::All,
        };
        let word = made.map_or(String::new(), |id| id.word());
        let ([fabric], words) = member.connect_telling([&wire], GPU_ALLREDUCE, Some(word))?;
        let id = words.first().and_then(|word| NcclId::of_word(word.as_deref()?));
        let id = id.ok_or(GpuAllreduceError::NoNccl)?;
        // fits: a job has far fewer than 2^32 members
        let members: Vec<Rank> = (0..member.world() as u32).map(Rank).collect();
        let options =
            GroupOptions { link: link_cost(Transport::Shm, false), ..GroupOptions::default() };
        let group = Group::open(fabric, &members, member.rank().index(), options, soon())?;
        let mut opened = gpu.lock();
        opened.join((&nccl, &id), (member.rank().index(), member.world()), soon())?;
        let vector = whole(&opened.alloc(0, spec.bytes)?, spec.bytes)?;
        let staged = whole(&opened.alloc_on_host(spec.bytes)?, spec.bytes)?;
        drop(opened);
        let version = nccl.version().to_string();
        let dtype = DType::from(spec.dtype);
        Ok(ByNccl { gpu, group, vector, staged, dtype, version })
    }

    fn copy(&self, from: &Buffer, to: &Buffer) -> Result<(), GpuAllreduceError> {
        let (from, to) = (from.lend_to_device()?, to.lend_to_device_for_writing()?);
        let mut gpu = self.gpu.lock();
        let copy = gpu.copy(from, to)?;
        Ok(gpu.wait(copy, soon())?)
    }
}

impl Subject for ByNccl {
    fn give(&mut self, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), GpuAllreduceError> {
        fill(&mut self.staged.write()?);
        self.copy(&self.staged, &self.vector)
    }

    fn meet(&mut self) -> Result<(), GpuAllreduceError> {
        Ok(self.group.barrier(soon())?)
    }

    fn reduce(&mut self) -> Result<(), GpuAllreduceError> {
        let deadline = soon();
        let mut gpu = self.gpu.lock();
        let vector = self.vector.lend_to_device_for_writing()?;
        gpu.start_all_reduces(vec![(vector, self.dtype)], NcclReduction::Sum)?;
        while !gpu.has_told_group()? {
            if deadline.passed() {
                return Err(NcclError::Aborted.into());
            }
            std::hint::spin_loop();
        }
        let mark = gpu.mark()?;
        Ok(gpu.wait(mark, deadline)?)
    }

    fn result(
        &mut self,
        look: &mut dyn FnMut(&[u8]) -> Option<usize>,
    ) -> Result<Option<usize>, GpuAllreduceError> {
        self.copy(&self.vector, &self.staged)?;
        Ok(look(&self.staged.read()?))
    }
}

fn whole(slab: &Slab, bytes: usize) -> Result<Buffer, GpuAllreduceError> {
    let buffers = Arena::new(slab, &[Place { offset: 0, bytes }])?.into_buffers();
    Ok(buffers.into_iter().next().expect("as many as places"))
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
