//! Regions as private memory that only this process's pollers write for its peers.

use std::os::fd::{AsFd, OwnedFd};

use crate::common::Core;
use crate::error::RegionError;
use crate::mapping::Mapping;
use crate::region::{Exposure, Region};

pub(crate) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    let mapping = Mapping::private(bytes).map_err(|error| RegionError::System {
        doing: "allocate",
        bytes,
        source: error.into(),
    })?;
    Ok(core.regions().enter(mapping, Exposure::Private))
}

pub(crate) fn adopt(core: &Core, file: &OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "adopt", bytes, source };
    let mapping = Mapping::of_file(file.as_fd(), bytes).map_err(|error| system(error.into()))?;
    Ok(core.regions().enter(mapping, Exposure::Private))
}
