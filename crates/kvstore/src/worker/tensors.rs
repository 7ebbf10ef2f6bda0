//! What a push is sent from and a pull fills: tensors of the user, or memory that stands in for them.

use tensorwire_base::human_bytes;
use tensorwire_memory::{Buffer, CopyPurpose, LoanError};

use super::core::Core;
use super::on_device::{IntoDevice, OnDevice, Read};
use super::operations::{Held, Logged, Operation, Pulled, Pushed, ToRead, Work};
use crate::batch::Bytes;
use crate::error::StoreError;
use crate::key::{Key, ValueSpec};
use crate::message::Carried;
use crate::transfer::{TransferMode, TransferThresholds};
use crate::wire::{Incoming, Wire};

impl Core {
    /// One tensor in registered memory where a value of `size` bytes is written directly or shown: the only one, or the sum of all
    /// devices'.
    pub(super) fn merged(
        &mut self,
        wire: &mut dyn Wire,
        key: Key,
        spec: &ValueSpec,
        devices: &[Buffer],
        (bytes, size): (usize, usize),
    ) -> Result<Buffer, StoreError> {
        let [first, rest @ ..] = devices else {
            return Err(StoreError::Count { keys: 1, found: 0 });
        };
        let mut sizes = self.links.iter().map(|link| wire.sizes(link.rank));
        let is_reached = sizes.any(|sizes| sizes.mode(size, false) != TransferMode::InMessages);
        if rest.is_empty() && (!is_reached || self.is_registered(first)) {
            return Ok(first.clone());
        }
        let lent = |source: LoanError| StoreError::Lent { key, what: source.to_string() };
        let merged = self.pool.alloc(wire, bytes)?;
        let mut sum = merged.write().map_err(lent)?;
        sum.copy_from_slice(&first.read().map_err(lent)?[..bytes]);
        self.copies.add(CopyPurpose::Store, bytes as u64);
        for other in rest {
            let other = other.read().map_err(lent)?;
            let added = self.reduce.add(spec.dtype, &mut sum, &other[..bytes]);
            added.map_err(StoreError::Update)?;
        }
        drop(sum);
        Ok(merged)
    }

    /// The rows of one index added, in their order, and the indices that are left: no more than there are rows.
    pub(super) fn added(
        &mut self,
        wire: &mut dyn Wire,
        key: Key,
        spec: &ValueSpec,
        indices: &[i32],
        from: &Buffer,
    ) -> Result<(Buffer, Vec<i32>), StoreError> {
        let lent = |source: tensorwire_memory::LoanError| StoreError::Lent {
            key,
            what: source.to_string(),
        };
        let mut left = indices.to_vec();
        left.dedup();
        let row = spec.row_bytes();
        let sums = self.pool.alloc(wire, left.len() * row)?;
        let (mut into, from) = (sums.write().map_err(lent)?, from.read().map_err(lent)?);
        let mut rows = from.chunks_exact(row);
        for (same, into) in indices.chunk_by(|a, b| a == b).zip(into.chunks_exact_mut(row)) {
            let mut rows = rows.by_ref().take(same.len());
            rows.by_ref().take(1).for_each(|first| into.copy_from_slice(first));
            let added = rows.try_for_each(|next| self.reduce.add(spec.dtype, into, next));
            added.map_err(StoreError::Update)?;
        }
        self.copies.add(CopyPurpose::Store, (left.len() * row) as u64);
        drop(into);
        Ok((sums, left))
    }

    /// Indices as they are sent: many are written to their place, few go in the message.
    pub(super) fn indices(
        &mut self,
        wire: &mut dyn Wire,
        indices: Vec<u8>,
    ) -> Result<Bytes, StoreError> {
        let bytes = indices.len();
        let sizes = TransferThresholds { direct_from: wire.direct_from(), mapped_from: None };
        if sizes.mode(bytes, true) != TransferMode::Written {
            return Ok(Bytes::Own(indices));
        }
        let buffer = self.pool.alloc(wire, bytes)?;
        let lent = |source: LoanError| StoreError::Update(source.to_string());
        buffer.write().map_err(lent)?.copy_from_slice(&indices);
        self.copies.add(CopyPurpose::Store, bytes as u64);
        Ok(Bytes::Of { buffer, offset: 0, bytes })
    }

    /// A copy of what is pushed, to push it again.
    pub(super) fn log_entry(
        &mut self,
        wire: &mut dyn Wire,
        pushed: &Pushed,
    ) -> Result<Logged, StoreError> {
        let lent = |source: LoanError| StoreError::Update(source.to_string());
        let copy =
            self.pool.alloc(wire, pushed.bytes.len()).map_err(|error| self.beside_log(error))?;
        let from = pushed.from.read().map_err(lent)?;
        copy.write().map_err(lent)?.copy_from_slice(&from[pushed.bytes.clone()]);
        self.copies.add(CopyPurpose::Store, pushed.bytes.len() as u64);
        let (indices, is_encoded) = (pushed.indices.clone(), pushed.is_encoded);
        Ok(Logged { from: copy, indices, is_encoded })
    }

    /// An error of memory that is short, with how much of it is the log's.
    fn beside_log(&self, error: StoreError) -> StoreError {
        let StoreError::Memory { bytes, what } = error else { return error };
        let logged: usize = self.log.values().map(|logged| logged.from.bytes()).sum();
        // fits: usize is 64 bits wide
        let logged = human_bytes(logged as u64);
        let what = format!(
            "{what}; {logged} are kept of what was pushed since the servers' last snapshots, in case one is lost: does the disk have room \
             for the next (--snapshot)?"
        );
        StoreError::Memory { bytes, what }
    }

    /// A pull's value is here: in place, or a block to be copied to its place.
    pub(super) fn filled(
        &mut self,
        op: u64,
        value: Carried,
        message: &Incoming<'_>,
    ) -> Result<(), StoreError> {
        let Some(Operation { work: Work::Pull(pulled), .. }) = self.operations.get(&op) else {
            return Ok(());
        };
        let Pulled { into, bytes, staging, .. } = pulled;
        let lent = |source: LoanError| StoreError::Update(source.to_string());
        let rank = message.from;
        match (value, staging) {
            (Carried::Block(index), _) => {
                let block = message.blocks.get(index as usize);
                let block = block.filter(|block| block.len() == bytes.len());
                let Some(block) = block else {
                    let what = format!("no block of {} bytes for a pull", bytes.len());
                    return Err(StoreError::Nonsense { rank, what });
                };
                into.write().map_err(lent)?[bytes.clone()].copy_from_slice(block);
                self.copies.add(CopyPurpose::Store, bytes.len() as u64);
            }
            (Carried::InPlace | Carried::There(_), Some(staging)) => {
                let staged = staging.read().map_err(lent)?;
                into.write().map_err(lent)?[bytes.clone()].copy_from_slice(&staged);
                self.copies.add(CopyPurpose::Store, bytes.len() as u64);
            }
            (Carried::InPlace | Carried::There(_), None) => {}
        }
        let copied = spread(pulled)?;
        self.copies.add(CopyPurpose::Store, copied);
        Ok(())
    }

    /// Fills pulls from where servers have the values.
    pub(super) fn read_mapped(&mut self, wire: &dyn Wire) -> Result<(), StoreError> {
        for ToRead { server, op, id, place } in std::mem::take(&mut self.to_read) {
            if self.links[server].lost.is_some() {
                // not read: it is unanswered, and whoever takes over is asked again
                continue;
            }
            let rank = self.links[server].rank;
            if let Some(Operation { work: Work::Show(key), .. }) = self.operations.get(&op) {
                let key = *key;
                let Some(value) = wire.mapped(rank, &place) else {
                    let what = format!("{place:?} is no memory that it shows");
                    return Err(StoreError::Nonsense { rank, what });
                };
                if let Some(before) = self.mapped.insert(key, Held { server, id, value }) {
                    // asked for twice: it is held once
                    self.has_read(before);
                }
                self.proto.on_read(server, id);
                self.done(Some(op));
                continue;
            }
            if let Some(Operation { work: Work::Pull(pulled), .. }) = self.operations.get(&op) {
                let bytes = pulled.bytes.clone();
                let wrong = || {
                    let what = format!("{place:?} holds no value of {} bytes", bytes.len());
                    StoreError::Nonsense { rank, what }
                };
                if place.on_device || pulled.into.space().is_device() {
                    let from = wire.mapped(rank, &place);
                    let from = from.filter(|from| from.bytes() == bytes.len()).ok_or_else(wrong)?;
                    let on_device = self.on_device.as_mut().ok_or_else(wrong)?;
                    on_device.copy(&from, (&pulled.into, bytes.start), (server, op, id))?;
                    // fits: a size in memory
                    self.bytes_read += bytes.len() as u64;
                    continue;
                }
                let from = wire.view(rank, &place).filter(|from| from.len() == bytes.len());
                let Some(from) = from else { return Err(wrong()) };
                let lent = |source: LoanError| StoreError::Update(source.to_string());
                pulled.into.write().map_err(lent)?[bytes].copy_from_slice(from);
                self.bytes_read += from.len() as u64;
                self.copies.add(CopyPurpose::Store, spread(pulled)?);
            }
            self.links[server].taken.push_back(id);
            self.proto.on_read(server, id);
            self.done(Some(op));
        }
        Ok(())
    }
}

impl Core {
    /// Tells servers of the values that this process's device has read, and asks for those that it is ready for; true if there
    /// were any.
    pub(super) fn finish_reading(&mut self) -> Result<bool, StoreError> {
        let Some(on_device) = &mut self.on_device else { return Ok(false) };
        let (over, freed) = (on_device.progress()?, on_device.freed()?);
        let moved = !over.is_empty() || !freed.is_empty();
        for IntoDevice { op, shard, round, priority } in freed {
            self.proto.pull_since(op, shard, round, priority);
        }
        for Read { server, op, id } in over {
            self.links[server].taken.push_back(id);
            if let Some(op) = op {
                self.proto.on_read(server, id);
                self.done(Some(op));
            }
        }
        Ok(moved)
    }

    /// True if its device is to say that something is over.
    pub(super) fn is_busy(&self) -> bool {
        self.on_device.as_ref().is_some_and(OnDevice::is_busy)
    }
}

/// Fills the tensors of the other devices.
fn spread(pulled: &Pulled) -> Result<u64, StoreError> {
    let Pulled { into, bytes, also, .. } = pulled;
    let lent = |source: LoanError| StoreError::Update(source.to_string());
    for other in also {
        let from = into.read().map_err(lent)?;
        other.write().map_err(lent)?[bytes.clone()].copy_from_slice(&from[bytes.clone()]);
    }
    Ok((also.len() * bytes.len()) as u64)
}
