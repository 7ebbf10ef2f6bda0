//! The command line of `tensorwire bench modes`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_nn::Method;
use tensorwire_train::{Budget, ClientConfig, Strategy, TrainConfig};

use super::clients::strategy;
use super::job::default_data;
use super::{DEFAULTS, TransportArg, with_default};

/// With --quick.
const QUICK_EPOCHS: u64 = 5;

#[derive(Args, Debug)]
pub(crate) struct ModesArgs {
    /// Which ways of training, one after the other
    #[arg(long, value_parser = strategy(), value_delimiter = ',',
          default_values = ["dist-sgd", "dist-asgd", "dist-esgd", "mpi-sgd", "mpi-asgd", "mpi-esgd"])]
    modes: Vec<Strategy>,
    /// Model to train
    #[arg(long, default_value_t = DEFAULTS.model.clone())]
    model: String,
    /// Data, as `train` takes them [default: digits, or synthetic where the model takes no such images]
    #[arg(long)]
    data: Option<String>,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    workers: u32,
    /// mpi-...: groups of workers
    #[arg(long, value_name = "C", default_value_t = 2)]
    clients: u32,
    /// Server processes
    #[arg(long, value_name = "K", default_value_t = 1)]
    servers: u32,
    #[arg(long, value_name = "E", help = with_default("Passes over the data", Budget::EPOCHS))]
    epochs: Option<u64>,
    /// ...-esgd: steps between two exchanges with the centre [default: 64]
    #[arg(long, value_name = "STEPS")]
    pub(crate) interval: Option<u64>,
    /// Samples per worker and step. Gradients are means over what is reduced: of all workers (...-sgd), of a client
    /// (mpi-asgd, mpi-esgd), of a worker
    #[arg(long, value_name = "B", default_value_t = 16)]
    batch: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = DEFAULTS.optimizer.rate)]
    lr: f64,
    /// Momentum, from 0 to below 1
    #[arg(long, value_name = "M", default_value_t = super::learn::MOMENTUM)]
    momentum: f64,
    /// Seed of first values and of the order of samples
    #[arg(long, value_name = "S", default_value_t = DEFAULTS.seed)]
    seed: u64,
    /// How bytes travel
    #[arg(long, value_enum, default_value = DEFAULTS.transport.name())]
    transport: TransportArg,
    /// The accuracy to be reached
    #[arg(long, value_name = "A", default_value_t = 0.955)]
    pub(crate) target: f64,
    /// 5 epochs
    #[arg(long, conflicts_with = "epochs")]
    quick: bool,
    /// Append one line of JSON an epoch and mode to this file
    #[arg(long, value_name = "FILE")]
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
