//! What a whole job did, in figures: put together from its configuration, its members' reports and the steps that were
//! finished.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tensorwire_memory::Copies;

use crate::job::Prepared;
use crate::quantiles::Quantiles;
use crate::report::{Polling, TrainReport};
use crate::run::TrainOutcome;
use crate::steps::{PollingFigures, StepAggregator};
use crate::strategy::Strategy;
use crate::trace::Hidden;

/// What a whole job did. Serialized, it is what `tensorwire train --json` prints; its keys keep their meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// True if workers, or clients, trained at their own pace.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    pub model: String,
    pub data: String,
    pub strategy: Strategy,
    /// What bytes travelled over, and how tensors crossed; `none` where nothing does.
    pub transport: String,
    pub exchange: String,
    pub workers: u32,
    /// Those that were not lost.
    pub workers_finished: usize,
    pub servers_replaced: u64,
    /// How often the job was started again. Times, bytes and counts are those of the last time.
    #[serde(default)]
    pub restarts: u64,
    /// How often it went on with another number of workers.
    #[serde(default)]
    pub resizes: u64,
    pub servers: u32,
    pub clients: u32,
    /// Samples per device of a worker and step.
    pub batch: usize,
    pub devices_per_worker: u32,
    /// The last step: fewer than were asked for where training ended early.
    pub steps: u64,
    pub seed: u64,
    /// The optimizer's rate, before a schedule changes it.
    #[serde(default)]
    pub rate: f64,
    /// As what numbers cross: `f32`, …
    #[serde(default)]
    pub wire: String,
    /// The mean of the workers' losses in their last steps.
    pub final_loss: f64,
    /// The share of the test's labels that are found; the mean loss over them; its exponential, where they are words.
    pub test_accuracy: Option<f64>,
    pub test_loss: Option<f64>,
    pub test_perplexity: Option<f64>,
    /// What else the model measures, by name.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::report::numbers"
    )]
    pub metrics: BTreeMap<String, f64>,
    /// Of the slowest worker, from its first step to the end of its last.
    pub seconds: f64,
    pub samples_per_second: f64,
    /// Milliseconds of that worker's steps behind the first one, which waits until all processes have set up
    /// ([`TrainReport::warm_pieces`]). None of fewer than two.
    #[serde(default)]
    pub step_ms: Option<Quantiles>,
    /// By all members together: copied from memory to memory, written to peers, memory that peers of a store may touch,
    /// pushed to a store and pulled from it.
    pub bytes_copied: u64,
    /// All bytes that the runtime copied, those of `bytes_copied` among them: a key `bytes_copied_…` for each purpose.
    #[serde(flatten, with = "crate::report::copies_by_purpose")]
    pub copies: Copies,
    pub bytes_written: u64,
    pub registered_bytes: u64,
    pub store_bytes: u64,
    /// Kernels of a step that ran while gradients of the step before were still reduced, and weights changed by them.
    pub early_kernels: u64,
    /// Graphs that devices were told in the place of single kernels.
    pub graphs_launched: u64,
    /// How the first member's device is told a step, and why so; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_steps: Option<String>,
    /// Matrix products and convolutions that devices left to a library.
    pub library_calls: u64,
    /// Operators that devices computed because a library that they have does not take them.
    pub library_refusals: u64,
    /// Vectors that NCCL reduced, once for each member.
    pub nccl_reductions: u64,
    /// Of what was copied to devices, the bytes that were while the step before computed.
    pub bytes_copied_ahead: u64,
    /// Of the member that had most memory at once.
    pub peak_bytes: Option<u64>,
    /// How the workers waited for tensors in all steps, together. Servers wait while workers compute, and are left out.
    #[serde(flatten)]
    pub polling: PollingFigures,
    /// What the traced steps had of communication, and how much of it passed while kernels ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<Hidden>,
    /// What computed in the first member.
    pub kernels: Option<String>,
    pub weights_sha256: String,
}

/// Why there is nothing to sum up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    #[error("the last worker was lost before it had evaluated; start the job again")]
    NotEvaluated,
}

impl Summary {
    /// Of a job that was done, with the steps that were finished.
    ///
    /// # Errors
    /// When no worker that lives has evaluated.
    pub fn new(
        prepared: &Prepared,
        outcome: &TrainOutcome,
        steps: &StepAggregator,
    ) -> Result<Summary, SummaryError> {
        let Prepared { config, topology, .. } = prepared;
        let weights_sha256 = outcome.weights_sha256().ok_or(SummaryError::NotEvaluated)?;
        let reports = || outcome.reports.values();
        let losses: Vec<f64> = reports().filter_map(|report| report.final_loss).collect();
        let seconds = reports().map(|report| report.train_seconds).fold(0.0, f64::max);
        let workers = || reports().filter(|report| report.final_loss.is_some());
        let slowest = workers().max_by(|a, b| a.train_seconds.total_cmp(&b.train_seconds));
        let pieces = slowest.iter().flat_map(|report| &report.warm_pieces);
        let sum = |of: fn(&TrainReport) -> u64| reports().map(of).sum::<u64>();
        let polling: Polling = workers().map(|report| report.polling).sum();
        let mut copies = Copies::default();
        reports().for_each(|report| copies.merge(&report.copies));
        let is_alone = config.strategy == Strategy::Local;
        let test_loss = reports().find_map(|report| report.test_loss);
        let says_words = prepared.data.train.describe().has_label_sequences();
        Ok(Summary {
            asynchronous: topology.is_asynchronous(),
            model: config.model.clone(),
            data: config.data.clone(),
            strategy: config.strategy,
            transport: (if is_alone { "none" } else { outcome.transport.name() }).to_string(),
            exchange: (if is_alone { "none" } else { config.exchange.name() }).to_string(),
            workers: config.workers,
            // fits: workers are few
            workers_finished: if is_alone { config.workers as usize } else { losses.len() },
            servers_replaced: outcome.servers_replaced,
            restarts: outcome.restarts,
            resizes: outcome.resizes,
            servers: topology.servers,
            clients: topology.groups,
            batch: config.batch,
            devices_per_worker: config.devices_per_worker,
            steps: reports().map(|report| report.steps).max().unwrap_or_default(),
            seed: config.seed,
            rate: config.optimizer.rate,
            wire: config.wire.to_string(),
            // fits: workers are few
            final_loss: losses.iter().sum::<f64>() / losses.len() as f64,
            test_accuracy: outcome.test_accuracy(),
            test_loss,
            metrics: reports()
                .map(|report| report.metrics.clone())
                .find(|m| !m.is_empty())
                .unwrap_or_default(),
            test_perplexity: test_loss.filter(|_| says_words).map(f64::exp),
            seconds,
            // fits: shown to a person
            samples_per_second: steps.samples() as f64 / seconds,
            step_ms: Quantiles::of(pieces.map(|seconds| seconds * 1e3)),
            bytes_copied: sum(|report| report.bytes_copied),
            copies,
            bytes_written: sum(|report| report.bytes_written),
            registered_bytes: sum(|report| report.registered_bytes),
            store_bytes: sum(|report| report.store_bytes),
            early_kernels: sum(|report| report.early_kernels),
            graphs_launched: sum(|report| report.graphs_launched),
            device_steps: reports().find_map(|report| report.device_steps.clone()),
            library_calls: sum(|report| report.library_calls),
            library_refusals: sum(|report| report.library_refusals),
            nccl_reductions: sum(|report| report.nccl_reductions),
            bytes_copied_ahead: sum(|report| report.bytes_copied_ahead),
            peak_bytes: reports().map(|report| report.peak_bytes).max(),
            polling: polling.into(),
            traced: outcome.trace.as_ref().and_then(|trace| trace.hidden),
            kernels: reports().next().map(|report| report.kernels.clone()),
            weights_sha256: weights_sha256.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Budget, TrainConfig};
    use crate::report::Progress;
    use tensorwire_base::Rank;
    use tensorwire_launch::{JobUpdate, Transport};

    /// What `tensorwire train --json` prints, which scripts rely on.
    const KEYS: [&str; 59] = [
        "async",
        "batch",
        "bytes_copied",
        "bytes_copied_ahead",
        "bytes_copied_averaging",
        "bytes_copied_between_devices",
        "bytes_copied_broadcast",
        "bytes_copied_checkpoint",
        "bytes_copied_feeding",
        "bytes_copied_from_peers",
        "bytes_copied_messages",
        "bytes_copied_reduction",
        "bytes_copied_rows",
        "bytes_copied_staging",
        "bytes_copied_store",
        "bytes_copied_store_staging",
        "bytes_copied_to_device",
        "bytes_copied_to_host",
        "bytes_copied_to_peers",
        "bytes_written",
        "clients",
        "data",
        "devices_per_worker",
        "early_kernels",
        "exchange",
        "final_loss",
        "graphs_launched",
        "kernels",
        "library_calls",
        "library_refusals",
        "model",
        "nccl_reductions",
        "peak_bytes",
        "poll_misses",
        "poll_us",
        "polls",
        "rate",
        "registered_bytes",
        "resizes",
        "restarts",
        "samples_per_second",
        "seconds",
        "seed",
        "servers",
        "servers_replaced",
        "step_ms",
        "steps",
        "store_bytes",
        "strategy",
        "test_accuracy",
        "test_loss",
        "test_perplexity",
        "transport",
        "wait_us",
        "waits",
        "weights_sha256",
        "wire",
        "workers",
        "workers_finished",
    ];

    fn prepared(strategy: Strategy, data: &str, model: &str) -> Prepared {
        let (model, data) = (model.to_string(), data.to_string());
        let budget = Budget::Steps(2);
        let config =
            TrainConfig { model, data, strategy, batch: 4, budget, ..TrainConfig::default() };
        let found = tensorwire_zoo::model(&config.model).unwrap();
        let source: tensorwire_zoo::data::Source = config.data.parse().unwrap();
        let data = source.open(found.samples(), config.seed).unwrap();
        Prepared::new(config, &crate::Workload::new(found, data)).unwrap()
    }

    fn worker(final_loss: f64, train_seconds: f64) -> TrainReport {
        let polling = Polling { polls: 5, wait_ns: 2000, ..Polling::default() };
        let (bytes_copied, peak_bytes) = (7, 100);
        let final_loss = Some(final_loss);
        let warm_pieces = [3.0, 1.0, 2.0].map(|piece| piece * train_seconds).to_vec();
        TrainReport {
            final_loss,
            train_seconds,
            warm_pieces,
            polling,
            bytes_copied,
            peak_bytes,
            ..TrainReport::default()
        }
    }

    fn evaluated(report: TrainReport) -> TrainReport {
        TrainReport {
            test_accuracy: Some(0.5),
            test_loss: Some(2.0),
            weights_sha256: Some("ab".to_string()),
            kernels: "cpu".to_string(),
            ..report
        }
    }

    /// Of a job of two workers and two servers.
    fn outcome() -> TrainOutcome {
        let server = TrainReport { bytes_copied: 1, peak_bytes: 900, ..TrainReport::default() };
        let reports = [
            (Rank(0), evaluated(worker(1.0, 2.0))),
            (Rank(1), worker(3.0, 4.0)),
            (Rank(2), server.clone()),
            (Rank(3), server),
        ];
        let reports = BTreeMap::from(reports);
        let transport = Transport::Tcp;
        TrainOutcome {
            reports,
            transport,
            servers_replaced: 1,
            restarts: 2,
            resizes: 0,
            began_behind: 0,
            trace: None,
        }
    }

    fn steps(prepared: &Prepared) -> StepAggregator {
        let mut steps = StepAggregator::new(prepared);
        for (rank, step) in [(0, 1), (1, 1), (0, 2)] {
            let value = Progress { step, loss: 1.0, polling: Polling::default(), epoch: None };
            steps.update(&JobUpdate::Progress { rank: Rank(rank), step, value });
        }
        steps
    }

    /// A member of a program's next job reads what the one before came to.
    #[test]
    fn what_is_no_number_is_read_again() {
        let prepared = prepared(Strategy::Ps, "digits", "mlp");
        let mut summary = Summary::new(&prepared, &outcome(), &steps(&prepared)).unwrap();
        summary.metrics.insert("precision".to_string(), f64::NAN);
        let told = serde_json::to_value(&summary).unwrap();
        let heard: Summary = serde_json::from_value(told).unwrap();
        assert!(heard.metrics["precision"].is_nan(), "{heard:?}");
    }

    #[test]
    fn a_summary_has_its_keys_and_puts_reports_together() {
        let prepared = prepared(Strategy::Ps, "digits", "mlp");
        let summary = Summary::new(&prepared, &outcome(), &steps(&prepared)).unwrap();
        let line = serde_json::to_value(&summary).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS);
        for (key, expected) in [
            ("strategy", "ps".into()),
            ("transport", "tcp".into()),
            ("exchange", "zero-copy".into()),
            ("workers_finished", 2.into()),
            ("servers", 2.into()),
            ("servers_replaced", 1.into()),
            ("final_loss", 2.0.into()),
            ("test_accuracy", 0.5.into()),
            ("test_perplexity", serde_json::Value::Null),
            ("seconds", 4.0.into()),
            // three steps of four samples
            ("samples_per_second", 3.0.into()),
            // of the worker that took longest
            ("step_ms", serde_json::json!({"count": 3, "p10": 4e3, "median": 8e3, "p90": 12e3})),
            ("bytes_copied", 16.into()),
            ("peak_bytes", 900.into()),
            // of the workers
            ("polls", 10.into()),
            ("wait_us", 4.0.into()),
            ("kernels", "cpu".into()),
            ("weights_sha256", "ab".into()),
        ] {
            assert_eq!(line[key], expected, "{key}");
        }
    }

    #[test]
    fn a_process_alone_has_no_transport_and_does_the_work_of_all() {
        let prepared = prepared(Strategy::Local, "reverse:40", "seq2seq");
        let mut steps = StepAggregator::new(&prepared);
        let progress = Progress { step: 1, loss: 1.0, polling: Polling::default(), epoch: None };
        steps.all_did(&progress);
        let outcome = TrainOutcome::alone(evaluated(worker(1.0, 2.0)));
        let summary = Summary::new(&prepared, &outcome, &steps).unwrap();
        assert_eq!((summary.transport.as_str(), summary.exchange.as_str()), ("none", "none"));
        assert_eq!((summary.workers, summary.workers_finished, summary.servers), (2, 2, 0));
        assert_eq!(
            (summary.samples_per_second, summary.test_perplexity),
            (4.0, Some(2.0f64.exp()))
        );
    }

    #[test]
    fn a_job_that_nobody_evaluated_has_no_summary() {
        let prepared = prepared(Strategy::Ps, "digits", "mlp");
        let mut outcome = outcome();
        outcome.reports.remove(&Rank(0));
        let found = Summary::new(&prepared, &outcome, &steps(&prepared));
        assert_eq!(found, Err(SummaryError::NotEvaluated));
    }
}
