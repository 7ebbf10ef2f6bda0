//! Who computes in a member: the host's kernels, and the GPUs that a worker has if it is to have some.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorwire_base::Rank;
use tensorwire_cuda::{CheckedGpu, CudaOptions, Gpus, OpenedGpus, products};
use tensorwire_fabric::VerbsOptions;
use tensorwire_kernels::{Kernels, SharedDevice};
use tensorwire_nn::Program;
use tensorwire_runtime::Computing;

use super::{Part, TrainError, kernel_choice, threads};
use crate::checkpoint;
use crate::config::{ConfigError, DeviceChoice, TrainConfig, ordinals};
use crate::strategy::Strategy;

/// Returns who computes in the member of a rank, and what that is for people.
pub(super) fn computing(
    part: &Part,
    rank: Rank,
    kernels: Arc<Kernels>,
) -> Result<(Computing, String), TrainError> {
    Ok(computing_on(open_device(part, rank)?, kernels))
}

/// As [`computing`], on GPUs that were opened, if there are some.
pub(super) fn computing_on(
    device: Option<SharedDevice>,
    kernels: Arc<Kernels>,
) -> (Computing, String) {
    let host = kernels.description();
    let description = match &device {
        Some(device) => format!("{}; on the host {host}", device.lock().description()),
        None => host,
    };
    (Computing { kernels, device }, description)
}

/// As [`open_gpus`], for sessions.
pub(super) fn open_device(part: &Part, rank: Rank) -> Result<Option<SharedDevice>, TrainError> {
    Ok(open_gpus(part, rank)?.map(|gpus| gpus.shared()))
}

/// Opens the GPUs of the member of a rank, if its part of the plan has something on one.
pub(super) fn open_gpus(part: &Part, rank: Rank) -> Result<Option<OpenedGpus>, TrainError> {
    let Some((_, ordinals)) = gpus_of(part, rank)? else { return Ok(None) };
    if part.plan.edges.iter().any(|edge| edge.space.is_device()) {
        check_host(&part.config, rank)?;
    }
    Ok(Some(OpenedGpus::open(&cuda_options(&part.config), &ordinals)?))
}

/// Returns how a member uses RDMA: by the NIC nearest to its first GPU.
pub(super) fn verbs_options(part: &Part, rank: Rank) -> VerbsOptions {
    // what is wrong with GPUs is said when they are opened
    let beside = gpus_of(part, rank).ok().flatten();
    let beside = beside.and_then(|(gpus, ordinals)| gpus.pci_address(*ordinals.first()?).ok());
    VerbsOptions { beside, ..part.config.verbs.clone() }
}

/// Returns the GPUs of the host and the numbers of those of a member, if its part of the plan has something on one.
fn gpus_of(part: &Part, rank: Rank) -> Result<Option<(Gpus, Vec<usize>)>, TrainError> {
    let Part { config, topology, plan, program, .. } = part;
    let DeviceChoice::Cuda { .. } = config.device else { return Ok(None) };
    let is_alone = config.strategy == Strategy::Local;
    let here = match topology.worker(rank) {
        _ if is_alone => 0,
        // a store's servers are one in the plan
        None if topology.trains_over_store() => plan.parts.len() - 1,
        _ => topology.part(rank),
    };
    let here = plan.parts.get(here);
    let is_server = !is_alone && topology.worker(rank).is_none();
    let devices = match config.store_reach(topology, &program.graph) {
        // whatever the plan has of it: there may be no tensors of it on a GPU, or on several
        Some(_) if is_server => 1,
        // the plan says how many there are
        _ => here.map_or(0, |part| part.memory.device_bytes.len()),
    };
    if devices == 0 {
        return Ok(None);
    }
    let gpus = Gpus::find(config.cuda_driver.as_deref())?;
    let ordinals = ordinals(config, gpus.count(), rank, devices)?;
    Ok(Some((gpus, ordinals)))
}

/// Refuses the host of a member whose GPUs do not reach each other's memory, though the plan has them do so: before it planned, the
/// launcher asked those of its own host alone.
fn check_host(config: &TrainConfig, rank: Rank) -> Result<(), ConfigError> {
    // fits: usize is 64 bits wide
    let world = config.topology().world() as usize;
    let maps = config.settled_transport().is_none() && !config.devices_apart;
    if !maps || config.hosts.neighbours(rank, world) < 2 {
        return Ok(());
    }
    match config.device.are_apart(config, |other| config.hosts.together(rank, other))? {
        true => Err(ConfigError::DevicesApart { host: config.hosts.name(rank).to_string() }),
        false => Ok(()),
    }
}

/// Opens a GPU for the checks of [`tensorwire_kernels::check`], as a configuration has jobs open it: the one that it names, or
/// the first.
///
/// # Errors
/// When there is no driver or no such GPU.
pub fn checked_gpu(config: &TrainConfig) -> Result<CheckedGpu, TrainError> {
    let ordinal = match config.device {
        DeviceChoice::Cuda { ordinal } => ordinal.unwrap_or(0),
        DeviceChoice::Cpu | DeviceChoice::Auto => 0,
    };
    Ok(CheckedGpu::open(cuda_options(config), ordinal)?)
}

fn cuda_options(config: &TrainConfig) -> CudaOptions {
    let (libraries, rounding) = (config.cuda_libraries.search(), config.math.rounding());
    CudaOptions {
        driver: config.cuda_driver.clone(),
        libraries,
        rounding,
        ..CudaOptions::default()
    }
}

/// Returns how a job learns, in words: also what the bits of its arithmetic depend on, as far as the launcher's host tells.
pub(super) fn recipe(config: &TrainConfig, program: &Program) -> BTreeMap<String, String> {
    let mut recipe = checkpoint::recipe(config);
    // what cannot be opened is said where it is to compute
    if let Ok(kernels) = Kernels::open(kernel_choice(config, program), threads(config, 0)) {
        let host = kernels.determined_by();
        let kernels = match config.device {
            DeviceChoice::Cuda { .. } => {
                format!("cuda, {}; on the host {host}", config.math.name())
            }
            _ => host,
        };
        recipe.insert("kernels".to_string(), kernels);
    }
    recipe
}

/// Returns what computes in the member of a rank, without opening it.
pub(super) fn described(config: &TrainConfig, host: String) -> String {
    let DeviceChoice::Cuda { ordinal } = config.device else { return host };
    let gpus = Gpus::find(config.cuda_driver.as_deref());
    let named = gpus.and_then(|gpus| gpus.name(ordinal.unwrap_or(0)));
    let gpu = named.unwrap_or_else(|error| error.to_string());
    let products = products(config.cuda_libraries.search().as_ref(), config.math.rounding());
    format!("{gpu}, {products}; on the host {host}")
}
