//! Push and pull of one key by several workers, all in step (Mamidala et al. §4: pairs of 100,000 elements,
//! 10,000 times): the store over one-sided writes, and in alternation the same store over ZeroMQ, each time
//! in new processes. The launcher's side.

mod member;
mod payload;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_kvstore::wire::SHOWN_FROM;
use tensorwire_kvstore::{BIG_ELEMENTS, TransferMode, TransferThresholds};
use tensorwire_launch::{
    ArrivalMode, Hosts, JobSpec, Reports, StoreJob, Transport, VerbsOptions, launch,
};
use tensorwire_tensor::DType;
use tensorwire_train::{Quantiles, StoreWire};

use crate::WARM_UP;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::versions::Versions;

use member::MemberReport;

pub use member::{KvstoreError, kvstore_member};

/// The kind of job that [`kvstore_member`] takes part in.
pub const KVSTORE: &str = "kvstore";

/// The paper's value: 100,000 elements of f32.
pub const PAPER_BYTES: usize = 400_000;
/// Up to as many the sums that are compared are exact.
pub const WORKERS_MAX: u32 = 64;

/// Bytes that a worker pushes if repetitions are not told: the paper's value 10,000 times.
const PUSHED_BYTES: usize = 10_000 * PAPER_BYTES;
const QUICK_PUSHED_BYTES: usize = 200 * PAPER_BYTES;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvstoreSpec {
    pub transport: Transport,
    /// Which NIC ([`Transport::Verbs`]).
    pub verbs: VerbsOptions,
    /// How an arrival is signalled ([`Transport::Verbs`]); none: as suits every device.
    pub arrival: Option<ArrivalMode>,
    pub exchange: StoreWire,
    pub pull: Pull,
    /// Where the processes run.
    pub hosts: Hosts,
    pub workers: u32,
    pub servers: u32,
    /// Of the value: a positive multiple of 4.
    pub bytes: usize,
    /// A round is a job of new processes. Rounds alternate between exchanges, so that the machine's noise
    /// meets all.
    pub rounds: usize,
    /// Unmeasured, at the start of each block of repetitions.
    pub warm_up: usize,
    /// Of each round.
    pub repetitions: usize,
}

/// How a worker has the value in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pull {
    /// In a tensor of its own, which the pull fills.
    Filled,
    /// Where the server has it, in memory that both share: no byte moves.
    Shown,
}

/// What was measured. Times are of worker 0, from before the push until it has the sum.
#[derive(Clone, Debug, Serialize)]
pub struct KvstoreResult {
    pub bench: &'static str,
    pub system: &'static str,
    pub transport: Transport,
    pub exchange: StoreWire,
    pub pull: Pull,
    /// How many hosts there were.
    pub hosts: usize,
    pub workers: u32,
    pub servers: u32,
    pub bytes: usize,
    pub repetitions: usize,
    pub median_s: f64,
    pub p10_s: f64,
    pub p90_s: f64,
    /// A copy of the value into registered memory, all workers at a time; the median, in the same run. A pull that fills a tensor
    /// of the worker's own moves as many bytes, over shared memory by such a copy.
    pub limit_ns: f64,
    /// A push and pull over one such copy.
    pub ratio_to_limit: f64,
    /// Times as fast as over ZeroMQ, by the medians, where that was measured too.
    pub ratio_to_zmq: Option<f64>,
    /// Of the worker, and of the server, with most.
    pub registered_bytes_worker: u64,
    pub registered_bytes_server: u64,
    /// Of all processes.
    pub registered_bytes: u64,
    /// By all processes, for each push and pull of all workers.
    pub bytes_copied_per_step: f64,
    pub transfers_per_step: f64,
    /// What was pulled was compared whole with the sum of what was pushed, so often by each worker.
    pub verified: bool,
    pub values_verified: u64,
    /// Of ZeroMQ, where the line is over it or has a ratio to it.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    pub versions: Versions,
    pub machine: Machine,
}

impl KvstoreSpec {
    /// As many repetitions as the paper's, of large values fewer; `quick`: fewer.
    pub fn new(workers: u32, servers: u32, bytes: usize, quick: bool) -> KvstoreSpec {
        let (pushed, least, rounds) =
            if quick { (QUICK_PUSHED_BYTES, 5, 1) } else { (PUSHED_BYTES, 30, 2) };
        let most = pushed / PAPER_BYTES;
        KvstoreSpec {
            transport: Transport::Auto,
            verbs: VerbsOptions::default(),
            arrival: None,
            exchange: StoreWire::ZeroCopy,
            pull: Pull::Filled,
            hosts: Hosts::default(),
            workers,
            servers,
            bytes,
            rounds,
            warm_up: WARM_UP,
            repetitions: 0,
        }
        .with_repetitions((pushed / bytes.max(1)).clamp(least, most))
    }

    /// Can workers read the value where it is: one server has all of it, in memory that they share?
    pub fn can_show(&self) -> bool {
        let is_whole = self.servers == 1 || self.bytes / DType::F32.bytes() <= BIG_ELEMENTS;
        let shares = matches!(self.transport, Transport::Shm | Transport::Auto);
        // between hosts there is none, and within one all go the same way
        let shares = shares && !self.hosts.any_remote();
        let shares = shares && self.exchange == StoreWire::ZeroCopy;
        let sizes =
            TransferThresholds { direct_from: None, mapped_from: shares.then_some(SHOWN_FROM) };
        is_whole && sizes.mode(self.bytes, false) == TransferMode::PeerMapped
    }

    /// So many in all rounds together.
    pub fn with_repetitions(self, repetitions: usize) -> KvstoreSpec {
        KvstoreSpec { repetitions: repetitions.div_ceil(self.rounds), ..self }
    }
}

/// Measures one size, as one after the other of `ways` says. `job` says how to start members; its kind, roles, hosts and
/// payload are filled in.
///
/// # Errors
/// When a job fails: a pulled element that is wrong fails it.
pub fn kvstore(
    spec: &KvstoreSpec,
    ways: &[(StoreWire, Pull)],
    job: &JobSpec,
) -> Result<Vec<KvstoreResult>, BenchError> {
    // fits: usize is 64 bits wide
    let counts = [
        ("bytes", spec.bytes),
        ("--iterations", spec.repetitions),
        ("--workers", spec.workers as usize),
        ("--servers", spec.servers as usize),
    ];
    if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return Err(BenchError::Zero { what });
    }
    ways.iter().try_for_each(|(exchange, _)| exchange.check_built_in())?;
    let mut measured: Vec<Vec<MemberReport>> = ways.iter().map(|_| Vec::new()).collect();
    for _ in 0..spec.rounds {
        for (&(exchange, pull), reports) in ways.iter().zip(&mut measured) {
            reports.extend(run(&KvstoreSpec { exchange, pull, ..spec.clone() }, job)?);
        }
    }
    let mut results = Vec::new();
    for (&(exchange, pull), reports) in ways.iter().zip(&measured) {
        let spec = KvstoreSpec { exchange, pull, ..spec.clone() };
        results.push(summarise(&spec, reports).ok_or(BenchError::Zero { what: "--iterations" })?);
    }
    compare(&mut results);
    Ok(results)
}

/// One job.
fn run(spec: &KvstoreSpec, job: &JobSpec) -> Result<Vec<MemberReport>, BenchError> {
    let KvstoreSpec { workers, servers, .. } = *spec;
    let store = StoreJob { workers, servers, elastic: false, replace_servers: false };
    let job = JobSpec {
        kind: KVSTORE.to_string(),
        roles: store.roles(),
        hosts: spec.hosts.clone(),
        verbs: (spec.transport == Transport::Verbs).then(|| spec.verbs.clone()),
        store: Some(store),
        ..job.clone()
    };
    let reports = launch::<Reports<MemberReport>>(&job.with_payload(spec)?, &mut |_| {})?.reports;
    let reports = reports.into_iter().map(|(rank, report)| {
        // fits: ranks of the beginning
        MemberReport { is_worker: rank < Rank(workers), ..report }
    });
    Ok(reports.collect())
}

/// Of all rounds; none without repetitions.
fn summarise(spec: &KvstoreSpec, reports: &[MemberReport]) -> Option<KvstoreResult> {
    let seconds = reports.iter().flat_map(|report| &report.times_ns).map(|ns| ns / 1e9);
    let Quantiles { count, p10, median, p90 } = Quantiles::of(seconds)?;
    let limit_ns = Quantiles::of(reports.iter().flat_map(|of| &of.limit_ns).copied())?.median;
    let registered = |of: &MemberReport| of.stats.registered_bytes;
    let workers = || reports.iter().filter(|report| report.is_worker);
    let servers = || reports.iter().filter(|report| !report.is_worker);
    // each worker counted every step of its round
    let steps = workers().map(|worker| worker.steps).sum::<u64>() as f64 / f64::from(spec.workers);
    // fits: figures for people
    let per_step =
        |of: fn(&MemberReport) -> u64| reports.iter().map(of).sum::<u64>() as f64 / steps;
    let values_verified = workers().map(|worker| worker.values_verified).min().unwrap_or(0);
    Some(KvstoreResult {
        bench: KVSTORE,
        system: "tensorwire",
        transport: spec.transport,
        exchange: spec.exchange,
        pull: spec.pull,
        hosts: hosts_of(spec),
        workers: spec.workers,
        servers: spec.servers,
        bytes: spec.bytes,
        repetitions: count,
        median_s: median,
        p10_s: p10,
        p90_s: p90,
        limit_ns,
        ratio_to_limit: median * 1e9 / limit_ns,
        ratio_to_zmq: None,
        registered_bytes_worker: workers().map(registered).max().unwrap_or(0),
        registered_bytes_server: servers().map(registered).max().unwrap_or(0),
        // fits: rounds are few
        registered_bytes: reports.iter().map(registered).sum::<u64>() / spec.rounds as u64,
        bytes_copied_per_step: per_step(|report| report.stats.bytes_copied),
        transfers_per_step: per_step(|report| report.stats.transfers),
        // what is wrong fails the job
        verified: values_verified > 0,
        values_verified,
        versions: Versions::of_store(spec.exchange),
        machine: Machine::here(),
    })
}

/// How many hosts its processes run on.
fn hosts_of(spec: &KvstoreSpec) -> usize {
    let numbers = spec.hosts.numbers((spec.workers + spec.servers) as usize);
    numbers.into_iter().collect::<std::collections::BTreeSet<u32>>().len()
}

/// Says of each other result how it compares with the one over ZeroMQ.
fn compare(results: &mut [KvstoreResult]) {
    let zmq = results.iter().find(|result| result.exchange == StoreWire::Zmq);
    let Some(zmq_s) = zmq.map(|result| result.median_s) else { return };
    for result in results.iter_mut().filter(|result| result.exchange != StoreWire::Zmq) {
        result.ratio_to_zmq = Some(zmq_s / result.median_s);
        result.versions = Versions::of_store(StoreWire::Zmq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_kvstore::wire::WireStats;

    #[test]
    fn the_papers_value_goes_as_often_as_in_the_paper() {
        let times = |bytes, quick| {
            let spec = KvstoreSpec::new(2, 1, bytes, quick);
            spec.rounds * spec.repetitions
        };
        assert_eq!((times(PAPER_BYTES, false), times(PAPER_BYTES, true)), (10_000, 200));
        assert_eq!((times(4, false), times(4, true)), (10_000, 200));
        assert_eq!((times(64 << 20, false), times(64 << 20, true)), (60, 5));
    }

    fn report(is_worker: bool, times_ns: &[f64], steps: u64, bytes: u64) -> MemberReport {
        let stats = WireStats { registered_bytes: bytes, bytes_copied: 60, ..WireStats::default() };
        let (times_ns, values_verified) = (times_ns.to_vec(), u64::from(is_worker) * 2);
        let limit_ns = times_ns.iter().map(|_| 5e8).collect();
        MemberReport { is_worker, times_ns, steps, values_verified, limit_ns, stats }
    }

    #[test]
    fn all_rounds_count() {
        let spec = KvstoreSpec { rounds: 2, ..KvstoreSpec::new(2, 1, 400, true) };
        let round = |slow: f64| {
            [
                report(true, &[1e9 * slow, 2e9, 3e9], 6, 100),
                report(true, &[], 6, 120),
                report(false, &[], 0, 1000),
            ]
        };
        let reports = [round(1.0), round(5.0)].concat();
        let result = summarise(&spec, &reports).unwrap();
        assert_eq!((result.repetitions, result.p10_s, result.median_s), (6, 1.0, 2.5));
        assert_eq!((result.limit_ns, result.ratio_to_limit), (5e8, 5.0));
        assert_eq!((result.registered_bytes_worker, result.registered_bytes_server), (120, 1000));
        assert_eq!(result.registered_bytes, 1220);
        // 6 processes copied 60 bytes each in 2 rounds of 6 steps
        assert_eq!(result.bytes_copied_per_step, 30.0);
        assert_eq!((result.verified, result.values_verified), (true, 2));
    }

    #[test]
    fn ratios_are_to_zmq() {
        let spec = KvstoreSpec::new(1, 1, 400, true);
        let over = |exchange, ns| {
            let spec = KvstoreSpec { exchange, ..spec.clone() };
            summarise(&spec, &[report(true, &[ns], 1, 0)]).unwrap()
        };
        let mut results = [over(StoreWire::ZeroCopy, 1e6), over(StoreWire::Zmq, 8e6)];
        compare(&mut results);
        assert_eq!(results.each_ref().map(|result| result.ratio_to_zmq), [Some(8.0), None]);
        assert_eq!(results[0].versions, results[1].versions, "a ratio is to a version");
        compare(&mut results[..1]);
    }
}
