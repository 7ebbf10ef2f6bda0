//! The command line as clap parses it: dumb structs, turned into configurations once.

mod allreduce;
mod clients;
mod evaluation;
mod exchange;
mod kvstore;
mod launch;
mod modes;
mod report;
mod simulate;
mod step;

use std::net::{IpAddr, SocketAddr};
use std::path::{PathBuf, absolute};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tensorwire_bench::{Sizes, parse_size};
use tensorwire_launch::{ArrivalMode, GidChoice, Hosts, RSH, Transport, VerbsOptions};
use tensorwire_train::{
    BatchesSpec, ConfigError, Kernels, OptimizerChoice, Schedule, StoreConfig, Strategy,
    TraceConfig, TrainConfig,
};
use tensorwire_zoo::Model;
use tensorwire_zoo::data::Shape;

pub(crate) use allreduce::AllreduceArgs;
pub(crate) use clients::read_table;
use clients::{ClientArgs, StrategyArg};
pub(crate) use evaluation::EvaluationArgs;
pub(crate) use exchange::ExchangeArg;
pub(crate) use kvstore::KvstoreArgs;
pub(crate) use launch::LaunchArgs;
pub(crate) use modes::ModesArgs;
pub(crate) use report::ReportArgs;
pub(crate) use simulate::SimulateArgs;
pub(crate) use step::StepArgs;

const TRAIN_EXAMPLES: &str = "\
Examples:
  tensorwire train                             2 workers, 2 servers, the digits, shared memory
  tensorwire train --transport tcp             the same bits over TCP
  tensorwire train --strategy local            the same bits in one process
  tensorwire train --strategy dist-sgd         the same bits over a key-value store
  tensorwire train --strategy dist-asgd --max-delay 4
  tensorwire train --strategy allreduce        the same bits without servers
  tensorwire train --strategy mpi-sgd --workers 4 --clients 2
  tensorwire train --strategy mpi-esgd --workers 4 --clients 2 --interval 64
  tensorwire train --data mnist:DIR --epochs 3 MNIST's four unpacked files in DIR
  tensorwire train --save w.safetensors --metrics m.jsonl --json
  tensorwire train --steps 30 --trace t.json   open t.json in ui.perfetto.dev
  tensorwire train --hosts node0,node1         on two machines, over RDMA if both can, else TCP
  mpirun -np 4 tensorwire train                with processes that mpirun started (see `launch --help`)
  tensorwire train --hosts @FILE --workers 8 --servers 4 --transport verbs

Several machines: --hosts names them. The processes go to the hosts round-robin, workers first, then
servers: with --hosts a,b:2 and 3 workers and 2 servers, a gets worker 0 and server 0, b the others, for a
host with :2 takes two in its turn. The first line about the hosts says who runs where. This machine (its
name, one of its addresses, localhost) starts its processes itself; on every other host they are started by
`RSH HOST COMMAND`, where --rsh is RSH, and must find this program at the same path, as well as what
--data and --load name. Nothing is copied there. The job's secret goes through standard input.
  --listen      where the other hosts call this one; without it, this machine's address towards the first
  --transport   auto: shm where all processes are on one host; on several, verbs if every host can, else tcp,
                with a warning that says which host cannot, why, and what mends it. verbs: that or nothing.

A line of --metrics holds step, epoch, loss, samples_per_second (so far), and how the workers waited for
tensors in that step, summed over them: polls (times a tensor was asked for), poll_misses (it was not
there yet), waits (times a worker blocked), poll_us and wait_us (microseconds lost in missed polls and
in waits). The summary, which is also what --json prints, has these figures over all steps.

Exit status: 0 done; 2 something given cannot be right; 1 anything else, such as a process that died.
TENSORWIRE_LOG=info (or debug) logs what the processes do to standard error.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  tensorwire doctor                         this machine: facts, a trial of every transport, what to mend
  tensorwire doctor --json                  the same as one object, on one line
  tensorwire doctor --peer node1            also the way to node1, and what is different there
  tensorwire doctor --peer node1 --nic mlx5_1 --gid 3

A trial writes 8 bytes to 1 MiB both ways (from less than a packet to many full ones) and reads 1 MiB; every
byte is verified on arrival. Where small writes arrive and large ones do not, some switch or interface on the
way has a smaller MTU than both ends. On this machine both ends are in one process. --peer starts a process on
the other host as `train --hosts` does: by `RSH HOST COMMAND`, with this program at the same path; TCP is tried,
and RDMA where both hosts can. Nothing is changed on any machine.

Findings: `error` keeps training, or what was asked for, from working; `warning`: it works, but not as well
as the machine could; `note`: good to know. The line with → is what to type. No RDMA is a note: training takes
shared memory on one host and TCP between hosts. With --nic or --gid RDMA is asked for, and must be there.

Exit status: 0 no error; 1 an error; 2 something given cannot be right.";

/// Distributed deep learning in which a remote machine is just a device.
///
/// A tensor that crosses processes is written by one one-sided write from where the sender's operator
/// put it to where the receiver's next operator reads it; on one host it is read where it lies.
#[derive(Debug, Parser)]
#[command(name = "tensorwire", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model; starts its own processes, on this machine or on several
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(TrainArgs),
    /// Run a subcommand on several machines, or say what this process is under mpirun, srun or torchrun
    #[command(after_help = launch::EXAMPLES)]
    Launch(LaunchArgs),
    /// Show what crosses between processes, how many bytes, and where it lives
    Graph(GraphArgs),
    /// List the models: variables, parameters, size
    Models,
    /// Write what a worker is fed in its first steps to a file: the same batches for another framework
    Batches(BatchesArgs),
    /// Measure; every benchmark verifies its data and prints the machine's limit beside it
    Bench(BenchArgs),
    /// Say what a step would take on a cluster that is not there
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(SimulateArgs),
    /// Make one page of plots and tables of what `bench` and bench/peers measured
    Report(ReportArgs),
    /// Say what this machine can do, what is wrong, and the line that mends it
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Take part in a job (started by the launcher, which writes the assignment to standard input)
    #[command(hide = true)]
    Member,
    /// Become the command in the arguments, and end when the parent does (how a launcher runs --rsh)
    #[command(hide = true)]
    RunWithParent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// What decides the graph and its partition.
#[derive(Args, Clone, Debug)]
pub(crate) struct JobArgs {
    /// Model to train (see `tensorwire models`)
    #[arg(long, default_value = "mlp")]
    model: String,
    /// Data. Images: `digits` (comes with the program), `mnist:DIR`, `cifar10:DIR`. Sentences and their
    /// translations: `text:SOURCE,TARGET` (two files, a sentence a line), `grammar[:N]`, `reverse[:N]` (made up).
    /// Made up for any model: `synthetic[:N]` [default: digits, or synthetic where the model takes no such
    /// images]
    #[arg(long)]
    data: Option<String>,
    /// `ps`: variables on servers as parts of the graph, replicas on workers. `dist-sgd`, `dist-asgd`: variables
    /// in a key-value store, to which workers push and from which they pull, in step or each at its own pace.
    /// `allreduce`: variables on every worker, gradients folded among all. `mpi-sgd`, `mpi-asgd`: as `dist-...`, by
    /// groups of workers (--clients). `dist-esgd`, `mpi-esgd`: workers (groups) train weights of their own, which
    /// are averaged with a centre now and then (--interval). `local`: the same replicas as `ps` in one process
    #[arg(long, value_enum, default_value = "ps")]
    strategy: StrategyArg,
    /// Worker processes (with `local`: replicas, folded in the same order) [default: 2, or half of the processes
    /// that mpirun, srun or torchrun started]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u32>,
    /// Server processes; variables go to them round-robin. `allreduce` has none; `mpi-sgd` may
    /// have 0 [default: 2, or the rest of those processes]
    #[arg(long, value_name = "K")]
    pub(crate) servers: Option<u32>,
    #[command(flatten)]
    clients: ClientArgs,
    /// How bytes travel
    #[arg(long, value_enum, default_value = "auto")]
    transport: TransportArg,
    #[command(flatten)]
    wire: WireArgs,
    /// Where the processes run: `node0,node1:2` (:2 = two in a turn), or `@FILE` with a host in each line
    /// [default: this machine]
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,
    /// Where they run that somebody else started
    #[arg(skip)]
    pub(crate) placed: Option<Hosts>,
    /// What starts a process on another host: it is given the host and a command line
    #[arg(long, value_name = "COMMAND", default_value = RSH)]
    rsh: String,
    /// How a tensor crosses
    #[arg(long, value_enum, default_value = "zero-copy")]
    exchange: ExchangeArg,
    /// Samples per worker and step
    #[arg(long, value_name = "B", default_value_t = 64)]
    batch: usize,
    /// How the servers update variables
    #[arg(long, value_enum, default_value = "momentum")]
    optimizer: OptimizerArg,
    /// Type of variables and activations; sums of bf16 are made in f32
    #[arg(long, value_enum, default_value = "f32")]
    dtype: FloatArg,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.05)]
    lr: f64,
    /// Momentum, from 0 to below 1
    #[arg(long, value_name = "M", default_value_t = 0.9)]
    momentum: f64,
    /// Seed of first values and of the order of samples: equal seeds give equal bits
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Threads of each process [default: the workers of a machine share its cores, a server has all]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Which kernels compute. `auto`: `onednn` where libdnnl.so.3 is installed, else `cpu`. `reference`: plain
    /// loops, slow, to check against
    #[arg(long, value_enum, default_value = "auto")]
    kernels: KernelsArg,
    /// Seconds within which the job ends when one of its processes dies or stops
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    deadline: f64,
    /// Where the launcher listens for its processes; port 0: the system chooses [default: loopback, or this
    /// machine's address towards the other hosts]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
}

/// Which NIC carries RDMA, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct WireArgs {
    /// RDMA device to use, as in mlx5_0 or mlx5_0:2 [default: the first with an active port]
    #[arg(long, value_name = "NAME[:PORT]")]
    nic: Option<String>,
    /// Entry of the device's GID table, by its index or its address [default: RoCE v2, routable]
    #[arg(long, value_name = "INDEX|ADDRESS", value_parser = parse_gid)]
    gid: Option<GidChoice>,
    /// How a tensor's arrival is signalled over RDMA [default: write-imm]
    #[arg(long, value_enum)]
    arrival: Option<ArrivalArg>,
}

#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Passes over the data [default: 20]
    #[arg(long, value_name = "E")]
    epochs: Option<u64>,
    /// Steps, instead of epochs
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Let each worker train at its own pace: servers apply a gradient when it comes. Results depend on who
    /// was first; not with --trace
    #[arg(long = "async")]
    asynchronous: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Start from the weights in this safetensors file
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Write the trained weights to this safetensors file, whole or not at all
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write one line of JSON a step to this file, and a summary as its last line
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    /// Write what every process did in the first steps, and when, to this file; ui.perfetto.dev and
    /// chrome://tracing open it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many steps to trace, from the first on; later ones cost nothing
    #[arg(long, value_name = "N", default_value_t = 20, requires = "trace")]
    trace_steps: u64,
    /// End with one line of JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Start the job's processes here, whatever mpirun, srun or torchrun has set in the environment
    #[arg(long)]
    pub(crate) no_detect: bool,
}

/// What only a key-value store can do.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    /// dist-asgd, mpi-asgd: the fastest worker (or client) is at most so many steps ahead of the slowest [default:
    /// any number]
    #[arg(long, value_name = "STEPS")]
    max_delay: Option<u64>,
    /// dist-sgd, dist-asgd: if a worker dies, the others go on
    #[arg(long)]
    elastic: bool,
    /// dist-sgd, dist-asgd: servers write snapshots to PATH.serverN.safetensors; if one dies, a new process
    /// goes on from there, and the workers bring it up to date
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<PathBuf>,
    /// Steps between two snapshots; workers keep what they pushed since the last
    #[arg(long, value_name = "STEPS", default_value_t = 20, requires = "checkpoint",
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
}

#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The plan of one worker's lane, as `train --async` has it
    #[arg(long = "async")]
    asynchronous: bool,
    /// Print the whole graph in Graphviz's language instead
    #[arg(long)]
    pub(crate) dot: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Try the way to this host, too, and compare the two
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
    /// What starts a process on that host: it is given the host and a command line
    #[arg(long, value_name = "COMMAND", default_value = RSH, requires = "peer")]
    pub(crate) rsh: String,
    /// Where that process calls this machine; port 0: the system chooses [default: this machine's address
    /// towards that host]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "peer")]
    pub(crate) listen: Option<SocketAddr>,
    /// RDMA device to look at, as in mlx5_0 or mlx5_0:2 [default: as a job chooses]
    #[arg(long, value_name = "NAME[:PORT]")]
    nic: Option<String>,
    /// Entry of the device's GID table, by its index or its address [default: as a job chooses]
    #[arg(long, value_name = "INDEX|ADDRESS", value_parser = parse_gid)]
    gid: Option<GidChoice>,
    /// Print one object of JSON instead
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BatchesArgs {
    /// Model (see `tensorwire models`)
    #[arg(long, default_value = "mlp")]
    model: String,
    /// Data, as `train` takes them [default: digits, or synthetic where the model takes no such images]
    #[arg(long)]
    data: Option<String>,
    /// Seed of the order of samples, and of made-up data
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Samples per worker and step
    #[arg(long, value_name = "B", default_value_t = 64)]
    batch: usize,
    /// Workers that share a step's samples
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The worker whose batches they are, from 0 on
    #[arg(long, value_name = "R", default_value_t = 0)]
    worker: usize,
    /// The first steps, so many
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps: u64,
    /// The safetensors file to write: tensor `0/input` is the first step's `input`
    #[arg(long, value_name = "FILE")]
    save: PathBuf,
}

impl BatchesArgs {
    pub(crate) fn spec(self) -> Result<(BatchesSpec, PathBuf), ConfigError> {
        let BatchesArgs { seed, batch, workers, worker, steps, .. } = self;
        let data = self.data.unwrap_or_else(|| default_data(&self.model).to_string());
        let model = tensorwire_train::model_named(&self.model)?;
        Ok((BatchesSpec { model, data, seed, batch, workers, worker, steps }, self.save))
    }
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// One tensor to a `reduce_max` in another process (Xue et al., figure 8)
    Transfer(TransferArgs),
    /// A training step with communication against the same arithmetic without
    Step(StepArgs),
    /// One-sided writes into another process's memory, with no graph above them; against gRPC if you like
    Write(WriteArgs),
    /// Push and pull of one key by several workers, in step; over ZeroMQ too (Mamidala et al.)
    Kvstore(KvstoreArgs),
    /// Collective operations by every algorithm, and of tensors that devices hold (Mamidala et al., section 6)
    Allreduce(AllreduceArgs),
    /// Learning curves of ways of training: accuracy, time and traffic by epoch (Mamidala et al., figures 11 to 14)
    Modes(ModesArgs),
    /// The figures of three papers that one machine can measure
    #[command(after_help = evaluation::EXAMPLES)]
    Evaluation(EvaluationArgs),
}

#[derive(Args, Debug)]
pub(crate) struct TransferArgs {
    /// Tensor sizes: `4KiB,1MiB,16MB` (KiB, MiB, GiB: powers of 1024; kB, MB, GB: of 1000) [default:
    /// 4 KiB to 1 GiB by fours]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Which transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "tcp"])]
    pub(crate) transport: Vec<TransportArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Which exchanges to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["zero-copy", "write", "copy"])]
    pub(crate) exchange: Vec<ExchangeArg>,
    /// Whether the plan knows the tensor's size before the run
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["static", "dynamic"])]
    pub(crate) kind: Vec<KindArg>,
    /// Fewer repetitions, and sizes only up to 64 MiB
    #[arg(long)]
    pub(crate) quick: bool,
    /// Append one line of JSON a result to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Sizes of a write: `4KiB,1MiB,16MB` [default: 4 KiB to 64 MiB by fours]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Which transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "tcp"])]
    pub(crate) transport: Vec<TransportArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Measure this too, between the same processes, with the same bytes, in alternation
    #[arg(long, value_enum)]
    pub(crate) against: Option<AgainstArg>,
    /// Writes (or calls) under way at a time when throughput is measured; of large ones fewer
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) window: usize,
    /// The address of this host on which both processes listen: of the RDMA NIC's interface, to compare
    /// both on one wire
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    /// Fewer and shorter measurements
    #[arg(long)]
    pub(crate) quick: bool,
    /// Append one line of JSON a result to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AgainstArg {
    /// A unary call over plaintext HTTP/2 and TCP, windows and limits raised
    Grpc,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TransportArg {
    /// Shared memory on one host; on several, verbs if every one can, else tcp
    Auto,
    /// Shared memory; all processes on one host
    Shm,
    Tcp,
    /// RDMA
    Verbs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ArrivalArg {
    /// A completion behind the data: right on every device
    WriteImm,
    /// A number, written behind the data
    FlagSeparate,
    /// A number at the data's end (Xue et al.); only where the device writes in order
    FlagTail,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum KindArg {
    /// It does: one write, or none
    Static,
    /// It does not: announced, allocated by the receiver, read
    Dynamic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OptimizerArg {
    Sgd,
    Momentum,
    #[value(name = "adagrad")]
    AdaGrad,
    Adam,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FloatArg {
    F32,
    F64,
    Bf16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KernelsArg {
    Auto,
    Cpu,
    #[value(name = "onednn")]
    OneDnn,
    Reference,
}

impl JobArgs {
    pub(crate) fn strategy(&self) -> Strategy {
        self.strategy.into()
    }

    fn config(self, schedule: Schedule) -> Result<TrainConfig, ConfigError> {
        let strategy = self.strategy();
        let hosts = match (self.placed, self.hosts) {
            (Some(placed), _) => Some(placed),
            (None, given) => given.map(|given| given.parse()).transpose()?,
        };
        let (verbs, arrival) = self.wire.options();
        let data = self.data.unwrap_or_else(|| default_data(&self.model).to_string());
        let mut config = TrainConfig {
            model: self.model,
            data,
            strategy,
            workers: self.workers.unwrap_or(2),
            servers: self.servers.unwrap_or(2),
            asynchronous: false,
            store: StoreConfig::default(),
            clients: self.clients.config()?,
            transport: self.transport.into(),
            verbs,
            arrival,
            hosts: hosts.unwrap_or_default().started_by(&self.rsh)?,
            exchange: self.exchange.into(),
            batch: self.batch,
            schedule,
            evaluate_each_epoch: false,
            leave_out_kernels: false,
            optimizer: match self.optimizer {
                OptimizerArg::Sgd => OptimizerChoice::Sgd,
                OptimizerArg::Momentum => OptimizerChoice::Momentum,
                OptimizerArg::AdaGrad => OptimizerChoice::AdaGrad,
                OptimizerArg::Adam => OptimizerChoice::Adam,
            },
            dtype: self.dtype.into(),
            rate: self.lr,
            momentum: self.momentum,
            seed: self.seed,
            threads: self.threads,
            kernels: match self.kernels {
                KernelsArg::Auto => Kernels::Auto,
                KernelsArg::Cpu => Kernels::Cpu,
                KernelsArg::OneDnn => Kernels::OneDnn,
                KernelsArg::Reference => Kernels::Reference,
            },
            load: None,
            save: None,
            trace: None,
            listen: self.listen,
            // a negative or huge number saturates and is refused by the configuration's check
            deadline_ms: (self.deadline * 1000.0) as u64,
        };
        if config.hosts.any_remote() {
            config.data = with_absolute_paths(&config.data);
        }
        Ok(config)
    }
}

impl TrainArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let schedule = match self.steps {
            Some(steps) => Schedule::Steps(steps),
            None => Schedule::Epochs(self.epochs.unwrap_or(20)),
        };
        let steps = self.trace_steps;
        let trace = self.trace.map(|path| TraceConfig { path, steps });
        let config = self.job.config(schedule)?;
        let any_remote = config.hosts.any_remote();
        // as for the data
        let from_root = |path: PathBuf| match any_remote {
            true => absolute(&path).unwrap_or(path),
            false => path,
        };
        let load = self.load.map(from_root);
        let StoreArgs { max_delay, elastic, checkpoint, checkpoint_every } = self.store;
        let checkpoint = checkpoint.map(from_root);
        let store = StoreConfig { max_delay, elastic, checkpoint, checkpoint_every };
        let (save, asynchronous) = (self.save, self.asynchronous);
        Ok(TrainConfig { load, save, asynchronous, store, trace, ..config })
    }
}

impl WireArgs {
    pub(crate) fn options(self) -> (VerbsOptions, Option<ArrivalMode>) {
        let arrival = self.arrival.map(|arrival| match arrival {
            ArrivalArg::WriteImm => ArrivalMode::WriteImm,
            ArrivalArg::FlagSeparate => ArrivalMode::FlagSeparate,
            ArrivalArg::FlagTail => ArrivalMode::FlagTail,
        });
        (VerbsOptions { nic: self.nic, gid: self.gid }, arrival)
    }
}

impl DoctorArgs {
    pub(crate) fn options(&self) -> VerbsOptions {
        VerbsOptions { nic: self.nic.clone(), gid: self.gid }
    }
}

fn parse_gid(given: &str) -> Result<GidChoice, String> {
    let address = || given.parse::<IpAddr>().map(GidChoice::Address);
    let choice = given.parse().map(GidChoice::Index).or_else(|_| address());
    choice.map_err(|_| "give the index of an entry, or its address, as in 10.0.0.1".to_string())
}

impl GraphArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let config = self.job.config(Schedule::Steps(1))?;
        Ok(TrainConfig { asynchronous: self.asynchronous, ..config })
    }
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Transport {
        match arg {
            TransportArg::Auto => Transport::Auto,
            TransportArg::Shm => Transport::Shm,
            TransportArg::Tcp => Transport::Tcp,
            TransportArg::Verbs => Transport::Verbs,
        }
    }
}

impl From<KindArg> for Sizes {
    fn from(arg: KindArg) -> Sizes {
        match arg {
            KindArg::Static => Sizes::Static,
            KindArg::Dynamic => Sizes::Dynamic,
        }
    }
}

/// Data whose files are named from the root: processes of other hosts are in another folder.
fn with_absolute_paths(data: &str) -> String {
    let full = |path: &str| match absolute(path) {
        Ok(path) => path.display().to_string(),
        // whoever opens it says what is wrong
        Err(_) => path.to_string(),
    };
    match data.split_once(':') {
        Some((kind @ ("mnist" | "cifar10"), folder)) => format!("{kind}:{}", full(folder)),
        Some(("text", files)) => {
            let files: Vec<String> = files.split(',').map(full).collect();
            format!("text:{}", files.join(","))
        }
        _ => data.to_string(),
    }
}

/// Images that the program brings along.
const DIGITS: Shape = Shape::Images { dims: [8, 8, 1], classes: 10 };

/// The data that come with the program, where the model learns from them.
fn default_data(model: &str) -> &'static str {
    match Model::from_name(model) {
        Some(model) if model.check(&DIGITS).is_err() => "synthetic",
        _ => "digits",
    }
}
