//! What a worker's device reads of servers: values that it copies, and values that its kernels read where servers have them.
//! A server hears that one was read once the device has read it. Where a NIC writes values into the device's memory, a server
//! is asked for one once the device has done with what is there.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_memory::{Buffer, Slab};

use super::KvWorker;
use super::core::Core;
use crate::error::StoreError;
use crate::key::{Key, ShardKey};
use crate::message::RequestId;
use crate::pool::Pool;
use crate::ports::{DeviceMark, DeviceReach, StoreDevice};
use crate::transfer::TransferMode;
use crate::wire::Wire;

/// A worker's device.
#[derive(Debug)]
pub(super) struct OnDevice {
    device: Arc<dyn StoreDevice>,
    reach: DeviceReach,
    /// Its memory that servers know of.
    pub(super) pool: Pool,
    copying: VecDeque<(DeviceMark, Read)>,
    /// Values that nothing reads any more that the device is told from now on.
    released: Vec<Read>,
    /// Those that nothing reads once the mark has passed. One at a time: a mark ends what the device is told together.
    marked: Option<(DeviceMark, Vec<Read>)>,
    /// Pulls into its memory that it may still be using, and those that may be asked for once the mark has passed.
    pulled: Vec<IntoDevice>,
    awaited: Option<(DeviceMark, Vec<IntoDevice>)>,
}

/// A pull that a NIC fills in a device's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntoDevice {
    pub(super) op: u64,
    pub(super) shard: ShardKey,
    /// What it holds was pushed up to there.
    pub(super) round: u64,
    pub(super) priority: i32,
}

/// A value that was read: who is told, and the pull that it fills, if it fills one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) server: usize,
    pub(super) op: Option<u64>,
    pub(super) id: RequestId,
}

impl KvWorker {
    /// As [`KvWorker::alloc_slab`], in the memory of its device of this number.
    ///
    /// # Errors
    /// When there is not enough memory, or no device.
    pub fn alloc_on_device(&mut self, number: u32, bytes: usize) -> Result<Slab, StoreError> {
        let on_device = self.core.on_device.as_ref().ok_or_else(none)?;
        let (slab, file) = on_device.device.alloc(number, bytes).map_err(failed)?;
        self.show_on_device(&slab, file)?;
        Ok(slab)
    }

    /// Lets servers' devices map memory of one of its devices that was allocated elsewhere, by its file: tensors there are pushed and
    /// pulled into as those of [`KvWorker::alloc_on_device`].
    ///
    /// # Errors
    /// When there is no device, or servers do not map what it has.
    pub fn show_on_device(&mut self, slab: &Slab, file: OwnedFd) -> Result<(), StoreError> {
        let on_device = self.core.on_device.as_mut().ok_or_else(none)?;
        on_device.pool.adopt(self.wire.as_mut(), slab, file)
    }

    /// Has the NIC read and write memory of its device that was allocated elsewhere; says how it does. Tensors there are pushed
    /// and pulled into, but for those that [`KvWorker::goes_by_host`]. What is pushed is to be there: the device has made it.
    ///
    /// # Errors
    /// When there is no device, or no NIC reaches its memory.
    pub fn reach_on_device(&mut self, slab: &Slab) -> Result<String, StoreError> {
        let on_device = self.core.on_device.as_mut().ok_or_else(none)?;
        on_device.pool.adopt_reached(self.wire.as_mut(), slab)
    }

    /// True if a value, of a tensor in its device's memory, is to be pushed from the host's memory and pulled into that: no NIC
    /// reaches the tensor, or what is so small travels in messages.
    pub fn goes_by_host(&self, key: Key, tensor: &Buffer) -> bool {
        self.core.goes_by_host(self.wire.as_ref(), key, tensor)
    }
}

impl Core {
    pub(super) fn goes_by_host(&self, wire: &dyn Wire, key: Key, tensor: &Buffer) -> bool {
        let Some(on_device) = self.on_device.as_ref().filter(|_| tensor.space().is_device()) else {
            return false;
        };
        let Some(value) = self.values.get(&key) else { return true };
        let is_reached = match on_device.reach {
            DeviceReach::Mapped => return false,
            DeviceReach::ByNic => on_device.pool.has(tensor),
            DeviceReach::ByHost => false,
        };
        let row = value.spec.row_bytes();
        let is_written = value.shards.iter().all(|shard| {
            let sizes = wire.sizes(self.links[shard.server].rank);
            sizes.mode(shard.rows.len() * row, false) == TransferMode::Written
        });
        !(is_reached && is_written)
    }

    /// Whether tensors in a device's memory can go from there, and come there.
    pub(super) fn check_reach(
        &self,
        wire: &dyn Wire,
        key: Key,
        tensors: &[Buffer],
    ) -> Result<(), StoreError> {
        match tensors.iter().any(|tensor| self.goes_by_host(wire, key, tensor)) {
            true => Err(failed(format!(
                "{key} goes by the host's memory: no NIC reaches the tensor, or it is too small; give one there"
            ))),
            false => Ok(()),
        }
    }

    /// Asks for a shard now, or once the device has done with what a NIC will write over.
    pub(super) fn ask_for(&mut self, op: u64, shard: ShardKey, priority: i32, by_nic: bool) {
        match self.on_device.as_mut().filter(|_| by_nic) {
            Some(on_device) => {
                let round = self.proto.pushed(shard);
                on_device.pulled.push(IntoDevice { op, shard, round, priority });
            }
            None => self.proto.pull(op, shard, priority),
        }
    }
}

fn failed(what: String) -> StoreError {
    StoreError::Device { what }
}

fn none() -> StoreError {
    failed("this worker has none".to_string())
}

impl OnDevice {
    pub(super) fn new(device: Arc<dyn StoreDevice>, reach: DeviceReach) -> OnDevice {
        let pool = match reach {
            DeviceReach::Mapped => Pool::on_device(device.clone()),
            DeviceReach::ByNic | DeviceReach::ByHost => Pool::reached(device.clone()),
        };
        let (copying, released, marked, pulled, awaited) = Default::default();
        OnDevice { device, reach, pool, copying, released, marked, pulled, awaited }
    }

    /// Memory of the host by which what the device has goes that servers do not reach there.
    pub(super) fn host_pool(&self) -> Pool {
        match self.reach {
            DeviceReach::Mapped => Pool::default(),
            DeviceReach::ByNic | DeviceReach::ByHost => Pool::pinned(self.device.clone()),
        }
    }

    /// Starts filling a pull from a server's value.
    pub(super) fn copy(
        &mut self,
        from: &Buffer,
        (into, at): (&Buffer, usize),
        (server, op, id): (usize, u64, RequestId),
    ) -> Result<(), StoreError> {
        let mark = self.device.copy(from, into, at, from.bytes()).map_err(failed)?;
        self.copying.push_back((mark, Read { server, op: Some(op), id }));
        Ok(())
    }

    /// Takes note that what the device was told is the last that reads a value.
    pub(super) fn reads(&mut self, server: usize, id: RequestId) {
        self.released.push(Read { server, op: None, id });
    }

    pub(super) fn is_busy(&self) -> bool {
        let reads = !self.copying.is_empty() || !self.released.is_empty() || self.marked.is_some();
        reads || !self.pulled.is_empty() || self.awaited.is_some()
    }

    /// Returns the pulls that may be asked for: the device uses nothing any more of what they fill.
    pub(super) fn freed(&mut self) -> Result<Vec<IntoDevice>, StoreError> {
        let mut freed = Vec::new();
        if let Some((mark, pulls)) = self.awaited.take() {
            match self.device.is_over(mark).map_err(failed)? {
                true => freed = pulls,
                false => self.awaited = Some((mark, pulls)),
            }
        }
        if self.awaited.is_none() && !self.pulled.is_empty() {
            let mark = self.device.mark().map_err(failed)?;
            self.awaited = Some((mark, std::mem::take(&mut self.pulled)));
        }
        Ok(freed)
    }

    /// Returns what is read.
    pub(super) fn progress(&mut self) -> Result<Vec<Read>, StoreError> {
        let mut over = Vec::new();
        while let Some((mark, read)) = self.copying.front() {
            if !self.device.is_over(*mark).map_err(failed)? {
                break;
            }
            over.push(*read);
            self.copying.pop_front();
        }
        if let Some((mark, reads)) = self.marked.take() {
            match self.device.is_over(mark).map_err(failed)? {
                true => over.extend(reads),
                false => self.marked = Some((mark, reads)),
            }
        }
        if self.marked.is_none() && !self.released.is_empty() {
            let mark = self.device.mark().map_err(failed)?;
            self.marked = Some((mark, std::mem::take(&mut self.released)));
        }
        Ok(over)
    }
}
