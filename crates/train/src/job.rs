//! A training job: prepared once from its configuration, then run by one process alone or by members
//! that each do their part of the plan.

mod alone;
mod computing;
mod error;
mod evaluating;
mod feeding;
mod keeping;
mod listener;
mod loader;
mod pace;
mod resuming;
mod shape;
mod strategy;
pub(crate) mod taking_over;
mod trainer;
mod whereabouts;
mod worker;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Rank, Space, human_bytes};
use tensorwire_fabric::pulse;
use tensorwire_graph::{Cluster, Hint, Node, NodeId, Op, Plan, PlanOptions, place, plan};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_launch::{Member, Role, StoreJob};
use tensorwire_nn::{Batches, Data, Model, Program, ProgramSpec, TestBatches, is_named};
use tensorwire_runtime::SessionOptions;
use tensorwire_tensor::DType;

use crate::checkpoint::{CheckpointFolder, ProcessLock, Resumed, SampleCounts};
use crate::classes::{self, BeginsWith};
use crate::config::{self, Budget, ConfigError, DeviceDesign, TrainConfig};
use crate::rates::Rates;
use crate::strategy::Strategy;
use crate::topology::{Topology, Weights};
use crate::trace::Collector;
use crate::weights;
use crate::whole_file;
use computing::described;

use keeping::shard;
use resuming::resumed;
use shape::JobShape;
use strategy::values::check_encoded;
use strategy::{Connected, strategy};
use whereabouts::{Phase, ProcessStanding};

pub(crate) use alone::evaluate_local;
pub use alone::train_local;
pub use computing::checked_gpu;
pub use error::TrainError;
pub use workload::{Supply, Workload};

pub use strategy::values::StoreValue;

/// How long a wait spins before it blocks, where every process has a core.
const SPIN: Duration = Duration::from_micros(200);

/// A job that is ready to run: its data loaded, its graph planned.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub config: TrainConfig,
    pub topology: Topology,
    pub program: Program,
    pub plan: Plan,
    pub cluster: Cluster,
    shape: JobShape,
    pub data: Data,
    pub rates: Rates,
    /// The checkpoint that it goes on from.
    pub resumed: Option<Resumed>,
}

/// What every member of a training job is told.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    config: TrainConfig,
    shape: JobShape,
    #[serde(default)]
    resumed: Option<Resumed>,
}

/// What members are told, as they read it.
pub(crate) fn fuzz_payload(bytes: &[u8]) {
    crate::fuzz::told_again::<Payload>(bytes);
}

impl Prepared {
    /// Checks a configuration, loads its data, plans its graph, and sees that it fits this host.
    ///
    /// # Errors
    /// The user's mistake, with how to mend it.
    pub fn new(config: TrainConfig, supply: &dyn Supply) -> Result<Prepared, ConfigError> {
        let prepared = Prepared::planned(config, supply)?;
        prepared.check_memory()?;
        Ok(prepared)
    }

    /// The same of a job that is looked at here and runs elsewhere, if at all: it need not fit this host.
    ///
    /// # Errors
    /// The user's mistake, with how to mend it.
    pub fn planned(config: TrainConfig, supply: &dyn Supply) -> Result<Prepared, ConfigError> {
        config.check()?;
        let device = config.device.resolved(&config)?;
        config.math.check(device, config.dtype)?;
        // whoever started this process may have found out
        let is_here = |rank| config.hosts.is_here(rank);
        let devices_apart = config.devices_apart || device.are_apart(&config, is_here)?;
        let config = TrainConfig { device, devices_apart, ..config };
        // what is possible depends on what `auto` is
        config.check()?;
        let model = supply.model(&config)?;
        let data = supply.data(&config)?;
        let batches = batches(&data, &config)?;
        let each = config.accumulate as u64;
        // data of less than a step are one, and go on in the next epoch
        let steps_per_epoch = batches.steps_per_epoch().map(|steps| (steps / each).max(1));
        let steps = match (config.budget, steps_per_epoch) {
            (Budget::Steps(steps), _) => steps,
            (Budget::Epochs(epochs), Some(steps)) => epochs.saturating_mul(steps),
            (Budget::Epochs(_), None) => return Err(ConfigError::EndlessEpochs),
        };
        if config.evaluate_every.is_some() && data.test.is_none() {
            return Err(ConfigError::NothingToTest { data: config.data.clone() });
        }
        let samples = data.train.describe();
        let steps_per_epoch = steps_per_epoch.unwrap_or(steps);
        let test =
            data.test.clone().map(|test| TestBatches::new(test, config.batch)).transpose()?;
        // fits: batches of a test are counted
        let test_batches = test.map_or(0, |test| test.len() as u64);
        let counts = SampleCounts::of(&data);
        let mut shape = JobShape {
            samples,
            counts,
            steps,
            done: 0,
            steps_per_epoch,
            test_batches,
            classes_sha256: classes::sha256(&data),
        };
        let topology = config.topology();
        let (program, cluster, plan) = build(&*model, &config, &topology, &shape)?;
        // opened once more by whoever computes; here it is looked for before anything is started
        Kernels::open(kernel_choice(&config, &program), 1)?;
        strategy(&topology).check(&config, &plan)?;
        let named = classes::JobData { data: &data, name: &config.data };
        let resumed =
            resumed(&config, &program, &shape).map_err(|error| named.explained(error.into()))?;
        if let Some(resumed) = &resumed {
            named.check_resumed(&resumed.path, &resumed.state)?;
        }
        shape.done = resumed.as_ref().map_or(0, |resumed| resumed.state.step);
        let load = config.load.as_deref();
        let load = load.map(|path| weights::chosen(path, program.weights())).transpose();
        let load = load.map_err(|error| named.explained(error.into()))?;
        // all processes begin with the same, whatever comes to the folder meanwhile
        let config = TrainConfig { load, ..config };
        if let Some(path) = &config.save {
            let failed = |source| ConfigError::Save { path: path.clone(), source };
            whole_file::check_writable(path).map_err(failed)?;
        }
        if let Some(path) = &config.store.snapshot {
            let failed = |source| ConfigError::Snapshot { path: path.clone(), source };
            whole_file::check_writable(path).map_err(failed)?;
        }
        if let Some(trace) = &config.trace {
            let failed = |source| ConfigError::Trace { path: trace.path.clone(), source };
            whole_file::check_writable(&trace.path).map_err(failed)?;
        }
        let rates = Rates::new(config.schedule, shape.steps, supply.rates());
        Ok(Prepared { config, topology, program, plan, cluster, shape, data, resumed, rates })
    }

    /// Steps of the whole job.
    pub fn steps(&self) -> u64 {
        self.shape.steps
    }

    /// Steps that were made before the checkpoint that the job goes on from.
    pub fn steps_done(&self) -> u64 {
        self.shape.done
    }

    pub fn steps_per_epoch(&self) -> u64 {
        self.shape.steps_per_epoch
    }

    /// Says which weights the job begins with, and how their classes were others than those of the data. None: first values of its
    /// own, or a checkpoint's.
    pub fn begins_with(&self) -> Option<BeginsWith> {
        let weights = self.config.load.clone().filter(|_| self.resumed.is_none())?;
        let named = classes::JobData { data: &self.data, name: &self.config.data };
        Some(BeginsWith { other_classes: named.difference(&weights), weights })
    }

    /// Numbers that are learned.
    pub fn parameters(&self) -> u64 {
        // fits: element counts of tensors in memory
        self.program.variables.iter().map(|v| v.spec.elements() as u64).sum()
    }

    /// What each member is, by rank.
    pub fn roles(&self) -> Vec<String> {
        self.topology.roles()
    }

    /// What computes in a worker.
    pub fn kernels(&self) -> String {
        let local = self.config.strategy == Strategy::Local;
        let threads = if local { cores() } else { default_threads(&self.config, Rank(0)) };
        let threads = self.config.threads.unwrap_or(threads);
        let opened = Kernels::open(kernel_choice(&self.config, &self.program), threads);
        let host = opened.map_or_else(|error| error.to_string(), |kernels| kernels.description());
        described(&self.config, host)
    }

    /// Do all processes compute the same bits as one that computes alone? Not where threads are shared out
    /// and oneDNN may compute.
    pub fn has_bits_of_one(&self) -> bool {
        let ours = matches!(
            kernel_choice(&self.config, &self.program),
            KernelChoice::Cpu | KernelChoice::Reference
        );
        ours || self.config.threads.is_some()
    }

    /// Checks that the tensors of all processes on this host fit it together. What other hosts have is seen there.
    ///
    /// # Errors
    /// What they need, and what there is.
    pub fn check_memory(&self) -> Result<(), ConfigError> {
        let Prepared { config, topology, plan, program, .. } = self;
        let here = (0..topology.world()).map(Rank).filter(|rank| config.hosts.is_here(*rank));
        // what the servers of a store hold is no part of the plan; a part counts once for each session over it
        let parts = here.filter(|rank| topology.worker(*rank).is_some() || !topology.has_store());
        let parts = parts.flat_map(|rank| {
            let sessions = match topology.weights {
                Weights::Servers => topology.sessions(rank).len(),
                _ => 1,
            };
            std::iter::repeat_n(topology.part(rank), sessions)
        });
        let tensors = parts.map(|part| &plan.parts[part].memory);
        let beside = strategy(topology).bytes_beside_plan(config, topology, program);
        // fits: each is checked against the address space; the sum saturates
        let needed = tensors.fold(beside, |sum, memory| {
            sum.saturating_add(memory.registered_bytes as u64)
                .saturating_add(memory.private_bytes as u64)
        });
        let room = tensorwire_fabric::memory_room();
        if needed <= room.bytes {
            return Ok(());
        }
        Err(ConfigError::TooLarge { needed: human_bytes(needed), room })
    }

    /// What the members are told.
    pub fn payload(&self) -> serde_json::Value {
        let payload = Payload {
            config: self.config.clone(),
            shape: self.shape.clone(),
            resumed: self.resumed.clone(),
        };
        serde_json::to_value(payload).unwrap_or_default()
    }
}

fn batches(data: &Data, config: &TrainConfig) -> tensorwire_nn::Result<Batches> {
    // each device of a worker has a share of the data, as a worker has
    let shares = config.workers as usize * config.devices_per_worker as usize;
    Batches::new(data.train.clone(), shares, config.batch, config.seed)
}

fn build(
    model: &dyn Model,
    config: &TrainConfig,
    topology: &Topology,
    shape: &JobShape,
) -> Result<(Program, Cluster, Plan), ConfigError> {
    let spec = ProgramSpec {
        batch: config.batch,
        replicas: topology.replicas(),
        sharing: topology.sharing(),
        optimizer: config.optimizer,
        clip_norm: config.clip_norm,
        no_decay: config.no_decay.clone(),
        ema: config.ema,
        accumulate: config.accumulate,
        devices: config.devices_per_worker,
        dtype: config.dtype.into(),
        activations: config.activations.map(DType::from),
        compression: config.wire.compression(),
        seed: config.seed,
    };
    let program = Program::new(model, &shape.samples, &spec)?;
    check_pins(&program, config, topology)?;
    check_encoded(config, topology, &program)?;
    let names_none = |pattern: &&String| {
        let names = |variable: &tensorwire_nn::Variable| is_named(pattern, &variable.name);
        !program.variables.iter().any(names)
    };
    if let Some(pattern) = config.no_decay.iter().find(names_none) {
        let (pattern, model) = (pattern.clone(), config.model.clone());
        return Err(ConfigError::NoSuchParameter { pattern, model });
    }
    let cluster = topology.cluster();
    let placed = place(&program.graph, cluster, config.placement())
        .map_err(|error| ConfigError::of_placement(error, &config.model))?;
    let options = strategy(topology).plan_options(config, topology);
    let options = config.device.plan_options(options, topology, (config, &program.graph));
    let options = PlanOptions {
        wire: config.wire.narrow(),
        all_reduce: config.all_reduce_of_wire().unwrap_or(options.all_reduce),
        ..options
    };
    let mut runs = program.runs(&placed, cluster);
    if config.evaluate_every.is_some() {
        // an evaluation may come between two steps
        runs[Program::EVALUATE.0].followed_by.push(Program::TRAIN.0);
    }
    let plan = plan(&placed, &cluster.tasks(), &runs, options)?;
    Ok((program, cluster, plan))
}

/// Only where all processes run parts of one graph, step by step, is there a part for every task that a layer may be pinned
/// to.
fn check_pins(
    program: &Program,
    config: &TrainConfig,
    topology: &Topology,
) -> Result<(), ConfigError> {
    let is_one_graph = match topology.weights {
        Weights::Local => true,
        Weights::Servers => !topology.is_asynchronous(),
        Weights::Store | Weights::Replicated => false,
    };
    let pinned = |(_, node): (NodeId, &Node)| match node.hint {
        Hint::Task(task) => Some((node.name.clone(), task)),
        _ => None,
    };
    match program.graph.nodes().find_map(pinned).filter(|_| !is_one_graph) {
        Some((node, task)) => {
            let strategy = config.strategy.name();
            let how = if config.asynchronous { " --async" } else { "" };
            Err(ConfigError::Pinned { node, task, strategy: format!("{strategy}{how}") })
        }
        None => Ok(()),
    }
}

impl Prepared {
    /// How the GPUs of a worker reduce, if it has several.
    pub fn device_design(&self) -> Option<DeviceDesign> {
        // without shares the first makes all means
        let of_later =
            |node: &Node| node.op == Op::Mean && matches!(node.space, Space::Device(1..));
        let mut nodes = self.plan.parts.iter().flat_map(|part| part.graph.nodes());
        let shares = nodes.any(|(_, node)| of_later(node));
        let design = if shares { DeviceDesign::MultiRing } else { DeviceDesign::Reg };
        (self.config.devices_per_worker > 1).then_some(design)
    }

    /// The part of the plan by which a member is traced; the servers of a store are in the plan's place for one.
    pub(crate) fn part_of(&self, rank: Rank) -> usize {
        // fits: members are few
        match self.topology.role(rank) {
            Role::Worker(worker) => worker as usize,
            Role::Server(server) => self.config.workers as usize + server as usize,
        }
    }

    /// Returns which worker each member is, by rank; none for a server.
    pub(crate) fn workers_by_rank(&self) -> Vec<Option<u32>> {
        // fits: members are few
        (0..self.roles().len() as u32).map(|rank| self.worker(Rank(rank))).collect()
    }

    /// Returns which worker a member is; none for a server.
    pub fn worker(&self, rank: Rank) -> Option<u32> {
        self.topology.worker(rank)
    }

    /// What a process that trains alone does.
    fn part(&self) -> Part {
        let Prepared { config, topology, program, plan, shape, data, resumed, .. } = self;
        let (config, program, plan) = (config.clone(), program.clone(), plan.clone());
        let (topology, shape, data) = (*topology, shape.clone(), Some(data.clone()));
        let (resumed, shard) = (resumed.clone(), shard(&program, &plan, &topology, Rank(0)));
        let standing = ProcessStanding::new(&config);
        let rates = self.rates.clone();
        Part { config, topology, program, plan, shape, data, resumed, shard, rates, standing }
    }

    pub(crate) fn collector(&self) -> Option<Collector<'_>> {
        self.config.trace.as_ref().map(|trace| Collector::new(trace, &self.plan))
    }
}

impl Prepared {
    /// What the launcher has to do for a store, if variables live in one.
    pub fn store_job(&self) -> Option<StoreJob> {
        let Topology { servers, elastic, .. } = self.topology;
        let replace_servers = self.config.store.snapshot.is_some();
        let workers = self.topology.masters();
        let job = StoreJob { workers, servers, elastic, replace_servers };
        self.topology.has_store().then_some(job)
    }
}

/// Does this member's part of a training job, from its assignment to its report; `supply` has what it trains.
///
/// # Errors
/// When anything fails; the launcher has been told then.
pub fn train_member(member: &Member, supply: &dyn Supply) -> Result<(), TrainError> {
    let done = member_part(member, supply);
    if let Err(error) = &done {
        member.fail(&error.to_string(), error.blame());
    }
    done
}

/// What a process does its part of.
struct Part {
    config: TrainConfig,
    topology: Topology,
    program: Program,
    plan: Plan,
    shape: JobShape,
    /// Of workers.
    data: Option<Data>,
    rates: Rates,
    /// The checkpoint that it goes on from.
    resumed: Option<Resumed>,
    /// The name of its file of a checkpoint; none: it has no variables, or another has the same.
    shard: Option<String>,
    /// Where this process stands.
    standing: Arc<ProcessStanding>,
}

fn member_part(member: &Member, supply: &dyn Supply) -> Result<(), TrainError> {
    let Payload { config, shape, resumed } = member.payload()?;
    let standing = ProcessStanding::new(&config);
    member.is_watched(standing.clone());
    let _watched = pulse::watch_worker("main");
    let topology = config.topology();
    let model = supply.model(&config)?;
    let (program, _, plan) = build(&*model, &config, &topology, &shape)?;
    let data = match topology.role(member.rank()) {
        Role::Server(_) => None,
        Role::Worker(_) => Some(supply.data(&config)?),
    };
    if let Some(data) = &data {
        shape.check(data)?;
    }
    let rates = Rates::new(config.schedule, shape.steps, supply.rates());
    let shard = shard(&program, &plan, &topology, member.rank());
    let checkpoint = config.checkpoint.as_ref().filter(|_| config.launcher_patience_ms.is_some());
    let _held = checkpoint.and_then(|kept| ProcessLock::hold(&CheckpointFolder::new(&kept.path)));
    standing.enters(Phase::Meets);
    let part =
        Part { config, topology, program, plan, shape, data, resumed, shard, rates, standing };
    let report = match strategy(&topology).connect(member, &part)? {
        Connected::Steps(worker) => worker::run(*worker, &part, &mut &*member)?,
        Connected::Serves(serve) => serve()?,
    };
    part.standing.enters(Phase::Leaves);
    Ok(member.finish(&report)?)
}

fn session_options(config: &TrainConfig) -> SessionOptions {
    SessionOptions {
        step_deadline: config.step_deadline(),
        timeline: config.trace.is_some(),
        dynamic_bytes_max: config.dynamic_bytes_max,
        variables_shared: false,
    }
}

/// The most memory that this process had at once, in bytes; 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn kernel_choice(config: &TrainConfig, program: &Program) -> KernelChoice {
    match config.kernels {
        // oneDNN computes convolutions: where there are none, its library need not be loaded
        config::Kernels::Auto if !program.convolves() => KernelChoice::Cpu,
        config::Kernels::Auto => KernelChoice::Auto,
        config::Kernels::Cpu => KernelChoice::Cpu,
        config::Kernels::OneDnn => KernelChoice::OneDnn,
        config::Kernels::Reference => KernelChoice::Reference,
    }
}

/// Threads that this worker's kernels have.
fn threads(config: &TrainConfig, worker: u32) -> usize {
    let rank = || match config.strategy {
        Strategy::Local => None,
        _ => Some(config.topology().rank_of(worker)),
    };
    config.threads.unwrap_or_else(|| rank().map_or_else(cores, |at| default_threads(config, at)))
}

/// The workers of one host compute at the same time and share its cores, but where a launcher has bound them to cores of
/// their own. Servers have all of them: when a server has work, the workers wait for it. Results do not depend on it, but those
/// of oneDNN's convolutions.
fn default_threads(config: &TrainConfig, rank: Rank) -> usize {
    share_of(config, rank, cores())
}

/// Of so many cores that a member may run on.
fn share_of(config: &TrainConfig, rank: Rank, cores: usize) -> usize {
    let topology = config.topology();
    if topology.worker(rank).is_none() {
        return cores;
    }
    let workers = (0..config.workers).map(|worker| topology.rank_of(worker));
    let sharers = workers.filter(|other| config.hosts.share_cores(rank, *other)).count();
    (cores / sharers.max(1)).max(1)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of eight workers on a host with 64 cores, each of which a launcher has bound to these.
    fn shares(bound: impl Fn(u32) -> serde_json::Value, cores: usize) -> Vec<usize> {
        let host = |rank| json!({ "name": "node", "slots": 1, "here": true, "cpus": bound(rank) });
        let list: Vec<serde_json::Value> = (0..8).map(host).collect();
        let hosts = serde_json::from_value(json!({ "list": list, "rsh": ["ssh"] })).unwrap();
        let (strategy, workers) = (Strategy::AllReduce, 8);
        let config = TrainConfig { strategy, workers, servers: 0, hosts, ..TrainConfig::default() };
        (0..8).map(|rank| share_of(&config, Rank(rank), cores)).collect()
    }

    #[test]
    fn cores_are_divided_among_those_that_share_them() {
        assert_eq!(shares(|_| json!([]), 64), [8; 8], "nobody has bound them");
        assert_eq!(shares(|rank| json!([[rank * 8, rank * 8 + 7]]), 8), [8; 8], "srun -c 8");
        assert_eq!(shares(|rank| json!([[rank % 2 * 32, rank % 2 * 32 + 31]]), 32), [8; 8]);
        assert_eq!(shares(|_| json!([[0, 7]]), 8), [1; 8], "a container of eight cores");
    }
}
