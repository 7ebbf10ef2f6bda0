//! Who computes in a member: the host's kernels, and the GPU that a worker has if it is to have one.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::Rank;
use tensorwire_cuda::{CudaKernels, CudaOptions, Gpus};
use tensorwire_kernels::{Kernels, SharedDevice};
use tensorwire_runtime::Computing;

use super::TrainError;
use crate::config::{DeviceChoice, TrainConfig};
use crate::strategy::Strategy;

/// Returns who computes in the member of a rank, and what that is for people.
pub(super) fn computing(
    config: &TrainConfig,
    rank: Rank,
    kernels: Arc<Kernels>,
) -> Result<(Computing, String), TrainError> {
    let device = open_device(config, rank)?;
    let host = kernels.description();
    let description = match &device {
        Some(device) => format!("{}; on the host {host}", device.lock().description()),
        None => host,
    };
    Ok((Computing { kernels, device }, description))
}

/// Opens the GPU of the member of a rank, if it is a worker that is to have one.
pub(super) fn open_device(
    config: &TrainConfig,
    rank: Rank,
) -> Result<Option<SharedDevice>, TrainError> {
    let DeviceChoice::Cuda { ordinal } = config.device else { return Ok(None) };
    let topology = config.topology();
    let is_alone = config.strategy == Strategy::Local;
    if !is_alone && topology.worker(rank).is_none() {
        return Ok(None);
    }
    let driver = config.cuda_driver.clone();
    let ordinal = match ordinal {
        Some(ordinal) => ordinal,
        None if is_alone => 0,
        None => {
            let workers = (0..config.workers).map(|worker| topology.rank_of(worker));
            let before =
                workers.filter(|other| other.0 < rank.0 && config.hosts.together(rank, *other));
            before.count() % Gpus::find(driver.as_deref())?.count().max(1)
        }
    };
    let kernels = CudaKernels::open(&CudaOptions { driver, ordinal })?;
    Ok(Some(Arc::new(Mutex::new(kernels))))
}

/// Returns what computes in the member of a rank, without opening it.
pub(super) fn described(config: &TrainConfig, host: String) -> String {
    let DeviceChoice::Cuda { ordinal } = config.device else { return host };
    let gpus = Gpus::find(config.cuda_driver.as_deref());
    let named = gpus.and_then(|gpus| gpus.name(ordinal.unwrap_or(0)));
    let gpu = named.unwrap_or_else(|error| error.to_string());
    format!("{gpu}; on the host {host}")
}
