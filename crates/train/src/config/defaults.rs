//! What a job is where nothing else is said: what `tensorwire train` does without an option.

use std::path::PathBuf;

use tensorwire_fabric::VerbsOptions;
use tensorwire_graph::Placement;
use tensorwire_launch::{Hosts, Transport};

use tensorwire_nn::{Optimizer, Schedule};

use super::{
    Budget, ClientConfig, CudaLibraries, DeviceChoice, DeviceDesign, Exchange, FloatType, Kernels,
    MathMode, SendOrder, StoreConfig, Strategy, TraceConfig, TrainConfig, WireType,
};

/// Long enough for any step, and for a peer that writes a snapshot.
pub(super) fn step_deadline_ms() -> u64 {
    600_000
}

/// A step is a batch.
pub(super) fn accumulate() -> usize {
    1
}

/// A worker has one GPU.
pub(super) fn devices_per_worker() -> u32 {
    1
}

/// More than a batch of any shipped model takes.
pub(super) fn dynamic_bytes_max() -> usize {
    4 << 30
}

impl Default for TrainConfig {
    /// Two workers and two servers train `mlp` on the digits for 20 epochs, on this host.
    fn default() -> TrainConfig {
        TrainConfig {
            model: "mlp".to_string(),
            data: "digits".to_string(),
            sequence: None,
            strategy: Strategy::Ps,
            workers: 2,
            fewest_workers: None,
            servers: 2,
            placement: Placement::default(),
            asynchronous: false,
            store: StoreConfig::default(),
            clients: ClientConfig::default(),
            transport: Transport::Auto,
            verbs: VerbsOptions::default(),
            arrival: None,
            encrypt: false,
            hosts: Hosts::default(),
            exchange: Exchange::ZeroCopy,
            batch: 64,
            budget: Budget::Epochs(Budget::EPOCHS),
            evaluate_each_epoch: false,
            evaluate_every: None,
            early_stop: None,
            leave_out_kernels: false,
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            clip_norm: None,
            no_decay: Vec::new(),
            ema: None,
            accumulate: accumulate(),
            dtype: FloatType::F32,
            activations: None,
            wire: WireType::F32,
            send_order: SendOrder::Priority,
            seed: 1,
            threads: None,
            kernels: Kernels::Auto,
            device: DeviceChoice::Cpu,
            devices_per_worker: devices_per_worker(),
            design: DeviceDesign::default(),
            by_way_of_host: false,
            devices_apart: false,
            cuda_driver: None,
            cuda_libraries: CudaLibraries::default(),
            math: MathMode::F32,
            load: None,
            save: None,
            checkpoint: None,
            resume: None,
            restarts: 0,
            launcher_patience_ms: None,
            trace: None,
            listen: None,
            deadline_ms: 10_000,
            step_deadline_ms: step_deadline_ms(),
            dynamic_bytes_max: dynamic_bytes_max(),
        }
    }
}

impl Budget {
    /// Epochs where nothing else is said.
    pub const EPOCHS: u64 = 20;
}

impl Default for StoreConfig {
    /// No bound, no snapshots, and nobody may be lost.
    fn default() -> StoreConfig {
        StoreConfig { max_delay: None, elastic: false, snapshot: None, snapshot_every: 20 }
    }
}

impl TraceConfig {
    /// Steps that are traced where nothing else is said.
    pub const STEPS: u64 = 20;

    /// The first steps, to be written to `path`.
    pub fn new(path: impl Into<PathBuf>) -> TraceConfig {
        TraceConfig { path: path.into(), steps: TraceConfig::STEPS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_makes_sense() {
        TrainConfig::default().check().unwrap();
    }
}
