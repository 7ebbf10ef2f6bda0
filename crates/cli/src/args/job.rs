//! What commands that prepare a job have in common: the model, its data, how it is trained and where.

use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};

use clap::{Args, ValueEnum};
use tensorwire_base::human_bytes;
use tensorwire_bench::{parse_bytes, parse_size};
use tensorwire_graph::Placement;
use tensorwire_launch::{Hosts, RSH, Transport};
use tensorwire_nn::Optimizer;
use tensorwire_train::{
    Budget, ConfigError, CudaLibraries, DeviceChoice, DeviceDesign, Exchange, Kernels, MathMode,
    SendOrder, Strategy, TrainConfig,
};
use tensorwire_zoo::data::{SampleKind, Source};

use super::clients::{self, ClientArgs};
use super::headings::{COMPUTE, FAILURES, MODEL, PROCESSES, STRATEGY, WIRE};
use super::{DEFAULTS, ExchangeArg, LearnArgs, TransportArg, WireArgs, with_default};

/// Who splits variables.
const BALANCED: &str = "--strategy ps with --placement balanced";
/// Who uses what is of communication.
const SEVERAL: &str = "jobs of several processes, which --strategy local has not";
const SEVERAL_GPUS: &str = "--devices-per-worker above 1";
const CUDA: &str = "--device cuda and auto";
const SERVERS: &str = "jobs with servers, which --strategy allreduce has not";

/// What decides the graph and its partition.
#[derive(Args, Clone, Debug)]
pub(crate) struct JobArgs {
    /// Model to train (see `tensorwire models`)
    #[arg(long, value_name = "NAME", help_heading = MODEL, default_value_t = DEFAULTS.model.clone(),
          value_parser = super::models::model_name)]
    model: String,
    /// Data: digits, mnist:DIR, images:DIR, csv:FILE, …
    ///
    /// Images: `digits` (comes with the program), `mnist:DIR`, `cifar10:DIR`, `images:DIR[,skip-bad]` (JPEG and PNG, a
    /// folder a class). Tables: `npz:FILE`, `npy:X,Y`, `csv:FILE[,TEST]`. Running text: `kjv` (comes with the program),
    /// `chars:FILE`, `lm:FILE[,TOKENIZER]`, `tokens:FILE[,TEST][,vocab=N]`. Sentences and their translations:
    /// `text:SOURCE,TARGET` (two files, a sentence a line), `grammar[:N]`, `reverse[:N]` (made up). Made up for any
    /// model: `synthetic[:N]`.
    ///
    /// [default: digits, or kjv for gpt-mini, or synthetic where the model takes no such images]
    #[arg(long, alias = "dataset", help_heading = MODEL)]
    data: Option<String>,
    /// Tokens of a window of text [default: as many as the model takes]
    #[arg(long, value_name = "N", help_heading = MODEL, hide_short_help = true)]
    sequence: Option<usize>,
    /// Samples per worker (or GPU of it) and step
    #[arg(long, alias = "batch-size", value_name = "B", help_heading = MODEL, default_value_t = DEFAULTS.batch)]
    batch: usize,
    /// Seed of first values and the order of samples
    ///
    /// Equal seeds give equal bits.
    #[arg(long, value_name = "S", help_heading = MODEL, default_value_t = DEFAULTS.seed)]
    seed: u64,
    /// One of ps, allreduce, dist-sgd, local, …
    ///
    /// `ps`: variables on servers as parts of the graph, replicas on workers. `dist-sgd`, `dist-asgd`: variables in a
    /// key-value store, to which workers push and from which they pull, in step or each at its own pace. `allreduce`:
    /// variables on every worker, gradients all-reduced. `mpi-sgd`, `mpi-asgd`: as `dist-...`, by groups of workers
    /// (--clients). `dist-esgd`, `mpi-esgd`: workers (groups) train weights of their own, which are averaged with a
    /// centre now and then (--interval). `local`: the same replicas as `ps` in one process. `ddp` is another name of
    /// `allreduce`, `parameter-server` of `ps`.
    #[arg(long, value_name = "NAME", help_heading = STRATEGY, value_parser = clients::strategy(),
          default_value = DEFAULTS.strategy.name())]
    strategy: Strategy,
    /// ps: which server gets which variable [default: balanced]
    ///
    /// `balanced`: by bytes, the largest first; what is larger than a server's equal share is split by rows.
    /// `round-robin`: one after another, as they are declared.
    #[arg(long, value_name = "HOW", help_heading = STRATEGY, hide_short_help = true, value_enum)]
    placement: Option<PlacementArg>,
    /// ps, balanced: split no variable of at most so many bytes
    ///
    /// 0: split every one that may be. [default: 4MiB; 64MiB where all processes share memory, since rows are written
    /// there and a whole is read where it lies]
    #[arg(long, value_name = "SIZE", help_heading = STRATEGY, hide_short_help = true, value_parser = parse_bytes)]
    split_above: Option<usize>,
    #[command(flatten)]
    clients: ClientArgs,
    #[arg(long, value_name = "N", help_heading = PROCESSES,
        help = with_default("Worker processes; MIN..MAX: elastic", DEFAULTS.workers),
        long_help = with_default(
            "Worker processes (with `local`: replicas, reduced in the same order). MIN..MAX: MAX, and as few as MIN where workers \
             or hosts are lost or `tensorwire scale` asks for it; a step takes as many samples as ever (with --checkpoint)",
            format_args!("{}, or half of the processes that mpirun, srun or torchrun started", DEFAULTS.workers),
        ))]
    pub(crate) workers: Option<Workers>,
    #[arg(long, value_name = "K", help_heading = PROCESSES,
        help = with_default("Server processes", DEFAULTS.servers),
        long_help = with_default(
            "Server processes. `allreduce` has none; `ps` and `mpi-sgd` may have 0",
            format_args!(
                "{}, or the rest of those processes. With --hosts, where the workers fill every host: none with `ps`, as \
                 --colocate; one on each host with `dist-sgd` and `dist-asgd`",
                DEFAULTS.servers,
            ),
        ))]
    pub(crate) servers: Option<u32>,
    /// ps: no servers; every worker holds a share of the variables
    ///
    /// And updates it, so that less crosses. As --servers 0, and as it is with --hosts where the workers fill every host.
    #[arg(long, help_heading = PROCESSES, hide_short_help = true, conflicts_with = "servers")]
    colocate: bool,
    /// Where they run: node0,node1:2 or @FILE [default: here]
    ///
    /// `node0,node1:2` (:2 = two in a turn), or `@FILE` with a host in each line. The processes go to the hosts
    /// round-robin, workers first. [default: this machine]
    #[arg(long, value_name = "LIST", help_heading = PROCESSES)]
    pub(crate) hosts: Option<String>,
    /// As many workers as there may be, where somebody else started these
    #[arg(skip)]
    pub(crate) of_workers: Option<Workers>,
    /// Where they run that somebody else started
    #[arg(skip)]
    pub(crate) placed: Option<Hosts>,
    #[arg(long, value_name = "COMMAND", help_heading = PROCESSES, hide_short_help = true, help = with_default(
        "What starts a process on another host: it is given the host and a command line", RSH,
    ))]
    rsh: Option<String>,
    /// Where the launcher listens for its processes
    ///
    /// Port 0: the system chooses. [default: loopback, or this machine's address towards the other hosts]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = PROCESSES, hide_short_help = true)]
    pub(crate) listen: Option<SocketAddr>,
    /// How long processes that somebody else started wait for all
    ///
    /// Those of mpirun, srun, torchrun, Kubernetes, …; give all the same. [default: TENSORWIRE_GATHER_TIMEOUT, else 60]
    #[arg(long, value_name = "SECONDS", help_heading = PROCESSES, hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gather_timeout: Option<u32>,
    #[command(flatten)]
    learn: LearnArgs,
    /// What computes: cpu, cuda, cuda:N, auto
    ///
    /// In workers: `cpu`, `cuda` (each worker of a machine takes the next GPU), `cuda:N` (that one) or `auto` (a GPU
    /// where there is one).
    #[arg(long, value_name = "DEVICE", help_heading = COMPUTE, default_value_t = DEFAULTS.device)]
    device: DeviceChoice,
    /// GPUs of each worker, which takes a batch on each
    ///
    /// So a step takes workers × GPUs × batch samples. Their gradients are reduced in the worker (--design): what crosses
    /// between processes is that of one. Worker k of a machine takes GPUs k·N to k·N + N - 1, counted from M on with
    /// `--device cuda:M`.
    #[arg(long, value_name = "N", help_heading = COMPUTE, hide_short_help = true, default_value_t = 1)]
    devices_per_worker: u32,
    /// How the GPUs of a worker reduce [default: multi-ring]
    ///
    /// `multi-ring`: each GPU reduces a share, and deals with other workers or with servers for it, so that the links of
    /// all carry as much. `reg`: the first GPU does all. The same bits either way. With `--collectives nccl`
    /// always `reg`.
    #[arg(long, value_name = "DESIGN", help_heading = COMPUTE, value_enum, hide_short_help = true)]
    design: Option<DeviceDesignArg>,
    /// What a GPU multiplies: f32, tf32, bf16
    ///
    /// In products and convolutions. `tf32` and `bf16` round numbers of f32 before they are multiplied, for speed; sums
    /// are of f32, and weights stay as they are.
    #[arg(long, value_name = "FORMAT", help_heading = COMPUTE, value_enum,
          default_value = DEFAULTS.math.name(), hide_short_help = true)]
    math: MathArg,
    /// Threads of each process
    ///
    /// [default: the workers of a machine share its cores, a server has all]
    #[arg(long, value_name = "N", help_heading = COMPUTE, hide_short_help = true)]
    threads: Option<usize>,
    /// Which kernels compute
    ///
    /// `auto`: `onednn` where libdnnl.so.3 is installed, else `cpu`. `reference`: plain loops, slow, to check against.
    #[arg(long, value_name = "NAME", help_heading = COMPUTE, hide_short_help = true, value_enum,
          default_value = DEFAULTS.kernels.name())]
    kernels: KernelsArg,
    /// The library of CUDA's driver
    ///
    /// [default: libcuda.so.1, where the dynamic linker finds it]
    #[arg(long, value_name = "FILE", help_heading = COMPUTE, hide_short_help = true)]
    cuda_driver: Option<PathBuf>,
    /// Folders with CUDA's libraries, or none
    ///
    /// They are looked for there first, then where the dynamic linker looks, in $CUDA_HOME and among python3's packages.
    /// `none`: this program's own kernels compute all.
    #[arg(long, value_name = "FOLDER", help_heading = COMPUTE, hide_short_help = true, value_delimiter = ',')]
    cuda_libs: Vec<PathBuf>,
    #[arg(long, value_name = "SIZE", help_heading = COMPUTE, hide_short_help = true, value_parser = parse_size,
        help = with_default(
            "Most memory of each kind that a process gives to tensors whose size is known only when they exist: `512MiB`",
            human_bytes(DEFAULTS.dynamic_bytes_max as u64),
        ))]
    dynamic_memory: Option<usize>,
    #[arg(long, value_name = "NAME", help_heading = WIRE, value_enum,
          help = with_default("One of auto, shm, tcp, verbs", DEFAULTS.transport.name()),
          long_help = with_default(
              "How bytes travel; `rdma` is another name of verbs", DEFAULTS.transport.name(),
          ))]
    transport: Option<TransportArg>,
    #[arg(long, value_name = "NAME", help_heading = WIRE, hide_short_help = true, value_enum,
          help = with_default("How a tensor crosses", DEFAULTS.exchange.name()))]
    exchange: Option<ExchangeArg>,
    #[command(flatten)]
    wire: WireArgs,
    /// Which of the tensors that wait goes first
    ///
    /// Of those that wait for the same way, where weights are updated by servers or gradients are reduced in groups: `priority`: what the next step computes with first (P3, ByteScheduler);
    /// `ready`: what was made first, to compare with. The bits are the same.
    #[arg(long, value_name = "ORDER", help_heading = WIRE, hide_short_help = true, value_enum,
          default_value = DEFAULTS.send_order.name())]
    send_order: SendOrderArg,
    /// Encrypt what leaves a host, tensors too
    ///
    /// AES-256-GCM; over TCP, not over RDMA.
    #[arg(long, help_heading = WIRE, hide_short_help = true)]
    encrypt: bool,
    #[arg(long, value_name = "SECONDS", help_heading = FAILURES, hide_short_help = true, help = with_default(
        "Seconds within which the job ends when one of its processes dies or stops",
        seconds(DEFAULTS.deadline_ms),
    ))]
    deadline: Option<f64>,
    /// Seconds that a step waits at most for processes that are alive
    #[arg(long, value_name = "SECONDS", help_heading = FAILURES, hide_short_help = true,
          default_value_t = seconds(DEFAULTS.step_deadline_ms))]
    step_deadline: f64,
}

/// How many workers there are, and how few there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workers {
    pub(crate) count: u32,
    pub(crate) fewest: Option<u32>,
}

impl std::str::FromStr for Workers {
    type Err = String;

    fn from_str(given: &str) -> Result<Workers, String> {
        let wanted = "give a whole number of workers, or MIN..MAX";
        let number = |text: &str| text.parse::<u32>().map_err(|_| wanted.to_string());
        match given.split_once("..") {
            None => Ok(Workers { count: number(given)?, fewest: None }),
            Some((fewest, most)) => {
                Ok(Workers { count: number(most)?, fewest: Some(number(fewest)?) })
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PlacementArg {
    Balanced,
    RoundRobin,
}

impl PlacementArg {
    pub(super) fn placement(self, split_above: Option<usize>) -> Placement {
        match self {
            PlacementArg::Balanced => Placement::Balanced { split_above },
            PlacementArg::RoundRobin => Placement::RoundRobin,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SendOrderArg {
    Priority,
    Ready,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum KernelsArg {
    Auto,
    Cpu,
    #[value(name = "onednn", alias = "mkldnn")]
    OneDnn,
    Reference,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceDesignArg {
    MultiRing,
    Reg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum MathArg {
    #[value(alias = "fp32", alias = "float32")]
    F32,
    #[value(alias = "tensorfloat32")]
    Tf32,
    #[value(alias = "bfloat16")]
    Bf16,
}

impl From<KernelsArg> for Kernels {
    fn from(given: KernelsArg) -> Kernels {
        match given {
            KernelsArg::Auto => Kernels::Auto,
            KernelsArg::Cpu => Kernels::Cpu,
            KernelsArg::OneDnn => Kernels::OneDnn,
            KernelsArg::Reference => Kernels::Reference,
        }
    }
}

impl From<MathArg> for MathMode {
    fn from(given: MathArg) -> MathMode {
        match given {
            MathArg::F32 => MathMode::F32,
            MathArg::Tf32 => MathMode::Tf32,
            MathArg::Bf16 => MathMode::Bf16,
        }
    }
}

impl JobArgs {
    pub(crate) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// True if workers are the servers.
    pub(crate) fn is_colocated(&self) -> bool {
        self.colocate || (self.strategy() == Strategy::Ps && self.servers == Some(0))
    }

    /// How a tensor crosses.
    pub(crate) fn exchange(&self) -> Exchange {
        self.exchange.map_or(DEFAULTS.exchange, Exchange::from)
    }

    /// Refuses what was given and would change nothing.
    fn check_used(&self) -> Result<(), ConfigError> {
        let is_alone = self.strategy() == Strategy::Local;
        let has_servers = self.strategy() != Strategy::AllReduce;
        self.learn.check_used(self.usual_optimizer())?;
        let is_ps = self.strategy() == Strategy::Ps;
        let is_balanced = is_ps && self.placement != Some(PlacementArg::RoundRobin);
        // a job that may be moved takes it along
        let may_move = self.workers.is_some_and(|workers| workers.fewest.is_some());
        let may_have_hosts = self.hosts.is_some() || self.placed.is_some() || may_move;
        let of_rdma = self.wire.given().map(|(option, given)| (option, given, !is_alone, SEVERAL));
        let others = [
            ("--placement", self.placement.is_some(), is_ps, "--strategy ps"),
            ("--colocate", self.colocate, is_ps, "--strategy ps"),
            ("--split-above", self.split_above.is_some(), is_balanced, BALANCED),
            ("--servers", self.servers.is_some(), !is_alone, SEVERAL),
            ("--servers", self.servers.is_some_and(|servers| servers > 0), has_servers, SERVERS),
            ("--deadline", self.deadline.is_some(), !is_alone, SEVERAL),
            ("--transport", self.transport.is_some(), !is_alone, SEVERAL),
            ("--exchange", self.exchange.is_some(), !is_alone, SEVERAL),
            ("--encrypt", self.encrypt, !is_alone, SEVERAL),
            ("--listen", self.listen.is_some(), !is_alone, SEVERAL),
            ("--rsh", self.rsh.is_some(), may_have_hosts, "--hosts"),
            ("--gather-timeout", self.gather_timeout.is_some(), !is_alone, SEVERAL),
            ("--design", self.design.is_some(), self.devices_per_worker > 1, SEVERAL_GPUS),
            ("--cuda-driver", self.cuda_driver.is_some(), self.device != DeviceChoice::Cpu, CUDA),
            ("--cuda-libs", !self.cuda_libs.is_empty(), self.device != DeviceChoice::Cpu, CUDA),
        ];
        for (option, given, is_used, used_by) in others.into_iter().chain(of_rdma) {
            if given && !is_used {
                return Err(ConfigError::Unused { option, used_by });
            }
        }
        Ok(())
    }

    /// As [`JobArgs::config`], of a job that keeps its number of workers.
    pub(super) fn config_of_fixed(
        self,
        budget: Budget,
        quiet: Option<f64>,
    ) -> Result<TrainConfig, ConfigError> {
        if self.workers.is_some_and(|workers| workers.fewest.is_some()) {
            return Err(ConfigError::Unused { option: "--workers MIN..MAX", used_by: "train" });
        }
        self.config(budget, quiet)
    }

    /// What suits the model. Whoever looks for a model that is none says so.
    fn usual_optimizer(&self) -> Optimizer {
        tensorwire_zoo::model(&self.model).map_or(DEFAULTS.optimizer, |model| model.optimizer())
    }

    /// The job; with `quiet`, of that rate where none is given.
    pub(super) fn config(
        self,
        budget: Budget,
        quiet: Option<f64>,
    ) -> Result<TrainConfig, ConfigError> {
        self.check_used()?;
        let usual = self.usual_optimizer();
        let (strategy, exchange) = (self.strategy(), self.exchange());
        let hosts = match (self.placed, self.hosts) {
            (Some(placed), _) => Some(placed),
            (None, given) => given.map(|given| given.parse()).transpose()?,
        };
        let (verbs, arrival) = self.wire.options();
        let data = self.data.unwrap_or_else(|| default_data(&self.model).to_string());
        let hosts = hosts.unwrap_or_default();
        let workers = self.workers.map_or(DEFAULTS.workers, |workers| workers.count);
        let servers = match self.colocate {
            true => 0,
            false => self.servers.unwrap_or_else(|| usual_servers(strategy, workers, &hosts)),
        };
        let mut config = TrainConfig {
            model: self.model,
            data,
            sequence: self.sequence,
            strategy,
            workers,
            fewest_workers: self.workers.and_then(|workers| workers.fewest),
            servers,
            placement: self.placement.unwrap_or(PlacementArg::Balanced).placement(self.split_above),
            clients: self.clients.config()?,
            transport: self.transport.map_or(DEFAULTS.transport, Transport::from),
            verbs,
            arrival,
            encrypt: self.encrypt,
            hosts: match &self.rsh {
                Some(rsh) => hosts.started_by(rsh)?,
                None => hosts,
            },
            exchange,
            send_order: match self.send_order {
                SendOrderArg::Priority => SendOrder::Priority,
                SendOrderArg::Ready => SendOrder::Ready,
            },
            batch: self.batch,
            budget,
            seed: self.seed,
            threads: self.threads,
            kernels: self.kernels.into(),
            device: self.device,
            devices_per_worker: self.devices_per_worker,
            design: match self.design {
                None => DEFAULTS.design,
                Some(DeviceDesignArg::MultiRing) => DeviceDesign::MultiRing,
                Some(DeviceDesignArg::Reg) => DeviceDesign::Reg,
            },
            cuda_driver: self.cuda_driver,
            cuda_libraries: cuda_libraries(self.cuda_libs),
            math: self.math.into(),
            listen: self.listen,
            // a negative or huge number saturates and is refused by the configuration's check
            deadline_ms: self
                .deadline
                .map_or(DEFAULTS.deadline_ms, |deadline| (deadline * 1000.0) as u64),
            step_deadline_ms: (self.step_deadline * 1000.0) as u64,
            dynamic_bytes_max: self.dynamic_memory.unwrap_or(DEFAULTS.dynamic_bytes_max),
            ..TrainConfig::default()
        };
        self.learn.configure(&mut config, usual, quiet);
        if let Some(Workers { count: most, fewest }) = self.of_workers {
            let (workers, fewest) = (config.workers, fewest.unwrap_or(most));
            if !(fewest..=most).contains(&workers) || !most.is_multiple_of(workers) {
                return Err(ConfigError::NoPart { workers, fewest, most });
            }
            // fits: workers are few
            config.accumulate *= (most / workers) as usize;
        }
        if config.hosts.any_remote() {
            config.data = with_absolute_paths(&config.data);
        }
        Ok(config)
    }
}

/// How many servers suit the machines, where nobody says it. The papers have a worker and a server on each machine: where the
/// workers fill all of several machines, each of them serves a share of the variables, and a store has a server on each machine.
fn usual_servers(strategy: Strategy, workers: u32, hosts: &Hosts) -> u32 {
    let turn = hosts.slots();
    let are_several = hosts.fullest(turn).1 < u64::from(turn);
    match strategy {
        _ if !are_several || workers < turn => DEFAULTS.servers,
        Strategy::Ps => 0,
        Strategy::DistSgd | Strategy::DistAsgd => turn,
        _ => DEFAULTS.servers,
    }
}

/// Where CUDA's libraries are, as `--cuda-libs` says it.
pub(super) fn cuda_libraries(folders: Vec<PathBuf>) -> CudaLibraries {
    if folders == [PathBuf::from("none")] {
        return CudaLibraries::Unused;
    }
    let cuda_home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    CudaLibraries::Used { folders, cuda_home }
}

fn seconds(ms: u64) -> f64 {
    // fits: shown to a person
    ms as f64 / 1000.0
}

/// Data whose files are named from the root: processes of other hosts are in another folder.
fn with_absolute_paths(data: &str) -> String {
    // whoever opens it says what is wrong
    let full = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match data.parse::<Source>() {
        Ok(source) => source.with_paths(full).to_string(),
        Err(_) => data.to_string(),
    }
}

/// Images that the program brings along.
const DIGITS: SampleKind = SampleKind::Images { dims: [8, 8, 1], classes: 10 };

/// The data that come with the program, where the model learns from them.
pub(super) fn default_data(model: &str) -> &'static str {
    match tensorwire_zoo::model(model) {
        // the tokens of other models are those of a tokenizer
        Ok(model) if model.name() == "gpt-mini" => "kjv",
        Ok(model) if model.check(&DIGITS.describe()).is_err() => "synthetic",
        _ => "digits",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_workers_fill_all_of_several_machines_each_has_a_server_too() {
        let servers = |strategy, workers, hosts: &str| {
            usual_servers(strategy, workers, &hosts.parse().unwrap())
        };
        let (ps, store, two) = (Strategy::Ps, Strategy::DistSgd, DEFAULTS.servers);
        assert_eq!(servers(ps, 2, "192.0.2.1,192.0.2.2"), 0);
        assert_eq!(servers(ps, 8, "192.0.2.1:2,192.0.2.2:2"), 0);
        assert_eq!(servers(store, 4, "192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4"), 4);
        assert_eq!(servers(store, 8, "192.0.2.1,192.0.2.2"), 2);
        assert_eq!(servers(Strategy::DistAsgd, 4, "192.0.2.1:2,192.0.2.2:2"), 4);
        // there is room for servers of their own, or one machine
        for hosts in ["192.0.2.1,192.0.2.2,192.0.2.3", "192.0.2.1:2,192.0.2.1"] {
            assert_eq!(servers(ps, 2, hosts), two, "{hosts}");
            assert_eq!(servers(store, 2, hosts), two, "{hosts}");
        }
        assert_eq!(usual_servers(ps, u32::MAX, &Hosts::default()), two);
        assert_eq!(servers(Strategy::MpiSgd, 2, "192.0.2.1,192.0.2.2"), two);
    }
}
