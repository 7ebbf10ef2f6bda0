//! `--transport`, and which NIC carries RDMA.

use std::net::IpAddr;

use super::headings::WIRE;
use clap::{Args, ValueEnum};
use tensorwire_launch::{ArrivalMode, GidChoice, PathChoice, Transport, VerbsOptions};

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
    /// RDMA devices to use, as in mlx5_0 or mlx5_0:2,mlx5_1:2
    ///
    /// Of several each process takes the nearest to its GPU, or the processes
    /// of a host take them in turn. [default: the fastest with an active port;
    /// of several on one network as if they were named, over RoCE with
    /// --transport auto]
    #[arg(long, value_name = "NAME[:PORT],...", hide_short_help = true, value_delimiter = ',')]
    nic: Vec<String>,
    /// Entry of the device's GID table, by its index or its address
    ///
    /// [default: RoCE v2, routable]
    #[arg(long, value_name = "INDEX|ADDRESS", hide_short_help = true, value_parser = parse_gid)]
    gid: Option<GidChoice>,
    /// Traffic class of RDMA's packets [default: 0]
    ///
    /// With RoCE the byte of DSCP and ECN, so that switches take the lossless
    /// queue: as NCCL_IB_TC.
    #[arg(long, value_name = "0-255", hide_short_help = true)]
    traffic_class: Option<u8>,
    /// Service level of RDMA's packets [default: 0]
    ///
    /// Of InfiniBand; with RoCE the VLAN's priority: as NCCL_IB_SL.
    #[arg(long, value_name = "0-15", hide_short_help = true, value_parser = clap::value_parser!(u8).range(0..16))]
    service_level: Option<u8>,
    /// InfiniBand's partition, by its index [default: 0]
    ///
    /// Into the port's table: as NCCL_IB_PKEY.
    #[arg(long, value_name = "INDEX", hide_short_help = true)]
    partition: Option<u16>,
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
    /// The options of RDMA alone, and which of them were given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 6] {
        [
            ("--nic", !self.nic.is_empty()),
            ("--gid", self.gid.is_some()),
            ("--arrival", self.arrival.is_some()),
            ("--traffic-class", self.traffic_class.is_some()),
            ("--service-level", self.service_level.is_some()),
            ("--partition", self.partition.is_some()),
        ]
    }

    pub(crate) fn options(self) -> (VerbsOptions, Option<ArrivalMode>) {
        let arrival = self.arrival.map(|arrival| match arrival {
            ArrivalArg::WriteImm => ArrivalMode::WriteImm,
            ArrivalArg::FlagSeparate => ArrivalMode::FlagSeparate,
            ArrivalArg::FlagTail => ArrivalMode::FlagTail,
        });
        let path = PathChoice {
            traffic_class: self.traffic_class.unwrap_or_default(),
            service_level: self.service_level.unwrap_or_default(),
            partition: self.partition.unwrap_or_default(),
        };
        (VerbsOptions { nics: self.nic, gid: self.gid, path, ..VerbsOptions::default() }, arrival)
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
