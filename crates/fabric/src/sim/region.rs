//! Regions of a simulated fabric are private memory, as over tcp; "remote" is another fabric's table.

use std::os::fd::OwnedFd;

use tensorwire_memory::Slab;

use crate::common::Core;
use crate::error::{OpenRegionError, RegionError};
use crate::mapping::Mapping;
use crate::region::{Access, Exposure, Region, RegionDescriptor, RemoteRegion};

pub(super) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    crate::tcp::alloc_private(core, bytes)
}

pub(super) fn adopt(core: &Core, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    crate::tcp::adopt_private(core, file, bytes)
}

/// Memory of a device that the network reaches, which says itself how.
pub(super) fn adopt_device(core: &Core, memory: &Slab) -> (Region, String) {
    let region = core.regions().enter(Mapping::of_device(memory), Exposure::default());
    (region, "in the simulated network".to_string())
}

pub(super) fn open(
    owner: &Core,
    descriptor: RegionDescriptor,
) -> Result<RemoteRegion, OpenRegionError> {
    let peer = owner.me().rank;
    match owner.regions().check_descriptor(descriptor) {
        Ok(_) => Ok(RemoteRegion::new(peer, descriptor, Access::Asked)),
        Err(reason) => Err(OpenRegionError::Refused { peer, reason }),
    }
}
