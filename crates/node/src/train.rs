//! A training job: prepared once from its configuration, then run by one process alone or by members
//! that each do their part of the plan.

mod averaging;
mod dist;
mod lanes;
mod listener;
mod loader;
mod replicas;
mod trainer;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank, human_bytes};
use tensorwire_graph::{Cluster, Plan, PlanOptions, SharedMemory, place, plan};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_kvstore::StoreError;
use tensorwire_memory::{Copies, CopyPurpose, Slab, TensorError};
use tensorwire_models::data::{Batches, Data, DataError, Shape, Source};
use tensorwire_models::{Model, Program, ProgramSpec};
use tensorwire_runtime::{RunError, Session, SessionError, SessionOptions, Storage};

use crate::config::{self, ConfigError, Schedule, Seat, Strategy, TrainConfig};
use crate::group::ClientError;
use crate::launch::{JobError, JobOutcome, JobSpec, Update, launch};
use crate::member::{JoinError, Member};
use crate::open_part::{OpenLanes, PartError, PartOptions};
use crate::report::{Polling, Progress, TrainReport};
use crate::store::{OpenStoreError, StoreJob};
use crate::trace::{Collector, TraceError};
use crate::weights::{Weights, WeightsError};
use crate::whole_file;

use listener::Caller;
use trainer::Trainer;

pub use dist::StoreValue;

/// Longest that one step may wait for peers that are alive. Dead ones are noticed in seconds.
const STEP_DEADLINE: Duration = Duration::from_secs(600);
/// Most memory that tensors of unknown size may take in each arena of a process, in bytes.
const DYNAMIC_BYTES_MAX: usize = 4 << 30;
/// How long a wait spins before it blocks, where every process has a core.
const SPIN: Duration = Duration::from_micros(50);

/// A job that is ready to run: its data loaded, its graph planned.
#[derive(Debug)]
pub struct Prepared {
    pub config: TrainConfig,
    pub program: Program,
    pub plan: Plan,
    pub cluster: Cluster,
    shape: JobShape,
    pub data: Data,
}

/// What the data decide about the graph; members that need no data get it from the launcher.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct JobShape {
    samples: Shape,
    steps: u64,
    steps_per_epoch: u64,
}

/// What every member of a training job is told.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    config: TrainConfig,
    shape: JobShape,
}

/// Why training ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("'{name}': {source}")]
    Tensor { name: String, source: TensorError },
    #[error("step {step}: the loss is {loss}: training diverged; lower --lr")]
    Diverged { step: u64, loss: f32 },
    #[error(transparent)]
    OpenStore(#[from] OpenStoreError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
    #[error("interrupted")]
    Interrupted,
    #[error("the thread that makes batches cannot be started: {0}; free memory or processes")]
    Loader(std::io::Error),
    #[error("step {step}: the thread that makes batches is gone")]
    LoaderGone { step: u64 },
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl TrainError {
    /// Did the user's command make this, so that another command mends it?
    pub fn is_user_error(&self) -> bool {
        match self {
            TrainError::Config(_) | TrainError::Weights(_) => true,
            TrainError::Part(error) => error.is_user_error(),
            _ => false,
        }
    }

    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            TrainError::Run(error) => error.lost_peer(),
            TrainError::Part(error) => error.lost_peer(),
            TrainError::OpenStore(error) => error.lost_peer(),
            TrainError::Store(error) => error.lost_peer(),
            TrainError::Client(error) => error.lost_peer(),
            _ => None,
        }
    }
}

impl Prepared {
    /// Checks a configuration, loads its data and plans its graph.
    ///
    /// # Errors
    /// The user's mistake, with how to mend it.
    pub fn new(config: TrainConfig) -> Result<Prepared, ConfigError> {
        config.check()?;
        // opened once more by whoever computes; here it is looked for before anything is started
        Kernels::open(kernel_choice(&config), 1)?;
        let model = model(&config)?;
        let source: Source = config.data.parse()?;
        let data = source.open(&model.sample_shape(), config.seed)?;
        let samples = data.shape();
        model.check(&samples)?;
        let batches = batches(&data, &config)?;
        let steps_per_epoch = batches.steps_per_epoch();
        let steps = match config.schedule {
            Schedule::Steps(steps) => steps,
            Schedule::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch),
        };
        let shape = JobShape { samples, steps, steps_per_epoch };
        let (program, cluster, plan) = build(&config, shape)?;
        if config.strategy == Strategy::Ps {
            config.exchange.check_plan(&plan)?;
        }
        check_memory(&program, &plan, &config)?;
        if let Some(path) = &config.load {
            Weights::open(path, program.weights())?;
        }
        if let Some(path) = &config.save {
            let failed = |source| ConfigError::Save { path: path.clone(), source };
            whole_file::check_writable(path).map_err(failed)?;
        }
        if let Some(path) = &config.store.checkpoint {
            let failed = |source| ConfigError::Checkpoint { path: path.clone(), source };
            whole_file::check_writable(path).map_err(failed)?;
        }
        if let Some(trace) = &config.trace {
            let failed = |source| ConfigError::Trace { path: trace.path.clone(), source };
            whole_file::check_writable(&trace.path).map_err(failed)?;
        }
        Ok(Prepared { config, program, plan, cluster, shape, data })
    }

    /// Steps of the whole job.
    pub fn steps(&self) -> u64 {
        self.shape.steps
    }

    pub fn steps_per_epoch(&self) -> u64 {
        self.shape.steps_per_epoch
    }

    /// Numbers that are learned.
    pub fn parameters(&self) -> u64 {
        // fits: element counts of tensors in memory
        self.program.variables.iter().map(|v| v.spec.elements() as u64).sum()
    }

    /// What each member is, by rank.
    pub fn roles(&self) -> Vec<String> {
        self.config.roles()
    }

    /// What computes in a worker.
    pub fn kernels(&self) -> String {
        let local = self.config.strategy == Strategy::Local;
        let threads = if local { cores() } else { default_threads(&self.config, Rank(0)) };
        let threads = self.config.threads.unwrap_or(threads);
        let opened = Kernels::open(kernel_choice(&self.config), threads);
        opened.map_or_else(|error| error.to_string(), |kernels| kernels.description())
    }

    /// Do all processes compute the same bits as one that computes alone? Not where threads are shared out
    /// and oneDNN may compute.
    pub fn has_bits_of_one(&self) -> bool {
        let ours =
            matches!(kernel_choice(&self.config), KernelChoice::Cpu | KernelChoice::Reference);
        ours || self.config.threads.is_some()
    }

    /// What the members are told.
    pub fn payload(&self) -> serde_json::Value {
        let payload = Payload { config: self.config.clone(), shape: self.shape };
        serde_json::to_value(payload).unwrap_or_default()
    }
}

/// The tensors of all processes on this host must fit it together. What other hosts have is seen there.
fn check_memory(program: &Program, plan: &Plan, config: &TrainConfig) -> Result<(), ConfigError> {
    let here = (0..config.world()).map(Rank).filter(|rank| config.hosts.is_here(*rank));
    // a part once for each lane
    let parts = here.flat_map(|rank| match (config.strategy, config.seat(rank)) {
        (Strategy::Local, _) => vec![0],
        (Strategy::Ps, _) => {
            let lanes = config.lanes(rank);
            vec![lanes.part; lanes.ranks.len()]
        }
        (_, Seat::Worker(worker)) => vec![config.part(worker)],
        // what its servers hold is known when they are told
        (_, Seat::Server(_)) => vec![],
    });
    let tensors = parts.map(|part| &plan.parts[part].memory);
    // fits: each is checked against the address space; the sum saturates
    let beside =
        dist::server_bytes(program, config).saturating_add(dist::centre_bytes(program, config));
    let needed = tensors.fold(beside, |sum, memory| {
        sum.saturating_add(memory.registered_bytes as u64)
            .saturating_add(memory.private_bytes as u64)
    });
    let available = tensorwire_fabric::available_bytes();
    if needed <= available {
        return Ok(());
    }
    let (needed, available) = (human_bytes(needed), human_bytes(available));
    Err(ConfigError::TooLarge { needed, available })
}

fn model(config: &TrainConfig) -> Result<Model, ConfigError> {
    model_named(&config.model)
}

/// The model of this name.
///
/// # Errors
/// When there is none, with the names that there are.
pub fn model_named(name: &str) -> Result<Model, ConfigError> {
    Model::from_name(name).ok_or_else(|| ConfigError::UnknownModel {
        found: name.to_string(),
        known: Model::ALL.map(Model::name).join(", "),
    })
}

fn batches(data: &Data, config: &TrainConfig) -> Result<Batches, DataError> {
    Batches::new(data.clone(), config.workers as usize, config.batch, config.seed)
}

fn build(config: &TrainConfig, shape: JobShape) -> Result<(Program, Cluster, Plan), ConfigError> {
    let spec = ProgramSpec {
        model: model(config)?,
        shape: shape.samples,
        batch: config.batch,
        replicas: config.replicas(),
        sharing: config.sharing(),
        rule: config.rule(),
        dtype: config.dtype.into(),
        seed: config.seed,
    };
    let program = Program::new(&spec)?;
    let (servers, variables) = (config.servers, program.variables.len());
    if config.strategy == Strategy::Ps && servers as usize > variables {
        let model = config.model.clone();
        return Err(ConfigError::TooManyServers { servers, variables, model });
    }
    let cluster = config.cluster();
    let placed = place(&program.graph, cluster)?;
    let options = PlanOptions {
        variables_shared: config.at_own_pace(),
        ..config.exchange.plan_options(config.transport, config.spread())
    };
    let reads_own = (config.has_store() || config.has_own_weights()) && !config.shows_weights();
    let options = match reads_own {
        // what is pulled, or folded, lies in the worker's own memory
        true => PlanOptions { shared_memory: SharedMemory::Unused, ..options },
        false => options,
    };
    let plan = plan(&placed, &cluster.tasks(), &program.runs(&placed, cluster), options)?;
    Ok((program, cluster, plan))
}

impl Prepared {
    /// The part of the plan that a member runs; a store's servers are in the plan's place for one.
    fn part_of(&self, rank: Rank) -> usize {
        // fits: members are few
        match self.config.seat(rank) {
            Seat::Worker(worker) => worker as usize,
            Seat::Server(server) => self.config.workers as usize + server as usize,
        }
    }

    /// Which worker a member is, if it is one.
    pub fn worker(&self, rank: Rank) -> Option<u32> {
        match self.config.seat(rank) {
            Seat::Worker(worker) => Some(worker),
            Seat::Server(_) => None,
        }
    }

    fn collector(&self) -> Option<Collector<'_>> {
        self.config.trace.as_ref().map(|trace| Collector::new(trace, &self.plan))
    }
}

impl Prepared {
    /// What the launcher has to do for a store, if variables live in one.
    pub fn store_job(&self) -> Option<StoreJob> {
        let TrainConfig { servers, store, .. } = &self.config;
        let (workers, servers, elastic) = (self.config.masters(), *servers, store.elastic);
        let replace_servers = store.checkpoint.is_some();
        let job = StoreJob { workers, servers, elastic, replace_servers };
        self.config.has_store().then_some(job)
    }
}

/// Launches the members of a training job and stays until it is done or has failed, as [`launch`]
/// does; then writes the trace, if there is to be one, however the job ended.
///
/// # Errors
/// As [`launch`], or when the trace cannot be written.
pub fn launch_train(
    prepared: &Prepared,
    spec: &JobSpec,
    on_update: &mut dyn FnMut(Update),
) -> Result<JobOutcome, JobError> {
    let mut collector = prepared.collector();
    let outcome = launch(spec, &mut |update| {
        match (&mut collector, &update) {
            (Some(trace), Update::Started { rank, pid }) => {
                trace.started(prepared.part_of(*rank), *rank, *pid);
            }
            (Some(trace), Update::Trace { rank, events }) => {
                trace.add(prepared.part_of(*rank), events);
            }
            _ => {}
        }
        on_update(update);
    });
    let written = collector.map_or(Ok(()), |trace| trace.write());
    first_error(outcome, written)
}

/// Why a job failed matters more than why its trace was not written.
fn first_error<T, E: From<TraceError>>(
    done: Result<T, E>,
    written: Result<(), TraceError>,
) -> Result<T, E> {
    match (done, written) {
        (Ok(done), Ok(())) => Ok(done),
        (Ok(_), Err(error)) => Err(error.into()),
        (Err(first), written) => {
            if let Err(error) = written {
                tracing::warn!("{error}");
            }
            Err(first)
        }
    }
}

/// Trains in this process alone. Ends after the present step once `interrupt` is set. However it ends,
/// the trace is written, if there is to be one.
///
/// # Errors
/// When the machine's memory does not suffice, training diverges or is interrupted, or the trace
/// cannot be written.
pub fn train_local(
    prepared: &Prepared,
    interrupt: &AtomicBool,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<TrainReport, TrainError> {
    let mut trace = prepared.collector();
    if let Some(trace) = &mut trace {
        trace.started(0, Rank(0), std::process::id());
    }
    let mut caller = Caller { interrupt, on_progress, trace };
    let done = train_alone(prepared, &mut caller);
    let written = caller.trace.map_or(Ok(()), |trace| trace.write());
    first_error(done, written)
}

fn train_alone(prepared: &Prepared, caller: &mut Caller<'_>) -> Result<TrainReport, TrainError> {
    let Prepared { config, program, plan, shape, data, .. } = prepared;
    let registered =
        Slab::anonymous(plan.parts[0].memory.registered_bytes).map_err(SessionError::from)?;
    let storage = Storage::new(&plan.parts[0], &registered)?;
    let threads = config.threads.unwrap_or_else(cores);
    let kernels =
        Arc::new(Kernels::open(kernel_choice(config), threads).map_err(ConfigError::from)?);
    let options = SessionOptions {
        step_deadline: STEP_DEADLINE,
        timeline: config.trace.is_some(),
        dynamic_bytes_max: DYNAMIC_BYTES_MAX,
        variables_shared: false,
    };
    let mut session = Session::new(plan, 0, storage, kernels.clone(), None, options)?;
    let (session, replicas) = (&mut session, 0..config.workers);
    let trainer = Trainer::new(config, program, plan, *shape, session, replicas);
    let mut trainer = Trainer { concludes: true, ..trainer };
    trainer.initialise()?;
    let mut report = trainer.train(Some(data), caller)?;
    trainer.conclude(Some(data), &mut report)?;
    report.kernels = kernels.description();
    report.peak_bytes = peak_bytes();
    Ok(report)
}

/// Does this member's part of a training job, from its assignment to its report.
///
/// # Errors
/// When anything fails; the launcher has been told then.
pub fn train_member(member: &Member) -> Result<(), TrainError> {
    let done = member_part(member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), error.is_user_error(), error.lost_peer());
    }
    done
}

/// What a member does its part of.
struct Part {
    config: TrainConfig,
    program: Program,
    plan: Plan,
    shape: JobShape,
    /// Of workers.
    data: Option<Data>,
}

fn member_part(member: &Member) -> Result<(), TrainError> {
    let Payload { config, shape } = member.payload()?;
    let (program, _, plan) = build(&config, shape)?;
    let part = member.rank().index();
    let is_worker = matches!(config.seat(member.rank()), Seat::Worker(_));
    let data = if is_worker {
        let source: Source = config.data.parse().map_err(ConfigError::from)?;
        let wanted = model(&config)?.sample_shape();
        let loaded = source.open(&wanted, config.seed).map_err(ConfigError::from)?;
        if loaded.shape() != shape.samples {
            return Err(ConfigError::DataChanged.into());
        }
        Some(loaded)
    } else {
        None
    };
    if config.has_store() || config.has_own_weights() {
        return dist::member_part(member, &Part { config, program, plan, shape, data });
    }
    let crowded = member.members_here() > cores();
    let options = PartOptions {
        transport: config.transport,
        exchange: config.exchange,
        verbs: config.verbs.clone(),
        arrival: config.arrival,
        spin: if crowded { Duration::ZERO } else { SPIN },
        kernels: kernel_choice(&config),
        threads: config.threads.unwrap_or_else(|| default_threads(&config, member.rank())),
        step_deadline: STEP_DEADLINE,
        timeline: config.trace.is_some(),
        dynamic_bytes_max: DYNAMIC_BYTES_MAX,
    };
    let mut open = member.open_lanes(&plan, &config.lanes(member.rank()), options)?;
    if config.asynchronous && !is_worker {
        let report = serve_lanes(member, &config, &program, &plan, shape, &mut open)?;
        return leave(member, open, report);
    }
    let replicas = match is_worker {
        // fits: ranks are u32
        true if !config.asynchronous => part as u32..part as u32 + 1,
        true => 0..1,
        false => 0..0,
    };
    let shard = if config.asynchronous { part } else { 0 };
    let (program, plan, config) = (&program, &plan, &config);
    let session = &mut open.sessions[0];
    let concludes = is_worker && part == 0;
    let trainer = Trainer::new(config, program, plan, shape, session, replicas);
    let mut trainer = Trainer { shard, concludes, ..trainer };
    trainer.initialise()?;
    let mut report = trainer.train(data.as_ref(), &mut &*member)?;
    trainer.conclude(data.as_ref(), &mut report)?;
    leave(member, open, report)
}

/// A server's part where it has a lane for each worker.
fn serve_lanes(
    member: &Member,
    config: &TrainConfig,
    program: &Program,
    plan: &Plan,
    shape: JobShape,
    open: &mut OpenLanes,
) -> Result<TrainReport, TrainError> {
    let session = &mut open.sessions[0];
    let trainer = Trainer::new(config, program, plan, shape, session, 0..0);
    trainer.initialise()?;
    let mut report = TrainReport::default();
    report.add_copies(&trainer.carried.copies());
    let mut told = Ok(());
    lanes::serve(&mut open.sessions, shape.steps, &mut |step| {
        // a launcher that is gone is noticed by the thread that watches it
        told = member.begin_step(step);
    })?;
    told?;
    report.polling = open.sessions.iter().map(|session| Polling::from(session.counters())).sum();
    // all gradients are in: worker 0 may have the variables
    open.sessions[0].run(Program::FETCH)?;
    open.sessions.iter().for_each(|session| report.add_copies(session.copies()));
    Ok(report)
}

/// Leaves the job with everything done.
fn leave(member: &Member, open: OpenLanes, mut report: TrainReport) -> Result<(), TrainError> {
    (report.kernels, report.bytes_written) = (open.kernels.clone(), open.bytes_written());
    let mut messages = Copies::default();
    messages.add(CopyPurpose::Messages, open.bytes_copied());
    report.add_copies(&messages);
    report.peak_bytes = peak_bytes();
    open.close(Deadline::after(member.setup_patience()))?;
    member.finish(serde_json::to_value(&report).unwrap_or_default())?;
    Ok(())
}

/// The most memory that this process had at once, in bytes; 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn kernel_choice(config: &TrainConfig) -> KernelChoice {
    match config.kernels {
        // oneDNN computes convolutions: where there are none, its library need not be loaded
        config::Kernels::Auto => match model(config) {
            Ok(model) if !model.convolves() => KernelChoice::Cpu,
            _ => KernelChoice::Auto,
        },
        config::Kernels::Cpu => KernelChoice::Cpu,
        config::Kernels::OneDnn => KernelChoice::OneDnn,
        config::Kernels::Reference => KernelChoice::Reference,
    }
}

/// The workers of one host compute at the same time and share its cores. Servers have all of them: when a
/// server has work, the workers wait for it. Results do not depend on it, but those of oneDNN's convolutions.
fn default_threads(config: &TrainConfig, rank: Rank) -> usize {
    if matches!(config.seat(rank), Seat::Server(_)) {
        return cores();
    }
    let workers = (0..config.workers).map(|worker| config.rank_of(worker));
    let workers_here = workers.filter(|other| config.hosts.together(rank, *other)).count();
    (cores() / workers_here.max(1)).max(1)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
