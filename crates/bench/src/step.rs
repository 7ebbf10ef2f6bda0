//! A training step with communication against the same arithmetic without: the same replicas, the same
//! data, the same bits, once in one process with all cores and once as a job of workers and servers; or, by
//! [`Strategy::Local`], the one process alone, to be compared with another framework.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use tensorwire_launch::{Hosts, JobSpec, JobUpdate, Transport, TransportChoice, VerbsOptions};
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_train::{
    Budget, ClientConfig, Exchange, Prepared, Progress, Quantiles, SendOrder, StoreConfig,
    Strategy, TrainConfig, TrainOutcome, TrainReport, WireType, copies_key, launch_train,
    train_local,
};

use crate::busy::CoreTicks;
use crate::by_name::ByName;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::versions::Versions;

/// How to measure.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// Measurements of each kind, which alternate.
    pub repetitions: usize,
    /// Of each kind before those, whose times do not count; their weights do.
    pub warm_up: usize,
    /// Exchanges by which the same job is measured, too.
    pub against: Vec<Exchange>,
    /// Measure what the job computes and what it exchanges by themselves, too.
    pub overlap: bool,
    /// Kept true while this process works alone, so that it may simply be ended then.
    pub alone: Arc<AtomicBool>,
}

/// What there is to show meanwhile.
#[derive(Clone, Debug)]
pub enum StepEvent {
    /// How bytes travel, where that was not given or not sure; once.
    Transport(TransportChoice),
    Measured {
        kind: String,
        ms: f64,
    },
}

/// What was measured. All times in milliseconds a step, start-up excluded.
#[derive(Clone, Debug, Serialize)]
pub struct StepResult {
    pub bench: &'static str,
    pub strategy: &'static str,
    pub model: String,
    pub data: String,
    pub workers: u32,
    pub servers: u32,
    pub batch: usize,
    pub steps: u64,
    pub threads: Option<usize>,
    pub kernels: String,
    pub local_ms: Quantiles,
    /// The most memory that the one process had at once, its data included.
    pub local_peak_bytes: u64,
    /// What its devices copied to the host's memory in a measurement: what is shown of it.
    pub local_bytes_copied_to_host: u64,
    #[serde(flatten)]
    pub ps: Option<PsResult>,
    /// The same of every measurement; of the job's where that is promised (`promises_bits`).
    pub weights_sha256: String,
    pub machine: Machine,
}

/// What was measured of the job.
#[derive(Clone, Debug, Serialize)]
pub struct PsResult {
    pub transport: Transport,
    pub exchange: tensorwire_train::Exchange,
    pub wire: WireType,
    /// It ends with the weights of one process, to the bit, which was checked of every measurement.
    #[serde(skip)]
    pub has_bits_of_one: bool,
    pub ps_ms: Quantiles,
    /// What communication costs: a step of the job over a step of one process.
    pub ratio: f64,
    pub bytes_copied: u64,
    /// All bytes that the runtime copied in the last measurement, those of `bytes_copied` among them: a key
    /// `bytes_copied_…` for each purpose.
    #[serde(flatten)]
    pub copies: BTreeMap<String, u64>,
    pub bytes_written: u64,
    /// Of what it went through that is not ours.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    pub versions: Versions,
    /// Of all members in the last measurement: times a Recv was asked in vain, and times there was
    /// nothing to do but wait, a step.
    pub poll_misses_per_step: f64,
    pub waits_per_step: f64,
    /// The share of this machine's cores' time in which they had something to do (0 to 1), from where all workers were done with
    /// the first step to where one was done with the last; the median of the measurements. None of jobs without such steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_busy: Option<f64>,
    #[serde(flatten)]
    pub overlap: Option<Overlap>,
}

/// What of a step goes on at the same time. Two processes that share all cores have but one of them each to compute
/// and to move bytes with.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Overlap {
    /// The same workers at the same time, who have weights of their own and nobody to talk to; they do the
    /// updates that elsewhere are the servers'.
    pub compute_ms: Quantiles,
    /// The same job but for its workers' arithmetic ([`TrainConfig::leave_out_kernels`]).
    pub communication_ms: Quantiles,
    /// A step of the job over the longer of the two: 1 where the other is wholly hidden.
    pub step_over_longer: f64,
    /// And over both together: 1 where one follows the other.
    pub step_over_sum: f64,
}

/// Measures, and gives a result for each exchange: the configuration's, then those to hold it against. `config` says
/// what the job computes, and with [`Strategy::Local`] that one process is all that is measured. `job` says how to start
/// members. `on_event` is told of each measurement.
///
/// # Errors
/// When training fails, or any two measurements end with different weights.
pub fn step(
    config: &TrainConfig,
    options: &StepOptions,
    job: &JobSpec,
    on_event: &mut dyn FnMut(StepEvent),
) -> Result<Vec<StepResult>, BenchError> {
    let none = || BenchError::Zero { what: "--iterations" };
    if options.repetitions == 0 {
        return Err(none());
    }
    let local = Prepared::new(alone(config), &ByName)?;
    let exchanges: Vec<Exchange> = match config.strategy {
        Strategy::Local => Vec::new(),
        _ => std::iter::once(config.exchange).chain(options.against.iter().copied()).collect(),
    };
    let ways = exchanges.iter().map(|&exchange| {
        Way::new(&TrainConfig { exchange, trace: None, ..config.clone() }, options.overlap)
    });
    let mut ways = ways.collect::<Result<Vec<Way>, BenchError>>()?;
    let mut local_runs = Vec::new();
    let (mut weights, mut last) = (Weights::default(), TrainReport::default());
    for turn in 0..options.warm_up + options.repetitions {
        last = run_alone(&local, &options.alone)?;
        let alone = TrainOutcome::alone(last.clone());
        let run = StepRun::of(&alone);
        on_event(StepEvent::Measured { kind: "local".to_string(), ms: run.ms });
        local_runs.push(run);
        weights.local(&alone)?;
        for way in &mut ways {
            way.measure(job, &mut weights, on_event)?;
        }
        if turn < options.warm_up {
            local_runs.clear();
            ways.iter_mut().for_each(Way::forget);
        }
    }
    if config.trace.is_some() && !ways.is_empty() {
        launch_train(&Prepared::new(traced(config), &ByName)?, &ByName, job, &mut |_| {})?;
    }
    let result = StepResult {
        bench: "step",
        strategy: config.strategy.name(),
        model: config.model.clone(),
        data: config.data.clone(),
        workers: config.workers,
        servers: 0,
        batch: config.batch,
        steps: local.steps(),
        threads: config.threads,
        kernels: last.kernels,
        local_ms: StepRun::quantiles(&local_runs).ok_or_else(none)?,
        local_peak_bytes: last.peak_bytes,
        local_bytes_copied_to_host: last.copies.of(CopyPurpose::ToHost),
        ps: None,
        weights_sha256: weights.first.unwrap_or_default(),
        machine: Machine::here(),
    };
    if ways.is_empty() {
        return Ok(vec![result]);
    }
    let of = |way: Way| {
        let ps = way.result(result.local_ms.median).ok_or_else(none)?;
        Ok(StepResult { servers: config.topology().servers, ps: Some(ps), ..result.clone() })
    };
    ways.into_iter().map(of).collect()
}

/// The job by one exchange, and what was measured of it.
struct Way {
    job: Prepared,
    /// What it computes and what it communicates, by themselves.
    half_jobs: Option<[Prepared; 2]>,
    runs: Vec<StepRun>,
    /// Of each, as [`PsResult::cores_busy`].
    busy: Vec<f64>,
    halves: [Vec<StepRun>; 2],
    /// The last measurement.
    last: Option<TrainOutcome>,
}

impl Way {
    fn new(config: &TrainConfig, overlap: bool) -> Result<Way, BenchError> {
        let halves = overlap.then(|| [compute(config), communication(config)]);
        let halves = halves.map(|[compute, communication]| {
            Ok::<_, BenchError>([
                Prepared::new(compute, &ByName)?,
                Prepared::new(communication, &ByName)?,
            ])
        });
        Ok(Way {
            job: Prepared::new(config.clone(), &ByName)?,
            half_jobs: halves.transpose()?,
            runs: Vec::new(),
            busy: Vec::new(),
            halves: [Vec::new(), Vec::new()],
            last: None,
        })
    }

    fn measure(
        &mut self,
        job: &JobSpec,
        weights: &mut Weights,
        on_event: &mut dyn FnMut(StepEvent),
    ) -> Result<(), BenchError> {
        let prepared = &self.job;
        let is_first = self.last.is_none();
        let mut steps = StepsWatched::default();
        let outcome = launch_train(prepared, &ByName, job, &mut |update| match update {
            JobUpdate::Transport(choice) if is_first => on_event(StepEvent::Transport(choice)),
            JobUpdate::Progress { value: Progress { step, .. }, .. } => {
                steps.ended(step, prepared.steps());
            }
            _ => {}
        })?;
        self.busy.extend(steps.busy());
        if promises_bits(prepared) {
            weights.ps(&outcome)?;
        }
        let TrainConfig { strategy, exchange, .. } = &prepared.config;
        let (kind, exchange) = (strategy.name(), exchange.name());
        let mut tell = |kind: String, runs: &mut Vec<StepRun>, outcome: &TrainOutcome| {
            let run = StepRun::of(outcome);
            on_event(StepEvent::Measured { kind, ms: run.ms });
            runs.push(run);
        };
        tell(format!("{kind} {exchange}"), &mut self.runs, &outcome);
        self.last = Some(outcome);
        let kinds = ["compute", "communication"];
        for ((half, runs), kind) in self.half_jobs.iter().flatten().zip(&mut self.halves).zip(kinds)
        {
            let outcome = launch_train(half, &ByName, job, &mut |_| {})?;
            tell(kind.to_string(), runs, &outcome);
        }
        Ok(())
    }

    /// What was measured so far does not count.
    fn forget(&mut self) {
        self.runs.clear();
        self.busy.clear();
        self.halves.iter_mut().for_each(Vec::clear);
    }

    /// None: nothing was measured.
    fn result(self, local_ms: f64) -> Option<PsResult> {
        let ps_ms = StepRun::quantiles(&self.runs)?;
        let [compute_ms, communication_ms] = self.halves.map(|runs| StepRun::quantiles(&runs));
        let overlap = compute_ms.zip(communication_ms).map(|(compute_ms, communication_ms)| {
            let (compute, communication) = (compute_ms.median, communication_ms.median);
            Overlap {
                compute_ms,
                communication_ms,
                step_over_longer: ps_ms.median / compute.max(communication),
                step_over_sum: ps_ms.median / (compute + communication),
            }
        });
        let (prepared, last) = (&self.job, self.last?);
        let sum = |of: fn(&TrainReport) -> u64| last.reports.values().map(of).sum::<u64>();
        // fits: counts far below 2^53
        let per_step = |count: u64| count as f64 / prepared.steps() as f64;
        let mut copies = Copies::default();
        last.reports.values().for_each(|report| copies.merge(&report.copies));
        let by_purpose = CopyPurpose::ALL.map(|purpose| (copies_key(purpose), copies.of(purpose)));
        Some(PsResult {
            transport: last.transport,
            exchange: prepared.config.exchange,
            wire: prepared.config.wire,
            has_bits_of_one: promises_bits(prepared),
            ps_ms,
            ratio: ps_ms.median / local_ms,
            bytes_copied: sum(|report| report.bytes_copied),
            copies: BTreeMap::from(by_purpose),
            bytes_written: sum(|report| report.bytes_written),
            versions: Versions::of(prepared.config.exchange),
            poll_misses_per_step: per_step(sum(|report| report.polling.poll_misses)),
            waits_per_step: per_step(sum(|report| report.polling.waits)),
            cores_busy: Quantiles::of(self.busy).map(|of| of.median),
            overlap,
        })
    }
}

/// How busy the cores are while a job makes the steps that count.
#[derive(Debug, Default)]
struct StepsWatched {
    begun: Option<CoreTicks>,
    over: Option<CoreTicks>,
}

impl StepsWatched {
    /// A worker is done with a step.
    fn ended(&mut self, step: u64, last: u64) {
        if step == 1 {
            // the last one to be done says it last
            self.begun = CoreTicks::now();
        } else if step == last && self.over.is_none() {
            self.over = CoreTicks::now();
        }
    }

    fn busy(&self) -> Option<f64> {
        self.over?.busy_since(self.begun?)
    }
}

/// The same replicas in one process, which uses no transport, and groups nobody.
pub(crate) fn alone(config: &TrainConfig) -> TrainConfig {
    TrainConfig {
        strategy: Strategy::Local,
        hosts: Hosts::default(),
        verbs: VerbsOptions::default(),
        arrival: None,
        transport: Transport::Auto,
        exchange: Exchange::ZeroCopy,
        send_order: SendOrder::default(),
        store: StoreConfig::default(),
        clients: ClientConfig::default(),
        wire: WireType::F32,
        trace: None,
        ..config.clone()
    }
}

/// The same workers, each with weights of its own and a centre that it meets once, before the steps that count.
pub(crate) fn compute(config: &TrainConfig) -> TrainConfig {
    let clients = ClientConfig { interval: Some(u64::MAX), ..ClientConfig::default() };
    TrainConfig {
        strategy: Strategy::DistEsgd,
        servers: 1,
        clients,
        exchange: Exchange::ZeroCopy,
        send_order: SendOrder::default(),
        store: StoreConfig::default(),
        wire: WireType::F32,
        ..config.clone()
    }
}

fn communication(config: &TrainConfig) -> TrainConfig {
    TrainConfig { leave_out_kernels: true, ..config.clone() }
}

/// The steps that are to be seen, and no more.
fn traced(config: &TrainConfig) -> TrainConfig {
    let steps = config.trace.as_ref().map_or(1, |trace| trace.steps);
    TrainConfig { budget: Budget::Steps(steps), ..config.clone() }
}

pub(crate) fn run_alone(
    prepared: &Prepared,
    alone: &AtomicBool,
) -> Result<TrainReport, BenchError> {
    alone.store(true, Ordering::SeqCst);
    let done = train_local(prepared, &AtomicBool::new(false), &mut |_| {}, &|_| {});
    alone.store(false, Ordering::SeqCst);
    Ok(done?)
}

/// True if a job ends with the weights that one process ends with that does the same steps.
pub(crate) fn promises_bits(prepared: &Prepared) -> bool {
    let config = &prepared.config;
    // two gradients are reduced in one order, more in that of an algorithm
    let has_order =
        config.workers <= 2 || config.clients.deterministic || !config.strategy.has_groups();
    let in_step = !config.topology().is_asynchronous() && config.topology().averaging.is_none();
    let is_whole = config.wire == WireType::F32;
    prepared.has_bits_of_one() && has_order && in_step && is_whole
}

/// One job that was measured: the slowest member's steps, as the others wait for it. The first step is the warm-up, if there is
/// another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepRun {
    /// Milliseconds a step, over all of them.
    pub(crate) ms: f64,
    /// Of each ([`TrainReport::warm_pieces`]).
    pieces_ms: Vec<f64>,
}

impl StepRun {
    pub(crate) fn of(outcome: &TrainOutcome) -> StepRun {
        let slowest = outcome.reports.values().max_by(|a, b| ms_of(a).total_cmp(&ms_of(b)));
        slowest.map_or_else(StepRun::default, |report| StepRun {
            ms: ms_of(report),
            pieces_ms: report.warm_pieces.iter().map(|seconds| seconds * 1e3).collect(),
        })
    }

    /// The median of what jobs took a step, and around it the percentiles of the steps of all of them: one job has a spread, too.
    /// None of none.
    pub(crate) fn quantiles(runs: &[StepRun]) -> Option<Quantiles> {
        let of_jobs = Quantiles::of(runs.iter().map(|run| run.ms))?;
        let pieces = runs.iter().flat_map(|run| run.pieces_ms.iter().copied());
        Some(match Quantiles::of(pieces) {
            // a mean may lie beside nine of ten of what it is of
            Some(Quantiles { p10, p90, .. }) => {
                Quantiles { p10: p10.min(of_jobs.median), p90: p90.max(of_jobs.median), ..of_jobs }
            }
            None => of_jobs,
        })
    }
}

fn ms_of(report: &TrainReport) -> f64 {
    match report.warm_steps {
        0 => report.train_seconds * 1e3,
        // fits: a count far below 2^53
        steps => report.warm_seconds * 1e3 / steps as f64,
    }
}

/// Holds every measurement's weights against the first one's.
#[derive(Debug, Default)]
struct Weights {
    first: Option<String>,
}

impl Weights {
    fn local(&mut self, outcome: &TrainOutcome) -> Result<(), BenchError> {
        let found = Weights::find(outcome, "local")?;
        match &self.first {
            Some(first) if *first != found => {
                Err(BenchError::WeightsDiffer { local: found, ps: first.clone() })
            }
            _ => {
                self.first = Some(found);
                Ok(())
            }
        }
    }

    fn ps(&mut self, outcome: &TrainOutcome) -> Result<(), BenchError> {
        let found = Weights::find(outcome, "ps")?;
        match &self.first {
            Some(first) if *first != found => {
                Err(BenchError::WeightsDiffer { local: first.clone(), ps: found })
            }
            _ => Ok(()),
        }
    }

    fn find(outcome: &TrainOutcome, kind: &'static str) -> Result<String, BenchError> {
        let found = outcome.weights_sha256().ok_or(BenchError::NoWeights { kind })?;
        Ok(found.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sha: &str) -> TrainOutcome {
        let with = TrainReport { weights_sha256: Some(sha.to_string()), ..TrainReport::default() };
        let mut outcome = TrainOutcome::alone(TrainReport::default());
        outcome.reports.insert(tensorwire_base::Rank(1), with);
        outcome
    }

    #[test]
    fn other_weights_are_an_error() {
        let mut weights = Weights::default();
        weights.local(&report("a")).unwrap();
        weights.ps(&report("a")).unwrap();
        let differ = weights.ps(&report("b")).unwrap_err();
        assert!(
            matches!(differ, BenchError::WeightsDiffer { local, ps } if local == "a" && ps == "b")
        );
        assert!(weights.local(&report("b")).is_err());
    }

    fn job(seconds: &[f64]) -> TrainReport {
        TrainReport {
            warm_seconds: seconds.iter().sum(),
            warm_steps: seconds.len() as u64,
            warm_pieces: seconds.to_vec(),
            ..TrainReport::default()
        }
    }

    #[test]
    fn a_spread_is_of_the_steps_and_the_median_of_the_jobs() {
        let of = |jobs: &[&[f64]]| {
            let run = |seconds: &&[f64]| StepRun::of(&TrainOutcome::alone(job(seconds)));
            StepRun::quantiles(&jobs.iter().map(run).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), None);
        let quantiles = |count, p10, median, p90| Some(Quantiles { count, p10, median, p90 });
        assert_eq!(of(&[&[0.25, 0.5, 0.75]]), quantiles(1, 250.0, 500.0, 750.0));
        assert_eq!(of(&[&[0.25, 0.75], &[0.5, 0.5], &[1.0]]), quantiles(3, 250.0, 500.0, 1000.0));
        // one step of eleven is most of the time
        let rare = [[0.125; 10].as_slice(), &[9.0]].concat();
        let found = of(&[&rare]).unwrap();
        assert_eq!((found.p10, found.p90), (125.0, found.median));
        // a job of one step has no other
        let alone = TrainReport { train_seconds: 2.0, ..TrainReport::default() };
        let alone = StepRun::of(&TrainOutcome::alone(alone));
        assert_eq!(StepRun::quantiles(&[alone]), quantiles(1, 2000.0, 2000.0, 2000.0));
    }

    #[test]
    fn the_slowest_member_says_what_a_step_takes() {
        let mut outcome = TrainOutcome::alone(job(&[1.0, 2.0]));
        outcome.reports.insert(tensorwire_base::Rank(1), job(&[2.0, 4.0]));
        let found = StepRun::of(&outcome);
        assert_eq!(found, StepRun { ms: 3000.0, pieces_ms: vec![2000.0, 4000.0] });
    }

    #[test]
    fn steps_are_watched_from_the_last_ones_first_to_the_first_ones_last() {
        let mut steps = StepsWatched::default();
        assert_eq!(steps.busy(), None);
        steps.ended(1, 3);
        let first = steps.begun;
        steps.ended(2, 3);
        assert!(first.is_some() && steps.over.is_none());
        steps.ended(3, 3);
        let over = steps.over;
        steps.ended(3, 3);
        assert!(over.is_some() && steps.over == over, "the other worker is done later");
        // of one step there is none behind the first
        let mut single = StepsWatched::default();
        single.ended(1, 1);
        assert_eq!(single.busy(), None);
    }

    #[test]
    fn a_run_without_weights_verifies_nothing() {
        let missing =
            Weights::default().ps(&TrainOutcome::alone(TrainReport::default())).unwrap_err();
        assert!(matches!(missing, BenchError::NoWeights { kind: "ps" }));
    }
}
