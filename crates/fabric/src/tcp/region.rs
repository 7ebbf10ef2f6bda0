//! Regions as private memory that only this process's pollers write for its peers.

use crate::common::Core;
use crate::error::RegionError;
use crate::mapping::{Mapping, available_bytes};
use crate::region::{Exposure, Region};

pub(crate) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    let available = available_bytes();
    if bytes > available {
        return Err(RegionError::NoMemory { bytes, available });
    }
    let mapping = Mapping::private(bytes).map_err(|error| RegionError::System {
        doing: "allocate",
        bytes,
        source: error.into(),
    })?;
    Ok(core.regions().enter(mapping, Exposure::Private))
}
