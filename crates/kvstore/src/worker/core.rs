//! What a worker's end knows: values and where their shards live, handles, operations under way, the log of
//! pushes that no snapshot holds yet.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tensorwire_base::{Clock, Rank};
use tensorwire_memory::{Buffer, Copies, CopyPurpose};

use super::{KvHandle, KvProgress, KvWorkerOptions};
use crate::batch::{Bytes, entries};
use crate::error::StoreError;
use crate::key::{Key, ShardKey, ValueSpec};
use crate::message::{Carried, Reply};
use crate::partition::Shard;
use crate::pool::Pool;
use crate::ports::Reduce;
use crate::proto::{Worker, WorkerEvent};
use crate::transfer::TransferMode;
use crate::wire::{Incoming, PlaceKey, RemotePlace, Wire, WireError};

use super::link::Link;
use super::on_device::OnDevice;
use super::operations::{Held, Logged, Operation, Pulled, Pulling, ShardHere, ToRead, Value, Work};
use super::shares::{check_rows, check_sizes, portions, share};

/// A wire loses nothing: what is lost with a server is sent again when another took over, not before.
const NEVER_MS: u64 = u64::MAX / 2;

/// What is left of a handle.
#[derive(Debug, Default)]
struct Open {
    /// Its operations are still being added.
    filling: bool,
    undone: usize,
    unsent: usize,
    pushes: usize,
}

/// Everything but the wire.
pub(super) struct Core {
    pub(super) options: KvWorkerOptions,
    pub(super) proto: Worker,
    pub(super) pool: Pool,
    pub(super) on_device: Option<OnDevice>,
    pub(super) links: Vec<Link>,
    pub(super) values: BTreeMap<Key, Value>,
    pub(super) shards: HashMap<ShardKey, ShardHere>,
    pub(super) operations: HashMap<u64, Operation>,
    pub(super) log: BTreeMap<(ShardKey, u64), Logged>,
    /// Direct writes: whose they are.
    pub(super) tokens: HashMap<u64, Option<u64>>,
    pub(super) copies: Copies,
    /// Of values that servers showed: the one move that they make.
    pub(super) bytes_read: u64,
    pub(super) reduce: Box<dyn Reduce>,
    handles: HashMap<KvHandle, Open>,
    returned: HashMap<KvHandle, Vec<u8>>,
    news: VecDeque<KvProgress>,
    /// Somebody takes what is told.
    tells_news: bool,
    /// Memory of servers that is to be opened before anything is written there.
    to_open: Vec<(usize, RemotePlace)>,
    opened: Vec<(usize, PlaceKey)>,
    pub(super) failed: Option<StoreError>,
    /// Operations that no server is asked for, and why not.
    pub(super) unasked: VecDeque<(u64, StoreError)>,
    /// Values that are to be read where a server has them.
    pub(super) to_read: Vec<ToRead>,
    /// What servers leave as it is, because it is read there.
    pub(super) mapped: HashMap<Key, Held>,
    next: u64,
}

impl Core {
    pub(super) fn new(options: KvWorkerOptions, reduce: Box<dyn Reduce>) -> Core {
        let links = options.servers.iter().map(|rank| Link::new(*rank)).collect();
        Core {
            proto: Worker::new(options.servers.len(), NEVER_MS),
            options,
            pool: Pool::default(),
            on_device: None,
            links,
            values: BTreeMap::new(),
            shards: HashMap::new(),
            operations: HashMap::new(),
            log: BTreeMap::new(),
            tokens: HashMap::new(),
            copies: Copies::default(),
            bytes_read: 0,
            reduce,
            handles: HashMap::new(),
            returned: HashMap::new(),
            news: VecDeque::new(),
            tells_news: false,
            to_open: Vec::new(),
            opened: Vec::new(),
            failed: None,
            unasked: VecDeque::new(),
            to_read: Vec::new(),
            mapped: HashMap::new(),
            next: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn open_handle(&mut self) -> KvHandle {
        let handle = KvHandle(self.number());
        self.handles.insert(handle, Open { filling: true, ..Open::default() });
        handle
    }

    /// No more operations are added.
    pub(super) fn close_handle(&mut self, handle: KvHandle) {
        if let Some(open) = self.handles.get_mut(&handle) {
            open.filling = false;
        }
        self.settle(handle);
    }

    pub(super) fn first_open(&self) -> Option<KvHandle> {
        self.handles.keys().min().copied()
    }

    pub(super) fn is_done(&self, handle: KvHandle) -> bool {
        !self.handles.contains_key(&handle)
    }

    pub(super) fn is_sent(&self, handle: KvHandle) -> bool {
        self.handles.get(&handle).is_none_or(|open| open.unsent == 0 && !open.filling)
    }

    pub(super) fn take_returned(&mut self, handle: KvHandle) -> Option<Vec<u8>> {
        self.returned.remove(&handle)
    }

    pub(super) fn tell_news(&mut self) {
        self.tells_news = true;
    }

    pub(super) fn news(&mut self, news: &mut Vec<KvProgress>) {
        news.extend(self.news.drain(..));
    }

    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    pub(super) fn specs(&self) -> Vec<(Key, ValueSpec)> {
        self.values.iter().map(|(key, value)| (*key, value.spec)).collect()
    }

    pub(super) fn missing(&self) -> String {
        let mut waiting: Vec<String> = Vec::new();
        for (index, link) in self.links.iter().enumerate() {
            if let Some(reason) = &link.lost {
                waiting.push(format!("a replacement of server {index} ({reason})"));
            }
        }
        let count = |is: fn(&Work) -> bool| {
            self.operations.values().filter(|operation| is(&operation.work)).count()
        };
        let pushes = count(|work| matches!(work, Work::Push(_)));
        let pulls = count(|work| matches!(work, Work::Pull(_) | Work::Show(_)));
        let others = count(|work| matches!(work, Work::Plain));
        if self.is_busy() {
            waiting.push("this worker's device".to_string());
        }
        waiting.push(format!("{pushes} pushes, {pulls} pulls and {others} other requests"));
        waiting.join(", ")
    }

    pub(super) fn init(
        &mut self,
        handle: KvHandle,
        key: Key,
        spec: ValueSpec,
    ) -> Result<(), StoreError> {
        if !spec.fits_memory() {
            return Err(StoreError::Absurd { spec });
        }
        if let Some(value) = self.values.get(&key) {
            let here = value.spec;
            return match here == spec {
                true => Ok(()),
                false => Err(StoreError::OtherSpec { key, here, told: spec }),
            };
        }
        let shards = self.options.partition.shards(key, &spec)?;
        for shard in &shards {
            let here = ValueSpec { rows: shard.rows.len(), ..spec };
            let operation = self.operation(handle, Work::Plain);
            self.proto.init(operation, shard.server, shard.key, here);
            let server = shard.server;
            self.shards.insert(shard.key, ShardHere { spec: here, server, slot: None });
        }
        self.values.insert(key, Value { spec, shards });
        Ok(())
    }

    /// Whether these tensors can be pushed or filled; returns the bytes of each.
    pub(super) fn check(
        &self,
        key: Key,
        devices: &[Buffer],
        rows: Option<&[i32]>,
    ) -> Result<usize, StoreError> {
        let spec = self.values.get(&key).ok_or(StoreError::NotInitialised { key })?.spec;
        let count = rows.map(|indices| check_rows(key, &spec, indices)).transpose()?;
        let bytes = count.unwrap_or(spec.rows) * spec.row_bytes();
        check_sizes(key, devices, bytes, rows.is_some())?;
        Ok(bytes)
    }

    pub(super) fn pull(
        &mut self,
        wire: &mut dyn Wire,
        handle: KvHandle,
        key: Key,
        devices: &[Buffer],
        pulling: Pulling<'_>,
    ) -> Result<(), StoreError> {
        let (mut spec, shards) = self.value(key)?;
        match pulling.wide {
            None => drop(self.check(key, devices, pulling.rows)?),
            Some(dtype) => {
                spec.dtype = dtype;
                check_sizes(key, devices, spec.bytes(), false)?;
            }
        }
        self.check_reach(wire, key, devices)?;
        let wide = pulling.wide.is_some();
        let Some((into, also)) = devices.split_first() else { return Ok(()) };
        for shard in shards {
            let (range, indices) = share(&shard, &spec, pulling.rows);
            for (bytes, indices) in portions(wire.direct_from(), &spec, range, indices) {
                let sizes = wire.sizes(self.links[shard.server].rank);
                // what a server shows is read by this process, into any memory
                let is_written =
                    sizes.mode(bytes.len(), indices.is_some() || wide) == TransferMode::Written;
                let staging = match is_written && !self.is_registered(into) {
                    true => Some(self.pool.alloc(wire, bytes.len())?),
                    false => None,
                };
                let is_by_nic = is_written && into.space().is_device();
                let (into, also) = (into.clone(), also.to_vec());
                if let (Some(indices), Some(_)) = (&indices, wire.direct_from()) {
                    // fits: a size in memory
                    self.copies.add(CopyPurpose::Rows, indices.len() as u64);
                }
                let indices = indices.map(Bytes::Own);
                let pulled = Pulled { into, bytes, staging, also, indices, wide };
                let operation = self.operation(handle, Work::Pull(pulled));
                self.ask_for(operation, shard.key, pulling.priority, is_by_nic);
            }
        }
        Ok(())
    }

    /// Does one server have all of a value, in memory that is mapped here? Not where that server may be
    /// replaced: then it would lie elsewhere.
    pub(super) fn can_show(&self, wire: &dyn Wire, key: Key) -> Result<bool, StoreError> {
        let (spec, shards) = self.value(key)?;
        let [shard] = shards.as_slice() else { return Ok(false) };
        let sizes = wire.sizes(self.links[shard.server].rank);
        let is_mapped = sizes.mode(spec.bytes(), false) == TransferMode::PeerMapped;
        Ok(is_mapped && !self.options.servers_come_back)
    }

    pub(super) fn show(
        &mut self,
        handle: KvHandle,
        key: Key,
        priority: i32,
    ) -> Result<(), StoreError> {
        let (_, shards) = self.value(key)?;
        for shard in shards {
            let operation = self.operation(handle, Work::Show(key));
            self.proto.pull(operation, shard.key, priority);
        }
        Ok(())
    }

    pub(super) fn mapped(&self, key: Key) -> Option<Buffer> {
        self.mapped.get(&key).map(|held| held.value.clone())
    }

    pub(super) fn release(&mut self, key: Key) {
        if let Some(held) = self.mapped.remove(&key) {
            self.has_read(held);
        }
    }

    /// Tells a server that its value is read: once that is so.
    pub(super) fn has_read(&mut self, Held { server, id, value }: Held) {
        match &mut self.on_device {
            Some(on_device) if value.space().is_device() => on_device.reads(server, id),
            _ => self.links[server].taken.push_back(id),
        }
    }

    /// True if servers know of the memory that a buffer lies in.
    pub(super) fn is_registered(&self, buffer: &Buffer) -> bool {
        let on_device = self.on_device.as_ref();
        self.pool.has(buffer) || on_device.is_some_and(|on_device| on_device.pool.has(buffer))
    }

    /// Another process took over from a server.
    pub(super) fn replaced(&mut self, server: usize, rank: Rank) {
        self.linked_again(server, rank);
        self.options.servers[server] = rank;
        for shard in self.shards.values_mut().filter(|shard| shard.server == server) {
            shard.slot = None;
        }
        self.opened.retain(|(of, _)| *of != server);
        self.proto.on_replaced(server);
    }

    /// Does what can be done now; true if something was.
    pub(super) fn progress(&mut self, wire: &mut dyn Wire) -> Result<bool, StoreError> {
        let mut moved = match wire.receive(&mut |message| self.take(&message)) {
            Ok(count) => count > 0,
            // it is one server's end, which is told below
            Err(WireError::Lost { .. } | WireError::Garbled { .. }) => true,
            Err(error) => return Err(error.into()),
        };
        self.end_unasked();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.notice_lost(wire)?;
        self.open_regions(wire)?;
        self.read_mapped(wire)?;
        moved |= self.finish_reading()?;
        let mut tokens = Vec::new();
        wire.finished(&mut tokens)?;
        for token in tokens {
            moved = true;
            self.left(token);
        }
        for server in 0..self.links.len() {
            moved |= self.pump(wire, server)?;
        }
        wire.flush()?;
        Ok(moved)
    }

    fn notice_lost(&mut self, wire: &mut dyn Wire) -> Result<(), StoreError> {
        let mut lost = Vec::new();
        wire.lost(&mut lost);
        for (rank, reason) in lost {
            let Some(server) = self.links.iter().position(|link| link.rank == rank) else {
                continue;
            };
            self.lose(server, reason)?;
        }
        Ok(())
    }

    fn open_regions(&mut self, wire: &mut dyn Wire) -> Result<(), StoreError> {
        let deadline = tensorwire_base::Deadline::after(self.options.patience);
        for (server, place) in std::mem::take(&mut self.to_open) {
            let known = (server, place.key());
            let is_known = self.opened.contains(&known);
            if !is_known && self.links[server].lost.is_none() {
                let rank = self.links[server].rank;
                match place.open(wire, rank, deadline) {
                    Err(WireError::Lost { reason, .. }) => {
                        self.lose(server, reason)?;
                        continue;
                    }
                    opened => opened?,
                }
                self.opened.push(known);
            }
        }
        Ok(())
    }

    /// A server cannot be reached any more.
    pub(super) fn lose(&mut self, server: usize, reason: String) -> Result<(), StoreError> {
        if !self.options.servers_come_back {
            let rank = self.links[server].rank;
            return Err(StoreError::ServerLost { server, rank, reason });
        }
        self.links[server].lost.get_or_insert(reason);
        Ok(())
    }

    /// Takes a message's replies.
    fn take(&mut self, message: &Incoming<'_>) {
        let rank = message.from;
        let Some(server) = self.links.iter().position(|link| link.rank == rank) else {
            // of a server that was replaced
            return;
        };
        let replies = match entries::<Reply>(message.meta) {
            Ok(replies) => replies,
            Err(what) => {
                self.failed.get_or_insert(StoreError::Nonsense { rank, what });
                return;
            }
        };
        for reply in replies {
            let Some(event) = self.proto.on_reply(server, &reply) else { continue };
            if let WorkerEvent::Value { op, value: Carried::There(place), .. } = event {
                self.to_open.push((server, place));
                self.to_read.push(ToRead { server, op, id: reply.id, place });
                continue;
            }
            // what one answer says is no reason to lose the others
            if let Err(error) = self.on_event(server, event, message) {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn on_event(
        &mut self,
        server: usize,
        event: WorkerEvent,
        message: &Incoming<'_>,
    ) -> Result<(), StoreError> {
        let rank = message.from;
        match event {
            WorkerEvent::Placed { op, shard, place } => {
                let Some(here) = self.shards.get_mut(&shard) else { return Ok(()) };
                // fits: a size of a value that is in memory
                let slot_bytes = here.spec.slot_bytes() as u64;
                if let Some(place) = place {
                    if place.bytes < slot_bytes || place.offset.checked_add(place.bytes).is_none() {
                        let what = format!("{place:?} for pushes of {slot_bytes} bytes");
                        return Err(StoreError::Nonsense { rank, what });
                    }
                    self.to_open.push((server, place));
                }
                here.slot = place;
                self.done(op);
            }
            WorkerEvent::Applied { op, shard, durable, .. } => {
                let kept = if durable == 0 { 0 } else { durable + 1 };
                let over: Vec<_> =
                    self.log.range((shard, 0)..(shard, kept)).map(|(key, _)| *key).collect();
                over.iter().for_each(|key| drop(self.log.remove(key)));
                self.done(op);
            }
            WorkerEvent::Value { op, value, .. } => {
                self.filled(op, value, message)?;
                self.done(Some(op));
            }
            WorkerEvent::Returned { op, body } => {
                if let Some(operation) = self.operations.get(&op) {
                    self.returned.insert(operation.handle, body);
                }
                self.done(Some(op));
            }
            WorkerEvent::Done { op } => self.done(Some(op)),
            WorkerEvent::Refused { op, why, .. } => {
                self.done(op);
                return Err(StoreError::Refused { server, rank, why });
            }
            WorkerEvent::Unfit { shard, rounds, durable, pushed } => {
                let what = format!(
                    "shard {} came back at round {rounds}, but what was pushed here is kept from round {durable} to {pushed} only",
                    shard.0
                );
                return Err(StoreError::Nonsense { rank, what });
            }
        }
        Ok(())
    }

    /// A direct write's source may be written again.
    fn left(&mut self, token: u64) {
        let Some(Some(op)) = self.tokens.remove(&token) else { return };
        if let Some(Operation { work: Work::Push(pushed), .. }) = self.operations.get_mut(&op) {
            pushed.leaving = pushed.leaving.saturating_sub(1);
            if pushed.leaving == 0 {
                self.sent(op);
            }
        }
    }

    /// A push has left this process.
    pub(super) fn sent(&mut self, op: u64) {
        let Some(operation) = self.operations.get_mut(&op) else { return };
        let Work::Push(pushed) = &mut operation.work else { return };
        if pushed.loan.take().is_some() {
            let handle = operation.handle;
            if let Some(open) = self.handles.get_mut(&handle) {
                open.unsent -= 1;
            }
            self.settle(handle);
        }
    }

    pub(super) fn done(&mut self, op: Option<u64>) {
        let Some(op) = op else { return };
        // what was answered has left
        self.sent(op);
        let Some(operation) = self.operations.remove(&op) else { return };
        if let Some(open) = self.handles.get_mut(&operation.handle) {
            open.undone -= 1;
        }
        self.settle(operation.handle);
    }

    fn settle(&mut self, handle: KvHandle) {
        let Some(open) = self.handles.get_mut(&handle).filter(|open| !open.filling) else {
            return;
        };
        let is_sent = open.unsent == 0 && open.pushes > 0;
        if is_sent {
            open.pushes = 0;
        }
        let is_done = open.undone == 0;
        if is_done {
            self.handles.remove(&handle);
        }
        if self.tells_news {
            self.news.extend(is_sent.then_some(KvProgress::Sent(handle)));
            self.news.extend(is_done.then_some(KvProgress::Done(handle)));
        }
    }

    pub(super) fn operation(&mut self, handle: KvHandle, work: Work) -> u64 {
        let number = self.number();
        if let Some(open) = self.handles.get_mut(&handle) {
            let is_push = usize::from(matches!(work, Work::Push(_)));
            open.undone += 1;
            open.unsent += is_push;
            open.pushes += is_push;
        }
        self.operations.insert(number, Operation { handle, work });
        number
    }

    pub(super) fn value(&self, key: Key) -> Result<(ValueSpec, Vec<Shard>), StoreError> {
        let value = self.values.get(&key).ok_or(StoreError::NotInitialised { key })?;
        Ok((value.spec, value.shards.clone()))
    }

    pub(super) fn now_ms() -> u64 {
        Clock::now_ns() / 1_000_000
    }
}
