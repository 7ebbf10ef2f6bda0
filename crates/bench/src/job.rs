//! Training jobs as benchmarks start them.

use tensorwire_launch::{Hosts, JobOutcome, JobSpec, Transport, VerbsOptions};
use tensorwire_train::{
    ClientConfig, Exchange, Kernels, OptimizerChoice, Prepared, Schedule, StoreConfig, Strategy,
    TrainConfig, TrainReport,
};

use crate::error::BenchError;

/// The rate for samples that have nothing to teach: at `train`'s own some models diverge.
pub(crate) const QUIET_RATE: f64 = 1e-4;
/// A member that says nothing for this long is taken for dead, in milliseconds.
const DEADLINE_MS: u64 = 10_000;

/// A job on this machine, of two workers and two servers, with the optimizer that `tensorwire train` has where nothing
/// else is said.
pub fn train_config(
    model: &str,
    data: &str,
    strategy: Strategy,
    schedule: Schedule,
) -> TrainConfig {
    TrainConfig {
        model: model.to_string(),
        data: data.to_string(),
        strategy,
        workers: 2,
        servers: 2,
        asynchronous: false,
        store: StoreConfig::default(),
        clients: ClientConfig::default(),
        transport: Transport::Auto,
        verbs: VerbsOptions::default(),
        arrival: None,
        hosts: Hosts::default(),
        exchange: Exchange::ZeroCopy,
        batch: 64,
        schedule,
        evaluate_each_epoch: false,
        leave_out_kernels: false,
        optimizer: OptimizerChoice::Momentum,
        rate: 0.05,
        momentum: 0.9,
        dtype: tensorwire_train::FloatType::F32,
        seed: 1,
        threads: None,
        kernels: Kernels::Auto,
        load: None,
        save: None,
        trace: None,
        listen: None,
        deadline_ms: DEADLINE_MS,
    }
}

/// A job that is ready to be launched.
pub(crate) struct Job {
    pub(crate) prepared: Prepared,
    pub(crate) spec: JobSpec,
}

impl Job {
    /// `job` says how to start members; its kind, roles, hosts and payload are filled in.
    pub(crate) fn new(config: &TrainConfig, job: &JobSpec) -> Result<Job, BenchError> {
        let prepared = Prepared::new(config.clone())?;
        let spec = JobSpec {
            kind: "train".to_string(),
            roles: prepared.roles(),
            payload: prepared.payload(),
            hosts: config.hosts.clone(),
            verbs: config.verbs_wanted(),
            store: prepared.store_job(),
            ..job.clone()
        };
        Ok(Job { prepared, spec })
    }
}

/// What the members of a job reported.
pub(crate) fn reports(outcome: JobOutcome) -> Result<Vec<TrainReport>, BenchError> {
    let reports = outcome.reports.into_values().map(serde_json::from_value);
    Ok(reports.collect::<Result<_, _>>()?)
}
