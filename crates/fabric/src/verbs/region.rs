//! Regions as registered memory: allocating our own, and knowing a peer's.

use std::os::fd::{AsFd, OwnedFd};

use tensorwire_base::Rank;
use tensorwire_memory::{DmaBuf, Slab};

use super::device::VerbsDevice;
use super::ibv::{MemoryRegion, Remote};
use super::wire;
use crate::arrival::ArrivalMode;
use crate::control::Granted;
use crate::error::{OpenRegionError, RegionError};
use crate::limits::check_room;
use crate::mapping::Mapping;
use crate::region::{Access, Exposure, Region, RegionDescriptor, RegionMemory, RemoteRegion};

/// Registered with relaxed ordering, without which some NICs reach half of their speed: an arrival is
/// a completion or a flag in strictly ordered memory, never payload. `flag-tail` is payload, and has
/// strict regions.
pub(super) fn alloc(device: &VerbsDevice, bytes: u64) -> Result<Region, RegionError> {
    alloc_ordered(device, bytes, device.relaxes())
}

/// For flags: what is written later becomes visible later.
pub(super) fn alloc_strict(device: &VerbsDevice, bytes: u64) -> Result<Region, RegionError> {
    alloc_ordered(device, bytes, false)
}

fn alloc_ordered(device: &VerbsDevice, bytes: u64, relaxed: bool) -> Result<Region, RegionError> {
    check_room(bytes)?;
    let bytes_max = device.nic().memory_region_bytes_max;
    if bytes > bytes_max {
        return Err(RegionError::TooLargeForNic { bytes, bytes_max });
    }
    let (mapping, shared) = device.core().allocate(bytes)?;
    let registration = device.domain().register(&mapping, relaxed);
    let registered = Some(registration.map_err(|source| not_registered(bytes, source))?);
    Ok(device.core().regions().enter(mapping, Exposure { shared, registered }))
}

pub(super) fn adopt(
    device: &VerbsDevice,
    file: OwnedFd,
    bytes: u64,
) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "adopt", bytes, source };
    let mapping = Mapping::of_file(file.as_fd(), bytes).map_err(|error| system(error.into()))?;
    let registration = device.domain().register(&mapping, device.relaxes());
    let registered = Some(registration.map_err(|source| not_registered(bytes, source))?);
    let shared = device.core().config().host.map(|_| file);
    Ok(device.core().regions().enter(mapping, Exposure { shared, registered }))
}

/// Refuses modes in which a host polls memory for what has come: a GPU's has no such order.
pub(super) fn check_on_devices(mode: ArrivalMode) -> Result<(), RegionError> {
    match mode {
        ArrivalMode::WriteImm => Ok(()),
        ArrivalMode::FlagSeparate | ArrivalMode::FlagTail => {
            Err(RegionError::FlagsOnDevice { mode: mode.name() })
        }
    }
}

/// Memory of a GPU: by its dma-buf, or registered as it is mapped, where nvidia-peermem tells the NIC where that lies. Says
/// which, and why not the other.
pub(super) fn adopt_device(
    device: &VerbsDevice,
    memory: &Slab,
    shown: Result<DmaBuf, String>,
) -> Result<(Region, String), RegionError> {
    let mapping = Mapping::of_device(memory);
    let (domain, relaxed) = (device.domain(), device.relaxes());
    let by_dma_buf = shown.and_then(|shown| {
        let registered = domain.register_dma_buf(&mapping, &shown, relaxed);
        registered.map_err(|error| format!("ibv_reg_dmabuf_mr: {error}"))
    });
    let (registered, way) = match by_dma_buf {
        Ok(registered) => (registered, "by dma-buf".to_string()),
        Err(dma_buf) => match domain.register(&mapping, relaxed) {
            Ok(registered) => (registered, format!("by nvidia-peermem (no dma-buf: {dma_buf})")),
            Err(peermem) => return Err(RegionError::Unreached { dma_buf, peermem }),
        },
    };
    let exposure = Exposure { shared: None, registered: Some(registered) };
    Ok((device.core().regions().enter(mapping, exposure), way))
}

/// Why the NIC was not let near the memory.
pub(super) fn not_registered(bytes: u64, source: std::io::Error) -> RegionError {
    let limit = memlock_limit();
    match limit {
        Some(limit) if limit < bytes || source.raw_os_error() == Some(libc::ENOMEM) => {
            RegionError::Memlock { bytes, limit }
        }
        _ => RegionError::System { doing: "register", bytes, source },
    }
}

/// Most bytes that this process may lock in memory; None: any number.
pub(super) fn memlock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// The answer to a peer that wants to access a region of ours.
pub(super) fn grant(region: &RegionMemory) -> Result<Granted, String> {
    let remote = remote(region).ok_or("the region is not registered")?;
    Ok(Granted { fd: None, key: wire::encode_remote(remote) })
}

/// Where a peer's NIC finds a region of ours.
pub(super) fn remote(region: &RegionMemory) -> Option<Remote> {
    let address = region.mapping().start().as_ptr() as u64;
    Some(Remote { address, key: region.registration()?.remote_key() })
}

/// What a peer granted.
pub(super) fn open(
    peer: Rank,
    descriptor: RegionDescriptor,
    grant: &Granted,
) -> Result<RemoteRegion, OpenRegionError> {
    let remote = wire::decode_remote(&grant.key)
        .map_err(|error| OpenRegionError::Map { peer, reason: error.to_string() })?;
    Ok(RemoteRegion::new(peer, descriptor, Access::Registered(remote)))
}

/// Memory of this crate's own that the NIC accesses: receive buffers, flags, epochs. Strictly ordered.
#[derive(Debug)]
pub(super) struct ControlMemory {
    // before the mapping: the NIC lets go of it first
    pub(super) registration: MemoryRegion,
    pub(super) mapping: Mapping,
}

impl ControlMemory {
    pub(super) fn new(
        device_domain: &std::sync::Arc<super::ibv::ProtectionDomain>,
        bytes: u64,
    ) -> std::io::Result<ControlMemory> {
        let mapping = Mapping::private(bytes)?;
        let registration = device_domain.register(&mapping, false)?;
        Ok(ControlMemory { registration, mapping })
    }

    pub(super) fn address(&self, offset: u64) -> u64 {
        self.mapping.at(offset) as u64
    }
}
