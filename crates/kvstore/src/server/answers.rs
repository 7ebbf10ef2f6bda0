//! Answers as they go: replies to one worker share messages, large values are written straight into its
//! tensors from where the weights are.

use std::collections::VecDeque;

use tensorwire_base::Rank;
use tensorwire_memory::CopyPurpose;

use super::Core;
use super::on_device::{Behind, OnDevice};
use crate::batch::{Batch, Bypass, Bytes, ENTRY_BYTES};
use crate::error::StoreError;
use crate::key::ShardKey;
use crate::message::{Answer, Carried, Reply, RequestId, RequestRefusal};
use crate::ports::DeviceReach;
use crate::transfer::TransferMode;
use crate::wire::{RemotePlace, SendStatus, Wire, WireError};

/// Most bytes of direct values to one worker that are under way: what has more priority overtakes the rest.
const WINDOW_BYTES: usize = 8 << 20;

/// What waits to go to a worker.
#[derive(Debug)]
pub(super) struct Outbox {
    rank: Rank,
    /// Without a value, in their order. They go first.
    replies: VecDeque<Entry>,
    /// By priority, the largest first, and in their order.
    values: VecDeque<Entry>,
    /// A message that found no room.
    stuck: Option<(Batch, Vec<ShardKey>)>,
    is_open: bool,
}

/// A reply, and the value that goes with it.
#[derive(Debug)]
struct Entry {
    reply: Reply,
    value: Option<(ShardKey, Sent)>,
    priority: i32,
    /// What the device does first.
    behind: Behind,
}

/// How a value goes.
#[derive(Debug)]
enum Sent {
    /// In the message.
    Block(Bytes),
    Direct {
        bytes: Bytes,
        to: RemotePlace,
    },
}

/// A value that is being written into a worker's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    pub(super) shard: ShardKey,
    worker: usize,
    bytes: usize,
}

/// An answer that is a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) id: RequestId,
    pub(super) shard: ShardKey,
    pub(super) version: u64,
    pub(super) priority: i32,
    pub(super) into: Option<RemotePlace>,
    pub(super) sparse: bool,
}

impl Outbox {
    pub(super) fn new(rank: Rank) -> Outbox {
        let (replies, values) = (VecDeque::new(), VecDeque::new());
        Outbox { rank, replies, values, stuck: None, is_open: true }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.values.is_empty() && self.stuck.is_none()
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    fn push(&mut self, entry: Entry) {
        if !self.is_open {
            return;
        }
        if entry.value.is_none() {
            self.replies.push_back(entry);
            return;
        }
        let place = self.values.partition_point(|before| before.priority >= entry.priority);
        self.values.insert(place, entry);
    }

    /// Where what goes next is the first: what waits for the device lets pass what does not.
    fn next(&mut self, has_passed: impl Fn(Behind) -> bool) -> Option<&mut VecDeque<Entry>> {
        let mut queues = [&mut self.replies, &mut self.values].into_iter();
        queues.find(|queue| queue.front().is_some_and(|entry| has_passed(entry.behind)))
    }

    pub(super) fn close(&mut self) {
        self.is_open = false;
    }

    /// Forgets all that waits; returns the shards whose values will not go, and the tokens of direct values that
    /// were never posted.
    pub(super) fn abandon(&mut self) -> (Vec<ShardKey>, Vec<u64>) {
        let stuck = self.stuck.take();
        let tokens = stuck.iter().flat_map(|(batch, _)| batch.tokens()).collect();
        let stuck = stuck.map(|(_, shards)| shards).unwrap_or_default();
        self.replies.clear();
        let waiting = self.values.drain(..).filter_map(|entry| Some(entry.value?.0));
        (stuck.into_iter().chain(waiting).collect(), tokens)
    }
}

impl Core {
    /// All that an answer waits for that is queued now.
    pub(super) fn behind(&self) -> Behind {
        self.on_device.as_ref().map(OnDevice::behind).unwrap_or_default()
    }

    /// Queues an answer without a value.
    pub(super) fn reply(&mut self, worker: usize, reply: Reply) {
        let behind = self.behind();
        self.outboxes[worker].push(Entry { reply, value: None, priority: 0, behind });
    }

    /// Queues a value for a worker.
    pub(super) fn send(
        &mut self,
        wire: &mut dyn Wire,
        worker: usize,
        value: Value,
    ) -> Result<(), StoreError> {
        let Value { id, shard, version, priority, into, sparse } = value;
        let rank = self.outboxes[worker].rank;
        if !self.outboxes[worker].is_open() {
            self.proto.on_sent(shard);
            return Ok(());
        }
        if !sparse {
            let carried = self.shards.carry_out(shard)?;
            self.has_carried(carried);
        }
        let Some(memory) = self.shards.get(shard) else { return Ok(()) };
        let is_on_device = memory.shown().space().is_device();
        let reach = self.on_device.as_ref().map(|on_device| on_device.reach);
        let is_by_nic = is_on_device && reach == Some(DeviceReach::ByNic);
        let bytes = match sparse {
            false => {
                let buffer = memory.shown().clone();
                Bytes::Of { buffer, offset: 0, bytes: memory.spec.bytes() }
            }
            true => {
                let Some(rows) = self.shards.gather(shard, worker, self.update.as_ref())? else {
                    let why = RequestRefusal::Failed(format!(
                        "shard {} is not rounded from anything that is kept here",
                        shard.0
                    ));
                    self.proto.on_sent(shard);
                    self.reply(worker, Reply { id, what: Answer::Refused { why } });
                    return Ok(());
                };
                // fits: sizes in memory; so below
                self.copies.add(CopyPurpose::Rows, rows.len() as u64);
                Bytes::Own(rows)
            }
        };
        let fits = |into: RemotePlace| {
            let (_, region_bytes) = into.region;
            let end = into.offset.checked_add(into.bytes);
            let opened = self.opened.get(&(worker, into.key()));
            let is_known = opened.is_some_and(|opened| opened.bytes == region_bytes);
            // fits: a size in memory
            let is_large = into.bytes >= bytes.len() as u64;
            // nobody writes into a device's memory, nor from one, but NICs
            let is_host = !into.on_device && (!is_on_device || is_by_nic || sparse);
            is_host && is_known && is_large && end.is_some_and(|end| end <= region_bytes)
        };
        // it is read where it is; nobody changes it until the worker says that it has it
        let mode = wire.sizes(rank).mode(bytes.len(), sparse);
        let is_shown = mode == TransferMode::PeerMapped || (is_on_device && !is_by_nic && !sparse);
        let is_mapped = is_shown && into.is_none();
        // without direct writes, messages are of any size
        let room = wire.direct_from().map(|_| wire.message_bytes_max(rank));
        let is_small = || {
            // what lies on a device is put into no message
            let fits = || room.is_none_or(|room| bytes.len() + 2 * ENTRY_BYTES <= room);
            is_mapped || (fits() && (!is_on_device || sparse))
        };
        if !into.map_or_else(is_small, fits) {
            let why = RequestRefusal::Failed(format!(
                "{} bytes were pulled into a place that does not hold them",
                bytes.len()
            ));
            self.proto.on_sent(shard);
            self.reply(worker, Reply { id, what: Answer::Refused { why } });
            return Ok(());
        }
        self.counters.pulls += 1;
        self.counters.bytes_pulled += bytes.len() as u64;
        let pool = self.on_device.as_ref().filter(|_| is_on_device);
        let pool = pool.map_or(&self.pool, |on_device| &on_device.reached);
        let place = self.shards.get(shard).and_then(|memory| pool.place(memory.shown()));
        if let Some(place) = place.filter(|_| is_mapped) {
            if let Some(before) = self.mapped.insert((worker, id), shard) {
                // asked again: it is mapped once
                self.proto.on_sent(before);
            }
            let what = Answer::Value { version, value: Carried::There(place) };
            self.reply(worker, Reply { id, what });
            return Ok(());
        }
        let sent = match (into, bytes) {
            (Some(to), Bytes::Own(rows)) => {
                // what was gathered is written from registered memory
                let buffer = self.pool.alloc(wire, rows.len())?;
                let lent =
                    |source: tensorwire_memory::LoanError| StoreError::Update(source.to_string());
                let mut registered = buffer.write().map_err(lent)?;
                self.copies.copy(CopyPurpose::Rows, &rows, &mut registered);
                drop(registered);
                let bytes = Bytes::Of { buffer, offset: 0, bytes: rows.len() };
                Sent::Direct { bytes, to }
            }
            (Some(to), bytes) => Sent::Direct { bytes, to },
            (None, bytes) => Sent::Block(bytes),
        };
        let reply = Reply { id, what: Answer::Value { version, value: Carried::InPlace } };
        let behind = self.behind();
        self.outboxes[worker].push(Entry { reply, value: Some((shard, sent)), priority, behind });
        Ok(())
    }

    /// Sends what waits, as far as there is room; true if something went.
    pub(super) fn answer(&mut self, wire: &mut dyn Wire) -> Result<bool, StoreError> {
        let mut moved = match &mut self.on_device {
            Some(on_device) => on_device.progress()?,
            None => false,
        };
        for worker in 0..self.outboxes.len() {
            if let Some((batch, shards)) = self.outboxes[worker].stuck.take()
                && !self.post(wire, worker, batch, shards)?
            {
                continue;
            }
            while let Some((batch, shards)) = self.batch(wire, worker)? {
                moved = true;
                if !self.post(wire, worker, batch, shards)? {
                    break;
                }
            }
        }
        Ok(moved)
    }

    fn post(
        &mut self,
        wire: &mut dyn Wire,
        worker: usize,
        batch: Batch,
        shards: Vec<ShardKey>,
    ) -> Result<bool, StoreError> {
        let sending = batch.send(wire, self.outboxes[worker].rank);
        match sending {
            Ok(SendStatus::Full) => {
                self.outboxes[worker].stuck = Some((batch, shards));
                return Ok(false);
            }
            Ok(SendStatus::Started) => {}
            // the wire says so itself, once all that came from it was handed out. Nothing of the message was taken: its values
            // go no more, those that bypass it among them
            Err(StoreError::Wire(WireError::Lost { .. })) => {
                self.outboxes[worker].stuck = Some((batch, shards));
                self.forget(worker);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        // what travels in the message has been copied, or is nobody's any more
        shards.into_iter().for_each(|shard| self.proto.on_sent(shard));
        Ok(self.outboxes[worker].is_open())
    }

    /// The next replies to a worker that fit one message, and the shards whose values are among its blocks.
    fn batch(
        &mut self,
        wire: &dyn Wire,
        worker: usize,
    ) -> Result<Option<(Batch, Vec<ShardKey>)>, StoreError> {
        let (mut batch, mut shards) = (Batch::default(), Vec::new());
        let room = wire.message_bytes_max(self.outboxes[worker].rank);
        let under_way = self.sending.values().filter(|direct| direct.worker == worker);
        let (mut directs, mut direct_bytes) =
            under_way.fold((0, 0), |(count, bytes), direct| (count + 1, bytes + direct.bytes));
        loop {
            let on_device = self.on_device.as_ref();
            let has_passed = |behind| on_device.is_none_or(|device| device.has_passed(behind));
            let Some(queue) = self.outboxes[worker].next(has_passed) else { break };
            let Some(entry) = queue.front() else { break };
            let bytes = match (&entry.value, &entry.reply.what) {
                (Some((_, Sent::Block(bytes))), _) => bytes.len(),
                (_, Answer::Returned { body }) => body.len(),
                (_, Answer::Refused { why: RequestRefusal::Failed(why) }) => why.len(),
                _ => 0,
            };
            let is_direct = matches!(entry.value, Some((_, Sent::Direct { .. })));
            let is_full = batch.bytes() + bytes + 2 * ENTRY_BYTES > room;
            let has_enough = direct_bytes >= WINDOW_BYTES || directs > 64;
            let is_busy = is_direct && (has_enough || batch.is_behind_much());
            if (is_full && !batch.is_empty()) || is_busy {
                break;
            }
            let Some(Entry { mut reply, value, .. }) = queue.pop_front() else { break };
            let carried = match value {
                None => None,
                Some((shard, Sent::Block(bytes))) => {
                    shards.push(shard);
                    Some(batch.block(bytes))
                }
                Some((shard, Sent::Direct { bytes: Bytes::Of { buffer, offset, bytes }, to })) => {
                    self.next_token += 1;
                    let token = self.next_token;
                    self.sending.insert(token, Direct { shard, worker, bytes });
                    (directs, direct_bytes) = (directs + 1, direct_bytes + bytes);
                    Some(batch.bypass(Bypass { from: buffer, offset, bytes, to, token }))
                }
                Some((shard, Sent::Direct { bytes, .. })) => {
                    shards.push(shard);
                    Some(batch.block(bytes))
                }
            };
            if let (Answer::Value { value, .. }, Some(carried)) = (&mut reply.what, carried) {
                *value = carried;
            }
            batch.entry(&reply)?;
        }
        Ok((!batch.is_empty()).then_some((batch, shards)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, priority: i32, is_value: bool) -> Entry {
        let reply = Reply { id: RequestId(id), what: Answer::Done };
        let value = is_value.then(|| (ShardKey(id), Sent::Block(Bytes::Own(Vec::new()))));
        Entry { reply, value, priority, behind: Behind::default() }
    }

    #[test]
    fn replies_go_before_values_and_of_these_the_larger_priority() {
        let mut outbox = Outbox::new(Rank(0));
        let values = [(1, -7), (2, -7), (3, -2), (4, -9), (5, -2)];
        values.iter().for_each(|(id, priority)| outbox.push(entry(*id, *priority, true)));
        outbox.push(entry(6, 0, false));
        outbox.push(entry(7, 0, false));
        let next = || outbox.next(|_| true).and_then(VecDeque::pop_front);
        let order: Vec<u64> = std::iter::from_fn(next).map(|entry| entry.reply.id.0).collect();
        assert_eq!(order, [6, 7, 3, 5, 1, 2, 4]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_reply_that_waits_for_the_device_keeps_no_value_waiting() {
        let mut outbox = Outbox::new(Rank(0));
        outbox.push(Entry { behind: Behind(1), ..entry(1, 0, false) });
        outbox.push(entry(2, 0, true));
        let mut next = |passed| outbox.next(|behind| behind.0 <= passed)?.pop_front();
        assert_eq!(next(0).map(|entry| entry.reply.id), Some(RequestId(2)));
        assert!(next(0).is_none());
        assert_eq!(next(1).map(|entry| entry.reply.id), Some(RequestId(1)));
    }

    #[test]
    fn what_is_abandoned_names_the_values_that_will_not_go() {
        let mut outbox = Outbox::new(Rank(0));
        outbox.push(entry(1, 0, true));
        outbox.push(entry(2, 5, true));
        outbox.push(entry(3, 0, false));
        assert_eq!(outbox.abandon(), (vec![ShardKey(2), ShardKey(1)], vec![]));
        outbox.close();
        outbox.push(entry(4, 0, true));
        assert!(outbox.is_empty());
    }
}
