//! Pushes of a value: what of it goes to which server, as it is or as what servers make one of.

use std::borrow::Cow;
use std::ops::Range;

use tensorwire_memory::Buffer;

use super::KvHandle;
use super::core::Core;
use super::operations::{Pushed, Pushing, Work};
use super::shares::{overflow, share};
use crate::batch::Bytes;
use crate::error::StoreError;
use crate::key::{Key, ShardKey, ValueSpec};
use crate::wire::Wire;

impl Core {
    pub(super) fn push(
        &mut self,
        wire: &mut dyn Wire,
        handle: KvHandle,
        key: Key,
        devices: &[Buffer],
        pushing: Pushing<'_>,
    ) -> Result<(), StoreError> {
        let bytes = self.check(key, devices, pushing.rows)?;
        self.check_reach(wire, key, devices)?;
        let (spec, shards) = self.value(key)?;
        let mut from = self.merged(wire, key, &spec, devices, (bytes, bytes))?;
        let mut rows = pushing.rows.map(Cow::Borrowed);
        if let Some(indices) = rows.as_deref().filter(|rows| overflow(&shards, &spec, rows)) {
            let (sums, of) = self.added(wire, key, &spec, indices, &from)?;
            (from, rows) = (sums, Some(Cow::Owned(of)));
        }
        for shard in shards {
            let (range, indices) = share(&shard, &spec, rows.as_deref());
            let indices = indices.map(|indices| self.indices(wire, indices)).transpose()?;
            let from = (from.clone(), range, indices);
            self.push_shard(wire, handle, (key, shard.key), from, pushing)?;
        }
        Ok(())
    }

    /// Pushes what servers make the shards of a value of: one buffer for each.
    pub(super) fn push_encoded(
        &mut self,
        wire: &mut dyn Wire,
        handle: KvHandle,
        key: Key,
        encoded: &[Buffer],
        priority: i32,
    ) -> Result<(), StoreError> {
        let (spec, shards) = self.value(key)?;
        if encoded.len() != shards.len() {
            return Err(StoreError::Count { keys: shards.len(), found: encoded.len() });
        }
        for (shard, from) in shards.iter().zip(encoded) {
            let (most, found) =
                (ValueSpec { rows: shard.rows.len(), ..spec }.slot_bytes(), from.bytes());
            if found > most {
                return Err(StoreError::Size { key, bytes: most, found });
            }
        }
        let pushing = Pushing { priority, is_encoded: true, ..Pushing::default() };
        for (shard, from) in shards.iter().zip(encoded) {
            let (bytes, size) = (from.bytes(), shard.rows.len() * spec.row_bytes());
            let from = std::slice::from_ref(from);
            let from = self.merged(wire, key, &spec, from, (bytes, size))?;
            self.push_shard(wire, handle, (key, shard.key), (from, 0..bytes, None), pushing)?;
        }
        Ok(())
    }

    fn push_shard(
        &mut self,
        wire: &mut dyn Wire,
        handle: KvHandle,
        (key, shard): (Key, ShardKey),
        (from, bytes, indices): (Buffer, Range<usize>, Option<Bytes>),
        pushing: Pushing<'_>,
    ) -> Result<(), StoreError> {
        let loan = from.lend_to_device();
        let loan = loan.map_err(|source| StoreError::Lent { key, what: source.to_string() })?;
        let Pushing { is_encoded, priority, .. } = pushing;
        let pushed = Pushed { from, bytes, indices, is_encoded, loan: Some(loan), leaving: 0 };
        let logged = self.options.servers_come_back.then(|| self.log_entry(wire, &pushed));
        let logged = logged.transpose()?;
        let operation = self.operation(handle, Work::Push(pushed));
        let round = match pushing.is_first {
            true => {
                self.proto.seed(operation, shard, priority);
                0
            }
            false => self.proto.push(operation, shard, priority),
        };
        if let Some(logged) = logged {
            self.log.insert((shard, round), logged);
        }
        Ok(())
    }
}
