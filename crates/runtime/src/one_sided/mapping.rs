//! Memory of devices that tensors of unknown size are announced in: that of peers, mapped here, and one's own, by whose file
//! peers map it.

use tensorwire_base::Deadline;
use tensorwire_fabric::RegionDescriptor;
use tensorwire_graph::EdgeId;
use tensorwire_memory::{Arena, Buffer, Place};

use super::announcing::Reached;
use super::{Inbound, OPENED_MAX, OneSided};
use crate::error::{AllocError, ExchangeError};

impl OneSided {
    /// Memory of a peer's device; the first time this asks the peer for it, and maps it.
    pub(super) fn map(
        &mut self,
        edge: EdgeId,
        region: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<Buffer, ExchangeError> {
        let Inbound { channel, name, .. } = &self.inbound[&edge];
        let (peer, RegionDescriptor { key, bytes }) = (channel.peer(), region);
        let edge = || name.clone();
        if let Some(memory) = self.mapped.get(&(peer, key)) {
            // it may have been told smaller when it was mapped
            if bytes <= memory.bytes() as u64 {
                return Ok(memory.clone());
            }
            let what = format!("memory of {} bytes has {bytes} now", memory.bytes());
            return Err(ExchangeError::Metadata { edge: edge(), peer, what });
        }
        let taken = channel.take_file(&RegionDescriptor { key, bytes: 0 }, deadline);
        let file = taken.map_err(|source| ExchangeError::Open { edge: edge(), peer, source })?;
        let device = self.options.device.as_ref().expect("what crosses there has a device");
        // the first device alone is told of what has no size yet; fits: usize is 64 bits wide, and the driver holds it against the file
        let imported = device.lock().import(0, file, bytes as usize);
        let cut = imported.map_err(AllocError::from).and_then(|slab| {
            let whole = Place { offset: 0, bytes: slab.bytes() };
            Ok(Arena::new(&slab, &[whole])?.into_buffers().remove(0))
        });
        let memory = cut.map_err(|source| {
            let source = Box::new(source);
            ExchangeError::Map { edge: edge(), peer, source }
        })?;
        // what is read now keeps its memory itself
        if self.mapped.keys().filter(|(owner, _)| *owner == peer).count() >= OPENED_MAX {
            self.mapped.retain(|(owner, _), _| *owner != peer);
        }
        self.mapped.insert((peer, key), memory.clone());
        Ok(memory)
    }

    /// What a tensor is announced in to the receiver of an edge: of memory of the device that this one maps, the key for that.
    pub(super) fn announced_in(&self, edge: EdgeId, tensor: &Buffer) -> RegionDescriptor {
        let announcing = self.outbound[&edge].dynamic.as_ref();
        let maps = announcing.is_some_and(|to| to.from == Some(Reached::Mapped));
        match self.shown.get(&tensor.slab().address()).filter(|_| maps) {
            Some(region) => {
                let key = region.descriptor().key;
                // fits: usize is 64 bits wide
                RegionDescriptor { key, bytes: tensor.slab().bytes() as u64 }
            }
            None => self.region_of(tensor).descriptor(),
        }
    }
}
