//! The command line of `tensorwire graph`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_nn::is_named;
use tensorwire_train::{Budget, ConfigError, TrainConfig};

use super::{DEFAULTS, JobArgs};

#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The plan of one worker's session, as `train --async` has it
    #[arg(long = "async")]
    asynchronous: bool,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

/// What is shown of it, and how.
#[derive(Args, Debug, Default)]
pub(crate) struct ShownArgs {
    /// Every tensor that crosses instead of a drawing of the layers, with types, reasons and places
    #[arg(long)]
    pub(crate) full: bool,
    /// Only layers and tensors whose name has this in it; * stands for any characters
    #[arg(long, value_name = "PATTERN")]
    pub(crate) filter: Option<String>,
    /// Write the drawing to this file, as SVG
    #[arg(long, value_name = "FILE", conflicts_with_all = ["full", "dot", "json"])]
    pub(crate) svg: Option<PathBuf>,
    /// The drawing in Graphviz's language; with --full, every node of the graph
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// One object of JSON: processes, layers, and every tensor that crosses in a training step
    #[arg(long, conflicts_with = "full")]
    pub(crate) json: bool,
}

impl ShownArgs {
    /// True if something of this name is shown.
    pub(crate) fn shows(&self, name: &str) -> bool {
        let pattern = self.filter.as_deref();
        pattern.is_none_or(|pattern| is_named(&format!("*{pattern}*"), name))
    }
}

impl GraphArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let config = self.job.config_of_fixed(Budget::Steps(1), DEFAULTS.optimizer.rate)?;
        Ok(TrainConfig { asynchronous: self.asynchronous, ..config })
    }
}
