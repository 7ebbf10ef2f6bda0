//! The command line of `tensorwire bench modes`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use tensorwire_nn::Method;
use tensorwire_train::{Budget, ClientConfig, Strategy, TrainConfig};

use super::clients::strategy;
use super::headings::{MEASUREMENT, MODEL, OPTIMIZER, OUTPUT, PROCESSES, STRATEGY, WIRE};
use super::job::default_data;
use super::{DEFAULTS, TransportArg, with_default};

/// With --quick.
const QUICK_EPOCHS: u64 = 5;

#[derive(Args, Debug)]
pub(crate) struct ModesArgs {
    /// Ways of training, one after the other
    #[arg(long, value_name = "LIST", help_heading = STRATEGY, value_parser = strategy(), value_delimiter = ',',
          hide_default_value = true,
          default_values = ["dist-sgd", "dist-asgd", "dist-esgd", "mpi-sgd", "mpi-asgd", "mpi-esgd"])]
    modes: Vec<Strategy>,
    /// ...-esgd: steps between two exchanges [default: 64]
    ///
    /// With the centre.
    #[arg(long, value_name = "STEPS", help_heading = STRATEGY)]
    pub(crate) interval: Option<u64>,
    /// mpi-...: groups of workers
    #[arg(long, value_name = "C", help_heading = STRATEGY, default_value_t = 2)]
    clients: u32,
    /// Model to train
    #[arg(long, value_name = "NAME", help_heading = MODEL, default_value_t = DEFAULTS.model.clone(),
          value_parser = super::models::model_name)]
    model: String,
    /// Data, as `train` takes them
    ///
    /// [default: digits, or synthetic where the model takes no such images]
    #[arg(long, help_heading = MODEL)]
    data: Option<String>,
    #[arg(long, value_name = "E", help_heading = MODEL, help = with_default("Passes over the data", Budget::EPOCHS))]
    epochs: Option<u64>,
    /// Samples per worker and step
    ///
    /// Gradients are means over what is reduced: of all workers (...-sgd), of a client (mpi-asgd, mpi-esgd), of a worker.
    #[arg(long, value_name = "B", help_heading = MODEL, default_value_t = 16)]
    batch: usize,
    /// Seed of first values and the order of samples
    #[arg(long, value_name = "S", help_heading = MODEL, default_value_t = DEFAULTS.seed)]
    seed: u64,
    /// Learning rate
    #[arg(long, value_name = "RATE", help_heading = OPTIMIZER, default_value_t = DEFAULTS.optimizer.rate)]
    lr: f64,
    /// Momentum, from 0 to below 1
    #[arg(long, value_name = "M", help_heading = OPTIMIZER, default_value_t = super::learn::MOMENTUM)]
    momentum: f64,
    /// Worker processes
    #[arg(long, value_name = "N", help_heading = PROCESSES, default_value_t = 4)]
    workers: u32,
    /// Server processes
    #[arg(long, value_name = "K", help_heading = PROCESSES, default_value_t = 1)]
    servers: u32,
    /// How bytes travel
    #[arg(long, value_name = "NAME", help_heading = WIRE, value_enum, default_value = DEFAULTS.transport.name())]
    transport: TransportArg,
    /// The accuracy to be reached
    #[arg(long, value_name = "A", help_heading = MEASUREMENT, default_value_t = 0.955)]
    pub(crate) target: f64,
    /// Runs of all of this; medians count
    ///
    /// One after the other: in each all ways train in turn, so that what slows a machine down meets all alike. Epochs are whole, the
    /// first steps among them: there is no warm-up.
    #[arg(long, value_name = "N", help_heading = MEASUREMENT, default_value_t = NonZeroUsize::MIN)]
    pub(crate) iterations: NonZeroUsize,
    /// 5 epochs
    #[arg(long, help_heading = MEASUREMENT, conflicts_with = "epochs")]
    quick: bool,
    /// Append a line of JSON an epoch and mode
    ///
    /// To this file; of several runs, in the last.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) json: Option<PathBuf>,
}

impl ModesArgs {
    pub(crate) fn modes(&self) -> Vec<Strategy> {
        self.modes.clone()
    }

    /// The job of all modes, each of which takes what is its own of it.
    pub(crate) fn config(&self) -> TrainConfig {
        let quick = self.quick.then_some(QUICK_EPOCHS);
        let epochs = self.epochs.or(quick).unwrap_or(Budget::EPOCHS);
        let data = self.data.as_deref().unwrap_or_else(|| default_data(&self.model));
        let (clients, interval) = (Some(self.clients), self.interval);
        TrainConfig {
            model: self.model.clone(),
            data: data.to_string(),
            strategy: Strategy::DistSgd,
            workers: self.workers,
            servers: self.servers,
            clients: ClientConfig { clients, interval, ..ClientConfig::default() },
            batch: self.batch,
            optimizer: Method::Momentum { momentum: self.momentum }.at(self.lr),
            seed: self.seed,
            transport: self.transport.into(),
            budget: Budget::Epochs(epochs),
            ..TrainConfig::default()
        }
    }
}
