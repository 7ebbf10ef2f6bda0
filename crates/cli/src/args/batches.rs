//! The command line of `tensorwire batches`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_train::{BatchesSpec, TrainConfig};

use super::DEFAULTS;
use super::job::default_data;

#[derive(Args, Debug)]
pub(crate) struct BatchesArgs {
    /// Model (see `tensorwire models`)
    #[arg(long, value_name = "NAME", default_value_t = DEFAULTS.model.clone(),
          value_parser = super::models::model_name)]
    model: String,
    /// Data, as `train` takes them [default: as of `train`]
    #[arg(long)]
    data: Option<String>,
    /// Tokens of a window of text
    ///
    /// [default: as many as the model takes]
    #[arg(long, value_name = "N")]
    sequence: Option<usize>,
    /// Seed of the order of samples and made-up data
    #[arg(long, value_name = "S", default_value_t = DEFAULTS.seed)]
    seed: u64,
    /// Samples per worker and step
    #[arg(long, value_name = "B", default_value_t = DEFAULTS.batch)]
    batch: usize,
    /// Workers that share a step's samples
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The worker whose batches they are
    ///
    /// From 0 on.
    #[arg(long, value_name = "R", default_value_t = 0)]
    worker: usize,
    /// The first steps, so many
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps: u64,
    /// The safetensors file to write
    ///
    /// Tensor `0/input` is the first step's `input`.
    #[arg(long, value_name = "FILE")]
    save: PathBuf,
}

impl BatchesArgs {
    /// What names the model and the data, which batches, and where they go.
    pub(crate) fn spec(self) -> (TrainConfig, BatchesSpec, PathBuf) {
        let BatchesArgs { seed, batch, workers, worker, steps, sequence, .. } = self;
        let data = self.data.unwrap_or_else(|| default_data(&self.model).to_string());
        let config =
            TrainConfig { model: self.model, data, sequence, seed, ..TrainConfig::default() };
        (config, BatchesSpec { seed, batch, workers, worker, steps }, self.save)
    }
}
