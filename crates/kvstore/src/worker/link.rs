//! A worker's way to one server: what goes out when, how much at a time.

use std::collections::VecDeque;

use tensorwire_base::Rank;
use tensorwire_memory::Buffer;

use super::core::Core;
use super::operations::{Logged, Operation, Pulled, Pushed, Work};
use crate::batch::{Batch, Bypass, Bytes, ENTRY_BYTES};
use crate::error::StoreError;
use crate::key::ShardKey;
use crate::message::{Ask, Carried, Request, RequestId, Rows};
use crate::proto::{Control, RequestBody, ToSend};
use crate::transfer::{TransferMode, TransferThresholds};
use crate::wire::{RemotePlace, SendStatus, Wire, WireError};

/// Most bytes of direct values to one server that are under way: what has more priority overtakes the rest.
const WINDOW_BYTES: usize = 8 << 20;

/// A server, as this worker reaches it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: Rank,
    /// Why it cannot be reached any more.
    pub(super) lost: Option<String>,
    /// A message that found no room.
    stuck: Option<Batch>,
    /// Pulls whose values have been read where the server has them.
    pub(super) taken: VecDeque<RequestId>,
    /// Tokens of direct writes under way, with their bytes.
    pub(super) leaving: Vec<(u64, usize)>,
}

impl Link {
    pub(super) fn new(rank: Rank) -> Link {
        Link { rank, lost: None, stuck: None, taken: VecDeque::new(), leaving: Vec::new() }
    }
}

impl Core {
    /// Sends what may go to a server now; true if something went.
    pub(super) fn pump(&mut self, wire: &mut dyn Wire, server: usize) -> Result<bool, StoreError> {
        let tokens = &self.tokens;
        self.links[server].leaving.retain(|(token, _)| tokens.contains_key(token));
        if self.links[server].lost.is_some() {
            return Ok(false);
        }
        let mut moved = false;
        if let Some(stuck) = self.links[server].stuck.take() {
            if !self.post(wire, server, stuck)? {
                return Ok(false);
            }
            moved = true;
        }
        loop {
            let batch = self.batch(wire, server)?;
            if batch.is_empty() {
                return Ok(moved);
            }
            if !self.post(wire, server, batch)? {
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// Hands a message to the wire, or keeps it until there is room.
    fn post(
        &mut self,
        wire: &mut dyn Wire,
        server: usize,
        batch: Batch,
    ) -> Result<bool, StoreError> {
        match batch.send(wire, self.links[server].rank) {
            Ok(SendStatus::Full) => {
                self.links[server].stuck = Some(batch);
                Ok(false)
            }
            Ok(SendStatus::Started) => {
                // what travels in the message has been copied
                for op in batch.carries {
                    self.sent(op);
                }
                Ok(true)
            }
            Err(StoreError::Wire(WireError::Lost { reason, .. })) => {
                self.never_left(&batch);
                self.lose(server, reason)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The next requests to a server that fit one message.
    fn batch(&mut self, wire: &dyn Wire, server: usize) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        let room = wire.message_bytes_max(self.links[server].rank);
        while batch.bytes() + ENTRY_BYTES <= room
            && let Some(of) = self.links[server].taken.pop_front()
        {
            batch.entry(&Request { id: of, what: Ask::Taken { of } })?;
        }
        let largest = ENTRY_BYTES + wire.direct_from().unwrap_or(0);
        let now_ms = Core::now_ms();
        while batch.is_empty() || batch.bytes() + 2 * largest <= room {
            // what a user asks may fill a message: it fits one of its own
            let asked = self.proto.next_control(server).map_or(0, Control::payload_bytes);
            if !batch.is_empty() && batch.bytes() + asked + ENTRY_BYTES > room {
                break;
            }
            let under_way: usize = self.links[server].leaving.iter().map(|(_, bytes)| bytes).sum();
            // what carries no value waits for none: a value that is asked for comes the other way meanwhile
            let next = match under_way >= WINDOW_BYTES || batch.is_behind_much() {
                true => self.proto.poll_without_value(server, now_ms),
                false => self.proto.poll(server, now_ms),
            };
            let Some(next) = next else { break };
            let request = self.request(wire, &mut batch, server, next)?;
            batch.entry(&request)?;
        }
        Ok(batch)
    }

    /// Gives a request its bytes.
    fn request(
        &mut self,
        wire: &dyn Wire,
        batch: &mut Batch,
        server: usize,
        next: ToSend,
    ) -> Result<Request, StoreError> {
        let ToSend { id, op, again, what, priority } = next;
        let what = match what {
            // fits: sizes of a value that is in memory
            RequestBody::Init { shard, spec } => Ask::Init {
                shard,
                dtype: spec.dtype as u8,
                rows: spec.rows as u64,
                columns: spec.columns as u64,
            },
            RequestBody::Push { shard, round } => {
                let from_op = op.and_then(|op| self.operations.get(&op));
                let (from, bytes, indices, is_encoded) = match from_op {
                    // what has left once may have been written over since: then the log has it
                    Some(Operation { work: Work::Push(pushed), .. }) if pushed.loan.is_some() => {
                        let Pushed { from, bytes, indices, is_encoded, .. } = pushed;
                        (from.clone(), bytes.clone(), indices.clone(), *is_encoded)
                    }
                    _ => {
                        let logged = self.log.get(&(shard, round)).cloned();
                        let Some(Logged { from, indices, is_encoded }) = logged else {
                            let what = format!("round {round} of shard {} is not kept", shard.0);
                            return Err(StoreError::Update(what));
                        };
                        let bytes = 0..from.bytes();
                        (from, bytes, indices, is_encoded)
                    }
                };
                let bytes = Bytes::Of { buffer: from, offset: bytes.start, bytes: bytes.len() };
                self.push_request(
                    wire,
                    batch,
                    server,
                    Push { shard, round, op, again, bytes, indices, is_encoded },
                )
            }
            RequestBody::Pull { shard, round } => {
                let rank = self.links[server].rank;
                self.pull_request(wire, batch, rank, Pull { shard, round, op, priority })
            }
            RequestBody::Control(control) => control.into(),
        };
        Ok(Request { id, what })
    }

    fn push_request(
        &mut self,
        wire: &dyn Wire,
        batch: &mut Batch,
        server: usize,
        push: Push,
    ) -> Ask {
        let Push { shard, round, op, again, bytes, indices, is_encoded } = push;
        let here = &self.shards[&shard];
        let (slot, at_indices) = (here.slot, here.spec.slot_indices() as u64);
        let (sizes, by_rows) = (wire.sizes(self.links[server].rank), indices.is_some());
        let count = indices.as_ref().map_or(0, Bytes::len) / size_of::<i32>();
        // where there is no slot for the whole, less is shown, too
        let size = if is_encoded { here.spec.bytes() } else { bytes.len() };
        let is_mapped = sizes.mode(size, by_rows) == TransferMode::PeerMapped;
        // fits: a size in memory
        let encoded = is_encoded.then_some(bytes.len() as u64);
        let asked = |value, rows| match encoded {
            Some(bytes) => Ask::PushEncoded { shard, round, value, bytes },
            None => Ask::Push { shard, round, value, rows },
        };
        // the server reads it where it is: it leaves when it is applied
        let place = self.place_of(&bytes).filter(|place| place.on_device || is_mapped);
        if let Some(place) = place {
            return asked(Carried::There(place), None);
        }
        let sent = TransferThresholds { mapped_from: None, ..sizes };
        let mut carried = |this: &mut Core, bytes: Bytes, offset: u64| match (slot, bytes) {
            (Some(slot), Bytes::Of { buffer, offset: start, bytes })
                if sent.mode(bytes, by_rows) == TransferMode::Written =>
            {
                if again {
                    return Carried::InPlace;
                }
                let to = RemotePlace {
                    offset: slot.offset + offset,
                    bytes: slot.bytes - offset,
                    ..slot
                };
                let token = this.token(server, op, bytes);
                batch.bypass(Bypass { from: buffer, offset: start, bytes, to, token })
            }
            (_, bytes) => batch.block(bytes),
        };
        let value = carried(self, bytes, 0);
        let indices = indices.map(|indices| carried(self, indices, at_indices));
        if value != Carried::InPlace && indices != Some(Carried::InPlace) {
            batch.carries.extend(op);
        }
        // fits: a count of rows in memory
        let rows = indices.map(|indices| Rows { count: count as u64, indices });
        asked(value, rows)
    }

    /// How a server finds bytes that it can read where they are.
    fn place_of(&self, bytes: &Bytes) -> Option<RemotePlace> {
        let Bytes::Of { buffer, offset, bytes } = bytes else { return None };
        self.place_in(buffer, *offset, *bytes)
    }

    /// How servers are told of so many bytes of a buffer.
    fn place_in(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Option<RemotePlace> {
        let on_device = || self.on_device.as_ref()?.pool.place(buffer);
        let place = self.pool.place(buffer).or_else(on_device)?;
        // fits: inside the buffer
        Some(RemotePlace { offset: place.offset + offset as u64, bytes: bytes as u64, ..place })
    }

    fn pull_request(
        &mut self,
        wire: &dyn Wire,
        batch: &mut Batch,
        rank: Rank,
        Pull { shard, round, op, priority }: Pull,
    ) -> Ask {
        let operation = op.and_then(|op| self.operations.get(&op));
        let Some(Operation { work: Work::Pull(pulled), .. }) = operation else {
            return Ask::Pull { shard, round, priority, into: None, rows: None, wide: false };
        };
        let Pulled { into, bytes, staging, indices, wide, .. } = pulled;
        let wide = *wide;
        // what both share is read where the server has it
        let mode = wire.sizes(rank).mode(bytes.len(), indices.is_some() || wide);
        let place = |buffer: &Buffer, start: usize| self.place_in(buffer, start, bytes.len());
        let into = match staging {
            _ if mode != TransferMode::Written => None,
            Some(staging) => place(staging, 0),
            None => place(into, bytes.start),
        };
        let rows = indices.clone().map(|indices| Rows {
            // fits: a count of rows in memory
            count: (indices.len() / size_of::<i32>()) as u64,
            indices: batch.block(indices),
        });
        Ask::Pull { shard, round, priority, into, rows, wide }
    }

    /// What a message had beside it goes no more: whoever takes over from the server is sent it again.
    fn never_left(&mut self, batch: &Batch) {
        for token in batch.tokens() {
            let op = self.tokens.remove(&token).flatten();
            let operation = op.and_then(|op| self.operations.get_mut(&op));
            if let Some(Operation { work: Work::Push(pushed), .. }) = operation {
                pushed.leaving = pushed.leaving.saturating_sub(1);
            }
        }
    }

    /// Another process took over from a server.
    pub(super) fn linked_again(&mut self, server: usize, rank: Rank) {
        let before = std::mem::replace(&mut self.links[server], Link::new(rank));
        if let Some(stuck) = before.stuck {
            self.never_left(&stuck);
        }
    }

    fn token(&mut self, server: usize, op: Option<u64>, bytes: usize) -> u64 {
        let token = self.number();
        self.tokens.insert(token, op);
        self.links[server].leaving.push((token, bytes));
        let operation = op.and_then(|op| self.operations.get_mut(&op));
        if let Some(Operation { work: Work::Push(pushed), .. }) = operation {
            pushed.leaving += 1;
        }
        token
    }
}

/// A pull that is about to go.
struct Pull {
    shard: ShardKey,
    round: u64,
    op: Option<u64>,
    priority: i32,
}

/// A push that is about to go.
struct Push {
    shard: ShardKey,
    round: u64,
    op: Option<u64>,
    again: bool,
    bytes: Bytes,
    indices: Option<Bytes>,
    is_encoded: bool,
}
