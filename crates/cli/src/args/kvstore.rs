//! The arguments of `tensorwire bench kvstore`.

use std::path::PathBuf;

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use tensorwire_bench::{Pull, WORKERS_MAX, parse_size};
use tensorwire_train::StoreWire;

use super::headings::{MEASUREMENT, OUTPUT, PROCESSES, WIRE};
use super::hosts::HostArgs;
use super::repeat::RepeatArgs;
use super::{TransportArg, WireArgs};

/// What is measured unless it is said: ZeroMQ beside ours, where it is built in.
const EXCHANGES: &[&str] =
    if cfg!(feature = "baselines") { &["zero-copy", "zmq"] } else { &["zero-copy"] };

#[derive(Args, Debug)]
pub(crate) struct KvstoreArgs {
    /// Numbers of workers, each a measurement
    ///
    /// [default: 1 to 32 by twos; with --quick to 4]
    #[arg(long, value_name = "LIST", help_heading = PROCESSES, value_delimiter = ',', value_parser = of_a_store())]
    pub(crate) workers: Vec<u32>,
    /// Numbers of server processes
    ///
    /// One for all, or one for each of --workers. [default: as many as workers]
    #[arg(long, value_name = "LIST", help_heading = PROCESSES, value_delimiter = ',', value_parser = of_a_store())]
    pub(crate) servers: Vec<u32>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Sizes of the value: 4KiB,1MiB,16MB
    ///
    /// [default: the paper's 100,000 numbers]
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// How a worker has the sum
    ///
    /// In the end.
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, value_enum, value_delimiter = ',',
          default_values = ["shown", "filled"])]
    pub(crate) pull: Vec<PullArg>,
    /// Fewer repetitions and processes
    ///
    /// In one job each.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) quick: bool,
    /// Transports to measure
    ///
    /// ZeroMQ is over TCP beside each. [default: shm and tcp; with --hosts auto and tcp]
    #[arg(long, value_name = "LIST", help_heading = WIRE, value_enum, value_delimiter = ',')]
    transport: Vec<TransportArg>,
    /// What messages go over
    ///
    /// Those of the store.
    #[arg(long, value_name = "LIST", help_heading = WIRE, value_enum, value_delimiter = ',',
          default_values = EXCHANGES)]
    pub(crate) exchange: Vec<StoreWireArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Append a line of JSON a result to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) json: Option<PathBuf>,
}

impl KvstoreArgs {
    /// The transports to measure.
    pub(crate) fn transports(&self) -> Vec<TransportArg> {
        self.hosts.transports(&self.transport)
    }
}

/// How many workers, or servers, can be measured.
fn of_a_store() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX))
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum StoreWireArg {
    /// One-sided writes
    ZeroCopy,
    /// ZeroMQ, as ps-lite sends
    Zmq,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum PullArg {
    /// Where its server has it, without a move; over shm, of values that are not split among servers
    Shown,
    /// In a tensor of its own
    Filled,
}

impl From<PullArg> for Pull {
    fn from(given: PullArg) -> Pull {
        match given {
            PullArg::Shown => Pull::Shown,
            PullArg::Filled => Pull::Filled,
        }
    }
}

impl From<StoreWireArg> for StoreWire {
    fn from(given: StoreWireArg) -> StoreWire {
        match given {
            StoreWireArg::ZeroCopy => StoreWire::ZeroCopy,
            StoreWireArg::Zmq => StoreWire::Zmq,
        }
    }
}
