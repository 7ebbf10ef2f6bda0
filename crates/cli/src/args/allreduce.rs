//! The arguments of `tensorwire bench allreduce`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use tensorwire_bench::{CONTRIBUTORS_MAX, CollectiveKind, DeviceTensor, Way, parse_size};
use tensorwire_collectives::{Algorithm, Design};
use tensorwire_train::CudaLibraries;

use super::headings::{MEASUREMENT, OUTPUT, PROCESSES, WIRE};
use super::hosts::HostArgs;
use super::job::cuda_libraries;
use super::learn::FloatArg;
use super::repeat::RepeatArgs;
use super::{TransportArg, WireArgs};

#[derive(Args, Debug)]
pub(crate) struct AllreduceArgs {
    /// Numbers of processes, each a measurement
    #[arg(long, value_name = "LIST", help_heading = PROCESSES, value_delimiter = ',', value_parser = of_a_group(),
          default_values = ["2", "4", "8"])]
    pub(crate) ranks: Vec<u32>,
    /// Devices of each process
    ///
    /// Which are threads with a vector each: together a tensor.
    #[arg(long, value_name = "D", help_heading = PROCESSES, value_parser = of_a_group())]
    devices: Option<u32>,
    /// Where vectors lie: cpu, or cuda, beside NCCL
    ///
    /// `cuda`: in the memory of GPUs, one for each process of this machine; where there are fewer, some share one. The
    /// graph's own all-reduce is measured, and NCCL where it is found.
    #[arg(long, value_name = "DEVICE", help_heading = PROCESSES, value_enum, conflicts_with_all =
          ["devices", "hosts", "collective", "algorithm", "design", "deterministic", "transport", "table", "tune", "link"])]
    device: Option<VectorsArg>,
    /// The library of CUDA's driver
    ///
    /// [default: libcuda.so.1, where the dynamic linker finds it]
    #[arg(long, value_name = "FILE", help_heading = PROCESSES, hide_short_help = true, requires = "device")]
    cuda_driver: Option<PathBuf>,
    /// Folders with CUDA's libraries, or none
    #[arg(long, value_name = "FOLDER", help_heading = PROCESSES, hide_short_help = true, value_delimiter = ',',
          requires = "device")]
    cuda_libs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Sizes of a vector: 4KiB,1MiB,16MB
    ///
    /// [default: 4 KiB to 256 MiB by fours; with --quick to 16 MiB]
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Vectors of a size at once
    ///
    /// As a model's gradients are: beside one of as many bytes, what buckets would save.
    #[arg(long, value_name = "N", help_heading = MEASUREMENT, default_value = "1",
          conflicts_with_all = ["devices", "device", "tune", "link"])]
    pub(crate) vectors: NonZeroUsize,
    /// What is done
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, value_enum, value_delimiter = ',',
          default_values = ["all-reduce"])]
    pub(crate) collective: Vec<CollectiveArg>,
    /// Algorithms to measure
    ///
    /// [default: auto; with --tune all; with --devices the design's]
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, value_enum, value_delimiter = ',')]
    pub(crate) algorithm: Vec<AlgorithmArg>,
    /// With --devices: how tensors are reduced
    #[arg(long, value_name = "LIST", help_heading = MEASUREMENT, hide_short_help = true, value_enum,
          value_delimiter = ',', requires = "devices",
          default_values = ["multi-ring", "single-ring", "omp-ring", "reg", "flat-ring"])]
    design: Vec<DesignArg>,
    /// Type of the elements
    ///
    /// Sums of bf16 are made in f32.
    #[arg(long, value_name = "TYPE", help_heading = MEASUREMENT, value_enum, default_value = "f32")]
    pub(crate) dtype: FloatArg,
    /// Sums in the order of processes
    ///
    /// The same bits by every algorithm and transport.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) deterministic: bool,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// Fewer repetitions, and sizes up to 16 MiB
    ///
    /// In one job each.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) quick: bool,
    /// Transports to measure
    ///
    /// [default: shm and tcp; with --hosts auto and tcp]
    #[arg(long, value_name = "LIST", help_heading = WIRE, value_enum, value_delimiter = ',')]
    transport: Vec<TransportArg>,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    /// Where `auto` looks, as --tune wrote it
    ///
    /// [default: a model of the transport]
    #[arg(long, value_name = "FILE", help_heading = MEASUREMENT)]
    pub(crate) table: Option<PathBuf>,
    /// Write which algorithm is fastest
    ///
    /// From which size on, to this file, a line a row.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, conflicts_with_all = ["devices", "collective"])]
    pub(crate) tune: Option<PathBuf>,
    /// Measure what the way between processes takes
    ///
    /// Latency and bandwidth between the first of them and the next one that shares no memory with it, in 200 ms, and nothing
    /// else; append them to this file, by which `train --table FILE` chooses algorithms. The last line of a transport counts.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT,
          conflicts_with_all = ["devices", "collective", "algorithm", "tune", "table", "json"])]
    pub(crate) link: Option<PathBuf>,
    /// Append a line of JSON a result to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) json: Option<PathBuf>,
}

impl AllreduceArgs {
    /// Driver and libraries, where vectors lie in the memory of GPUs.
    pub(crate) fn gpus(&self) -> Option<(Option<PathBuf>, CudaLibraries)> {
        let is_cuda = matches!(self.device, Some(VectorsArg::Cuda));
        is_cuda.then(|| (self.cuda_driver.clone(), cuda_libraries(self.cuda_libs.clone())))
    }

    /// The transports to measure.
    pub(crate) fn transports(&self) -> Vec<TransportArg> {
        self.hosts.transports(&self.transport)
    }

    /// Everything to measure in turns, of the algorithms that there are.
    pub(crate) fn ways(&self, possible: &[Algorithm]) -> Vec<Way> {
        let given = self.algorithm.iter().copied().map(Option::<Algorithm>::from);
        let given: Vec<_> =
            given.filter(|of| of.is_none_or(|algorithm| possible.contains(&algorithm))).collect();
        let Some(devices) = self.devices else {
            let all = || possible.iter().copied().map(Some).collect();
            let algorithms = match self.algorithm.is_empty() {
                false => given,
                true if self.tune.is_some() => all(),
                true => vec![None],
            };
            return algorithms
                .into_iter()
                .map(|algorithm| Way { algorithm, tensor: None })
                .collect();
        };
        let mut ways = Vec::new();
        for design in self.design.iter().copied().map(Design::from) {
            // the paper's `reg` takes what the group does by itself
            let algorithms = match self.algorithm.is_empty() || design == Design::Reg {
                true => vec![design.algorithm()],
                false => given.clone(),
            };
            let tensor = Some(DeviceTensor { devices, design });
            ways.extend(algorithms.into_iter().map(|algorithm| Way { algorithm, tensor }));
        }
        ways
    }
}

/// How many processes, or devices, can be measured.
fn of_a_group() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(CONTRIBUTORS_MAX))
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum VectorsArg {
    /// In the host's memory
    Cpu,
    /// In the memory of GPUs
    Cuda,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum AlgorithmArg {
    /// What --table says, else what a model of the transport says
    Auto,
    /// Each process reduces its piece of all vectors where they lie; shm only
    Shared,
    /// All sends all to all
    Exchange,
    /// Pieces to their owners, results to all
    Direct,
    /// Pieces go round (bucket algorithm)
    Ring,
    /// Several rings, one reducing while another sends
    MultiRing,
    /// In pairs at growing distance, all that is reduced so far
    RecursiveDoubling,
    /// Recursive halving and doubling
    HalvingDoubling,
    /// All to the first process, the result to all
    ReduceBroadcast,
    /// Within each host first, then between hosts
    Hierarchical,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum CollectiveArg {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// From the first process
    Broadcast,
    /// To the first process
    Reduce,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum DesignArg {
    /// In slices: devices reduce one while others are on the wire (figure 9)
    MultiRing,
    /// In slices, one after the other
    SingleRing,
    /// All is reduced, goes round, and is copied back
    OmpRing,
    /// The same by the algorithm that `auto` takes
    Reg,
    /// Every device is a process of one larger ring (Baidu's)
    FlatRing,
}

impl From<AlgorithmArg> for Option<Algorithm> {
    fn from(given: AlgorithmArg) -> Option<Algorithm> {
        Some(match given {
            AlgorithmArg::Auto => return None,
            AlgorithmArg::Shared => Algorithm::Shared,
            AlgorithmArg::Exchange => Algorithm::Exchange,
            AlgorithmArg::Direct => Algorithm::Direct,
            AlgorithmArg::Ring => Algorithm::Ring,
            AlgorithmArg::MultiRing => Algorithm::MultiRing,
            AlgorithmArg::RecursiveDoubling => Algorithm::RecursiveDoubling,
            AlgorithmArg::HalvingDoubling => Algorithm::HalvingDoubling,
            AlgorithmArg::ReduceBroadcast => Algorithm::ReduceBroadcast,
            AlgorithmArg::Hierarchical => Algorithm::Hierarchical,
        })
    }
}

impl From<CollectiveArg> for CollectiveKind {
    fn from(given: CollectiveArg) -> CollectiveKind {
        match given {
            CollectiveArg::AllReduce => CollectiveKind::AllReduce,
            CollectiveArg::ReduceScatter => CollectiveKind::ReduceScatter,
            CollectiveArg::AllGather => CollectiveKind::AllGather,
            CollectiveArg::Broadcast => CollectiveKind::Broadcast,
            CollectiveArg::Reduce => CollectiveKind::Reduce,
        }
    }
}

impl From<DesignArg> for Design {
    fn from(given: DesignArg) -> Design {
        match given {
            DesignArg::MultiRing => Design::MultiRing,
            DesignArg::SingleRing => Design::SingleRing,
            DesignArg::OmpRing => Design::OmpRing,
            DesignArg::Reg => Design::Reg,
            DesignArg::FlatRing => Design::FlatRing,
        }
    }
}
