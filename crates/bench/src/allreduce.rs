//! Collective operations of several processes, by each algorithm there is, and of tensors that several devices of each
//! hold (Mamidala et al. §6, §7.3). Each measurement is a job of new processes. The launcher's side.

mod devices;
mod gpus;
mod gpus_member;
mod link;
mod member;
mod payload;
mod tune;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tensorwire_collectives::{Algorithm, Design, LinkCost, Table};
use tensorwire_launch::{
    ArrivalMode, Hosts, JobOutcome, JobSpec, Reports, Transport, VerbsOptions, launch,
};
use tensorwire_tensor::DType;
use tensorwire_train::{FloatType, Quantiles};

use crate::WARM_UP;
use crate::error::BenchError;
use crate::machine::Machine;

use member::MemberReport;

pub use devices::DeviceThreads;
pub use gpus::{GPU_ALLREDUCE, GpuAllreduceResult, GpuAllreduceSpec, GpuSystem, gpu_allreduce};
pub use gpus_member::{GpuAllreduceError, gpu_allreduce_member};
pub use link::measure_link;
pub use member::{AllreduceError, allreduce_member};
pub use payload::CONTRIBUTORS_MAX;
pub use tune::tuned_rows;

/// The kind of job that [`allreduce_member`] takes part in.
pub const ALLREDUCE: &str = "allreduce";

/// Bytes that a process reduces if repetitions are not told.
const REDUCED_BYTES: usize = 2 << 30;
const QUICK_REDUCED_BYTES: usize = 64 << 20;
/// So many bytes are reduced before, in at most so many repetitions: processes that have just started may share a core, until the
/// system gives each its own (two over loopback did for some 40 ms, in every other job).
const WARM_UP_BYTES: usize = 64 << 20;
const WARM_UP_MOST: usize = 2000;
/// Slices of a tensor, where its design has some: the paper's two rings, and two more to hide the first and the last.
const SLICES: usize = 4;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllreduceSpec {
    pub transport: Transport,
    /// Which NIC ([`Transport::Verbs`]).
    pub verbs: VerbsOptions,
    /// How an arrival is signalled ([`Transport::Verbs`]); none: as suits every device.
    pub arrival: Option<ArrivalMode>,
    pub collective: CollectiveKind,
    /// Where the processes run.
    pub hosts: Hosts,
    pub dtype: FloatType,
    /// Sums in the order of processes, whatever the algorithm.
    pub deterministic: bool,
    pub ranks: u32,
    /// Of a vector: whole elements.
    pub bytes: usize,
    /// So many vectors of each process at once; those of devices one.
    pub vectors: usize,
    /// By which table an algorithm is chosen where none is named; none: the built-in one.
    pub table: Option<Table>,
    /// What the model chooses by where the table has no row; none: what suits the transport.
    pub link: Option<LinkCost>,
    /// A round is a job of new processes. Rounds alternate between ways, so that the machine's noise meets all.
    pub rounds: usize,
    /// Of each round, unmeasured.
    pub warm_up: usize,
    /// Of each round.
    pub repetitions: usize,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// None: by the table.
    pub algorithm: Option<Algorithm>,
    /// None: every process has one vector, and no devices.
    pub tensor: Option<DeviceTensor>,
}

/// What every process has instead of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTensor {
    /// Threads with a vector each.
    pub devices: u32,
    pub design: Design,
}

/// What is done with the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// From the first process.
    Broadcast,
    /// To the first process.
    Reduce,
}

impl CollectiveKind {
    /// As `--collective` spells it.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
        }
    }

    /// What a link carries at least for each byte of the vector: bus bandwidth is that over the time (nccl-tests,
    /// doc/PERFORMANCE.md).
    pub fn bus_share(self, ranks: u32) -> f64 {
        let others = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
        match self {
            CollectiveKind::AllReduce => 2.0 * others,
            CollectiveKind::ReduceScatter | CollectiveKind::AllGather => others,
            CollectiveKind::Broadcast | CollectiveKind::Reduce => 1.0,
        }
    }
}

/// What was measured. The time of a repetition is that of the process that was slowest; before each there is a
/// barrier.
#[derive(Clone, Debug, Serialize)]
pub struct AllreduceResult {
    pub bench: &'static str,
    pub system: &'static str,
    pub transport: Transport,
    /// What `auto` came to between hosts.
    pub settled: Transport,
    pub collective: &'static str,
    pub dtype: FloatType,
    pub deterministic: bool,
    pub ranks: u32,
    /// Of each process.
    pub devices: u32,
    /// Of a tensor's devices.
    pub design: Option<&'static str>,
    pub bytes: usize,
    /// So many at once; not told where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<usize>,
    /// The one that was taken, and whether the table chose it.
    pub algorithm: Algorithm,
    pub by_table: bool,
    pub repetitions: usize,
    pub median_s: f64,
    pub p10_s: f64,
    pub p90_s: f64,
    /// Bytes of all vectors of a process over the median.
    pub algorithm_bytes_per_s: f64,
    pub bus_bytes_per_s: f64,
    /// By the process that sent most, in one operation; what others read of its memory does not count.
    pub bytes_sent: u64,
    /// In one operation, by all processes of the host that sent most of it: what went to processes that share no memory with
    /// theirs.
    pub bytes_over_wire: u64,
    /// How many hosts there were.
    pub hosts: usize,
    /// Of the process with most.
    pub registered_bytes: u64,
    /// All vectors were compared whole with their closed form, after every operation.
    pub verified: bool,
    pub vectors_verified: u64,
    pub machine: Machine,
}

/// What the processes of a measurement are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    spec: AllreduceSpec,
    way: Way,
    /// The way between them is measured, and nothing else.
    measures_link: bool,
}

impl AllreduceSpec {
    /// Repetitions by the size; `quick`: fewer.
    pub fn new(ranks: u32, bytes: usize, quick: bool) -> AllreduceSpec {
        let (reduced, least, most, rounds) =
            if quick { (QUICK_REDUCED_BYTES, 3, 200, 1) } else { (REDUCED_BYTES, 10, 2000, 2) };
        AllreduceSpec {
            transport: Transport::Auto,
            verbs: VerbsOptions::default(),
            arrival: None,
            collective: CollectiveKind::AllReduce,
            hosts: Hosts::default(),
            dtype: FloatType::F32,
            deterministic: false,
            ranks,
            bytes,
            vectors: 1,
            table: None,
            link: None,
            rounds,
            warm_up: (WARM_UP_BYTES / bytes.max(1)).clamp(WARM_UP, WARM_UP_MOST),
            repetitions: 0,
        }
        .with_repetitions((reduced / bytes.max(1)).clamp(least, most))
    }

    /// So many in all rounds together.
    pub fn with_repetitions(self, repetitions: usize) -> AllreduceSpec {
        AllreduceSpec { repetitions: repetitions.div_ceil(self.rounds), ..self }
    }
}

impl Way {
    fn devices(self) -> u32 {
        self.tensor.map_or(1, |tensor| tensor.devices)
    }

    /// In a flat ring every device is a process, as in Baidu's.
    fn processes(self, ranks: u32) -> u32 {
        match self.tensor {
            Some(DeviceTensor { devices, design: Design::FlatRing }) => ranks * devices,
            _ => ranks,
        }
    }
}

/// Measures one size by one way after the other. `job` says how to start members; its kind, roles and
/// payload are filled in.
///
/// # Errors
/// When a job fails: an element that is wrong fails it.
pub fn allreduce(
    spec: &AllreduceSpec,
    ways: &[Way],
    job: &JobSpec,
) -> Result<Vec<AllreduceResult>, BenchError> {
    let element_bytes = DType::from(spec.dtype).bytes();
    if !spec.bytes.is_multiple_of(element_bytes) {
        return Err(BenchError::Uneven { bytes: spec.bytes, element_bytes });
    }
    for way in ways {
        // fits: usize is 64 bits wide
        let counts = [
            ("--iterations", spec.repetitions),
            ("--ranks", spec.ranks as usize),
            ("--vectors", spec.vectors),
            ("--devices", way.devices() as usize),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(BenchError::Zero { what });
        }
        let contributors = u64::from(spec.ranks) * u64::from(way.devices());
        if contributors > u64::from(CONTRIBUTORS_MAX) {
            return Err(BenchError::Contributors { contributors, most: CONTRIBUTORS_MAX });
        }
    }
    let mut measured: Vec<Vec<Round>> = ways.iter().map(|_| Vec::new()).collect();
    for _ in 0..spec.rounds {
        for (way, rounds) in ways.iter().zip(&mut measured) {
            rounds.push(run(spec, *way, job)?);
        }
    }
    let results = ways.iter().zip(&measured).map(|(way, rounds)| {
        summarise(spec, *way, rounds).ok_or(BenchError::Zero { what: "--iterations" })
    });
    results.collect()
}

/// One job.
struct Round {
    /// What each process had to say.
    members: Vec<MemberReport>,
    /// What was chosen for them where that was left open.
    settled: Transport,
}

fn run(spec: &AllreduceSpec, way: Way, job: &JobSpec) -> Result<Round, BenchError> {
    let job = job_of(&Told { spec: spec.clone(), way, measures_link: false }, job)?;
    let JobOutcome { reports, negotiated } = launch::<Reports<MemberReport>>(&job, &mut |_| {})?;
    let settled = negotiated.unwrap_or(spec.transport);
    Ok(Round { members: reports.into_values().collect(), settled })
}

/// The job of what processes are told.
fn job_of(told: &Told, job: &JobSpec) -> Result<JobSpec, BenchError> {
    let Told { spec, way, .. } = told;
    let role = |rank: u32| format!("member {rank}");
    let job = JobSpec {
        kind: ALLREDUCE.to_string(),
        roles: (0..way.processes(spec.ranks)).map(role).collect(),
        hosts: spec.hosts.clone(),
        verbs: (spec.transport == Transport::Verbs).then(|| spec.verbs.clone()),
        ..job.clone()
    };
    Ok(job.with_payload(told)?)
}

/// Of all rounds; none without repetitions.
fn summarise(spec: &AllreduceSpec, way: Way, rounds: &[Round]) -> Option<AllreduceResult> {
    let seconds = rounds.iter().flat_map(|round| slowest(&round.members)).map(|ns| ns / 1e9);
    let Quantiles { count, p10, median, p90 } = Quantiles::of(seconds)?;
    let members = || rounds.iter().flat_map(|round| &round.members);
    let first = rounds.first()?;
    let vectors_verified = members().map(|member| member.vectors_verified).sum();
    // fits: a figure for people
    let bytes_per_s = spec.bytes as f64 * spec.vectors as f64 / median;
    Some(AllreduceResult {
        bench: ALLREDUCE,
        system: "tensorwire",
        transport: spec.transport,
        settled: first.settled,
        collective: spec.collective.name(),
        dtype: spec.dtype,
        deterministic: spec.deterministic,
        ranks: spec.ranks,
        devices: way.devices(),
        design: way.tensor.map(|tensor| tensor.design.name()),
        bytes: spec.bytes,
        vectors: (spec.vectors > 1).then_some(spec.vectors),
        algorithm: members().next()?.algorithm,
        by_table: way.algorithm.is_none(),
        repetitions: count,
        median_s: median,
        p10_s: p10,
        p90_s: p90,
        algorithm_bytes_per_s: bytes_per_s,
        bus_bytes_per_s: bytes_per_s * spec.collective.bus_share(spec.ranks),
        bytes_sent: members().map(|member| member.bytes_sent).max()?,
        bytes_over_wire: by_host(&first.members).into_values().max()?,
        hosts: by_host(&first.members).len(),
        registered_bytes: members().map(|member| member.registered_bytes).max()?,
        // what is wrong fails the job
        verified: vectors_verified > 0,
        vectors_verified,
        machine: Machine::here(),
    })
}

/// What the processes of each host sent to those that share no memory with them.
fn by_host(round: &[MemberReport]) -> BTreeMap<u32, u64> {
    let mut sent = BTreeMap::new();
    for member in round {
        *sent.entry(member.host).or_insert(0) += member.bytes_over_wire;
    }
    sent
}

/// Of each repetition of a round, the time of the slowest process.
fn slowest(round: &[MemberReport]) -> Vec<f64> {
    let times: Vec<&[f64]> = round.iter().map(|member| &member.times_ns[..]).collect();
    slowest_of(&times)
}

/// Of what each process took for each repetition, what the slowest took.
fn slowest_of(times_ns: &[&[f64]]) -> Vec<f64> {
    let repetitions = times_ns.iter().map(|times| times.len()).min().unwrap_or(0);
    let of = |at: usize| times_ns.iter().map(move |times| times[at]).fold(0.0, f64::max);
    (0..repetitions).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Way = Way { algorithm: None, tensor: None };

    #[test]
    fn large_vectors_go_less_often() {
        let times = |bytes, quick| {
            let spec = AllreduceSpec::new(2, bytes, quick);
            spec.rounds * spec.repetitions
        };
        assert_eq!((times(4 << 10, false), times(4 << 10, true)), (2000, 200));
        assert_eq!((times(16 << 20, false), times(16 << 20, true)), (128, 4));
        assert_eq!((times(1 << 30, false), times(1 << 30, true)), (10, 3));
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        let shares = |ranks| {
            [
                CollectiveKind::AllReduce,
                CollectiveKind::ReduceScatter,
                CollectiveKind::AllGather,
                CollectiveKind::Broadcast,
                CollectiveKind::Reduce,
            ]
            .map(|kind| kind.bus_share(ranks))
        };
        assert_eq!(shares(4), [1.5, 0.75, 0.75, 1.0, 1.0]);
        assert_eq!(shares(1), [0.0, 0.0, 0.0, 1.0, 1.0]);
    }

    fn report(times_ns: &[f64], bytes_sent: u64) -> MemberReport {
        MemberReport {
            times_ns: times_ns.to_vec(),
            algorithm: Algorithm::Ring,
            vectors_verified: times_ns.len() as u64,
            bytes_sent,
            bytes_over_wire: bytes_sent,
            host: 0,
            registered_bytes: 10 * bytes_sent,
        }
    }

    #[test]
    fn the_slowest_process_of_each_repetition_counts() {
        let spec = AllreduceSpec::new(4, 1_000_000, true);
        let rounds = [
            vec![report(&[1e6, 9e6], 6), report(&[3e6, 2e6], 7)],
            vec![report(&[5e6, 1e6], 6), report(&[4e6, 1e6], 6)],
        ];
        let rounds = rounds.map(|members| Round { members, settled: Transport::Shm });
        let result = summarise(&spec, PLAIN, &rounds).unwrap();
        assert_eq!((result.repetitions, result.p10_s, result.p90_s), (4, 0.001, 0.009));
        assert_eq!((result.median_s, result.bytes_sent, result.registered_bytes), (0.004, 7, 70));
        assert_eq!((result.algorithm_bytes_per_s, result.bus_bytes_per_s), (2.5e8, 3.75e8));
        assert_eq!((result.verified, result.vectors_verified), (true, 8));
    }

    #[test]
    fn a_flat_ring_has_a_process_for_each_device() {
        let way = |design| Way { tensor: Some(DeviceTensor { devices: 3, design }), ..PLAIN };
        let processes = |way: Way| way.processes(4);
        assert_eq!(processes(way(Design::FlatRing)), 12);
        assert_eq!((processes(way(Design::MultiRing)), processes(PLAIN)), (4, 4));
    }
}
