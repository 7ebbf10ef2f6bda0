//! Registered memory of one process: a few large chunks, each as large as all before it, cut as it is needed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_fabric::RegionDescriptor;
use tensorwire_memory::{Buffer, Heap, Keepalive, Slab};

use crate::error::StoreError;
use crate::ports::StoreDevice;
use crate::wire::{RemotePlace, Wire};

/// The first chunk, in bytes.
const CHUNK_BYTES_MIN: usize = 1 << 20;

/// Memory that peers can be told of, but for a device's own.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    memory: Memory,
    chunks: Vec<Heap>,
    /// Address of the first byte of each slab, and what peers know it by.
    regions: Vec<(usize, RegionDescriptor)>,
    /// For as long as the device copies from and to it.
    pinned: Vec<Keepalive>,
}

/// Whose memory it is.
#[derive(Debug, Default)]
enum Memory {
    #[default]
    Host,
    /// The host's, which this device copies from and to.
    Pinned(Arc<dyn StoreDevice>),
    /// A device's, which peers' devices map.
    Shown(Arc<dyn StoreDevice>),
    /// A device's, which a NIC reads and writes for peers.
    Reached(Arc<dyn StoreDevice>),
    /// A device's, which nobody else sees.
    Unseen(Arc<dyn StoreDevice>),
}

impl Pool {
    pub(crate) fn pinned(device: Arc<dyn StoreDevice>) -> Pool {
        Pool { memory: Memory::Pinned(device), ..Pool::default() }
    }

    pub(crate) fn on_device(device: Arc<dyn StoreDevice>) -> Pool {
        Pool { memory: Memory::Shown(device), ..Pool::default() }
    }

    pub(crate) fn reached(device: Arc<dyn StoreDevice>) -> Pool {
        Pool { memory: Memory::Reached(device), ..Pool::default() }
    }

    pub(crate) fn unseen(device: Arc<dyn StoreDevice>) -> Pool {
        Pool { memory: Memory::Unseen(device), ..Pool::default() }
    }

    pub(crate) fn alloc(
        &mut self,
        wire: &mut dyn Wire,
        bytes: usize,
    ) -> Result<Buffer, StoreError> {
        if let Some(buffer) = self.chunks.iter().find_map(|chunk| chunk.alloc(bytes)) {
            return Ok(buffer);
        }
        let total: usize = self.chunks.iter().map(Heap::bytes).sum();
        // what nobody uses yet of a device's memory is taken all the same
        let ahead = match self.memory {
            Memory::Host | Memory::Pinned(_) => total,
            Memory::Shown(_) | Memory::Reached(_) | Memory::Unseen(_) => 0,
        };
        let slab = self.alloc_slab(wire, bytes.max(ahead).max(CHUNK_BYTES_MIN))?;
        let failed = |what: &str| StoreError::Memory { bytes, what: what.to_string() };
        let heap = Heap::new(&slab).map_err(|error| failed(&error.to_string()))?;
        let buffer = heap.alloc(bytes).ok_or_else(|| failed("a fresh chunk has no room"))?;
        self.chunks.push(heap);
        Ok(buffer)
    }

    /// A slab for the caller to cut.
    pub(crate) fn alloc_slab(
        &mut self,
        wire: &mut dyn Wire,
        bytes: usize,
    ) -> Result<Slab, StoreError> {
        let failed = |what: String| StoreError::Device { what };
        let (slab, region) = match &self.memory {
            Memory::Host => wire.alloc(bytes)?,
            Memory::Pinned(device) => {
                let (slab, region) = wire.alloc(bytes)?;
                // what is not pinned is copied all the same
                self.pinned.extend(device.pin(&slab));
                (slab, region)
            }
            Memory::Shown(device) => {
                let (slab, file) = device.alloc(0, bytes).map_err(failed)?;
                // fits: usize is 64 bits wide
                (slab, wire.offer_device(file, bytes as u64)?)
            }
            Memory::Reached(device) => {
                let slab = device.alloc_unseen(bytes).map_err(failed)?;
                let (region, _) = wire.adopt_device(&slab, device.dma_buf(&slab))?;
                (slab, region)
            }
            Memory::Unseen(device) => return device.alloc_unseen(bytes).map_err(failed),
        };
        self.regions.push((slab.address(), region));
        Ok(slab)
    }

    /// Takes memory of the device that was allocated elsewhere, which peers map by its file.
    pub(crate) fn adopt(
        &mut self,
        wire: &mut dyn Wire,
        slab: &Slab,
        file: OwnedFd,
    ) -> Result<(), StoreError> {
        // fits: usize is 64 bits wide
        let region = wire.offer_device(file, slab.bytes() as u64)?;
        self.regions.push((slab.address(), region));
        Ok(())
    }

    /// The same, which a NIC reads and writes for peers; says how it does.
    pub(crate) fn adopt_reached(
        &mut self,
        wire: &mut dyn Wire,
        slab: &Slab,
    ) -> Result<String, StoreError> {
        let Memory::Reached(device) = &self.memory else {
            return Err(StoreError::Device { what: "no NIC is to reach it".to_string() });
        };
        let (region, way) = wire.adopt_device(slab, device.dma_buf(slab))?;
        self.regions.push((slab.address(), region));
        Ok(way)
    }

    /// How peers are told of this memory; none for memory from elsewhere.
    pub(crate) fn place(&self, buffer: &Buffer) -> Option<RemotePlace> {
        let at = buffer.slab().address();
        let (_, region) = self.regions.iter().find(|(address, _)| *address == at)?;
        Some(RemotePlace {
            region: (region.key, region.bytes),
            // fits: a place in memory of this process
            offset: buffer.place().offset as u64,
            bytes: buffer.bytes() as u64,
            on_device: matches!(self.memory, Memory::Shown(_)),
        })
    }

    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        let at = buffer.slab().address();
        self.regions.iter().any(|(address, _)| *address == at)
    }
}
