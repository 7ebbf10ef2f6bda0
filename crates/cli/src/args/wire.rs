//! `--transport`, and which NIC carries RDMA.

use std::net::IpAddr;

use super::headings::WIRE;
use clap::{Args, ValueEnum};
use tensorwire_launch::{ArrivalMode, GidChoice, Transport, VerbsOptions};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TransportArg {
    /// Shared memory within a host; between hosts verbs if every one can, else tcp
    Auto,
    /// Shared memory; all processes on one host
    #[value(alias = "shmem", alias = "shared-memory")]
    Shm,
    Tcp,
    /// RDMA
    #[value(alias = "rdma", alias = "ib", alias = "infiniband", alias = "roce", alias = "ibverbs")]
    Verbs,
}

/// Which NIC carries RDMA, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = WIRE)]
pub(crate) struct WireArgs {
    /// RDMA device to use, as in mlx5_0 or mlx5_0:2
    ///
    /// [default: the first with an active port]
    #[arg(long, value_name = "NAME[:PORT]", hide_short_help = true)]
    nic: Option<String>,
    /// Entry of the device's GID table, by its index or its address
    ///
    /// [default: RoCE v2, routable]
    #[arg(long, value_name = "INDEX|ADDRESS", hide_short_help = true, value_parser = parse_gid)]
    gid: Option<GidChoice>,
    /// How a tensor's arrival is signalled over RDMA [default: write-imm]
    #[arg(long, value_name = "HOW", hide_short_help = true, value_enum)]
    arrival: Option<ArrivalArg>,
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

pub(super) fn parse_gid(given: &str) -> Result<GidChoice, String> {
    let address = || given.parse::<IpAddr>().map(GidChoice::Address);
    let choice = given.parse().map(GidChoice::Index).or_else(|_| address());
    choice.map_err(|_| "give the index of an entry, or its address, as in 10.0.0.1".to_string())
}
