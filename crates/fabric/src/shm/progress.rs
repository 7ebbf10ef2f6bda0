//! What happens behind the poster's back: the control thread hands out region descriptors. Data
//! needs nobody here; the poster moves it.

use std::sync::Arc;

use crate::common::{Core, Peer};
use crate::control::{Granted, Requests};
use crate::region::RegionDescriptor;

/// Answers peers who want to map a region of ours.
#[derive(Debug)]
pub(super) struct Owner {
    core: Arc<Core>,
}

impl Owner {
    pub(super) fn new(core: Arc<Core>) -> Owner {
        Owner { core }
    }
}

impl Requests for Owner {
    fn open(&self, descriptor: RegionDescriptor) -> Result<Granted, String> {
        let region = self.core.regions().check_descriptor(descriptor)?;
        let fd = region.fd().ok_or("the region cannot be shared")?;
        let fd = fd.try_clone().map_err(|error| format!("cannot share the region: {error}"))?;
        Ok(Granted { fd: Some(fd), ..Granted::default() })
    }

    fn ended(&self, _: &Peer) {
        // the peer's memory stays mapped and valid as long as somebody here holds it
    }
}
