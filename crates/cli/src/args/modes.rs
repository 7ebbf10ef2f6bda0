//! The command line of `tensorwire bench modes`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_bench::train_config;
use tensorwire_train::{ClientConfig, Schedule, Strategy, TrainConfig};

use super::clients::StrategyArg;
use super::{TransportArg, default_data};

/// With --quick.
const QUICK_EPOCHS: u64 = 5;

#[derive(Args, Debug)]
pub(crate) struct ModesArgs {
    /// Which ways of training, one after the other
    #[arg(long, value_enum, value_delimiter = ',',
          default_values = ["dist-sgd", "dist-asgd", "dist-esgd", "mpi-sgd", "mpi-asgd", "mpi-esgd"])]
    modes: Vec<StrategyArg>,
    /// Model to train
    #[arg(long, default_value = "mlp")]
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
    /// Passes over the data [default: 20]
    #[arg(long, value_name = "E")]
    epochs: Option<u64>,
    /// ...-esgd: steps between two exchanges with the centre [default: 64]
    #[arg(long, value_name = "STEPS")]
    pub(crate) interval: Option<u64>,
    /// Samples per worker and step. Gradients are means over what is folded: of all workers (...-sgd), of a client
    /// (mpi-asgd, mpi-esgd), of a worker
    #[arg(long, value_name = "B", default_value_t = 16)]
    batch: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.05)]
    lr: f64,
    /// Momentum, from 0 to below 1
    #[arg(long, value_name = "M", default_value_t = 0.9)]
    momentum: f64,
    /// Seed of first values and of the order of samples
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How bytes travel
    #[arg(long, value_enum, default_value = "auto")]
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
        self.modes.iter().copied().map(Strategy::from).collect()
    }

    /// The job of all modes, each of which takes what is its own of it.
    pub(crate) fn config(&self) -> TrainConfig {
        let epochs = self.epochs.unwrap_or(if self.quick { QUICK_EPOCHS } else { 20 });
        let data = self.data.as_deref().unwrap_or_else(|| default_data(&self.model));
        let (clients, interval) = (Some(self.clients), self.interval);
        TrainConfig {
            workers: self.workers,
            servers: self.servers,
            clients: ClientConfig { clients, interval, ..ClientConfig::default() },
            batch: self.batch,
            rate: self.lr,
            momentum: self.momentum,
            seed: self.seed,
            transport: self.transport.into(),
            ..train_config(&self.model, data, Strategy::DistSgd, Schedule::Epochs(epochs))
        }
    }
}
