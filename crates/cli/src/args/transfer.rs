//! The command line of `tensorwire bench transfer`, and which transfers it measures.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tensorwire_bench::{Sizes, parse_size};
use tensorwire_launch::Transport;
use tensorwire_train::Exchange;

use super::headings::{MEASUREMENT, OUTPUT, WIRE};
use super::hosts::HostArgs;
use super::repeat::RepeatArgs;
use super::{ExchangeArg, TransportArg, WireArgs};

#[derive(Args, Debug)]
pub(crate) struct TransferArgs {
    /// Tensor sizes: 4KiB,1MiB,16MB
    ///
    /// KiB, MiB, GiB: powers of 1024; kB, MB, GB: of 1000. [default: 4 KiB to 1 GiB by fours]
    #[arg(long, help_heading = MEASUREMENT, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Transports to measure [default: shm and tcp; with --hosts tcp]
    #[arg(long, help_heading = WIRE, value_name = "LIST", value_enum, value_delimiter = ',')]
    transport: Vec<TransportArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Exchanges to measure
    #[arg(long, help_heading = WIRE, value_name = "LIST", value_enum, value_delimiter = ',',
          default_values = ["zero-copy", "write", "copy"])]
    pub(crate) exchange: Vec<ExchangeArg>,
    /// Size: known before, or not
    ///
    /// Whether the plan knows the tensor's size before the run.
    #[arg(long, help_heading = MEASUREMENT, value_name = "LIST", value_enum, value_delimiter = ',', default_values = ["static", "dynamic"])]
    pub(crate) kind: Vec<KindArg>,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// Fewer repetitions, and sizes up to 64 MiB
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) quick: bool,
    /// Append a line of JSON a result to this file
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum KindArg {
    /// It does: one write, or none
    Static,
    /// It does not: the sender says how large it is, the receiver allocates it and reads
    Dynamic,
}

impl TransferArgs {
    /// The transports to measure.
    pub(crate) fn transports(&self) -> Vec<TransportArg> {
        self.hosts.transports_of_two(&self.transport)
    }

    /// What to measure over these transports, in order. What goes over TCP of its own is measured with tcp
    /// alone, where that is among them.
    pub(crate) fn ways(&self, transports: &[Transport]) -> Vec<(Transport, Exchange, Sizes)> {
        let mut ways = Vec::new();
        for &transport in transports {
            for &exchange in &self.exchange {
                let way = Exchange::from(exchange);
                let is_elsewhere = way.is_over_tcp()
                    && transport != Transport::Tcp
                    && transports.contains(&Transport::Tcp);
                let kinds = self.kind.iter().filter(|kind| !self.measures_twice(exchange, **kind));
                let kinds = kinds.filter(|_| !is_elsewhere);
                ways.extend(kinds.map(|kind| (transport, way, Sizes::from(*kind))));
            }
        }
        ways
    }

    /// A dynamic tensor is read, whether others are written or stay where they are.
    fn measures_twice(&self, exchange: ExchangeArg, kind: KindArg) -> bool {
        let also = self.exchange.contains(&ExchangeArg::ZeroCopy);
        (exchange, kind) == (ExchangeArg::Write, KindArg::Dynamic) && also
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
