//! Regions as memory that only this process's pollers write for its peers; those of this host may map it, too.

use std::os::fd::{AsFd, OwnedFd};

use crate::common::Core;
use crate::error::RegionError;
use crate::mapping::Mapping;
use crate::region::{Exposure, Region};

pub(crate) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    let (mapping, shared) = core.allocate(bytes)?;
    Ok(core.regions().enter(mapping, Exposure { shared, registered: None }))
}

pub(crate) fn adopt(core: &Core, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "adopt", bytes, source };
    let mapping = Mapping::of_file(file.as_fd(), bytes).map_err(|error| system(error.into()))?;
    let shared = core.config().host.map(|_| file);
    Ok(core.regions().enter(mapping, Exposure { shared, registered: None }))
}
