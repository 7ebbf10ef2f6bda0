//! What saved weights do with the test's samples, without training: the evaluation that a job ends with, in this process alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorwire_launch::Movement;
use tensorwire_nn::Error as NnError;

use crate::classes::JobData;
use crate::config::{Budget, ConfigError, TrainConfig};
use crate::job::{Prepared, Supply, TrainError, evaluate_local};
use crate::strategy::Strategy;

/// What saved weights do with the test's samples. Serialized, it is what `tensorwire eval --json` prints; its keys keep their
/// meaning, and those that [`crate::Summary`] has, too, mean the same there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSummary {
    pub model: String,
    pub data: String,
    /// The file that the weights are of, or the checkpoint.
    pub weights: PathBuf,
    /// Of the test.
    pub samples: u64,
    pub batch: usize,
    /// The share of the test's labels that are found; the mean loss over them; its exponential, where they are words.
    pub test_accuracy: Option<f64>,
    pub test_loss: Option<f64>,
    pub test_perplexity: Option<f64>,
    /// What else the model measures, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// What the evaluation took, without reading weights and data.
    pub seconds: f64,
    pub samples_per_second: f64,
    /// The most memory that the process had at once.
    pub peak_bytes: u64,
    /// What computed.
    pub kernels: String,
    pub weights_sha256: String,
}

impl EvaluationSummary {
    /// Evaluates the weights that `config` loads ([`TrainConfig::load`]): a file, a checkpoint, or the newest of a folder of
    /// checkpoints. One process does, whatever strategy trained them; of the configuration counts what decides the model, its data
    /// and what computes. `on_still` is told, by another thread, when nothing moves for 10 s, and once if that is for good.
    ///
    /// # Errors
    /// When there is nothing to load or to test with, or the weights are of another model.
    pub fn evaluate(
        config: TrainConfig,
        supply: &dyn Supply,
        on_still: &(dyn Fn(Movement) + Sync),
    ) -> Result<EvaluationSummary, TrainError> {
        if config.load.is_none() {
            return Err(ConfigError::NothingToEvaluate.into());
        }
        let config = alone(config);
        let prepared = match Prepared::new(config.clone(), supply) {
            // no step is made of the samples of training, however few they are
            Err(ConfigError::Workload(NnError::BatchTooLarge { samples, .. })) if samples > 0 => {
                Prepared::new(TrainConfig { batch: samples, ..config }, supply)?
            }
            prepared => prepared?,
        };
        let Prepared { config, data, .. } = &prepared;
        if let Some(load) = &config.load {
            let named = JobData { data, name: &config.data };
            named.check_loaded(load).map_err(ConfigError::from)?;
        }
        let Some(test) = &data.test else {
            return Err(ConfigError::NothingToEvaluateWith { data: config.data.clone() }.into());
        };
        // fits: counted in memory
        let samples = test.test_samples() as u64;
        let says_words = test.describe().has_label_sequences();
        let report = evaluate_local(&prepared, on_still)?;
        Ok(EvaluationSummary {
            model: config.model.clone(),
            data: config.data.clone(),
            weights: config.load.clone().unwrap_or_default(),
            samples,
            batch: config.batch,
            test_accuracy: report.test_accuracy,
            test_loss: report.test_loss,
            test_perplexity: report.test_loss.filter(|_| says_words).map(f64::exp),
            metrics: report.metrics,
            seconds: report.test_seconds,
            // fits: shown to a person
            samples_per_second: samples as f64 / report.test_seconds,
            peak_bytes: report.peak_bytes,
            kernels: report.kernels,
            weights_sha256: report.weights_sha256.unwrap_or_default(),
        })
    }
}

/// What a configuration says of the model, the data and what computes, for one process that keeps nothing.
fn alone(config: TrainConfig) -> TrainConfig {
    let TrainConfig { model, data, sequence, batch, seed, dtype, activations, load, .. } = config;
    let TrainConfig { threads, kernels, device, cuda_driver, cuda_libraries, math, .. } = config;
    let TrainConfig { step_deadline_ms, dynamic_bytes_max, .. } = config;
    TrainConfig {
        strategy: Strategy::Local,
        workers: 1,
        // none is made
        budget: Budget::Steps(1),
        model,
        data,
        sequence,
        batch,
        seed,
        dtype,
        activations,
        load,
        threads,
        kernels,
        device,
        cuda_driver,
        cuda_libraries,
        math,
        step_deadline_ms,
        dynamic_bytes_max,
        ..TrainConfig::default()
    }
}
