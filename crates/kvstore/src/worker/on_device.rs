//! What a worker's device reads of servers: values that it copies, and values that its kernels read where servers have them.
//! A server hears that one was read once the device has read it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_memory::{Buffer, Slab};

use super::KvWorker;
use crate::error::StoreError;
use crate::message::RequestId;
use crate::pool::Pool;
use crate::ports::{DeviceMark, StoreDevice};

/// A worker's device.
#[derive(Debug)]
pub(super) struct OnDevice {
    device: Arc<dyn StoreDevice>,
    /// Its memory that servers know of.
    pub(super) pool: Pool,
    copying: VecDeque<(DeviceMark, Read)>,
    /// Values that nothing reads any more that the device is told from now on.
    released: Vec<Read>,
    /// Those that nothing reads once the mark has passed. One at a time: a mark ends what the device is told together.
    marked: Option<(DeviceMark, Vec<Read>)>,
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
}

fn failed(what: String) -> StoreError {
    StoreError::Device { what }
}

fn none() -> StoreError {
    failed("this worker has none".to_string())
}

impl OnDevice {
    pub(super) fn new(device: Arc<dyn StoreDevice>) -> OnDevice {
        let pool = Pool::on_device(device.clone());
        let (copying, released, marked) = Default::default();
        OnDevice { device, pool, copying, released, marked }
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
        !self.copying.is_empty() || !self.released.is_empty() || self.marked.is_some()
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
