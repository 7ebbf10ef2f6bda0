//! The shards of a server in registered memory: the weights, and a slot for each worker's pushes. Where a NIC reaches a device's
//! memory, and there is room for both, both lie there. Of weights in a device's memory
//! that nobody reaches there is a copy, and room for what the device takes from the slots.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tensorwire_base::Rank;
use tensorwire_memory::{ALIGNMENT, Buffer, CopyPurpose, LoanError, ReadGuard};

use super::AS_SAVED;
use super::on_device::{Behind, OnDevice};
use crate::error::StoreError;
use crate::key::{ShardKey, ValueSpec};
use crate::pool::Pool;
use crate::ports::{DeviceReach, DeviceRows, PushedRows, ShardSnapshot, StoreDevice, Updater};
use crate::proto::ServerState;
use crate::wire::{RemotePlace, Wire};

/// Shards of at least so many bytes are held against what the host has left before they are made.
const LOOKED_AT_BYTES: usize = 1 << 20;

/// All shards here.
#[derive(Debug, Default)]
pub(super) struct Shards {
    shards: BTreeMap<ShardKey, ShardMemory>,
    /// In whose memory weights lie; none: in the host's.
    device: Option<Arc<dyn StoreDevice>>,
    /// Where that copies what was pushed to the host's memory, by place among the workers of an update: one shard's at a time, in
    /// the device's order.
    rooms: Vec<Room>,
}

/// Room in a device's memory for what one worker pushed of the largest shard.
#[derive(Debug)]
struct Room {
    values: Buffer,
    /// Of rows.
    indices: Buffer,
}

/// A shard.
#[derive(Debug)]
pub(super) struct ShardMemory {
    pub(super) spec: ValueSpec,
    pub(super) weights: Buffer,
    /// Of weights that workers do not reach.
    copy: Option<HostCopy>,
    pub(super) slots: Vec<Slot>,
}

/// Weights in registered memory of the host. The protocol changes no weights that are being sent, and so nothing here.
#[derive(Debug)]
struct HostCopy {
    buffer: Buffer,
    /// The device was told to copy what the weights are.
    is_current: bool,
}

impl ShardMemory {
    /// Where workers' pulls are answered from.
    pub(super) fn shown(&self) -> &Buffer {
        self.copy.as_ref().map_or(&self.weights, |copy| &copy.buffer)
    }

    /// The weights will be others.
    fn changes(&mut self) {
        self.copy.iter_mut().for_each(|copy| copy.is_current = false);
    }
}

/// Where a worker's pushes of a shard come.
#[derive(Debug)]
pub(super) struct Slot {
    /// None where this worker shows what it pushes.
    pub(super) buffer: Option<Buffer>,
    /// Where the worker keeps its push.
    pub(super) mapped: Option<RemotePlace>,
    /// How many rows lie there; none: the whole shard.
    pub(super) rows: Option<usize>,
    /// Of how many bytes the rule makes the whole shard; none: it lies there.
    pub(super) encoded: Option<usize>,
    /// The rows that this worker waits for, i32.
    pub(super) pulled: Option<Vec<u8>>,
    /// What the device has done once it has read what was pushed last.
    pub(super) read_by: Behind,
}

/// A worker's memory as it can be seen from here.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) wire: &'a dyn Wire,
    pub(super) rank: Rank,
}

impl Slot {
    fn guard(&self) -> Result<Option<ReadGuard<'_>>, StoreError> {
        let buffer = self.buffer.as_ref().filter(|_| self.mapped.is_none());
        buffer.map(|buffer| buffer.read().map_err(lent)).transpose()
    }

    /// As [`Slot::pushed`], for a device to read.
    fn pushed_buffer(&self, view: &View<'_>) -> Result<Buffer, StoreError> {
        let View { wire, rank } = *view;
        let pushed = match &self.mapped {
            Some(place) => wire.mapped(rank, place),
            None => self.buffer.clone(),
        };
        pushed.ok_or_else(|| StoreError::Nonsense { rank, what: "it shows no memory".to_string() })
    }

    /// What was pushed: in the slot, or where the worker has it.
    fn pushed<'a>(&self, slot: Option<&'a [u8]>, view: &View<'a>) -> Result<&'a [u8], StoreError> {
        let View { wire, rank } = *view;
        let mapped = || wire.view(rank, self.mapped.as_ref()?);
        let nonsense = || StoreError::Nonsense { rank, what: "it shows no memory".to_string() };
        slot.or_else(mapped).ok_or_else(nonsense)
    }
}

fn device_failed(what: String) -> StoreError {
    StoreError::Device { what }
}

fn lent(source: LoanError) -> StoreError {
    StoreError::Update(format!("a shard is in use: {source}"))
}

impl Shards {
    pub(super) fn new(device: Option<Arc<dyn StoreDevice>>) -> Shards {
        Shards { shards: BTreeMap::new(), device, rooms: Vec::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn get(&self, shard: ShardKey) -> Option<&ShardMemory> {
        self.shards.get(&shard)
    }

    pub(super) fn get_mut(&mut self, shard: ShardKey) -> Option<&mut ShardMemory> {
        self.shards.get_mut(&shard)
    }

    pub(super) fn create(
        &mut self,
        (pool, mut on_device): (&mut Pool, Option<&mut OnDevice>),
        wire: &mut dyn Wire,
        shard: ShardKey,
        spec: ValueSpec,
        has_slot: &[bool],
    ) -> Result<(), StoreError> {
        let slots = has_slot.iter().filter(|has_slot| **has_slot).count();
        // what goes in messages is put together by the host
        let is_written = wire.direct_from().is_some_and(|from| spec.bytes() >= from);
        let of_slots = spec.slot_bytes().saturating_mul(slots);
        let reach = on_device.as_ref().map(|on_device| on_device.reach);
        let is_by_nic = match &mut on_device {
            Some(on_device) if reach == Some(DeviceReach::ByNic) && is_written => {
                // weights and slots, or nothing
                let each = spec.slot_bytes().next_multiple_of(ALIGNMENT);
                let weights = spec.bytes().next_multiple_of(ALIGNMENT);
                let bytes = each.saturating_mul(slots).saturating_add(weights);
                on_device.has_reached_room(wire, bytes)
            }
            _ => false,
        };
        let is_mapped = reach == Some(DeviceReach::Mapped);
        // of the host
        let bytes = match is_by_nic {
            true => 0,
            false if is_mapped => of_slots,
            false => spec.bytes().saturating_add(of_slots),
        };
        // a wire that is asked for more than there is may have taken all before it says so
        if bytes >= LOOKED_AT_BYTES {
            let room = tensorwire_fabric::memory_room();
            if bytes as u64 > room.bytes {
                let what = format!(
                    "this server's host has less: {room}; start more servers, or use a smaller model"
                );
                return Err(StoreError::Memory { bytes, what });
            }
        }
        let mut copy = None;
        let weights = match &mut on_device {
            None => pool.alloc(wire, spec.bytes())?,
            Some(on_device) if is_by_nic || is_mapped => {
                on_device.reached.alloc(wire, spec.bytes())?
            }
            Some(on_device) => {
                let buffer = pool.alloc(wire, spec.bytes())?;
                copy = Some(HostCopy { buffer, is_current: false });
                self.make_room((&mut on_device.unseen, wire), has_slot.len(), &spec)?;
                on_device.unseen.alloc(wire, spec.bytes())?
            }
        };
        let of_slots = match on_device {
            Some(on_device) if is_by_nic => &mut on_device.reached,
            _ => pool,
        };
        let mut slots = Vec::with_capacity(has_slot.len());
        for has_slot in has_slot {
            let buffer = has_slot.then(|| of_slots.alloc(wire, spec.slot_bytes())).transpose()?;
            let read_by = Behind::default();
            let slot =
                Slot { buffer, mapped: None, rows: None, encoded: None, pulled: None, read_by };
            slots.push(slot);
        }
        self.shards.insert(shard, ShardMemory { spec, weights, copy, slots });
        Ok(())
    }

    /// Room for what so many workers push of a shard.
    fn make_room(
        &mut self,
        (pool, wire): (&mut Pool, &mut dyn Wire),
        workers: usize,
        spec: &ValueSpec,
    ) -> Result<(), StoreError> {
        // the rows of a dense value are not pushed one by one
        let rows = if spec.columns > 1 { spec.rows * size_of::<i32>() } else { 0 };
        let first = self.rooms.first();
        let [values, indices] =
            first.map_or([0; 2], |first| [&first.values, &first.indices].map(Buffer::bytes));
        if !self.rooms.is_empty() && values >= spec.bytes() && indices >= rows {
            return Ok(());
        }
        let mut rooms = Vec::with_capacity(workers);
        for _ in 0..workers {
            let values = pool.alloc(wire, spec.bytes().max(values))?;
            rooms.push(Room { values, indices: pool.alloc(wire, rows.max(indices))? });
        }
        // all of them or none: a worker without room would be left out of updates. What is given back here the device uses
        // before whatever comes there next
        self.rooms = rooms;
        Ok(())
    }

    /// Forgets a shard that nobody has pushed to.
    pub(super) fn remove(&mut self, shard: ShardKey) {
        self.shards.remove(&shard);
    }

    /// The first value of a shard; returns what was copied. On a device it is started.
    pub(super) fn seed(
        &mut self,
        shard: ShardKey,
        worker: usize,
        view: &View<'_>,
    ) -> Result<(CopyPurpose, u64), StoreError> {
        let device = self.device.clone();
        let Some(memory) = self.shards.get_mut(&shard) else { return Ok((CopyPurpose::Store, 0)) };
        memory.changes();
        let slot = &memory.slots[worker];
        if let Some(device) = device {
            let (from, bytes) = (slot.pushed_buffer(view)?, memory.spec.bytes());
            device.carry((&from, 0), &memory.weights, bytes).map_err(device_failed)?;
            let purpose = match from.space().is_device() {
                true => CopyPurpose::Store,
                false => CopyPurpose::ToDevice,
            };
            // fits: a size in memory; so below
            return Ok((purpose, bytes as u64));
        }
        let pushed = slot.guard()?;
        let bytes = memory.spec.bytes();
        let pushed = slot.pushed(pushed.as_deref(), view)?;
        memory.weights.write().map_err(lent)?.copy_from_slice(&pushed[..bytes]);
        Ok((CopyPurpose::Store, bytes as u64))
    }

    /// Starts copying what these workers pushed to the memory of the device, where that is not where it lies; returns how many
    /// bytes.
    pub(super) fn carry_in(
        &self,
        shard: ShardKey,
        workers: &[usize],
        views: &[View<'_>],
    ) -> Result<u64, StoreError> {
        let memory = self.shards.get(&shard).filter(|memory| memory.copy.is_some());
        let Some((memory, device)) = memory.zip(self.device.as_ref()) else { return Ok(0) };
        let (spec, mut carried) = (&memory.spec, 0);
        for (worker, room) in workers.iter().zip(&self.rooms) {
            let slot = &memory.slots[*worker];
            let pushed = slot.pushed_buffer(&views[*worker])?;
            let count = slot.rows.unwrap_or(spec.rows);
            let indices = slot.rows.map_or(0, |rows| rows * size_of::<i32>());
            for (at, to, bytes) in [
                (0, &room.values, count * spec.row_bytes()),
                (spec.slot_indices(), &room.indices, indices),
            ] {
                if bytes > 0 {
                    device.carry((&pushed, at), to, bytes).map_err(device_failed)?;
                    // fits: a size in memory
                    carried += bytes as u64;
                }
            }
        }
        Ok(carried)
    }

    /// Starts copying a shard's weights to where pulls are answered from, where they lie elsewhere and are others; returns how
    /// many bytes.
    pub(super) fn carry_out(&mut self, shard: ShardKey) -> Result<u64, StoreError> {
        let device = self.device.clone();
        let Some((memory, device)) = self.shards.get_mut(&shard).zip(device) else { return Ok(0) };
        let Some(copy) = memory.copy.as_mut().filter(|copy| !copy.is_current) else {
            return Ok(0);
        };
        let bytes = memory.spec.bytes();
        device.carry((&memory.weights, 0), &copy.buffer, bytes).map_err(device_failed)?;
        copy.is_current = true;
        // fits: a size in memory
        Ok(bytes as u64)
    }

    /// One update with the slots of these workers, in this order; why, where the rule refuses it. On a device it is started,
    /// behind [`Shards::carry_in`].
    pub(super) fn apply(
        &mut self,
        shard: ShardKey,
        workers: &[usize],
        views: &[View<'_>],
        update: &mut dyn Updater,
    ) -> Result<Result<(), String>, StoreError> {
        let Shards { shards, rooms, device } = self;
        let Some(memory) = shards.get_mut(&shard) else { return Ok(Ok(())) };
        memory.changes();
        let spec = &memory.spec;
        let slots: Vec<&Slot> = workers.iter().map(|worker| &memory.slots[*worker]).collect();
        if memory.copy.is_some() {
            let pushes = slots.iter().zip(&*rooms);
            // the protocol lets no round mix rows and whole values
            let rows = pushes.clone().map(|(slot, Room { values, indices })| {
                let (indices, rows) = (indices.clone(), values.clone());
                slot.rows.map(|count| DeviceRows { count, indices, rows })
            });
            return Ok(match rows.collect::<Option<Vec<_>>>() {
                Some(rows) => update.start_rows(shard, &memory.weights, &rows),
                None => {
                    let whole: Vec<Buffer> = pushes.map(|(_, room)| room.values.clone()).collect();
                    update.start(shard, &memory.weights, &whole)
                }
            });
        }
        if device.is_some() {
            let views = workers.iter().map(|worker| &views[*worker]);
            let pushes = slots.iter().zip(views).map(|(slot, view)| slot.pushed_buffer(view));
            let pushes = pushes.collect::<Result<Vec<_>, _>>()?;
            // what comes in a message lies on the host
            let is_there = |push: &Buffer| push.space().is_device() && push.bytes() >= spec.bytes();
            if !pushes.iter().all(is_there) {
                let what = "what is pushed to a value on a device is to lie on one".to_string();
                return Ok(Err(what));
            }
            return Ok(update.start(shard, &memory.weights, &pushes));
        }
        let mut guards = Vec::with_capacity(slots.len());
        for slot in &slots {
            guards.push(slot.guard()?);
        }
        let mut pushed = Vec::with_capacity(slots.len());
        for ((slot, guard), worker) in slots.iter().zip(&guards).zip(workers) {
            pushed.push(slot.pushed(guard.as_deref(), &views[*worker])?);
        }
        let mut weights = memory.weights.write().map_err(lent)?;
        // the protocol lets no round mix rows and whole values
        let sparse: Option<Vec<PushedRows<'_>>> = slots
            .iter()
            .zip(&pushed)
            .map(|(slot, bytes)| slot.rows.map(|count| pushed_rows(spec, bytes, count)))
            .collect();
        if slots.iter().any(|slot| slot.encoded.is_some()) {
            let each = slots.iter().zip(&pushed);
            let encoded = each.map(|(slot, bytes)| bytes.get(..slot.encoded?));
            return Ok(match encoded.collect::<Option<Vec<&[u8]>>>() {
                Some(pushes) => update.apply_encoded(shard, &mut weights, &pushes),
                None => Err("in one round, all workers push encoded values or none".to_string()),
            });
        }
        Ok(match sparse {
            Some(rows) => update.apply_rows(shard, &mut weights, &rows),
            None => {
                let pushes: Vec<&[u8]> =
                    pushed.iter().map(|bytes| &bytes[..spec.bytes()]).collect();
                update.apply(shard, &mut weights, &pushes)
            }
        })
    }

    /// What of a shard was asked for: the rows, one behind the other, or what all of it is rounded from; none where it is not.
    pub(super) fn gather(
        &self,
        shard: ShardKey,
        worker: usize,
        update: &dyn Updater,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(memory) = self.shards.get(&shard) else { return Ok(None) };
        let row = memory.spec.row_bytes();
        let guard;
        let weights = match &self.device {
            Some(device) => Cow::Owned(device.read(&memory.weights).map_err(device_failed)?),
            None => {
                guard = memory.weights.read().map_err(lent)?;
                Cow::Borrowed(&guard[..])
            }
        };
        let Some(indices) = memory.slots[worker].pulled.as_deref() else {
            return Ok(update.wide(shard, &weights));
        };
        let mut rows = Vec::with_capacity(indices.len() / size_of::<i32>() * row);
        for index in indices_of(indices) {
            // fits: checked when it came
            let start = index as usize * row;
            rows.extend_from_slice(&weights[start..start + row]);
        }
        Ok(Some(rows))
    }

    /// All shards that have a value.
    pub(super) fn snapshot(
        &self,
        state: &ServerState,
        update: &dyn Updater,
    ) -> Result<Vec<ShardSnapshot>, StoreError> {
        let seeded = state.shards.iter().filter(|shard| shard.seeded);
        let here = seeded.filter_map(|shard| Some((shard.shard, self.shards.get(&shard.shard)?)));
        here.map(|(key, memory)| {
            let weights = match &self.device {
                Some(device) => device.read(&memory.weights).map_err(device_failed)?,
                None => memory.weights.read().map_err(lent)?.to_vec(),
            };
            let state = update.state(key).map_err(StoreError::Snapshot)?;
            Ok(ShardSnapshot { key, spec: memory.spec, weights, state })
        })
        .collect()
    }

    /// Whether a kept shard can be put back here.
    pub(super) fn check(&self, kept: &ShardSnapshot) -> Result<(), StoreError> {
        let ShardSnapshot { key, spec, weights, .. } = kept;
        let wrong = |what: String| StoreError::Snapshot(what);
        let Some(memory) = self.shards.get(key) else {
            return Err(wrong(format!("shard {} is unknown here; {AS_SAVED}", key.0)));
        };
        if memory.spec != *spec || weights.len() != spec.bytes() {
            let (here, found) = (memory.spec, weights.len());
            return Err(wrong(format!("shard {} is {here}, not {spec} of {found} bytes", key.0)));
        }
        Ok(())
    }

    /// Weights of a shard that was [checked](Shards::check).
    pub(super) fn put_back(&mut self, shard: ShardKey, weights: &[u8]) -> Result<(), StoreError> {
        let device = self.device.clone();
        if let Some(memory) = self.shards.get_mut(&shard) {
            memory.changes();
            if let Some(device) = device {
                return device.write(weights, &memory.weights).map_err(device_failed);
            }
            memory.weights.write().map_err(lent)?.copy_from_slice(weights);
        }
        Ok(())
    }
}

/// i32 indices as they travel.
pub(super) fn indices_of(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|index| i32::from_le_bytes(*index))
}

fn pushed_rows<'a>(spec: &ValueSpec, slot: &'a [u8], count: usize) -> PushedRows<'a> {
    let start = spec.slot_indices();
    PushedRows {
        indices: &slot[start..start + count * size_of::<i32>()],
        rows: &slot[..count * spec.row_bytes()],
    }
}
