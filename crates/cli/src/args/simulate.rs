//! The arguments of `tensorwire simulate`.

use std::path::PathBuf;

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use tensorwire_bench::SimulateSpec;
use tensorwire_simulate::{Network, SimulatedExchange, SimulatedStrategy};
use tensorwire_train::{Algorithm, ConfigError};
use tensorwire_zoo::Shipped;

use super::super::Failure;
use super::DEFAULTS;
use super::clients::AlgorithmArg;
use super::headings::{CLUSTER, MEASUREMENT, MODEL, OUTPUT, STRATEGY};
use super::job::PlacementArg;

/// As far as it was tried.
const WORKERS_MAX: i64 = 4096;

pub(crate) const EXAMPLES: &str = "\
Examples:
  tensorwire simulate --model vgg16 --preset paper-xue --workers 1,2,4,8
      beside Xue et al.'s figure 11
  tensorwire simulate --model inception-v3 --strategy ps,allreduce,dist-sgd \\
      --workers 8,64,512,4096 --compute-ms 120
  tensorwire simulate --calibrate here.toml
      this machine, as a file to change
  tensorwire simulate --model mlp --network here.toml --workers 2,4 --validate

Nothing is trained: the plan and the schedules that a job would run are, in a
discrete-event simulation. Kernels share cores, messages share NIC ports, both
max-min fairly. Machines that do the same are simulated once; so are members of
a group, and like rounds of a collective. Steps are those of a job in its
stride.

What one worker computes: --compute-ms, or Xue et al.'s table 2 with --preset
paper-xue, else it is measured here first, and with --validate beside each job,
by one process and by several at once. It is spread over the model's nodes by
their operations and bytes; updates take what --calibrate measured of them.

Presets: rdma-100g (100 Gb/s, a worker a machine of 32 cores), paper-xue
(theirs: 100 Gb/s, a GPU without GPUDirect, a worker and a server a machine),
paper-mamidala (two workers of two GPUs a machine, NVLink, 100 Gb/s),
loopback (all on one machine of 2 cores, reading in place).";

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Model (see `tensorwire models`)
    #[arg(long, value_name = "NAME", help_heading = MODEL, default_value_t = DEFAULTS.model.clone(),
          value_parser = super::models::model_name)]
    model: String,
    /// Samples per worker and step
    #[arg(long, value_name = "B", help_heading = MODEL, default_value_t = 32)]
    batch: usize,
    /// Ways of training
    #[arg(long, value_name = "LIST", help_heading = STRATEGY, value_enum, value_delimiter = ',',
          default_values = ["ps"])]
    strategy: Vec<StrategyArg>,
    /// mpi-sgd: groups of workers [default: 1]
    #[arg(long, value_name = "C", help_heading = STRATEGY, value_parser = up_to_most())]
    clients: Option<u32>,
    /// allreduce, mpi-sgd: how gradients are reduced
    ///
    /// Between workers of one device each: `reg` and other designs of several (`bench allreduce --design`) are not simulated.
    /// [default: as a job on this machine chooses]
    #[arg(long, value_name = "NAME", help_heading = STRATEGY, value_enum)]
    algorithm: Option<AlgorithmArg>,
    /// ps: which server gets which variable
    ///
    /// `balanced`: by bytes, the largest first; what is larger than a server's equal share is split by rows. `round-robin`: one after
    /// another, as they are declared. [default: balanced; with --preset paper-xue round-robin, as theirs]
    #[arg(long, value_name = "LIST", help_heading = STRATEGY, value_enum, value_delimiter = ',')]
    placement: Vec<PlacementArg>,
    /// How tensors cross
    #[arg(long, value_name = "LIST", help_heading = STRATEGY, value_enum, value_delimiter = ',',
          default_values = ["zero-copy"])]
    exchange: Vec<ExchangeArg>,
    /// Numbers of workers
    #[arg(long, value_name = "LIST", help_heading = CLUSTER, value_delimiter = ',',
          default_values = ["2", "4", "8"], value_parser = up_to_most())]
    workers: Vec<u32>,
    /// Servers; allreduce has none; ps with 0: the workers are
    ///
    /// [default: as many as workers, but no more than variables, or than 64]
    #[arg(long, value_name = "K", help_heading = CLUSTER,
          value_parser = clap::value_parser!(u32).range(0..=WORKERS_MAX))]
    servers: Option<u32>,
    /// The cluster, as --calibrate writes it
    #[arg(long, value_name = "FILE", help_heading = CLUSTER, conflicts_with = "preset")]
    pub(crate) network: Option<PathBuf>,
    /// A cluster that is built in
    #[arg(long, value_name = "NAME", help_heading = CLUSTER, value_parser = Network::PRESETS,
          default_value = "rdma-100g")]
    pub(crate) preset: String,
    /// Milliseconds of a step of one worker
    ///
    /// That has a machine for itself.
    #[arg(long, value_name = "MS", help_heading = CLUSTER)]
    pub(crate) compute_ms: Option<f64>,
    /// Also run each job on this machine, and compare
    ///
    /// All its processes here.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) validate: bool,
    /// Measure this machine, for --network
    ///
    /// Write it to this file as --network takes it, and do nothing else.
    #[arg(long, value_name = "FILE", help_heading = MEASUREMENT, conflicts_with_all = ["network", "validate"])]
    pub(crate) calibrate: Option<PathBuf>,
    /// Append one line of JSON a result to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) json: Option<PathBuf>,
}

fn up_to_most() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=WORKERS_MAX)
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StrategyArg {
    #[value(alias = "parameter-server")]
    Ps,
    DistSgd,
    #[value(name = "allreduce", alias = "ddp", alias = "all-reduce")]
    AllReduce,
    MpiSgd,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExchangeArg {
    /// No byte is copied
    ZeroCopy,
    /// A copy before each write
    Copy,
    /// RPC over rings: serialized, and copied at both ends
    GrpcRdma,
    /// RPC over TCP
    GrpcTcp,
}

impl SimulateArgs {
    /// Refuses what would be left out of account in silence, before anything is measured.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let has =
            |those: &[SimulatedStrategy]| self.strategy.iter().any(|s| those.contains(&s.named()));
        let clients = &[SimulatedStrategy::AllReduce, SimulatedStrategy::MpiSgd];
        let stores =
            &[SimulatedStrategy::Ps, SimulatedStrategy::DistSgd, SimulatedStrategy::MpiSgd];
        for (what, is_given, is_used, takers) in [
            ("--clients", self.clients.is_some(), has(&[SimulatedStrategy::MpiSgd]), "mpi-sgd"),
            ("--placement", !self.placement.is_empty(), has(&[SimulatedStrategy::Ps]), "ps"),
            ("--algorithm", self.algorithm.is_some(), has(clients), "allreduce or mpi-sgd"),
            ("--servers", self.servers.is_some(), has(stores), "ps, dist-sgd or mpi-sgd"),
        ] {
            if is_given && !is_used {
                let says =
                    format!("{what} is for --strategy {takers}; give it one, or leave it out");
                return Err(Failure::user(says));
            }
        }
        let mut exchanges = self.exchange.iter().map(|exchange| exchange.named());
        let Some(exchange) = exchanges.find(|found| *found != SimulatedExchange::ZeroCopy) else {
            return Ok(());
        };
        let exchange = exchange.name();
        if self.validate {
            return Err(Failure::user(format!(
                "--validate measures --exchange zero-copy, not {exchange}; leave one of them out"
            )));
        }
        if let Some(group) = self.strategy.iter().map(|s| s.named()).find(|s| clients.contains(s)) {
            let group = group.name();
            return Err(Failure::user(format!(
                "--exchange {exchange} is no way of a group of workers (--strategy {group}); leave it out"
            )));
        }
        Ok(())
    }

    /// What is to be simulated, in the order in which it is shown.
    ///
    /// # Errors
    /// When there is no such model.
    pub(crate) fn specs(&self) -> Result<Vec<SimulateSpec>, ConfigError> {
        let model = tensorwire_zoo::model(&self.model).map_err(tensorwire_nn::Error::other)?;
        let mut specs = Vec::new();
        for strategy in &self.strategy {
            for exchange in &self.exchange {
                for workers in &self.workers {
                    let (strategy, exchange) = (strategy.named(), exchange.named());
                    let spec = self.spec(model, strategy, exchange, *workers);
                    match strategy {
                        SimulatedStrategy::Ps if !self.placement.is_empty() => {
                            let placements = self.placement.iter().map(|how| how.placement(None));
                            specs.extend(placements.map(|placement| SimulateSpec {
                                placement: Some(placement),
                                ..spec.clone()
                            }));
                        }
                        _ => specs.push(spec),
                    }
                }
            }
        }
        Ok(specs)
    }

    fn spec(
        &self,
        model: &'static dyn Shipped,
        strategy: SimulatedStrategy,
        exchange: SimulatedExchange,
        workers: u32,
    ) -> SimulateSpec {
        SimulateSpec {
            model,
            strategy,
            workers,
            servers: self.servers,
            clients: self.clients,
            placement: None,
            exchange,
            algorithm: self.algorithm.map(Algorithm::from),
            batch: self.batch,
        }
    }
}

impl StrategyArg {
    fn named(self) -> SimulatedStrategy {
        match self {
            StrategyArg::Ps => SimulatedStrategy::Ps,
            StrategyArg::DistSgd => SimulatedStrategy::DistSgd,
            StrategyArg::AllReduce => SimulatedStrategy::AllReduce,
            StrategyArg::MpiSgd => SimulatedStrategy::MpiSgd,
        }
    }
}

impl ExchangeArg {
    fn named(self) -> SimulatedExchange {
        match self {
            ExchangeArg::ZeroCopy => SimulatedExchange::ZeroCopy,
            ExchangeArg::Copy => SimulatedExchange::Copy,
            ExchangeArg::GrpcRdma => SimulatedExchange::GrpcRdma,
            ExchangeArg::GrpcTcp => SimulatedExchange::GrpcTcp,
        }
    }
}
