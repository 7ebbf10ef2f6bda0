//! The command line of `tensorwire bench write`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tensorwire_bench::parse_size;

use super::headings::{MEASUREMENT, OUTPUT, WIRE};
use super::hosts::HostArgs;
use super::repeat::RepeatArgs;
use super::{TransportArg, WireArgs};

#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Sizes of a write: 4KiB,1MiB,16MB
    ///
    /// [default: 4 KiB to 64 MiB by fours]
    #[arg(long, help_heading = MEASUREMENT, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Transports to measure [default: shm and tcp; with --hosts tcp]
    #[arg(long, help_heading = WIRE, value_name = "LIST", value_enum, value_delimiter = ',')]
    transport: Vec<TransportArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Measure this, too: grpc
    ///
    /// Between the same processes, with the same bytes, in alternation.
    #[arg(long, help_heading = MEASUREMENT, value_name = "NAME", value_enum)]
    pub(crate) against: Option<AgainstArg>,
    /// Writes under way at a time
    ///
    /// Or calls, when throughput is measured; of large ones fewer.
    #[arg(long, help_heading = MEASUREMENT, value_name = "N", default_value_t = 16)]
    pub(crate) window: usize,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// Where both processes listen
    ///
    /// The address of this host: of the RDMA NIC's interface, to compare both on one wire.
    #[arg(long, help_heading = WIRE, value_name = "IP", default_value = "127.0.0.1", conflicts_with = "hosts")]
    pub(crate) address: IpAddr,
    /// Fewer and shorter measurements
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) quick: bool,
    /// Append a line of JSON a result to this file
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AgainstArg {
    /// A unary call over plaintext HTTP/2 and TCP, windows and limits raised
    Grpc,
}

impl WriteArgs {
    /// The transports to measure.
    pub(crate) fn transports(&self) -> Vec<TransportArg> {
        self.hosts.transports_of_two(&self.transport)
    }
}
