//! The command line of `tensorwire graph`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_nn::is_named;
use tensorwire_train::{Budget, ConfigError, TrainConfig};

use super::JobArgs;
use super::headings::{OUTPUT, STRATEGY};

#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The plan of one worker's session, as `train --async` has it
    #[arg(long = "async", help_heading = STRATEGY, hide_short_help = true)]
    asynchronous: bool,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

/// What is shown of it, and how.
#[derive(Args, Debug, Default)]
pub(crate) struct ShownArgs {
    /// Every tensor that crosses, not a drawing
    ///
    /// With types, reasons and places.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) full: bool,
    /// Only layers and tensors of such a name
    ///
    /// That has this in it; * stands for any characters: hidden1*weight has weights and their gradient, d_hidden1_weight.
    #[arg(long, help_heading = OUTPUT, value_name = "PATTERN")]
    pub(crate) filter: Option<String>,
    /// Write the drawing to this file, as SVG
    #[arg(long, help_heading = OUTPUT, value_name = "FILE", conflicts_with_all = ["full", "dot", "json"])]
    pub(crate) svg: Option<PathBuf>,
    /// The drawing in Graphviz's language
    ///
    /// With --full, every node of the graph.
    #[arg(long, help_heading = OUTPUT, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// One object of JSON instead
    ///
    /// Processes, layers, and every tensor that crosses in a training step.
    #[arg(long, help_heading = OUTPUT, conflicts_with = "full")]
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
        let config = self.job.config_of_fixed(Budget::Steps(1), None)?;
        Ok(TrainConfig { asynchronous: self.asynchronous, ..config })
    }
}
