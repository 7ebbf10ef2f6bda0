//! Registered memory of one process: a few large chunks, each as large as all before it, cut as it is needed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_fabric::RegionDescriptor;
use tensorwire_memory::{Buffer, Heap, Slab};

use crate::error::StoreError;
use crate::ports::StoreDevice;
use crate::wire::{RemotePlace, Wire};

/// The first chunk, in bytes.
const CHUNK_BYTES_MIN: usize = 1 << 20;

/// Memory that peers can be told of.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Whose memory it is; none: the host's.
    device: Option<Arc<dyn StoreDevice>>,
    chunks: Vec<Heap>,
    /// Address of the first byte of each slab, and what peers know it by.
    regions: Vec<(usize, RegionDescriptor)>,
}

impl Pool {
    pub(crate) fn on_device(device: Arc<dyn StoreDevice>) -> Pool {
        Pool { device: Some(device), ..Pool::default() }
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
        let ahead = if self.device.is_some() { 0 } else { total };
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
        let (slab, region) = match &self.device {
            None => wire.alloc(bytes)?,
            Some(device) => {
                let made = device.alloc(bytes);
                let (slab, file) = made.map_err(|what| StoreError::Device { what })?;
                // fits: usize is 64 bits wide
                (slab, wire.offer_device(file, bytes as u64)?)
            }
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

    /// How peers are told of this memory; none for memory from elsewhere.
    pub(crate) fn place(&self, buffer: &Buffer) -> Option<RemotePlace> {
        let at = buffer.slab().address();
        let (_, region) = self.regions.iter().find(|(address, _)| *address == at)?;
        Some(RemotePlace {
            region: (region.key, region.bytes),
            // fits: a place in memory of this process
            offset: buffer.place().offset as u64,
            bytes: buffer.bytes() as u64,
            on_device: self.device.is_some(),
        })
    }

    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        let at = buffer.slab().address();
        self.regions.iter().any(|(address, _)| *address == at)
    }
}
