//! What a worker's end knows: values and where their parts live, tickets, operations under way, the log of
//! pushes that no snapshot holds yet.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use tensorwire_base::{Clock, Rank};
use tensorwire_fabric::RegionDescriptor;
use tensorwire_memory::{Buffer, Copies, CopyPurpose, Loan};

use super::{KvWorkerOptions, Progress, Ticket};
use crate::batch::{Bytes, entries};
use crate::error::StoreError;
use crate::key::{Key, PartKey, ValueSpec};
use crate::message::{Carried, Reply, RequestId};
use crate::partition::Part;
use crate::pool::Pool;
use crate::ports::Reduce;
use crate::proto::{Control, Worker, WorkerEvent};
use crate::travels::Travels;
use crate::wire::{Incoming, RemotePlace, Wire, WireError};

use super::link::Link;
use super::shares::{check_rows, check_sizes, overflow, portions, share};

/// A wire loses nothing: what is lost with a server is sent again when another took over, not before.
const NEVER_MS: u64 = u64::MAX / 2;

/// How a push goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pushing<'a> {
    pub(super) priority: i32,
    pub(super) rows: Option<&'a [i32]>,
    /// It is the first value.
    pub(super) is_first: bool,
}

/// How a pull goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulling<'a> {
    pub(super) priority: i32,
    pub(super) rows: Option<&'a [i32]>,
}

/// A value that was initialised here.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) spec: ValueSpec,
    pub(super) parts: Vec<Part>,
}

/// A part of one.
#[derive(Clone, Debug)]
pub(super) struct PartHere {
    pub(super) spec: ValueSpec,
    pub(super) server: usize,
    /// Where this worker's pushes are written.
    pub(super) slot: Option<RemotePlace>,
}

/// Something to send or to fill.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) ticket: Ticket,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// Nothing to carry.
    Plain,
    Push(Pushed),
    Pull(Pulled),
    /// A pull that moves nothing.
    Show(Key),
}

/// The bytes of a push of one part.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) from: Buffer,
    pub(super) bytes: Range<usize>,
    /// The rows that it is about, i32.
    pub(super) indices: Option<Bytes>,
    /// Taken back when the value has left.
    pub(super) loan: Option<Loan>,
    /// Direct writes that are under way.
    pub(super) leaving: usize,
}

/// The bytes that a pull of one part fills.
#[derive(Debug)]
pub(super) struct Pulled {
    /// Not lent while a server writes there: of a value on several servers one part may be on its way in while
    /// another, in the same loan, is still being pushed from here. So whoever pulls keeps readers out.
    pub(super) into: Buffer,
    pub(super) bytes: Range<usize>,
    /// Registered memory to stand in for `into`, which is none.
    pub(super) staging: Option<Buffer>,
    /// Other devices' tensors, filled from it.
    pub(super) also: Vec<Buffer>,
    pub(super) indices: Option<Bytes>,
}

/// A push that no snapshot is known to hold.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) from: Buffer,
    pub(super) indices: Option<Bytes>,
}

/// What is left of a ticket.
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
    pub(super) links: Vec<Link>,
    pub(super) values: BTreeMap<Key, Value>,
    pub(super) parts: HashMap<PartKey, PartHere>,
    pub(super) operations: HashMap<u64, Operation>,
    pub(super) log: BTreeMap<(PartKey, u64), Logged>,
    /// Direct writes: whose they are.
    pub(super) tokens: HashMap<u64, Option<u64>>,
    pub(super) copies: Copies,
    /// Of values that servers showed: the one move that they make.
    pub(super) bytes_read: u64,
    pub(super) reduce: Box<dyn Reduce>,
    tickets: HashMap<Ticket, Open>,
    returned: HashMap<Ticket, Vec<u8>>,
    news: VecDeque<Progress>,
    /// Memory of servers that is to be opened before anything is written there.
    to_open: Vec<(usize, RegionDescriptor)>,
    opened: Vec<(usize, u64)>,
    failed: Option<StoreError>,
    /// Values that are to be read where a server has them.
    pub(super) to_read: Vec<ToRead>,
    /// What servers leave as it is, because it is read there.
    pub(super) shown: HashMap<Key, Held>,
    next: u64,
}

/// A value that is read where its server has it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) server: usize,
    pub(super) id: RequestId,
    pub(super) value: Buffer,
}

/// A value that a server shows.
#[derive(Debug)]
pub(super) struct ToRead {
    pub(super) server: usize,
    pub(super) op: u64,
    pub(super) id: RequestId,
    pub(super) place: RemotePlace,
}

impl Core {
    pub(super) fn new(options: KvWorkerOptions, reduce: Box<dyn Reduce>) -> Core {
        let links = options.servers.iter().map(|rank| Link::new(*rank)).collect();
        Core {
            proto: Worker::new(options.servers.len(), NEVER_MS),
            options,
            pool: Pool::default(),
            links,
            values: BTreeMap::new(),
            parts: HashMap::new(),
            operations: HashMap::new(),
            log: BTreeMap::new(),
            tokens: HashMap::new(),
            copies: Copies::default(),
            bytes_read: 0,
            reduce,
            tickets: HashMap::new(),
            returned: HashMap::new(),
            news: VecDeque::new(),
            to_open: Vec::new(),
            opened: Vec::new(),
            failed: None,
            to_read: Vec::new(),
            shown: HashMap::new(),
            next: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn open_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.number());
        self.tickets.insert(ticket, Open { filling: true, ..Open::default() });
        ticket
    }

    /// No more operations are added.
    pub(super) fn close_ticket(&mut self, ticket: Ticket) {
        if let Some(open) = self.tickets.get_mut(&ticket) {
            open.filling = false;
        }
        self.settle(ticket);
    }

    pub(super) fn first_open(&self) -> Option<Ticket> {
        self.tickets.keys().min().copied()
    }

    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        !self.tickets.contains_key(&ticket)
    }

    pub(super) fn take_returned(&mut self, ticket: Ticket) -> Option<Vec<u8>> {
        self.returned.remove(&ticket)
    }

    pub(super) fn news(&mut self, news: &mut Vec<Progress>) {
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
        waiting.push(format!("{pushes} pushes, {pulls} pulls and {others} other requests"));
        waiting.join(", ")
    }

    pub(super) fn init(
        &mut self,
        ticket: Ticket,
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
        let parts = self.options.partition.parts(key, &spec)?;
        for part in &parts {
            let here = ValueSpec { rows: part.rows.len(), ..spec };
            let operation = self.operation(ticket, Work::Plain);
            self.proto.init(operation, part.server, part.key, here);
            let server = part.server;
            self.parts.insert(part.key, PartHere { spec: here, server, slot: None });
        }
        self.values.insert(key, Value { spec, parts });
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

    pub(super) fn push(
        &mut self,
        wire: &mut dyn Wire,
        ticket: Ticket,
        key: Key,
        devices: &[Buffer],
        pushing: Pushing<'_>,
    ) -> Result<(), StoreError> {
        let bytes = self.check(key, devices, pushing.rows)?;
        let (spec, parts) = self.value(key)?;
        let mut from = self.merged(wire, key, &spec, devices, bytes)?;
        let mut rows = pushing.rows.map(Cow::Borrowed);
        if let Some(indices) = rows.as_deref().filter(|rows| overflow(&parts, &spec, rows)) {
            let (sums, of) = self.added(wire, key, &spec, indices, &from)?;
            (from, rows) = (sums, Some(Cow::Owned(of)));
        }
        for part in parts {
            let (range, indices) = share(&part, &spec, rows.as_deref());
            let indices = indices.map(|indices| self.indices(wire, indices)).transpose()?;
            let loan =
                from.lend().map_err(|source| StoreError::Lent { key, what: source.to_string() })?;
            let pushed =
                Pushed { from: from.clone(), bytes: range, indices, loan: Some(loan), leaving: 0 };
            let logged = self.options.servers_come_back.then(|| self.log_entry(wire, &pushed));
            let logged = logged.transpose()?;
            let operation = self.operation(ticket, Work::Push(pushed));
            let round = match pushing.is_first {
                true => {
                    self.proto.seed(operation, part.key, pushing.priority);
                    0
                }
                false => self.proto.push(operation, part.key, pushing.priority),
            };
            if let Some(logged) = logged {
                self.log.insert((part.key, round), logged);
            }
        }
        Ok(())
    }

    pub(super) fn pull(
        &mut self,
        wire: &mut dyn Wire,
        ticket: Ticket,
        key: Key,
        devices: &[Buffer],
        pulling: Pulling<'_>,
    ) -> Result<(), StoreError> {
        self.check(key, devices, pulling.rows)?;
        let (spec, parts) = self.value(key)?;
        let Some((into, also)) = devices.split_first() else { return Ok(()) };
        for part in parts {
            let (range, indices) = share(&part, &spec, pulling.rows);
            for (bytes, indices) in portions(wire.direct_from(), &spec, range, indices) {
                let sizes = wire.sizes(self.links[part.server].rank);
                // what a server shows is read by this process, into any memory
                let is_written = sizes.travels(bytes.len(), indices.is_some()) == Travels::Written;
                let staging = match is_written && !self.pool.has(into) {
                    true => Some(self.pool.alloc(wire, bytes.len())?),
                    false => None,
                };
                let (into, also) = (into.clone(), also.to_vec());
                if let (Some(indices), Some(_)) = (&indices, wire.direct_from()) {
                    // fits: a size in memory
                    self.copies.add(CopyPurpose::Rows, indices.len() as u64);
                }
                let indices = indices.map(Bytes::Own);
                let pulled = Pulled { into, bytes, staging, also, indices };
                let operation = self.operation(ticket, Work::Pull(pulled));
                self.proto.pull(operation, part.key, pulling.priority);
            }
        }
        Ok(())
    }

    /// Does one server have all of a value, in memory that is mapped here? Not where that server may be
    /// replaced: then it would lie elsewhere.
    pub(super) fn can_show(&self, wire: &dyn Wire, key: Key) -> Result<bool, StoreError> {
        let (spec, parts) = self.value(key)?;
        let [part] = parts.as_slice() else { return Ok(false) };
        let sizes = wire.sizes(self.links[part.server].rank);
        let is_shown = sizes.travels(spec.bytes(), false) == Travels::Shown;
        Ok(is_shown && !self.options.servers_come_back)
    }

    pub(super) fn show(
        &mut self,
        ticket: Ticket,
        key: Key,
        priority: i32,
    ) -> Result<(), StoreError> {
        let (_, parts) = self.value(key)?;
        for part in parts {
            let operation = self.operation(ticket, Work::Show(key));
            self.proto.pull(operation, part.key, priority);
        }
        Ok(())
    }

    pub(super) fn shown(&self, key: Key) -> Option<Buffer> {
        self.shown.get(&key).map(|held| held.value.clone())
    }

    pub(super) fn release(&mut self, key: Key) {
        if let Some(Held { server, id, .. }) = self.shown.remove(&key) {
            self.links[server].taken.push(id);
        }
    }

    pub(super) fn ask(&mut self, ticket: Ticket, server: usize, what: Control) {
        let operation = self.operation(ticket, Work::Plain);
        self.proto.ask(operation, server, what);
    }

    /// Another process took over from a server.
    pub(super) fn replaced(&mut self, server: usize, rank: Rank) {
        self.links[server] = Link::new(rank);
        self.options.servers[server] = rank;
        for part in self.parts.values_mut().filter(|part| part.server == server) {
            part.slot = None;
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
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.notice_lost(wire)?;
        self.open_regions(wire)?;
        self.read_shown(wire)?;
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
        for (server, region) in std::mem::take(&mut self.to_open) {
            let is_known = self.opened.contains(&(server, region.key));
            if !is_known && self.links[server].lost.is_none() {
                let rank = self.links[server].rank;
                match wire.open_region(rank, region, deadline) {
                    Err(WireError::Lost { reason, .. }) => {
                        self.lose(server, reason)?;
                        continue;
                    }
                    opened => opened?,
                }
                self.opened.push((server, region.key));
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
                let (key, bytes) = place.region;
                self.to_open.push((server, RegionDescriptor { key, bytes }));
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
            WorkerEvent::Placed { op, part, place } => {
                let Some(here) = self.parts.get_mut(&part) else { return Ok(()) };
                // fits: a size of a value that is in memory
                let slot_bytes = here.spec.slot_bytes() as u64;
                if let Some(place) = place {
                    if place.bytes < slot_bytes {
                        let what = format!("{} bytes for pushes of {slot_bytes}", place.bytes);
                        return Err(StoreError::Nonsense { rank, what });
                    }
                    let (key, bytes) = place.region;
                    self.to_open.push((server, RegionDescriptor { key, bytes }));
                }
                here.slot = place;
                self.done(op);
            }
            WorkerEvent::Folded { op, part, durable, .. } => {
                let kept = if durable == 0 { 0 } else { durable + 1 };
                let over: Vec<_> =
                    self.log.range((part, 0)..(part, kept)).map(|(key, _)| *key).collect();
                over.iter().for_each(|key| drop(self.log.remove(key)));
                self.done(op);
            }
            WorkerEvent::Value { op, value, .. } => {
                self.filled(op, value, message)?;
                self.done(Some(op));
            }
            WorkerEvent::Returned { op, body } => {
                if let Some(operation) = self.operations.get(&op) {
                    self.returned.insert(operation.ticket, body);
                }
                self.done(Some(op));
            }
            WorkerEvent::Done { op } => self.done(Some(op)),
            WorkerEvent::Refused { op, why, .. } => {
                self.done(op);
                return Err(StoreError::Refused { server, rank, why });
            }
            WorkerEvent::Unfit { part, rounds, durable, pushed } => {
                let what = format!(
                    "part {} came back at round {rounds}, but what was pushed here is kept from round {durable} to {pushed} only",
                    part.0
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
            let ticket = operation.ticket;
            if let Some(open) = self.tickets.get_mut(&ticket) {
                open.unsent -= 1;
            }
            self.settle(ticket);
        }
    }

    pub(super) fn done(&mut self, op: Option<u64>) {
        let Some(op) = op else { return };
        // what was answered has left
        self.sent(op);
        let Some(operation) = self.operations.remove(&op) else { return };
        if let Some(open) = self.tickets.get_mut(&operation.ticket) {
            open.undone -= 1;
        }
        self.settle(operation.ticket);
    }

    fn settle(&mut self, ticket: Ticket) {
        let Some(open) = self.tickets.get_mut(&ticket).filter(|open| !open.filling) else {
            return;
        };
        if open.unsent == 0 && open.pushes > 0 {
            open.pushes = 0;
            self.news.push_back(Progress::Sent(ticket));
        }
        if open.undone == 0 {
            self.tickets.remove(&ticket);
            self.news.push_back(Progress::Done(ticket));
        }
    }

    fn operation(&mut self, ticket: Ticket, work: Work) -> u64 {
        let number = self.number();
        if let Some(open) = self.tickets.get_mut(&ticket) {
            let is_push = usize::from(matches!(work, Work::Push(_)));
            open.undone += 1;
            open.unsent += is_push;
            open.pushes += is_push;
        }
        self.operations.insert(number, Operation { ticket, work });
        number
    }

    fn value(&self, key: Key) -> Result<(ValueSpec, Vec<Part>), StoreError> {
        let value = self.values.get(&key).ok_or(StoreError::NotInitialised { key })?;
        Ok((value.spec, value.parts.clone()))
    }

    pub(super) fn now_ms() -> u64 {
        Clock::now_ns() / 1_000_000
    }
}
