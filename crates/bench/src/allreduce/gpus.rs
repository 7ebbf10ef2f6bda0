//! All-reduces of vectors in the memory of GPUs, a process for each: the graph's own, by edges, and NCCL's beside it. The
//! launcher's side.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorwire_cuda::{Gpus, LibrarySearch, Nccl, NcclVersion};
use tensorwire_launch::{JobOutcome, JobSpec, Reports, launch};
use tensorwire_tensor::DType;
use tensorwire_train::{CudaLibraries, FloatType, Quantiles};

use super::gpus_member::GpuReport;
use super::{AllreduceSpec, CollectiveKind, slowest_of};
use crate::error::BenchError;
use crate::machine::Machine;

/// The kind of job that [`super::gpu_allreduce_member`] takes part in.
pub const GPU_ALLREDUCE: &str = "gpu-allreduce";

/// From this version on two members of a communicator may have one GPU.
const SHARES_GPU: NcclVersion = NcclVersion { major: 2, minor: 30, patch: 0 };

/// Who reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuSystem {
    /// The graph, by edges: each process makes a share of the vector, of what all have.
    Tensorwire,
    Nccl,
}

impl GpuSystem {
    pub const ALL: [GpuSystem; 2] = [GpuSystem::Tensorwire, GpuSystem::Nccl];

    /// As results have it.
    pub fn name(self) -> &'static str {
        match self {
            GpuSystem::Tensorwire => "tensorwire",
            GpuSystem::Nccl => "nccl",
        }
    }
}

/// What to measure, of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuAllreduceSpec {
    pub system: GpuSystem,
    /// The library of CUDA's driver; none: the one that the dynamic linker finds.
    pub driver: Option<PathBuf>,
    pub libraries: CudaLibraries,
    pub dtype: FloatType,
    /// Processes of this host, a power of two. Each takes the next GPU; where there are fewer, some share one.
    pub ranks: u32,
    pub bytes: usize,
    /// A round is a job of new processes.
    pub rounds: usize,
    /// Of each round, unmeasured.
    pub warm_up: usize,
    /// Of each round.
    pub repetitions: usize,
}

/// What was measured. The time of a repetition is that of the slowest process, until its GPU has the result in memory of its
/// own; before each all have met.
#[derive(Clone, Debug, Serialize)]
pub struct GpuAllreduceResult {
    pub bench: &'static str,
    pub system: &'static str,
    /// Of NCCL, its version.
    pub version: Option<String>,
    /// Where the vectors lie.
    pub memory: &'static str,
    pub gpu: String,
    /// How many there are; processes share them, where these are fewer.
    pub gpus: usize,
    pub collective: &'static str,
    pub dtype: FloatType,
    pub ranks: u32,
    pub bytes: usize,
    pub repetitions: usize,
    pub median_s: f64,
    pub p10_s: f64,
    pub p90_s: f64,
    /// Bytes of the vector over the median.
    pub algorithm_bytes_per_s: f64,
    pub bus_bytes_per_s: f64,
    /// All vectors were compared whole with their closed form, after every operation.
    pub verified: bool,
    pub vectors_verified: u64,
    pub machine: Machine,
}

impl GpuAllreduceSpec {
    /// As often as [`AllreduceSpec`] says for vectors of the host.
    pub fn of(
        system: GpuSystem,
        spec: &AllreduceSpec,
        (driver, libraries): (Option<PathBuf>, CudaLibraries),
    ) -> GpuAllreduceSpec {
        let AllreduceSpec { dtype, ranks, bytes, rounds, warm_up, repetitions, .. } = *spec;
        GpuAllreduceSpec {
            system,
            driver,
            libraries,
            dtype,
            ranks,
            bytes,
            rounds,
            warm_up,
            repetitions,
        }
    }

    /// Returns why this cannot be measured on this machine; none: it can.
    pub fn absence(&self) -> Option<String> {
        let gpus = match Gpus::find(self.driver.as_deref()) {
            Ok(gpus) if gpus.count() == 0 => return Some("there is no GPU".to_owned()),
            Ok(gpus) => gpus,
            Err(error) => return Some(error.to_string()),
        };
        if !self.ranks.is_power_of_two() {
            return Some(
                "the number of processes is no power of two: means are compared exactly".into(),
            );
        }
        if self.system == GpuSystem::Tensorwire {
            return None;
        }
        let Some(search) = self.search() else {
            return Some("--cuda-libs none has no library be used".to_owned());
        };
        match Nccl::find(&search) {
            Err(error) => Some(error.to_string()),
            // fits: GPUs are few
            Ok(nccl) if gpus.count() < self.ranks as usize && nccl.version() < SHARES_GPU => {
                let (found, gpus) = (nccl.version(), gpus.count());
                let needed = self.ranks;
                Some(format!(
                    "NCCL {found} gives each process a GPU of its own, and there are {gpus} for {needed}; two on one need NCCL 2.30"
                ))
            }
            Ok(_) => None,
        }
    }

    /// Where to look for NCCL.
    pub(super) fn search(&self) -> Option<LibrarySearch> {
        self.libraries.search()
    }
}

/// Measures. `job` says how to start members.
///
/// # Errors
/// When a job fails: an element that is wrong fails it.
pub fn gpu_allreduce(
    spec: &GpuAllreduceSpec,
    job: &JobSpec,
) -> Result<GpuAllreduceResult, BenchError> {
    let element_bytes = DType::from(spec.dtype).bytes();
    if !spec.bytes.is_multiple_of(element_bytes) {
        return Err(BenchError::Uneven { bytes: spec.bytes, element_bytes });
    }
    let mut rounds: Vec<Vec<GpuReport>> = Vec::with_capacity(spec.rounds);
    for _ in 0..spec.rounds {
        let job = JobSpec {
            kind: GPU_ALLREDUCE.to_string(),
            roles: (0..spec.ranks).map(|rank| format!("member {rank}")).collect(),
            ..job.clone()
        };
        let job = job.with_payload(spec)?;
        let JobOutcome { reports, .. } = launch::<Reports<GpuReport>>(&job, &mut |_| {})?;
        rounds.push(reports.into_values().collect());
    }
    let seconds = rounds.iter().flat_map(|members| {
        let times: Vec<&[f64]> = members.iter().map(|member| &member.times_ns[..]).collect();
        slowest_of(&times)
    });
    let none = BenchError::Zero { what: "--iterations" };
    let Some(Quantiles { count, p10, median, p90 }) = Quantiles::of(seconds.map(|ns| ns / 1e9))
    else {
        return Err(none);
    };
    let Some(first) = rounds.iter().flatten().next() else { return Err(none) };
    let vectors_verified = rounds.iter().flatten().map(|member| member.vectors_verified).sum();
    // fits: a figure for people
    let bytes_per_s = spec.bytes as f64 / median;
    Ok(GpuAllreduceResult {
        bench: GPU_ALLREDUCE,
        system: spec.system.name(),
        version: first.version.clone(),
        memory: "device",
        gpu: first.gpu.clone(),
        gpus: first.gpus,
        collective: CollectiveKind::AllReduce.name(),
        dtype: spec.dtype,
        ranks: spec.ranks,
        bytes: spec.bytes,
        repetitions: count,
        median_s: median,
        p10_s: p10,
        p90_s: p90,
        algorithm_bytes_per_s: bytes_per_s,
        bus_bytes_per_s: bytes_per_s * CollectiveKind::AllReduce.bus_share(spec.ranks),
        // what is wrong fails the job
        verified: vectors_verified > 0,
        vectors_verified,
        machine: Machine::here(),
    })
}
