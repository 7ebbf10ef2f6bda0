//! Requests as they come: looked at where they lie, checked, their values put where they belong, and what the
//! protocol then wants done.

use std::collections::VecDeque;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::Identity;
use tensorwire_memory::CopyPurpose;

use super::Core;
use super::memory::{View, indices_of};
use crate::batch::{ENTRY_BYTES, entries};
use crate::error::StoreError;
use crate::key::{ShardKey, ValueSpec};
use crate::message::{Answer, Ask, Carried, Reply, Request, RequestId, RequestRefusal, Rows};
use crate::proto::{Control, ServerAction, Taken};
use crate::wire::{Incoming, RemotePlace, Wire, WireError};

/// A message, copied, whose requests name memory that is not open yet, or that came behind such a one of the same worker: none
/// of them counts before what they show can be seen.
#[derive(Debug)]
pub(super) struct Aside {
    from: Rank,
    meta: Vec<u8>,
    blocks: Vec<Vec<u8>>,
    places: Vec<RemotePlace>,
}

/// A region of a worker that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) bytes: u64,
    /// What lies there can be read where it is.
    is_seen: bool,
}

impl Core {
    /// Takes a message's requests, or puts it aside until the memory that they name is open.
    pub(super) fn take(&mut self, message: &Incoming<'_>, aside: &mut VecDeque<Aside>) {
        let rank = message.from;
        // else a stranger on the wire, or who is none of the workers any more: nobody who may ask
        let worker = self.worker(rank).filter(|worker| self.outboxes[*worker].is_open());
        let Some(worker) = worker else { return };
        let requests = match entries::<Request>(message.meta) {
            Ok(requests) => requests,
            Err(what) => {
                self.strange.push((worker, what));
                return;
            }
        };
        let mut places = Vec::new();
        for request in &requests {
            if let Ask::Pull { into: Some(place), .. }
            | Ask::Push { value: Carried::There(place), .. }
            | Ask::PushEncoded { value: Carried::There(place), .. } = &request.what
            {
                let (_, bytes) = place.region;
                match self.opened.get(&(worker, place.key())) {
                    Some(known) if known.bytes != bytes => {
                        let known = known.bytes;
                        let what = format!("a region of {known} bytes has {bytes} now");
                        self.strange.push((worker, what));
                        return;
                    }
                    Some(_) => {}
                    None => places.push(*place),
                }
            }
        }
        if !places.is_empty() || aside.iter().any(|before| before.from == rank) {
            let blocks: Vec<_> = message.blocks.iter().map(|block| block.to_vec()).collect();
            // fits: sizes in memory
            let bytes = blocks.iter().map(|block| block.len() as u64).sum();
            self.copies.add(CopyPurpose::Store, bytes);
            aside.push_back(Aside { from: rank, meta: message.meta.to_vec(), blocks, places });
            return;
        }
        for request in requests {
            if let Ask::Taken { of } = request.what {
                if let Some(shard) = self.mapped.remove(&(worker, of)) {
                    self.proto.on_sent(shard);
                }
                continue;
            }
            if let Err(error) = self.request(worker, &request, message) {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn request(
        &mut self,
        worker: usize,
        request: &Request,
        message: &Incoming<'_>,
    ) -> Result<(), StoreError> {
        let from = self.options.workers[worker];
        let carried = match self.carried(request, message) {
            Ok(carried) => carried,
            Err(why) => {
                let answer = Answer::Refused { why };
                self.reply(worker, Reply { id: request.id, what: answer });
                return Ok(());
            }
        };
        if self.proto.on_request(from, request) == Taken::Drop {
            return Ok(());
        }
        match request.what {
            Ask::Push { shard, value: Carried::There(place), .. } => {
                self.count_push(shard, None);
                self.shown(worker, shard, place, None);
                Ok(())
            }
            Ask::Push { shard, rows, .. } => {
                self.count_push(shard, rows);
                self.store(worker, shard, (rows, None), carried)
            }
            Ask::PushEncoded { shard, value, bytes, .. } => {
                self.counters.pushes += 1;
                self.counters.bytes_pushed += bytes;
                // fits: checked against a slot; so below
                let encoded = Some(bytes as usize);
                match value {
                    Carried::There(place) => self.shown(worker, shard, place, encoded),
                    _ => self.store(worker, shard, (None, encoded), carried)?,
                }
                Ok(())
            }
            Ask::Pull { shard, .. } => {
                if let Some(memory) = self.shards.get_mut(shard) {
                    // fits: a size in memory
                    let bytes = carried.indices.map_or(0, <[u8]>::len) as u64;
                    self.copies.add(CopyPurpose::Rows, bytes);
                    memory.slots[worker].pulled = carried.indices.map(<[u8]>::to_vec);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn count_push(&mut self, shard: ShardKey, rows: Option<Rows>) {
        let Some(memory) = self.shards.get(shard) else { return };
        // fits: checked against the shard's rows, and sizes in memory
        let count = rows.map_or(memory.spec.rows, |rows| rows.count as usize);
        self.counters.pushes += 1;
        self.counters.bytes_pushed += (count * memory.spec.row_bytes()) as u64;
    }

    /// A worker shows what it pushes: of so many bytes the rule makes a whole shard, or that lies there.
    fn shown(
        &mut self,
        worker: usize,
        shard: ShardKey,
        place: RemotePlace,
        encoded: Option<usize>,
    ) {
        if let Some(memory) = self.shards.get_mut(shard) {
            let slot = &mut memory.slots[worker];
            (slot.rows, slot.encoded, slot.mapped) = (None, encoded, Some(place));
        }
    }

    /// Puts what was pushed into the worker's slot, unless it was written there.
    fn store(
        &mut self,
        worker: usize,
        shard: ShardKey,
        (rows, encoded): (Option<Rows>, Option<usize>),
        carried: CarriedBytes<'_>,
    ) -> Result<(), StoreError> {
        let Some(memory) = self.shards.get_mut(shard) else { return Ok(()) };
        let at_indices = memory.spec.slot_indices();
        let slot = &mut memory.slots[worker];
        // fits: checked against the shard's rows
        slot.rows = rows.map(|rows| rows.count as usize);
        (slot.encoded, slot.mapped) = (encoded, None);
        let is_here = carried.value.is_some() || carried.indices.is_some();
        let Some(buffer) = slot.buffer.as_ref().filter(|_| is_here) else { return Ok(()) };
        let lent = |source: tensorwire_memory::LoanError| StoreError::Update(source.to_string());
        let mut bytes = buffer.write().map_err(lent)?;
        for (block, at) in [(carried.value, 0), (carried.indices, at_indices)] {
            if let Some(block) = block {
                bytes[at..at + block.len()].copy_from_slice(block);
                // fits: a size in memory
                self.copies.add(CopyPurpose::Store, block.len() as u64);
            }
        }
        Ok(())
    }

    /// The blocks of a request, if they are as they should be.
    fn carried<'a>(
        &self,
        request: &Request,
        message: &Incoming<'a>,
    ) -> Result<CarriedBytes<'a>, RequestRefusal> {
        let wrong = |what: String| RequestRefusal::Failed(what);
        let from = self.worker(message.from).unwrap_or_default();
        let block = |carried: Carried, bytes: usize| match carried {
            Carried::InPlace => Ok(None),
            // fits: a size in memory
            Carried::There(place) if place.bytes != bytes as u64 => {
                Err(wrong(format!("{} bytes for {bytes}", place.bytes)))
            }
            // it is read when the update is due, which is the server's own work and all workers' by then
            Carried::There(place) if !self.sees(from, &place) => {
                Err(wrong("it lies in memory that this server cannot see".to_string()))
            }
            Carried::There(_) => Ok(None),
            Carried::Block(index) => match message.blocks.get(index as usize) {
                Some(block) if block.len() == bytes => Ok(Some(*block)),
                Some(block) => Err(wrong(format!("{} bytes instead of {bytes}", block.len()))),
                None => Err(wrong(format!("no block {index}"))),
            },
        };
        let (shard, value, rows) = match request.what {
            Ask::Push { shard, value, rows, .. } => (shard, Some(value), rows),
            Ask::PushEncoded { shard, value, .. } => (shard, Some(value), None),
            Ask::Pull { shard, rows, .. } => (shard, None, rows),
            _ => return Ok(CarriedBytes::default()),
        };
        let Some(memory) = self.shards.get(shard) else { return Ok(CarriedBytes::default()) };
        let spec = memory.spec;
        let has_slot = memory.slots[from].buffer.is_some();
        if !has_slot && value.is_some_and(|value| !matches!(value, Carried::There(_))) {
            return Err(wrong("values of this size are mapped where they are".to_string()));
        }
        let is_on_device = memory.slots[from].buffer.as_ref().is_some_and(|slot| {
            slot.space().is_device() && (rows.is_some() || value != Some(Carried::InPlace))
        });
        let is_push = value.is_some();
        if is_on_device && is_push {
            return Err(wrong(
                "whole values of this size are written where they belong".to_string(),
            ));
        }
        let is_mapped = |carried: Carried| matches!(carried, Carried::There(_));
        if rows.is_some_and(|rows| is_mapped(rows.indices) || value.is_some_and(is_mapped)) {
            return Err(wrong("rows are sent, and mapped nowhere".to_string()));
        }
        // the device may still read what was pushed before, which is not answered then
        let read_by = memory.slots[from].read_by;
        let reads = self.on_device.as_ref().is_some_and(|device| !device.has_passed(read_by));
        if reads && is_push {
            return Err(RequestRefusal::TooSoon { shard });
        }
        if let (Ask::PushEncoded { round, bytes, .. }, Some(value)) = (&request.what, value) {
            // fits: usize is 64 bits wide
            let room = spec.slot_bytes() as u64;
            if self.on_device.is_some() {
                return Err(wrong("values on a device are pushed as they are".to_string()));
            }
            if *round == 0 {
                return Err(wrong("a first value is pushed as it is".to_string()));
            }
            if *bytes > room {
                return Err(wrong(format!("{bytes} bytes for a slot of {room}")));
            }
            let value = block(value, *bytes as usize)?;
            return Ok(CarriedBytes { value, indices: None });
        }
        // what is in the slot has as many rows as the shard; a pull may name one row again and again
        let is_in_slot =
            value.is_some() || rows.is_some_and(|rows| rows.indices == Carried::InPlace);
        let rows_max = if is_in_slot { spec.rows } else { usize::MAX / spec.row_bytes().max(4) };
        let count = rows.map_or(Ok(spec.rows), |rows| row_count(&spec, rows, rows_max));
        let count = count.map_err(wrong)?;
        let value = value.map(|value| block(value, count * spec.row_bytes())).transpose()?;
        let indices = rows.map(|rows| block(rows.indices, count * size_of::<i32>())).transpose()?;
        let indices = indices.flatten();
        if rows.is_some() {
            let slot = memory.slots[from].buffer.as_ref();
            let told = match (indices, slot) {
                (Some(indices), _) => check_indices(&spec, indices),
                (None, None) => Err("row indices come with the rows".to_string()),
                (None, Some(slot)) => {
                    let slot = slot.read().map_err(|source| wrong(source.to_string()))?;
                    let start = spec.slot_indices();
                    check_indices(&spec, &slot[start..start + count * size_of::<i32>()])
                }
            };
            told.map_err(wrong)?;
        }
        Ok(CarriedBytes { value: value.flatten(), indices })
    }

    /// Opens the memory that messages were put aside for, and takes their requests. Those of a worker whose memory cannot be
    /// opened are dropped, as if it had ended before them.
    pub(super) fn take_aside(&mut self, wire: &mut dyn Wire, aside: VecDeque<Aside>) {
        let deadline = Deadline::after(self.options.patience);
        for Aside { from, meta, blocks, places } in aside {
            let worker = self.worker(from).filter(|worker| self.outboxes[*worker].is_open());
            let is_strange = |worker: &usize| self.strange.iter().any(|(of, _)| of == worker);
            let Some(worker) = worker.filter(|worker| !is_strange(worker)) else { continue };
            if self.open(wire, worker, &places, deadline) {
                let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
                // all that it names is open, so that nothing is put aside again
                self.take(&Incoming { from, meta: &meta, blocks: &blocks }, &mut VecDeque::new());
            }
        }
    }

    /// Opens a worker's memory; false if it cannot be.
    fn open(
        &mut self,
        wire: &mut dyn Wire,
        worker: usize,
        places: &[RemotePlace],
        deadline: Deadline,
    ) -> bool {
        let rank = self.options.workers[worker].rank;
        for place in places {
            let known = (worker, place.key());
            if self.opened.contains_key(&known) {
                continue;
            }
            match place.open(wire, rank, deadline) {
                Ok(()) => {
                    let (_, bytes) = place.region;
                    let shown = wire.mapped(rank, &RemotePlace { offset: 0, bytes, ..*place });
                    self.opened.insert(known, Opened { bytes, is_seen: shown.is_some() });
                    let shown = self.on_device.as_mut().zip(shown);
                    shown.into_iter().for_each(|(device, shown)| device.sees(shown.slab()));
                }
                // or it does not show what it named
                Err(error @ WireError::Lost { .. }) => {
                    match self.options.elastic || self.left[worker] {
                        true => self.dismiss(worker),
                        false => drop(self.failed.get_or_insert(error.into())),
                    }
                    return false;
                }
                Err(error) => {
                    self.strange.push((worker, error.to_string()));
                    return false;
                }
            }
        }
        true
    }

    /// True if a place of a worker's memory lies in what it opened, and can be read there.
    fn sees(&self, worker: usize, place: &RemotePlace) -> bool {
        let opened = self.opened.get(&(worker, place.key())).filter(|opened| opened.is_seen);
        let end = place.offset.checked_add(place.bytes);
        opened.zip(end).is_some_and(|(opened, end)| end <= opened.bytes)
    }

    /// Who sends nonsense is no worker any more.
    pub(super) fn refuse_strange(&mut self) -> Result<(), StoreError> {
        for (worker, what) in std::mem::take(&mut self.strange) {
            if !self.options.elastic {
                let rank = self.options.workers[worker].rank;
                return Err(StoreError::Nonsense { rank, what });
            }
            self.dismiss(worker);
        }
        Ok(())
    }

    /// It is no worker any more; nobody here waits for its pushes.
    fn dismiss(&mut self, worker: usize) {
        self.alive[worker] = false;
        self.forget(worker);
        let members = self.options.workers.iter().zip(&self.alive);
        let alive: Vec<Identity> =
            members.filter(|(_, lives)| **lives).map(|(member, _)| *member).collect();
        self.proto.on_world(&alive);
    }

    /// Which workers' pushes of a shard come to a slot here: all but those that show them where they are.
    pub(super) fn slots(&self, wire: &dyn Wire, spec: &ValueSpec) -> Vec<bool> {
        let workers = self.options.workers.iter();
        workers.map(|worker| wire.sizes(worker.rank).needs_slot(spec)).collect()
    }

    /// Does what the protocol wants; true if it wanted something.
    pub(super) fn act(&mut self, wire: &mut dyn Wire) -> Result<bool, StoreError> {
        let mut moved = false;
        loop {
            while let Some(action) = self.proto.poll() {
                moved = true;
                self.act_on(wire, action)?;
            }
            // only now is nothing half done, and a snapshot whole
            let Some((from, id, what)) = self.saves.pop_front() else { break };
            self.answer_control(wire, from, id, what);
            if self.snapshot_due {
                self.take_snapshot()?;
            }
        }
        self.keep_first_values();
        // nobody hears of it before it is kept
        if self.snapshot_due {
            self.take_snapshot()?;
        }
        Ok(moved)
    }

    /// A device may have something to do now that is not over.
    fn starts(&mut self) {
        if let Some(on_device) = &mut self.on_device {
            on_device.starts();
        }
    }

    /// The device was told to read what these workers pushed: they are answered behind that, and push again then.
    fn reads(&mut self, shard: ShardKey, workers: &[usize]) {
        let behind = self.behind();
        if let Some(memory) = self.shards.get_mut(shard) {
            workers.iter().for_each(|worker| memory.slots[*worker].read_by = behind);
        }
    }

    /// The device was told to copy so many bytes between its memory and the host's.
    pub(super) fn has_carried(&mut self, bytes: u64) {
        if bytes > 0 {
            self.starts();
            self.copies.add(CopyPurpose::StoreStaging, bytes);
        }
    }

    fn answer_control(
        &mut self,
        wire: &mut dyn Wire,
        from: Identity,
        id: RequestId,
        what: Control,
    ) {
        let answer = match self.worker(from.rank) {
            Some(worker) => {
                let answer = self.control(wire, worker, what);
                // without direct writes, messages are of any size
                let room = wire.direct_from().map(|_| wire.message_bytes_max(from.rank));
                match room {
                    Some(room) => that_fits(answer, room),
                    None => answer,
                }
            }
            None => Answer::Refused { why: RequestRefusal::Foreign },
        };
        self.proto.on_done(from, id, answer);
    }

    fn act_on(&mut self, wire: &mut dyn Wire, action: ServerAction) -> Result<(), StoreError> {
        match action {
            ServerAction::Create { shard, spec } => {
                if let Err(error) = self.create(wire, shard, spec) {
                    self.shards.remove(shard);
                    self.proto.on_not_created(shard, &error.to_string());
                }
            }
            ServerAction::Place { to, id, shard, rounds } => {
                if let Some(worker) = self.worker(to.rank) {
                    let memory = self.shards.get(shard);
                    let slot = memory.and_then(|memory| memory.slots[worker].buffer.as_ref());
                    let slot = slot.filter(|_| wire.direct_from().is_some());
                    let on_device = self.on_device.as_ref();
                    let place = slot.and_then(|slot| match slot.space().is_device() {
                        true => on_device?.reached.place(slot),
                        false => self.pool.place(slot),
                    });
                    let what = Answer::Placed { place, rounds };
                    self.reply(worker, Reply { id, what });
                }
            }
            ServerAction::Seed { shard, worker } => {
                let rank = self.options.workers[worker].rank;
                let (purpose, copied) = self.shards.seed(shard, worker, &View { wire, rank })?;
                self.starts();
                self.reads(shard, &[worker]);
                self.copies.add(purpose, copied);
                self.is_seeding = true;
            }
            ServerAction::Apply { shard, workers, .. } => {
                let ranks = self.options.workers.iter().map(|worker| worker.rank);
                let views: Vec<View<'_>> = ranks.map(|rank| View { wire, rank }).collect();
                let carried = self.shards.carry_in(shard, &workers, &views)?;
                self.has_carried(carried);
                let applied = self.shards.apply(shard, &workers, &views, self.update.as_mut())?;
                self.starts();
                self.reads(shard, &workers);
                if let Err(why) = applied {
                    self.proto.on_not_applied(&why);
                }
                self.counters.updates += 1;
                self.updates_since_snapshot += 1;
            }
            ServerAction::Reply { to, reply } => {
                if let Some(worker) = self.worker(to.rank) {
                    self.reply(worker, reply);
                }
            }
            ServerAction::Send { to, id, shard, version, priority, into, sparse } => {
                if let Some(worker) = self.worker(to.rank) {
                    let value =
                        super::answers::Value { id, shard, version, priority, into, sparse };
                    self.send(wire, worker, value)?;
                }
            }
            ServerAction::Control { from, id, what } => match what {
                Control::Save { .. } | Control::Load { .. } => {
                    self.saves.push_back((from, id, what));
                }
                what => self.answer_control(wire, from, id, what),
            },
        }
        Ok(())
    }
}

/// The answer, or a refusal in its place that fits a message with so much room.
fn that_fits(answer: Answer, room: usize) -> Answer {
    let room = room.saturating_sub(2 * ENTRY_BYTES);
    let why = match answer {
        Answer::Returned { body } if body.len() > room => {
            format!("it returns {} bytes, and a message has room for {room}", body.len())
        }
        Answer::Refused { why: RequestRefusal::Failed(why) } if why.len() > room => {
            why.chars().take(room / 4).collect()
        }
        fits => return fits,
    };
    Answer::Refused { why: RequestRefusal::Failed(why) }
}

/// The blocks that a request brought; none where the bytes are in place.
#[derive(Clone, Copy, Default)]
struct CarriedBytes<'a> {
    value: Option<&'a [u8]>,
    indices: Option<&'a [u8]>,
}

fn row_count(spec: &ValueSpec, rows: Rows, rows_max: usize) -> Result<usize, String> {
    let count = usize::try_from(rows.count).ok().filter(|count| *count <= rows_max);
    match count {
        _ if spec.columns < 2 => Err(format!("{spec} has no rows to name")),
        Some(count) => Ok(count),
        None => Err(format!("{} rows of {}", rows.count, spec.rows)),
    }
}

fn check_indices(spec: &ValueSpec, indices: &[u8]) -> Result<(), String> {
    let mut before = 0;
    for index in indices_of(indices) {
        let is_there = usize::try_from(index).is_ok_and(|index| index < spec.rows);
        if index < before || !is_there {
            return Err(format!("row {index} behind row {before} of {}", spec.rows));
        }
        before = index;
    }
    Ok(())
}
