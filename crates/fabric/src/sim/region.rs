//! Regions of a simulated fabric are private memory, as over tcp; "remote" is another fabric's table.

use std::os::fd::OwnedFd;

use crate::common::Core;
use crate::error::{OpenRegionError, RegionError};
use crate::region::{Access, Region, RegionDescriptor, RemoteRegion};

pub(super) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    crate::tcp::alloc_private(core, bytes)
}

pub(super) fn adopt(core: &Core, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    crate::tcp::adopt_private(core, file, bytes)
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
