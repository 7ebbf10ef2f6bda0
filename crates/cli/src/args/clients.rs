//! Ways of training, as given on the command line: how workers are grouped, and how they come together.

use std::path::{Path, PathBuf};

use super::headings::STRATEGY;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tensorwire_train::{
    Algorithm, ClientConfig, CollectivesChoice, ConfigError, Strategy, TunedLink, TunedRow,
};

/// What people from other systems call some strategies.
const ALIASES: [(&str, Strategy); 8] = [
    ("ddp", Strategy::AllReduce),
    ("horovod", Strategy::AllReduce),
    ("mirrored", Strategy::AllReduce),
    ("data-parallel", Strategy::AllReduce),
    ("all-reduce", Strategy::AllReduce),
    ("parameter-server", Strategy::Ps),
    ("parameter-servers", Strategy::Ps),
    ("easgd", Strategy::DistEsgd),
];

/// Takes a strategy's name, or an alias of it, in any case.
pub(crate) fn strategy() -> impl TypedValueParser<Value = Strategy> {
    let value = |strategy: Strategy| {
        let aliases = ALIASES.iter().filter(move |(_, of)| *of == strategy);
        PossibleValue::new(strategy.name()).aliases(aliases.map(|(alias, _)| *alias))
    };
    PossibleValuesParser::new(Strategy::ALL.map(value)).map(|name| {
        let name = name.to_lowercase();
        let alias = || ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, of)| *of);
        Strategy::named(&name).or_else(alias).expect("the parser takes no other")
    })
}

/// What only groups of workers, and weights that are averaged, can do.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = STRATEGY)]
pub(crate) struct ClientArgs {
    /// mpi-...: groups of workers [default: 1]
    ///
    /// mpi-sgd, mpi-asgd, mpi-esgd: groups of workers that all-reduce their gradients among themselves; worker 0 of each
    /// pushes and pulls, and broadcasts what it gets. [default: 1, all workers]
    #[arg(long, value_name = "C", hide_short_help = true)]
    clients: Option<u32>,
    /// dist-esgd, mpi-esgd: steps between two exchanges with the centre [default: 64]
    #[arg(long, value_name = "STEPS", hide_short_help = true)]
    interval: Option<u64>,
    /// dist-esgd, mpi-esgd: how far a client and the centre move
    ///
    /// Towards each other in an exchange, above 0 and at most 1.
    /// [default: 0.9 / clients, as Zhang et al. 2015 have it]
    #[arg(long, value_name = "A", hide_short_help = true)]
    alpha: Option<f64>,
    /// allreduce, mpi-...: own, or nccl for GPUs
    ///
    /// Who all-reduces gradients. `nccl`: NCCL, where it is found (--cuda-libs), among the GPUs of workers without a store or
    /// with elastic averaging; it makes its own connections, which are neither authenticated nor encrypted, and adds in an
    /// order of its own.
    #[arg(long, value_name = "NAME", hide_short_help = true, value_enum, default_value = "own")]
    collectives: CollectivesArg,
    /// allreduce, mpi-sgd: reduce gradients in the order of ranks
    ///
    /// So that every algorithm, transport and run has the same bits (ps, dist-sgd and local always do).
    #[arg(long, hide_short_help = true)]
    deterministic: bool,
    /// allreduce, mpi-...: how gradients are all-reduced
    ///
    /// [default: what is fastest for their size by --table, or by a model of the transport]
    #[arg(long, value_name = "NAME", hide_short_help = true, value_enum)]
    algorithm: Option<AlgorithmArg>,
    /// allreduce, mpi-...: what is fastest here
    ///
    /// As `bench allreduce` wrote it with `--tune FILE`, or with `--link FILE` what the way between the processes takes, for a
    /// model that chooses. [default: a model of the transport]
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with = "algorithm")]
    table: Option<PathBuf>,
    /// allreduce, mpi-...: measure the way between hosts, once
    ///
    /// In at most 200 ms when the workers meet; it is printed, and kept in this file, which is read as by --table. A job that finds it
    /// there does not measure again, and so has the same bits. [default: what such a transport usually has]
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with_all = ["algorithm", "table"])]
    measure_link: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CollectivesArg {
    /// This program
    Own,
    /// NVIDIA's library
    Nccl,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum AlgorithmArg {
    /// Each reduces its share where all have theirs, and puts it there (shared memory alone)
    Shared,
    /// Everybody sends all to everybody
    Exchange,
    /// Each share to one who reduces it, and back
    Direct,
    /// Around a ring, twice
    Ring,
    /// Several rings, each with a part
    MultiRing,
    /// In pairs at growing distance, all that is reduced so far
    RecursiveDoubling,
    /// Halves, quarters and so on, and back
    HalvingDoubling,
    /// All to the first process, the result to all
    ReduceBroadcast,
    /// Within each host first, then between hosts
    Hierarchical,
}

impl ClientArgs {
    pub(crate) fn config(self) -> Result<ClientConfig, ConfigError> {
        let ClientArgs { clients, interval, alpha, collectives, deterministic, algorithm, .. } =
            self;
        let ClientArgs { table, measure_link, .. } = self;
        let collectives = match collectives {
            CollectivesArg::Own => CollectivesChoice::Own,
            CollectivesArg::Nccl => CollectivesChoice::Nccl,
        };
        let algorithm = algorithm.map(Algorithm::from);
        let table = table.or(measure_link.clone().filter(|path| path.exists()));
        let (table, links) = table.map_or(Ok(Default::default()), |path| read_table(&path))?;
        let here = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Ok(ClientConfig {
            clients,
            interval,
            alpha,
            collectives,
            deterministic,
            algorithm,
            table,
            links,
            measured_link: measure_link.map(here),
        })
    }
}

impl From<AlgorithmArg> for Algorithm {
    fn from(arg: AlgorithmArg) -> Algorithm {
        match arg {
            AlgorithmArg::Shared => Algorithm::Shared,
            AlgorithmArg::Exchange => Algorithm::Exchange,
            AlgorithmArg::Direct => Algorithm::Direct,
            AlgorithmArg::Ring => Algorithm::Ring,
            AlgorithmArg::MultiRing => Algorithm::MultiRing,
            AlgorithmArg::RecursiveDoubling => Algorithm::RecursiveDoubling,
            AlgorithmArg::HalvingDoubling => Algorithm::HalvingDoubling,
            AlgorithmArg::ReduceBroadcast => Algorithm::ReduceBroadcast,
            AlgorithmArg::Hierarchical => Algorithm::Hierarchical,
        }
    }
}

/// What was measured of all transports.
pub(crate) fn read_table(path: &Path) -> Result<(Vec<TunedRow>, Vec<TunedLink>), ConfigError> {
    let wrong = |reason: String| ConfigError::Table { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let (rows, links) = (TunedRow::read(&text).map_err(wrong)?, TunedLink::read(&text));
    match rows.is_empty() && links.is_empty() {
        true => Err(wrong("it has no row".to_string())),
        false => Ok((rows, links)),
    }
}
