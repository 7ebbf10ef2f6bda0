//! The command line of `tensorwire bench step`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_node::{ConfigError, Schedule, TrainConfig};

use super::JobArgs;

#[derive(Args, Debug)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Steps of each measurement
    #[arg(long, value_name = "N", default_value_t = 60)]
    steps: u64,
    /// Measurements of each kind; the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) repetitions: usize,
    /// Append one line of JSON a result to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl StepArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        self.job.config(Schedule::Steps(self.steps))
    }
}
