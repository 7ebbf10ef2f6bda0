//! The command line of `tensorwire graph`.

use clap::Args;
use tensorwire_train::{Budget, ConfigError, TrainConfig};

use super::headings::{OUTPUT, STRATEGY};
use super::{DEFAULTS, JobArgs};

#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The plan of one worker's session, as `train --async` has it
    #[arg(long = "async", help_heading = STRATEGY, hide_short_help = true)]
    asynchronous: bool,
    /// Print the whole graph in Graphviz's language instead
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) dot: bool,
}

impl GraphArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let config = self.job.config_of_fixed(Budget::Steps(1), DEFAULTS.optimizer.rate)?;
        Ok(TrainConfig { asynchronous: self.asynchronous, ..config })
    }
}
