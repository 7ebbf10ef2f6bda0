//! Why a job cannot be trained as it was told, and how to mend it.

use std::path::PathBuf;

use tensorwire_fabric::MemoryRoom;
use tensorwire_graph::{GraphError, Task};
use tensorwire_launch::HostsError;
use tensorwire_nn::ScheduleError;

use super::Exchange;
use crate::checkpoint::CheckpointError;
use crate::weights::WeightsError;

/// What is wrong with a configuration: the user's mistake, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--kernels: {0}")]
    Kernels(#[from] tensorwire_kernels::OpenError),
    #[error("--device: {0}; --device cpu needs no GPU")]
    Device(#[from] tensorwire_cuda::CudaError),
    #[error(
        "--devices-per-worker {devices} is of GPUs: a worker's processor is one device, whose cores compute together; give \
         --device cuda, or more --workers"
    )]
    DevicesOfProcessor { devices: u32 },
    #[error(
        "--cuda-libs {folder} has none of CUDA's libraries (libcublasLt.so.13 and its like); name a folder that has, leave it out \
         to have them looked for, or give none"
    )]
    NoLibraries { folder: PathBuf },
    #[error(
        "--devices-per-worker {devices} is of GPUs, and --device auto found none here; leave it out, give more --workers, or \
         see what `tensorwire doctor` says of GPUs"
    )]
    DevicesOfNone { devices: u32 },
    #[error(
        "--devices-per-worker {each} takes {needed} GPUs for {workers} on {host}, which has {count}; lower it or \
         --workers, or name more machines in --hosts"
    )]
    TooFewDevices { each: u32, workers: String, needed: usize, count: usize, host: String },
    #[error(
        "GPUs of {host} do not reach each other's memory, as those of the launcher's host do (`nvidia-smi topo -p2p r` shows \
         which do); give --transport tcp, or verbs where there are RDMA NICs"
    )]
    DevicesApart { host: String },
    #[error(
        "--math {math} is what GPUs multiply, and here the processor computes, in f32; leave --math out, or \
         take --device cuda where there is a GPU"
    )]
    MathOfCpu { math: &'static str },
    #[error("--math {math} rounds numbers of f32, and --dtype f64 has none; leave one of them out")]
    MathOfF64 { math: &'static str },
    #[error("{option} needs {with}")]
    Lacks { option: &'static str, with: &'static str },
    #[error(
        "--early-stop ends all processes behind the same step, and here they make theirs at their own pace; leave it out, or \
         take local, ps, allreduce, dist-sgd or mpi-sgd"
    )]
    StopOutOfStep,
    #[error(
        "--ema averages what worker 0 reads in each step, and here workers have weights of their own or may be lost; leave \
         --ema out, or take a strategy other than dist-esgd and mpi-esgd, without --elastic"
    )]
    AveragesElsewhere,
    #[error(
        "--no-decay '{pattern}' is the name of no parameter of '{model}'; `tensorwire graph --full` lists them, and * stands for any \
         characters"
    )]
    NoSuchParameter { pattern: String, model: String },
    #[error(
        "--resume auto goes on from the checkpoints that this job writes, once there are any; give --checkpoint DIR, too"
    )]
    AutoWithoutCheckpoint,
    #[error(
        "--restarts is of a launcher that outlives its processes, and local has one process; give --checkpoint DIR --resume \
         auto, and whatever starts the program starts it again"
    )]
    RestartOfOneProcess,
    #[error("{option} must be at least 1")]
    Zero { option: &'static str },
    #[error(
        "{option} must be at least 1; `tensorwire eval --load FILE` evaluates weights without training"
    )]
    NothingToTrain { option: &'static str },
    #[error(
        "there are no weights to evaluate; give --load FILE, as --save wrote it, or --load DIR, a folder of checkpoints"
    )]
    NothingToEvaluate,
    #[error(
        "{data} has no samples to test with; give data that have, such as csv:TRAIN,TEST, or x_test and y_test in an npz"
    )]
    NothingToEvaluateWith { data: String },
    #[error(
        "{workers} workers cannot stand for {most} (--workers {fewest}..{most}): start a number of them that {most} is a \
         multiple of, and at least {fewest}"
    )]
    NoPart { workers: u32, fewest: u32, most: u32 },
    #[error(
        "--workers {fewest}..{most}: of no number below {most} each worker would make as many batches for a step; take a MAX that is \
         a multiple of smaller ones, such as 4 or 8"
    )]
    NoSizes { fewest: u32, most: u32 },
    #[error("{option} must be {range}, not {found}")]
    OutOfRange { option: &'static str, range: &'static str, found: f64 },
    #[error(
        "of {servers} servers only {used} would hold variables of '{model}'; give --servers 1 to {used}, or let smaller \
         variables be split by rows (--split-above)"
    )]
    TooManyServers { servers: u32, used: u32, model: String },
    #[error(
        "{processes} processes on {host} are more than this program starts on one machine (at most {most}); lower \
         --workers or --servers, or name more machines in --hosts"
    )]
    TooManyProcesses { processes: u64, most: u64, host: String },
    #[error(
        "--wire {wire} needs gradients to go straight to who reduces them, and {strategy} reduces them in groups first; take \
         --strategy ps, allreduce or dist-sgd, or --wire bf16"
    )]
    WireOfStrategy { wire: &'static str, strategy: &'static str },
    #[error(
        "--wire {wire} to a store is for workers and servers that compute on processors; take --device cpu, --strategy ps or \
         allreduce, or --wire bf16"
    )]
    WireOnDevice { wire: &'static str },
    #[error(
        "with --wire {wire} and {servers} servers more than a server has room for may be pushed of its share of '{variable}'; take \
         a smaller share, fewer servers, or --wire int8 or bf16"
    )]
    WireTooLarge { wire: String, servers: u32, variable: String },
    #[error("{option} changes nothing here: it is for {used_by}; leave it out")]
    Unused { option: &'static str, used_by: &'static str },
    #[error(
        "'{node}' is pinned to {task} (Scope::on), and with the strategy {strategy} no process runs a part of one graph \
         that all share; take ps (ParameterServers), or leave the pin out"
    )]
    Pinned { node: String, task: Task, strategy: String },
    #[error("--async is a way of using servers; give it with --strategy ps")]
    AsyncWithoutServers,
    #[error(
        "--async has servers that wait for nobody, and a worker is no such server; give --servers 1 or more, or leave --async out"
    )]
    AsyncColocated,
    #[error("{option} is of a key-value store; give it with --strategy {with}")]
    StoreOption { option: &'static str, with: &'static str },
    #[error(
        "cannot read the table {path}: {reason}; `tensorwire bench allreduce --tune FILE` writes one"
    )]
    Table { path: String, reason: String },
    #[error("{option} is of groups of workers; give it with --strategy {with}")]
    GroupOption { option: &'static str, with: &'static str },
    #[error(
        "--clients {clients} does not divide --workers {workers}; all clients are of one size, so that every \
         sample counts alike"
    )]
    UnevenClients { clients: u32, workers: u32 },
    #[error(
        "--strategy {strategy} with --servers 0 has nobody to keep the weights; give --servers 1 or more, or \
         mpi-sgd with one client (allreduce)"
    )]
    NoServers { strategy: &'static str },
    #[error(
        "--collectives nccl is a library of CUDA's, and --cuda-libs none has none be used; leave one of them out"
    )]
    NoNccl,
    #[error("--collectives nccl: {0}; --collectives own needs none")]
    Nccl(#[from] tensorwire_cuda::NcclError),
    #[error("--exchange {} is no way of a group of workers; leave it out", .found.name())]
    GroupExchange { found: Exchange },
    #[error("--exchange {} is no way of a key-value store; give zero-copy or zmq", .found.name())]
    StoreExchange { found: Exchange },
    #[error(
        "--exchange {} goes over TCP of its own; give --transport tcp or leave it out", .found.name()
    )]
    ExchangeOverTcp { found: Exchange },
    #[error("--exchange zmq knows no server that comes later; leave --snapshot out")]
    ZmqSnapshot,
    #[error("{0}")]
    Schedule(#[from] ScheduleError),
    #[error(
        "--clip-norm takes the norm of the mean gradient of all workers in a step, and with {strategy} here they make no steps \
         together; take dist-sgd or mpi-sgd without --elastic and --snapshot, or ps, allreduce or local"
    )]
    ClipInStore { strategy: &'static str },
    #[error("{0}")]
    TensorLimit(String),
    #[error(
        "{found} is a baseline to compare with, and this program was built without them; build it with them, which \
         takes a C++ compiler: cargo install tensorwire-cli --features baselines (in a checkout: cargo run --release \
         --features baselines -- …)"
    )]
    NoBaselines { found: &'static str },
    #[error(
        "cannot write snapshots to {path}: {source}; choose a path in a folder that exists and may be written"
    )]
    Snapshot { path: PathBuf, source: std::io::Error },
    #[error(
        "--trace shows steps that all processes make together; leave --async or --trace out, or take ps, dist-sgd, mpi-sgd or allreduce"
    )]
    AsyncTrace,
    #[error(
        "{strategy} cannot be looked at epoch by epoch: its weights come to where they are evaluated only in the end; \
         take dist-sgd or mpi-sgd"
    )]
    NoEpochs { strategy: &'static str },
    #[error(
        "--val-every: where ps has no common steps (--async), the weights come to where they are evaluated only in the end; \
         leave --async or --val-every out, or take dist-asgd"
    )]
    EvaluationOfAsync,
    #[error("--val-every: {data} has no samples to test with; leave it out")]
    NothingToTest { data: String },
    #[error("--strategy local is one process on this machine; leave --hosts out")]
    HostsOfOneProcess,
    #[error(
        "processes on several hosts share no memory; give --transport auto, verbs or tcp instead of shm"
    )]
    ShmOfSeveralHosts,
    #[error(
        "{option} is for RDMA, which this job does not use; give --transport verbs or leave {option} out"
    )]
    VerbsOption { option: &'static str },
    #[error(
        "a NIC writes memory as it lies, so RDMA cannot encrypt; give --transport tcp, or leave --encrypt out"
    )]
    EncryptedRdma,
    #[error(
        "--encrypt is for tensors that tensorwire sends; leave it out with the baselines' --exchange"
    )]
    EncryptedMessages,
    #[error(
        "--save writes on the host of worker 0, which is {host}; put this machine first in --hosts"
    )]
    SaveElsewhere { host: String },
    #[error("{0}")]
    Hosts(#[from] HostsError),
    /// The model, the data, or both together.
    #[error("{0}")]
    Workload(#[from] tensorwire_nn::Error),
    #[error("{0}")]
    Weights(#[from] WeightsError),
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "{option} goes without --snapshot: a server writes either, for whoever takes its place or for a job that goes on; \
         leave one out"
    )]
    CheckpointBesideSnapshot { option: &'static str },
    #[error("--load and --resume both say what to begin with; leave one out")]
    LoadAndResume,
    #[error(
        "cannot save to {path}: {source}; choose a file, new or of earlier weights, in a folder that exists and may be written"
    )]
    Save { path: PathBuf, source: std::io::Error },
    #[error(
        "cannot write a trace to {path}: {source}; choose a file, new or of an earlier trace, in a folder that exists and may be written"
    )]
    Trace { path: PathBuf, source: std::io::Error },
    #[error("this job needs {needed} of memory on this host, {room}; lower --workers or --batch")]
    TooLarge { needed: String, room: MemoryRoom },
    #[error("so many batches take {needed} of memory, {room}; lower --steps or --batch")]
    TooManyBatches { needed: String, room: MemoryRoom },
    #[error("the data have no end, and so no epochs; say for how many steps to train (--steps)")]
    EndlessEpochs,
    #[error(
        "the data changed since the job began: {found} here, {known} then; start it again, with --resume where it is to go on"
    )]
    DataChanged { known: String, found: String },
    #[error(
        "the names of the classes are others here than where the job began; give each host the same files"
    )]
    ClassesChanged,
    #[error("{0}")]
    Graph(#[from] GraphError),
}

impl ConfigError {
    /// Of a graph that cannot be placed, which is that of this model.
    pub fn of_placement(error: GraphError, model: &str) -> ConfigError {
        match error {
            GraphError::IdleServers { servers, used } => {
                ConfigError::TooManyServers { servers, used, model: model.to_string() }
            }
            error => error.into(),
        }
    }
}
