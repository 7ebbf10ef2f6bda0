//! The command line of `tensorwire bench step`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_bench::QUIET_RATE;
use tensorwire_train::{Budget, ConfigError, Exchange, TraceConfig, TrainConfig};

use super::headings::{MEASUREMENT, MODEL, OUTPUT};
use super::{ExchangeArg, JobArgs};

/// Enough to see which are alike.
const TRACE_STEPS: u64 = 10;

#[derive(Args, Debug)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Steps of each measurement
    #[arg(long, value_name = "N", help_heading = MODEL, default_value_t = 60)]
    steps: u64,
    /// Measurements; the median counts
    ///
    /// Of each kind.
    #[arg(long, value_name = "N", alias = "repetitions", help_heading = MEASUREMENT, default_value_t = 5)]
    pub(crate) iterations: usize,
    /// Measurements before those
    ///
    /// Of each kind. Their times do not count; the first step of every measurement never does.
    #[arg(long, value_name = "N", help_heading = MEASUREMENT, default_value_t = 0)]
    pub(crate) warm_up: usize,
    /// Measure by these exchanges, too, in turns
    ///
    /// The same job.
    #[arg(long, help_heading = MEASUREMENT, value_enum, value_delimiter = ',', value_name = "LIST")]
    against: Vec<ExchangeArg>,
    /// Say how much of a step is overlapped
    ///
    /// Measure what the workers compute and what the job exchanges by themselves, too, and say how much of a step they
    /// share.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) overlap: bool,
    /// Trace 10 steps for ui.perfetto.dev
    ///
    /// Write what every process did in the first 10 steps of a last job to this file (see `train --trace`).
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    trace: Option<PathBuf>,
    /// Append a line of JSON a result to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) json: Option<PathBuf>,
}

impl StepArgs {
    /// Each once, and not the job's own again.
    pub(crate) fn against(&self) -> Vec<Exchange> {
        let mut all = Vec::new();
        for exchange in self.against.iter().copied().map(Exchange::from) {
            if exchange != self.job.exchange() && !all.contains(&exchange) {
                all.push(exchange);
            }
        }
        all
    }

    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let trace = self.trace.map(|path| TraceConfig { path, steps: TRACE_STEPS });
        let config = self.job.config_of_fixed(Budget::Steps(self.steps), Some(QUIET_RATE))?;
        Ok(TrainConfig { trace, ..config })
    }
}
