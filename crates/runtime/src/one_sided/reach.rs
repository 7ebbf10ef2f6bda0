//! How peers reach the memory of a part's devices, which is chosen by peer: devices of one host map each other's; other hosts are
//! reached by a NIC, or by way of the host's memory.

use tensorwire_fabric::{Fabric, Region, RegionDescriptor, RegionError};
use tensorwire_graph::{Edge, Lane, Plan};
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_memory::Slab;

use super::OneSidedOptions;
use super::introduction::DeviceMemory;
use super::opening::peer_of;
use super::staging::Staging;
use crate::error::{ConnectEdgesError, SessionError};
use crate::storage::Storage;

/// The memory of a part's device, as peers may have it.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) device: SharedDevice,
    /// By which peers have its file whose devices map it ([`maps`]); none: there is no such peer.
    pub(super) mapped: Option<Region>,
    /// How all others reach it; none: there are no others.
    pub(super) far: Option<Far>,
    bytes: u64,
    /// How tensors leave it for those, and why so.
    pub(super) way: Option<String>,
}

/// How peers reach the memory of a part's device whose own do not map it.
#[derive(Debug)]
pub(super) enum Far {
    /// The fabric's NIC reads and writes it.
    ByNic(Region),
    /// They do not: tensors go by way of the host's memory.
    Staged(Staging),
}

impl OnDevice {
    /// Allocates the memory of a part's device, and gives its tensors their places in it. `edges`: those that cross there.
    pub(super) fn new(
        fabric: &Fabric,
        device: SharedDevice,
        plan: &Plan,
        (part, number, edges): (usize, u32, Vec<&Edge>),
        options: &OneSidedOptions,
        storage: &mut Storage,
    ) -> Result<OnDevice, ConnectEdgesError> {
        let here = &plan.parts[part];
        // fits: devices of a process are few
        let bytes = here.memory.device_bytes.get(number as usize).copied().unwrap_or_default();
        let failed = |source| SessionError::Device { name: here.task.to_string(), source };
        let (memory, file) = match options.memory.get(number as usize) {
            Some((memory, file)) => {
                let copied = file.try_clone();
                (memory.clone(), copied.map_err(|error| DeviceFailure::Device(Box::new(error))))
            }
            None => device.lock().alloc_shared(number, bytes).map_err(failed)?,
        };
        storage.cut(here, Lane::Device(number), &memory)?;
        let (near, far): (Vec<&Edge>, Vec<&Edge>) =
            edges.into_iter().partition(|edge| maps(fabric, options, peer_of(edge, part)));
        let offered = || Ok::<_, ConnectEdgesError>(fabric.offer_file(file.map_err(failed)?)?);
        let mapped = (!near.is_empty()).then(offered).transpose()?;
        let (mut reach, mut way) = (None, None);
        if !far.is_empty() {
            let shares = |edge: &&Edge| fabric.shares_memory(options.ranks[peer_of(edge, part)]);
            let adopted = match far.iter().any(shares) {
                true => Err("not all GPUs of this job reach each other's memory (`nvidia-smi topo -p2p r` shows which do)".to_string()),
                false => adopt(fabric, &device, &memory)?,
            };
            let within = match near.is_empty() {
                true => "",
                false => "; GPUs of one host map each other's memory",
            };
            match adopted {
                Ok((region, how)) => {
                    let said = format!("GPUDirect RDMA: the NIC reaches the GPU's memory {how}");
                    (reach, way) = (Some(Far::ByNic(region)), Some(said + within));
                }
                Err(why) => {
                    let piece_bytes = options.piece_bytes;
                    let staging = Staging::new(fabric, &device, plan, (part, &far), piece_bytes)?;
                    let said =
                        format!("tensors of GPUs go by way of pinned host memory: {why}{within}");
                    (reach, way) = (Some(Far::Staged(staging)), Some(said));
                }
            }
        }
        // fits: usize is 64 bits wide
        Ok(OnDevice { device, mapped, far: reach, bytes: bytes as u64, way })
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &Region> {
        let far = self.far.as_ref().map(|far| match far {
            Far::ByNic(region) => region,
            Far::Staged(staging) => &staging.region,
        });
        self.mapped.iter().chain(far)
    }

    /// What a peer is told of it, whose device maps it or does not; nothing, if nothing crosses to that peer there.
    pub(super) fn shown(&self, maps: bool, piece_bytes: u64) -> DeviceMemory {
        let (region, piece_bytes) = match (maps, &self.mapped, &self.far) {
            (true, Some(mapped), _) => {
                let key = mapped.descriptor().key;
                (RegionDescriptor { key, bytes: self.bytes }, 0)
            }
            (false, _, Some(Far::ByNic(region))) => (region.descriptor(), 0),
            (false, _, Some(Far::Staged(staging))) => (staging.region.descriptor(), piece_bytes),
            _ => (RegionDescriptor { key: 0, bytes: 0 }, 0),
        };
        DeviceMemory { region, piece_bytes }
    }
}

/// Has the NIC reach the memory of a device, and says how; or why it does not.
fn adopt(
    fabric: &Fabric,
    device: &SharedDevice,
    memory: &Slab,
) -> Result<Result<(Region, String), String>, ConnectEdgesError> {
    let shown = device.lock().dma_buf(memory).map_err(|error| error.to_string());
    match fabric.adopt_device(memory, shown) {
        Ok(adopted) => Ok(Ok(adopted)),
        Err(
            why @ (RegionError::NoNic
            | RegionError::Unreached { .. }
            | RegionError::FlagsOnDevice { .. }),
        ) => Ok(Err(why.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// True if the devices of a part and of this process's map each other's memory: both are on one host, whose devices reach each other.
pub(super) fn maps(fabric: &Fabric, options: &OneSidedOptions, part: usize) -> bool {
    options.maps_devices && fabric.shares_memory(options.ranks[part])
}
