//! What a whole job did, in figures: put together from its configuration, its members' reports and the steps that were
//! finished.

use serde::Serialize;

use crate::config::Strategy;
use crate::job::Prepared;
use crate::report::{Polling, TrainReport};
use crate::run::TrainOutcome;
use crate::steps::{PollingFigures, StepAggregator};
use tensorwire_zoo::data::Shape;

/// What a whole job did. Serialized, it is what `tensorwire train --json` prints; its keys keep their meaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// True if workers, or clients, trained at their own pace.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    pub model: String,
    pub data: String,
    pub strategy: Strategy,
    /// What bytes travelled over, and how tensors crossed; `none` where nothing does.
    pub transport: &'static str,
    pub exchange: &'static str,
    pub workers: u32,
    /// Those that were not lost.
    pub workers_finished: usize,
    pub servers_replaced: u64,
    pub servers: u32,
    pub clients: u32,
    /// Samples per worker and step.
    pub batch: usize,
    pub steps: u64,
    pub seed: u64,
    /// The mean of the workers' losses in their last steps.
    pub final_loss: f64,
    /// The share of the test's labels that are found; the mean loss over them; its exponential, where they are words.
    pub test_accuracy: Option<f64>,
    pub test_loss: Option<f64>,
    pub test_perplexity: Option<f64>,
    /// Of the slowest worker, from its first step to the end of its last.
    pub seconds: f64,
    pub samples_per_second: f64,
    /// By all members together: copied from memory to memory, written to peers, memory that peers of a store may touch,
    /// pushed to a store and pulled from it.
    pub bytes_copied: u64,
    pub bytes_written: u64,
    pub registered_bytes: u64,
    pub store_bytes: u64,
    /// Of the member that had most memory at once.
    pub peak_bytes: Option<u64>,
    /// How the workers waited for tensors in all steps, together. Servers wait while workers compute, and are left out.
    #[serde(flatten)]
    pub polling: PollingFigures,
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
        let config = &prepared.config;
        let weights_sha256 = outcome.weights_sha256().ok_or(SummaryError::NotEvaluated)?;
        let reports = || outcome.reports.values();
        let losses: Vec<f64> = reports().filter_map(|report| report.final_loss).collect();
        let seconds = reports().map(|report| report.train_seconds).fold(0.0, f64::max);
        let sum = |of: fn(&TrainReport) -> u64| reports().map(of).sum::<u64>();
        let workers = reports().filter(|report| report.final_loss.is_some());
        let polling: Polling = workers.map(|report| report.polling).sum();
        let is_alone = config.strategy == Strategy::Local;
        let test_loss = reports().find_map(|report| report.test_loss);
        let says_words = matches!(prepared.data.shape(), Shape::Pairs { .. });
        Ok(Summary {
            asynchronous: config.at_own_pace(),
            model: config.model.clone(),
            data: config.data.clone(),
            strategy: config.strategy,
            transport: if is_alone { "none" } else { outcome.transport.name() },
            exchange: if is_alone { "none" } else { config.exchange.name() },
            workers: config.workers,
            // fits: workers are few
            workers_finished: if is_alone { config.workers as usize } else { losses.len() },
            servers_replaced: outcome.servers_replaced,
            servers: config.servers_started(),
            clients: config.clients(),
            batch: config.batch,
            steps: prepared.steps(),
            seed: config.seed,
            // fits: workers are few
            final_loss: losses.iter().sum::<f64>() / losses.len() as f64,
            test_accuracy: outcome.test_accuracy(),
            test_loss,
            test_perplexity: test_loss.filter(|_| says_words).map(f64::exp),
            seconds,
            // fits: shown to a person
            samples_per_second: steps.samples() as f64 / seconds,
            bytes_copied: sum(|report| report.bytes_copied),
            bytes_written: sum(|report| report.bytes_written),
            registered_bytes: sum(|report| report.registered_bytes),
            store_bytes: sum(|report| report.store_bytes),
            peak_bytes: reports().map(|report| report.peak_bytes).max(),
            polling: polling.into(),
            kernels: reports().next().map(|report| report.kernels.clone()),
            weights_sha256: weights_sha256.to_string(),
        })
    }
}
