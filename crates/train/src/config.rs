//! What a training job is told, and whether it makes sense. Made once by the front door; the same
//! value reaches every member.

mod checkpoints;
mod clients;
mod defaults;
mod device;
mod error;
mod exchange;
mod tuned;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_fabric::{ArrivalMode, PathChoice, VerbsOptions};
use tensorwire_graph::Placement;
use tensorwire_nn::{Optimizer, Schedule};
use tensorwire_tensor::DType;

use crate::checkpoint::CheckpointConfig;
use crate::strategy::{Grouping, Pacing, Strategy, StrategyRow};
use crate::topology::{Topology, Weights};
use tensorwire_launch::Hosts;

pub use clients::{Averaging, ClientConfig, CollectivesChoice};
pub(crate) use device::ordinals;
pub use device::{CudaLibraries, DeviceChoice, DeviceDesign, MathMode};
pub use error::ConfigError;
pub use exchange::{Exchange, SendOrder};
use tensorwire_launch::Transport;
pub use tuned::{TunedLink, TunedRow};
pub use wire::{WireType, WireTypeError};

/// The type of variables and activations (`--dtype`). Sums are made in f32 where it is narrower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloatType {
    #[default]
    F32,
    F64,
    Bf16,
}

impl FloatType {
    /// As `--dtype` spells it.
    pub fn name(self) -> &'static str {
        match self {
            FloatType::F32 => "f32",
            FloatType::F64 => "f64",
            FloatType::Bf16 => "bf16",
        }
    }
}

impl From<FloatType> for DType {
    fn from(float: FloatType) -> DType {
        match float {
            FloatType::F32 => DType::F32,
            FloatType::F64 => DType::F64,
            FloatType::Bf16 => DType::BF16,
        }
    }
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    Epochs(u64),
    Steps(u64),
}

/// What only a key-value store can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreConfig {
    /// How many steps the fastest worker may be ahead of the slowest ([`Strategy::DistAsgd`]); none: any.
    pub max_delay: Option<u64>,
    /// A worker's death does not end the job; the others go on.
    pub elastic: bool,
    /// Where servers write snapshots, from which another process takes over when one dies: a path that
    /// each adds its name to.
    pub snapshot: Option<PathBuf>,
    /// Steps between two snapshots.
    pub snapshot_every: u64,
}

/// A training job. What is not said is as the default has it: `TrainConfig { workers: 3, ..TrainConfig::default() }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    pub model: String,
    pub data: String,
    /// Tokens of a window of text; none: as many as the model takes.
    #[serde(default)]
    pub sequence: Option<usize>,
    pub strategy: Strategy,
    pub workers: u32,
    /// The job goes on with fewer workers, and with more again, but not with fewer than so many; none: their number is fixed.
    #[serde(default)]
    pub fewest_workers: Option<u32>,
    /// Ignored by [`Strategy::Local`] and [`Strategy::AllReduce`]. None, with [`Strategy::Ps`]: every worker is a server, too, of
    /// its share of the variables.
    pub servers: u32,
    /// Which server gets which variable ([`Strategy::Ps`]).
    #[serde(default)]
    pub placement: Placement,
    /// Each worker trains at its own pace ([`Strategy::Ps`]; [`Strategy::DistAsgd`] says so by itself).
    pub asynchronous: bool,
    #[serde(default)]
    pub store: StoreConfig,
    #[serde(default)]
    pub clients: ClientConfig,
    pub transport: Transport,
    /// Which NIC, and how ([`Transport::Verbs`], or [`Transport::Auto`] on several hosts).
    pub verbs: VerbsOptions,
    /// How a tensor's arrival is signalled over verbs; none: as suits every device.
    pub arrival: Option<ArrivalMode>,
    /// What leaves a host is encrypted ([`Transport::Tcp`]).
    #[serde(default)]
    pub encrypt: bool,
    pub hosts: Hosts,
    pub exchange: Exchange,
    /// Samples per device of a worker and step.
    pub batch: usize,
    pub budget: Budget,
    /// Worker 0 evaluates at the end of each epoch, too, and workers say how far they are then.
    #[serde(default)]
    pub evaluate_each_epoch: bool,
    /// Worker 0 evaluates after every so many steps, too, but for the last, after which it does so anyway.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// Training ends when the loss of so many evaluations in a row was no smaller than the smallest before.
    #[serde(default)]
    pub early_stop: Option<u64>,
    /// Workers do everything but arithmetic, to measure what is left; servers do all.
    #[serde(default)]
    pub leave_out_kernels: bool,
    /// How a variable is changed, given the mean gradient of a step.
    pub optimizer: Optimizer,
    /// The rate of each step, as a factor of the optimizer's.
    #[serde(default)]
    pub schedule: Schedule,
    /// Largest norm of the mean gradient of all variables; none: any.
    #[serde(default)]
    pub clip_norm: Option<f64>,
    /// Names of parameters that do not decay, whatever their shape; `*` in one stands for any characters.
    #[serde(default)]
    pub no_decay: Vec<String>,
    /// Decay of the exponential moving averages of the parameters, which are evaluated and saved in their place; none: the
    /// parameters are.
    #[serde(default)]
    pub ema: Option<f64>,
    /// Batches of which a worker's gradient is the mean.
    #[serde(default = "defaults::accumulate")]
    pub accumulate: usize,
    pub dtype: FloatType,
    /// Type of activations, if it is another than that of variables.
    #[serde(default)]
    pub activations: Option<FloatType>,
    /// What tensors cross as.
    #[serde(default)]
    pub wire: WireType,
    /// Which of the tensors that wait for the same way goes first.
    #[serde(default)]
    pub send_order: SendOrder,
    pub seed: u64,
    /// Threads of each process; none: each host's cores shared among its workers.
    pub threads: Option<usize>,
    pub kernels: Kernels,
    /// What computes in workers.
    #[serde(default)]
    pub device: DeviceChoice,
    /// GPUs of a worker: each takes a batch, and their gradients are reduced before they leave the process.
    #[serde(default = "defaults::devices_per_worker")]
    pub devices_per_worker: u32,
    /// How several GPUs of a worker reduce.
    #[serde(default)]
    pub design: DeviceDesign,
    /// Tensors of GPUs cross by way of the host's memory even where they need not, to measure what that costs.
    #[serde(default)]
    pub by_way_of_host: bool,
    /// GPUs of one host do not all reach each other's memory: their tensors cross by way of pinned memory. Found out, and not
    /// given.
    #[serde(default)]
    pub devices_apart: bool,
    /// The library of CUDA's driver; none: the one that the dynamic linker finds.
    #[serde(default)]
    pub cuda_driver: Option<PathBuf>,
    /// Where CUDA's libraries are looked for.
    #[serde(default)]
    pub cuda_libraries: CudaLibraries,
    /// What a GPU multiplies.
    #[serde(default)]
    pub math: MathMode,
    pub load: Option<PathBuf>,
    pub save: Option<PathBuf>,
    /// Checkpoints of the whole job.
    #[serde(default)]
    pub checkpoint: Option<CheckpointConfig>,
    /// A folder of checkpoints, from the newest of which training goes on; [`CheckpointConfig::AUTO`]: of its own, if there
    /// is one.
    #[serde(default)]
    pub resume: Option<PathBuf>,
    /// How often the job is started again when it fails, from its newest checkpoint.
    #[serde(default)]
    pub restarts: u64,
    /// How long processes wait for another launcher if this one is killed, in milliseconds; none: they end with it. It goes on
    /// with them if it has the same configuration and checkpoints, and [`TrainConfig::resume`] is [`CheckpointConfig::AUTO`].
    #[serde(default)]
    pub launcher_patience_ms: Option<u64>,
    pub trace: Option<TraceConfig>,
    /// Where the launcher listens for its members; port 0: the system chooses. None: on loopback, or
    /// where the other hosts reach it.
    pub listen: Option<SocketAddr>,
    /// The job ends within this long when one of its processes dies or stops, in milliseconds.
    pub deadline_ms: u64,
    /// Longest that a step waits for peers that are alive, in milliseconds.
    #[serde(default = "defaults::step_deadline_ms")]
    pub step_deadline_ms: u64,
    /// Most memory that tensors whose size is known only when they exist may take in each arena of a process, in bytes.
    #[serde(default = "defaults::dynamic_bytes_max")]
    pub dynamic_bytes_max: usize,
}

/// What to trace, and where to (`--trace`, `--trace-steps`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceConfig {
    pub path: PathBuf,
    /// The first steps of the job, so many; after them tracing costs nothing.
    pub steps: u64,
}

/// Which kernels compute (`--kernels`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernels {
    Auto,
    Cpu,
    #[serde(rename = "onednn")]
    OneDnn,
    Reference,
}

impl Kernels {
    /// As `--kernels` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Kernels::Auto => "auto",
            Kernels::Cpu => "cpu",
            Kernels::OneDnn => "onednn",
            Kernels::Reference => "reference",
        }
    }
}

/// Each process of a host holds descriptors and memory of every other; beyond this one host is no cluster.
const PROCESSES_PER_HOST_MAX: u64 = 256;
/// A step that waits longer for a peer that is alive waits in vain.
const STEP_DEADLINE_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// The smallest page that an arena for tensors of unknown size begins with.
const DYNAMIC_BYTES_MIN: usize = 1 << 20;
/// More than that no viewer shows with ease.
const TRACE_STEPS_MAX: u64 = 1000;
/// Each batch of a step is a copy of the model in the graph.
const ACCUMULATE_MAX: usize = 256;
/// More GPUs than any host has; each is a copy of the model in the graph.
const DEVICES_MAX: u32 = 64;
/// More threads than any host has cores help nobody.
const THREADS_MAX: usize = 1024;

impl TrainConfig {
    /// Checks what can be checked without reading a file.
    ///
    /// # Errors
    /// The first thing that makes no sense, with how to mend it.
    pub fn check(&self) -> Result<(), ConfigError> {
        let counts = [
            ("--workers", u64::from(self.workers)),
            ("--batch", self.batch as u64),
            ("--accumulate", self.accumulate as u64),
            ("--devices-per-worker", u64::from(self.devices_per_worker)),
            ("--threads", self.threads.unwrap_or(1) as u64),
            ("--val-every", self.evaluate_every.unwrap_or(1)),
            ("--early-stop", self.early_stop.unwrap_or(1)),
            ("--sequence", self.sequence.unwrap_or(1) as u64),
            match self.budget {
                Budget::Epochs(count) => ("--epochs", count),
                Budget::Steps(count) => ("--steps", count),
            },
        ];
        let servers = [("--servers", u64::from(self.servers))];
        let may_have_none = [Strategy::Local, Strategy::Ps].contains(&self.strategy);
        let has_none = may_have_none || self.strategy.has_groups();
        let servers = servers.iter().filter(|_| !has_none);
        for (option, count) in counts.iter().chain(servers) {
            let trains = !["--epochs", "--steps"].contains(option);
            match *count {
                0 if trains => return Err(ConfigError::Zero { option }),
                0 => return Err(ConfigError::NothingToTrain { option }),
                _ => {}
            }
        }
        if self.placement != Placement::default() && self.strategy != Strategy::Ps {
            let (option, used_by) = ("--placement", "--strategy ps");
            return Err(ConfigError::Unused { option, used_by });
        }
        if self.asynchronous && self.strategy != Strategy::Ps {
            return Err(ConfigError::AsyncWithoutServers);
        }
        if self.asynchronous && self.servers == 0 {
            return Err(ConfigError::AsyncColocated);
        }
        if self.topology().is_asynchronous() && self.trace.is_some() {
            return Err(ConfigError::AsyncTrace);
        }
        self.check_wire()?;
        let comes_last = matches!(self.strategy.row().weights, Weights::Servers | Weights::Local);
        if self.evaluate_each_epoch && comes_last {
            return Err(ConfigError::NoEpochs { strategy: self.strategy.name() });
        }
        if self.evaluate_every.is_some() && self.strategy == Strategy::Ps && self.asynchronous {
            return Err(ConfigError::EvaluationOfAsync);
        }
        if self.early_stop.is_some() && self.evaluate_every.is_none() {
            let (option, with) = ("--early-stop", "--val-every STEPS");
            return Err(ConfigError::Lacks { option, with });
        }
        let topology = self.topology();
        if self.early_stop.is_some()
            && (topology.is_asynchronous() || topology.averaging.is_some() || topology.elastic)
        {
            return Err(ConfigError::StopOutOfStep);
        }
        let out_of_range = |option, range, found| ConfigError::OutOfRange { option, range, found };
        if let Err((parameter, range, found)) = self.optimizer.check() {
            let option = match parameter {
                "rate" => "--lr",
                "decay" => "--weight-decay",
                "momentum" => "--momentum",
                other => other,
            };
            return Err(out_of_range(option, range, found));
        }
        self.schedule.check()?;
        if let Some(norm) = self.clip_norm {
            if !(norm.is_finite() && norm > 0.0) {
                return Err(out_of_range("--clip-norm", "a positive number", norm));
            }
            let is_in_step = !topology.is_asynchronous() && !topology.elastic;
            if topology.reduces_in_store && (!is_in_step || self.store.snapshot.is_some()) {
                return Err(ConfigError::ClipInStore { strategy: self.strategy.name() });
            }
        }
        if let Some(decay) = self.ema {
            if !(0.0..1.0).contains(&decay) {
                return Err(out_of_range("--ema", "from 0 to below 1", decay));
            }
            if topology.averaging.is_some() || topology.elastic {
                return Err(ConfigError::AveragesElsewhere);
            }
        }
        if self.devices_per_worker > DEVICES_MAX {
            let found = f64::from(self.devices_per_worker);
            return Err(out_of_range("--devices-per-worker", "from 1 to 64", found));
        }
        if self.devices_per_worker > 1 && self.device == DeviceChoice::Cpu {
            return Err(ConfigError::DevicesOfProcessor { devices: self.devices_per_worker });
        }
        if self.accumulate > ACCUMULATE_MAX {
            // fits: shown to a person
            return Err(out_of_range("--accumulate", "from 1 to 256", self.accumulate as f64));
        }
        if !(1000..=3_600_000).contains(&self.deadline_ms) {
            // fits: shown to a person
            let seconds = self.deadline_ms as f64 / 1000.0;
            return Err(out_of_range("--deadline", "from 1 to 3600 seconds", seconds));
        }
        if !(1000..=STEP_DEADLINE_MS_MAX).contains(&self.step_deadline_ms) {
            // fits: shown to a person
            let seconds = self.step_deadline_ms as f64 / 1000.0;
            return Err(out_of_range("--step-deadline", "from 1 to 604800 seconds", seconds));
        }
        if self.dynamic_bytes_max < DYNAMIC_BYTES_MIN {
            // fits: shown to a person
            let found = self.dynamic_bytes_max as f64;
            return Err(out_of_range("--dynamic-memory", "at least 1 MiB", found));
        }
        if let Some(threads) = self.threads.filter(|threads| *threads > THREADS_MAX) {
            // fits: shown to a person
            return Err(out_of_range("--threads", "from 1 to 1024", threads as f64));
        }
        let steps = self.trace.as_ref().map_or(1, |trace| trace.steps);
        if !(1..=TRACE_STEPS_MAX).contains(&steps) {
            // fits: shown to a person
            return Err(out_of_range("--trace-steps", "from 1 to 1000", steps as f64));
        }
        let (host, processes) = self.hosts.fullest(self.topology().world());
        if processes > PROCESSES_PER_HOST_MAX {
            let (host, most) = (host.to_string(), PROCESSES_PER_HOST_MAX);
            return Err(ConfigError::TooManyProcesses { processes, most, host });
        }
        self.check_send_order()?;
        self.check_checkpoints()?;
        self.check_store()?;
        self.check_clients()?;
        self.check_hosts()
    }

    /// Checks what is of a key-value store alone.
    fn check_store(&self) -> Result<(), ConfigError> {
        let StoreConfig { max_delay, elastic, snapshot, .. } = &self.store;
        let any = "dist-sgd or dist-asgd";
        let StrategyRow { weights, grouping, pacing, .. } = self.strategy.row();
        let may_lose = (weights, grouping) == (Weights::Store, Grouping::Alone);
        let delays = pacing == Pacing::Bounded;
        let is_zmq = self.exchange == Exchange::Zmq;
        let has_zmq = grouping == Grouping::Alone;
        let options = [
            ("--max-delay", max_delay.is_some(), delays, "dist-asgd or mpi-asgd"),
            ("--elastic", *elastic, may_lose, any),
            ("--snapshot", snapshot.is_some(), may_lose, any),
            ("--exchange zmq", is_zmq, has_zmq, "ps, dist-sgd, dist-asgd or dist-esgd"),
        ];
        let wrong = options.into_iter().find(|(_, given, fits, _)| *given && !fits);
        if let Some((option, _, _, with)) = wrong {
            return Err(ConfigError::StoreOption { option, with });
        }
        let found = self.exchange;
        if self.strategy != Strategy::Local {
            found.check_built_in()?;
        }
        let is_tcp = matches!(self.transport, Transport::Auto | Transport::Tcp);
        if self.strategy != Strategy::Local && found.is_over_tcp() && !is_tcp {
            return Err(ConfigError::ExchangeOverTcp { found });
        }
        if !self.topology().has_store() {
            return Ok(());
        }
        match found {
            Exchange::ZeroCopy => Ok(()),
            Exchange::Zmq if snapshot.is_some() => Err(ConfigError::ZmqSnapshot),
            Exchange::Zmq => Ok(()),
            found if !self.strategy.has_groups() => Err(ConfigError::StoreExchange { found }),
            // refused by the groups
            _ => Ok(()),
        }
    }

    /// Checks where the processes are, and what that rules out.
    fn check_hosts(&self) -> Result<(), ConfigError> {
        let hosts = &self.hosts;
        if self.strategy == Strategy::Local && hosts.any_remote() {
            return Err(ConfigError::HostsOfOneProcess);
        }
        if self.save.is_some() && !hosts.is_here(Rank(0)) {
            return Err(ConfigError::SaveElsewhere { host: hosts.name(Rank(0)).to_string() });
        }
        if self.spread() && self.transport == Transport::Shm {
            return Err(ConfigError::ShmOfSeveralHosts);
        }
        let verbs = matches!(self.settled_transport(), None | Some(Transport::Verbs));
        let options = [
            ("--nic", !self.verbs.nics.is_empty()),
            ("--gid", self.verbs.gid.is_some()),
            ("--arrival", self.arrival.is_some()),
            (
                "--traffic-class, --service-level or --partition",
                self.verbs.path != PathChoice::default(),
            ),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, given)| *given && !verbs) {
            return Err(ConfigError::VerbsOption { option });
        }
        match self.encrypt {
            true if verbs => Err(ConfigError::EncryptedRdma),
            true if self.exchange.is_over_tcp() => Err(ConfigError::EncryptedMessages),
            _ => Ok(()),
        }
    }

    /// The strategy with its numbers.
    pub fn topology(&self) -> Topology {
        Topology::of(self)
    }

    /// Are they on several hosts?
    pub fn spread(&self) -> bool {
        self.hosts.spread(self.topology().world() as usize)
    }

    /// By rank, the number of its host.
    pub(crate) fn host_numbers(&self) -> Vec<u32> {
        self.hosts.numbers(self.topology().world() as usize)
    }

    /// The transport, as far as it is known before the members have been asked.
    pub fn settled_transport(&self) -> Option<Transport> {
        match self.exchange.is_over_tcp() {
            true => Some(Transport::Tcp),
            false => self.transport.settled(self.spread(), self.encrypt),
        }
    }

    /// What must be there for RDMA on every host, if the user wants nothing else.
    pub fn verbs_wanted(&self) -> Option<VerbsOptions> {
        (self.transport == Transport::Verbs).then(|| self.verbs.clone())
    }

    /// How long a silent process is believed to be alive: long enough for a busy machine, short
    /// enough to end the job within the deadline.
    pub fn liveness(&self) -> Duration {
        Duration::from_millis(self.deadline_ms * 6 / 10)
    }

    /// Longest that a step waits for peers that are alive.
    pub fn step_deadline(&self) -> Duration {
        Duration::from_millis(self.step_deadline_ms)
    }

    /// Longest that a process may read its data, or write what is to be kept, and that others wait for that.
    pub(crate) fn disk_deadline(&self) -> Duration {
        (self.step_deadline() * 2).max(self.liveness() * 4)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A step of two workers and two servers.
    pub(crate) fn config() -> TrainConfig {
        TrainConfig {
            batch: 8,
            budget: Budget::Steps(1),
            optimizer: Optimizer::sgd(0.1),
            ..TrainConfig::default()
        }
    }

    fn refusal(config: &TrainConfig) -> String {
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn the_limit_of_processes_is_that_of_one_host() {
        let many = TrainConfig { workers: 200, servers: 57, ..config() };
        let found = refusal(&many);
        assert!(found.starts_with("257 processes on localhost are more than"), "{found}");
        assert!(found.contains("at most 256") && found.contains("--hosts"), "{found}");
        let hosts: Hosts = "192.0.2.1,192.0.2.2".parse().unwrap();
        let spread = TrainConfig { hosts, listen: Some(([127, 0, 0, 1], 0).into()), ..many };
        spread.check().unwrap();
        let hosts: Hosts = "192.0.2.1,192.0.2.2:200,192.0.2.1".parse().unwrap();
        let uneven = TrainConfig { workers: 400, servers: 100, hosts, ..spread.clone() };
        let found = refusal(&uneven);
        assert!(found.starts_with("495 processes on 192.0.2.2 are more than"), "{found}");
        // so many are refused without counting them one by one
        let huge = TrainConfig { workers: u32::MAX, servers: u32::MAX, ..spread };
        assert!(refusal(&huge).contains("are more than"), "{}", refusal(&huge));
        TrainConfig { strategy: Strategy::Local, workers: 300, ..config() }.check().unwrap();
    }

    #[test]
    fn limits_of_a_step_name_their_options() {
        let found = refusal(&TrainConfig { step_deadline_ms: 999, ..config() });
        assert_eq!(found, "--step-deadline must be from 1 to 604800 seconds, not 0.999");
        let found = refusal(&TrainConfig { dynamic_bytes_max: 1 << 19, ..config() });
        assert_eq!(found, "--dynamic-memory must be at least 1 MiB, not 524288");
    }

    #[test]
    fn a_configuration_of_an_earlier_version_has_the_limits_that_it_had() {
        let mut earlier = serde_json::to_value(config()).unwrap();
        let fields = earlier.as_object_mut().unwrap();
        assert!(fields.remove("step_deadline_ms").is_some());
        assert!(fields.remove("dynamic_bytes_max").is_some());
        let read: TrainConfig = serde_json::from_value(earlier).unwrap();
        assert_eq!((read.step_deadline().as_secs(), read.dynamic_bytes_max), (600, 4 << 30));
        assert_eq!(read, config());
    }

    #[test]
    fn names_are_those_that_are_written() {
        let written = |value: serde_json::Value| value.as_str().unwrap().to_string();
        for float in [FloatType::F32, FloatType::F64, FloatType::Bf16] {
            assert_eq!(written(serde_json::to_value(float).unwrap()), float.name());
        }
        for kernels in [Kernels::Auto, Kernels::Cpu, Kernels::OneDnn, Kernels::Reference] {
            assert_eq!(written(serde_json::to_value(kernels).unwrap()), kernels.name());
        }
    }
}
