//! A worker's end of the store: lists of keys and tensors in, handles out. It drives the protocol over a
//! wire whenever it is called; nothing happens behind its user's back.

mod alone;
mod controls;
mod core;
mod link;
mod newcomers;
mod on_device;
mod operations;
mod pushes;
mod shares;
mod tensors;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Deadline, Incarnation, Rank};
use tensorwire_fabric::Identity;
use tensorwire_memory::{Buffer, Copies, CopyPurpose, Slab};
use tensorwire_tensor::DType;

use crate::error::StoreError;
use crate::key::{Key, ValueSpec};
use crate::partition::{Partition, ServerLoad};
use crate::ports::{DeviceReach, Keep, Membership, Reduce, StoreDevice, Updater};
use crate::proto::{Control, Mode};
use crate::server::on_device::ASK_AGAIN;
use crate::server::{KvServer, KvServerOptions, LEAVE, ServerPorts};
use crate::wire::{Loopback, Wire, WireStats};

use self::alone::Alone;
use self::core::Core;
use self::on_device::OnDevice;
use self::operations::{Pulling, Pushing};

/// Longest that a wait sleeps before it asks the scheduler for news.
const NEWS: Duration = Duration::from_millis(50);

/// What a worker's end is told.
#[derive(Clone, Debug)]
pub struct KvWorkerOptions {
    pub partition: Partition,
    /// By server: its rank.
    pub servers: Vec<Rank>,
    /// A server that is lost comes back from its last snapshot: pushes are kept until one holds them.
    pub servers_come_back: bool,
    /// Longest that opening a server's memory may take, and that one which takes over may take to open its wire.
    pub patience: Duration,
}

/// Something that was asked for and may not be done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvHandle(u64);

/// What happened to a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvProgress {
    /// What was pushed has left: its tensors may be written again.
    Sent(KvHandle),
    /// All of it is done: pushes are in the weights, pulls have filled their tensors.
    Done(KvHandle),
}

/// A worker's end.
pub struct KvWorker {
    wire: Box<dyn Wire>,
    membership: Box<dyn Membership>,
    core: Core,
    /// Servers that took over from others and have not opened their wire, with until when they may: by number.
    newcomers: BTreeMap<usize, (Rank, Deadline)>,
    /// The barrier that it came to and has not passed.
    barrier: Option<u64>,
    /// Its own server, where there is no other.
    server: Option<Box<KvServer>>,
}

impl KvWorker {
    /// A worker's end over a wire that is connected to all servers.
    pub fn new(
        wire: Box<dyn Wire>,
        membership: Box<dyn Membership>,
        reduce: Box<dyn Reduce>,
        options: KvWorkerOptions,
    ) -> KvWorker {
        let (core, newcomers) = (Core::new(options, reduce), BTreeMap::new());
        KvWorker { wire, membership, core, newcomers, barrier: None, server: None }
    }

    /// With a device: tensors of its memory are pushed from where they lie, and pulled into, where servers' devices map it,
    /// or a NIC reaches it ([`KvWorker::reach_on_device`]).
    #[must_use]
    pub fn with_device(mut self, device: Arc<dyn StoreDevice>, reach: DeviceReach) -> KvWorker {
        let on_device = OnDevice::new(device, reach);
        self.core.pool = on_device.host_pool();
        self.core.on_device = Some(on_device);
        self
    }

    /// A store of one worker without other processes (`local`): what a push changes is the same, and nothing
    /// crosses.
    pub fn local(
        update: Box<dyn Updater>,
        keep: Box<dyn Keep>,
        reduce: Box<dyn Reduce>,
    ) -> KvWorker {
        let ranks = [Rank(0), Rank(1)];
        let [wire, other] = Loopback::pair(ranks);
        let partition = Partition::new(1, usize::MAX);
        let patience = Duration::ZERO;
        let options = KvServerOptions {
            mode: Mode::Sync,
            partition,
            server: 0,
            workers: vec![Identity { rank: ranks[0], incarnation: Incarnation(0) }],
            elastic: false,
            checkpoint: None,
            patience,
        };
        let ports = ServerPorts {
            wire: Box::new(other),
            membership: Box::new(Alone::default()),
            update,
            keep,
            device: None,
        };
        let server = Some(Box::new(KvServer::new(ports, options)));
        let servers = vec![ranks[1]];
        let options = KvWorkerOptions { partition, servers, servers_come_back: false, patience };
        let worker = KvWorker::new(Box::new(wire), Box::new(Alone::default()), reduce, options);
        KvWorker { server, ..worker }
    }

    /// A tensor of this size in memory that servers reach: what is pushed from it and pulled into it is
    /// not copied. Freed when the last clone and the last handle that uses it are gone.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn alloc(&mut self, spec: &ValueSpec) -> Result<Buffer, StoreError> {
        if !spec.fits_memory() {
            return Err(StoreError::Absurd { spec: *spec });
        }
        self.core.pool.alloc(self.wire.as_mut(), spec.bytes())
    }

    /// As [`KvWorker::alloc`], uncut.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn alloc_slab(&mut self, bytes: usize) -> Result<Slab, StoreError> {
        self.core.pool.alloc_slab(self.wire.as_mut(), bytes)
    }

    /// Makes keys known to their servers. Every worker does it, with the same specs; one of them, and only
    /// one, gives the first values. A pull waits until they are there.
    ///
    /// # Errors
    /// When a key is too large, was given another spec before, or a tensor is of another size.
    pub fn init(
        &mut self,
        values: &[(Key, ValueSpec)],
        first: Option<&[Buffer]>,
    ) -> Result<KvHandle, StoreError> {
        if let Some(first) = first.filter(|first| first.len() != values.len()) {
            return Err(StoreError::Count { keys: values.len(), found: first.len() });
        }
        self.fill(|store, handle| {
            for (index, (key, spec)) in values.iter().enumerate() {
                store.core.init(handle, *key, *spec)?;
                if let Some(first) = first {
                    let pushing = Pushing { is_first: true, ..Pushing::default() };
                    store.push_one(handle, *key, &first[index..=index], pushing)?;
                }
            }
            Ok(())
        })
    }

    /// Pushes tensors of each key: one for each local device, which are added first. Larger priorities go
    /// first. The tensors stay as they are until [`KvProgress::Sent`].
    ///
    /// # Errors
    /// When a key is unknown, or a tensor is of another size or being written.
    pub fn push(
        &mut self,
        keys: &[Key],
        tensors: &[Vec<Buffer>],
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        self.check(keys, tensors)?;
        let pushing = Pushing { priority, ..Pushing::default() };
        self.fill(|store, handle| {
            let mut pairs = keys.iter().zip(tensors);
            pairs.try_for_each(|(key, devices)| store.push_one(handle, *key, devices, pushing))
        })
    }

    /// Pulls the values of keys, with all that this worker pushed before, into the tensors of each local
    /// device. Until the handle is done a tensor may be written by its server at any time, which no loan shows:
    /// reading it meanwhile gives a mixture of old and new.
    ///
    /// # Errors
    /// As [`KvWorker::push`].
    pub fn pull(
        &mut self,
        keys: &[Key],
        tensors: &[Vec<Buffer>],
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        self.check(keys, tensors)?;
        let pulling = Pulling { priority, rows: None, wide: None };
        self.fill(|store, handle| {
            let mut pairs = keys.iter().zip(tensors);
            pairs.try_for_each(|(key, devices)| store.pull_one(handle, *key, devices, pulling))
        })
    }

    /// A push and a pull of each key, in the same messages.
    ///
    /// # Errors
    /// As [`KvWorker::push`].
    pub fn pushpull(
        &mut self,
        keys: &[Key],
        pushed: &[Vec<Buffer>],
        pulled: &[Vec<Buffer>],
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        self.check(keys, pushed)?;
        self.check(keys, pulled)?;
        let pushing = Pushing { priority, ..Pushing::default() };
        let pulling = Pulling { priority, rows: None, wide: None };
        self.fill(|store, handle| {
            let mut all = keys.iter().zip(pushed.iter().zip(pulled));
            all.try_for_each(|(key, (from, into))| {
                store.push_one(handle, *key, from, pushing)?;
                store.pull_one(handle, *key, into, pulling)
            })
        })
    }

    /// Pushes some rows of a value: `rows` starts with as many as there are indices, which are sorted. Rows of
    /// one index are added in their order; here already, if there are more rows than the server's shard has.
    ///
    /// # Errors
    /// As [`KvWorker::push`], and when indices are not so.
    pub fn push_rows(
        &mut self,
        key: Key,
        indices: &[i32],
        rows: &Buffer,
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        let pushing = Pushing { priority, rows: Some(indices), ..Pushing::default() };
        let rows = std::slice::from_ref(rows);
        self.fill(|store, handle| store.push_one(handle, key, rows, pushing))
    }

    /// Returns which rows of a value its servers have, in their order.
    ///
    /// # Errors
    /// When a key is unknown.
    pub fn shards(&self, key: Key) -> Result<Vec<Range<usize>>, StoreError> {
        let (_, shards) = self.core.value(key)?;
        Ok(shards.into_iter().map(|shard| shard.rows).collect())
    }

    /// Pushes less than a value, of which its servers' rule makes one ([`crate::Updater::apply_encoded`]): a buffer for each of
    /// [`KvWorker::shards`], no longer than that shard is. In one round, all workers do or none.
    ///
    /// # Errors
    /// As [`KvWorker::push`].
    pub fn push_encoded(
        &mut self,
        key: Key,
        encoded: &[Buffer],
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        self.fill(|store, handle| {
            let KvWorker { core, wire, .. } = store;
            core.push_encoded(wire.as_mut(), handle, key, encoded, priority)
        })
    }

    /// Pulls some rows of a value into the first rows of `into`; indices as in [`KvWorker::push_rows`].
    ///
    /// # Errors
    /// As [`KvWorker::push_rows`].
    pub fn pull_rows(
        &mut self,
        key: Key,
        indices: &[i32],
        into: &Buffer,
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        let pulling = Pulling { priority, rows: Some(indices), wide: None };
        let into = std::slice::from_ref(into);
        self.fill(|store, handle| store.pull_one(handle, key, into, pulling))
    }

    /// Pulls what a value is rounded from: as many elements of this type ([`crate::Updater::wide`]).
    ///
    /// # Errors
    /// As [`KvWorker::pull`]; the servers refuse it where they keep no such value.
    pub fn pull_wide(
        &mut self,
        key: Key,
        dtype: DType,
        into: &Buffer,
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        let pulling = Pulling { priority, rows: None, wide: Some(dtype) };
        let into = std::slice::from_ref(into);
        self.fill(|store, handle| store.pull_one(handle, key, into, pulling))
    }

    /// Pulls a value without moving it, where this process shares memory with the one server that has it: once
    /// the handle is done, [`KvWorker::mapped`] is the value where it lies, and the server leaves it as it is
    /// until [`KvWorker::release`]. None where that cannot be; then it is to be pulled.
    ///
    /// # Errors
    /// As [`KvWorker::pull`].
    pub fn pull_mapped(&mut self, key: Key, priority: i32) -> Result<Option<KvHandle>, StoreError> {
        if !self.core.can_show(self.wire.as_ref(), key)? {
            return Ok(None);
        }
        self.core.release(key);
        let handle = self.core.open_handle();
        self.core.show(handle, key, priority)?;
        self.core.close_handle(handle);
        Ok(Some(handle))
    }

    /// A value that is mapped now: to be read, never to be written.
    pub fn mapped(&self, key: Key) -> Option<Buffer> {
        self.core.mapped(key)
    }

    /// Nothing reads a value that was mapped any more: its server may change it.
    pub fn release(&mut self, key: Key) {
        self.core.release(key);
    }

    /// Waits until every worker is here.
    ///
    /// # Errors
    /// When that takes longer than the deadline, or a server is lost meanwhile. The next call waits at the same barrier, which the
    /// others may have passed by then.
    pub fn barrier(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        let start = Clock::now_ns();
        // what a server that took over lacks is nobody's but this worker's to give
        while !self.has_all_servers() || !self.core.proto.is_caught_up() {
            self.observe();
            if !self.progress()? {
                if deadline.passed() {
                    return Err(timed_out(start, self.core.missing()));
                }
                self.wait_for_news(deadline);
            }
        }
        let entered = self.barrier.map_or_else(|| self.membership.enter_barrier(), Ok);
        let number = entered.map_err(StoreError::Membership)?;
        self.barrier = Some(number);
        loop {
            self.wire.observe();
            let moved = self.progress()?;
            if self.membership.is_released(number) {
                self.barrier = None;
                return Ok(());
            }
            if deadline.passed() {
                return Err(timed_out(start, "the other workers at a barrier".to_string()));
            }
            if !moved {
                self.wire.wait(deadline.min(Deadline::after(Duration::from_millis(1))));
            }
        }
    }

    /// Does what can be done now; true if something was.
    ///
    /// # Errors
    /// When a server is lost for good, or refuses.
    pub fn progress(&mut self) -> Result<bool, StoreError> {
        self.meet_newcomers()?;
        let moved = self.core.progress(self.wire.as_mut())?;
        match &mut self.server {
            Some(server) => Ok(server.progress()? || moved),
            None => Ok(moved),
        }
    }

    /// Has the next [`KvWorker::progress`] fail with what another that moves this end has met.
    pub fn fail_with(&mut self, error: StoreError) {
        self.core.failed.get_or_insert(error);
    }

    /// From now on [`KvWorker::news`] has what happens, which is to be taken: it grows until then.
    pub fn tell_news(&mut self) {
        self.core.tell_news();
    }

    /// What happened to handles since the last call, once that is asked for: [`KvWorker::tell_news`].
    pub fn news(&mut self, news: &mut Vec<KvProgress>) {
        self.core.news(news);
    }

    /// True if [`KvWorker::news`] has anything to tell.
    pub fn has_news(&self) -> bool {
        self.core.has_news()
    }

    /// True if all that the handle stands for is done.
    pub fn is_done(&self, handle: KvHandle) -> bool {
        self.core.is_done(handle)
    }

    /// True if all that was asked for is done.
    pub fn is_idle(&self) -> bool {
        self.core.first_open().is_none()
    }

    /// True if values cross to a server that shares no memory with this process, in memory of the host.
    pub fn is_over_wire(&self) -> bool {
        let is_alone = self.server.is_some() || self.core.on_device.is_some();
        !is_alone && self.core.links.iter().any(|link| self.wire.mapped_from(link.rank).is_none())
    }

    /// Waits until all that the handle stands for is done.
    ///
    /// # Errors
    /// When that takes longer than the deadline, a server is lost or refuses.
    pub fn wait(&mut self, handle: KvHandle, deadline: Deadline) -> Result<(), StoreError> {
        self.wait_until(deadline, |core| core.is_done(handle))
    }

    fn wait_until(
        &mut self,
        deadline: Deadline,
        is_over: impl Fn(&Core) -> bool,
    ) -> Result<(), StoreError> {
        let start = Clock::now_ns();
        while !is_over(&self.core) {
            self.observe();
            if self.progress()? {
                continue;
            }
            if deadline.passed() {
                return Err(timed_out(start, self.core.missing()));
            }
            self.wait_for_news(deadline);
        }
        Ok(())
    }

    /// Waits until what the handle pushes has left: its tensors may be written again.
    ///
    /// # Errors
    /// As [`KvWorker::wait`].
    pub fn wait_sent(&mut self, handle: KvHandle, deadline: Deadline) -> Result<(), StoreError> {
        self.wait_until(deadline, |core| core.is_sent(handle))
    }

    /// Waits until all that was asked for is done.
    ///
    /// # Errors
    /// As [`KvWorker::wait`].
    pub fn wait_all(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        while let Some(handle) = self.core.first_open() {
            self.wait(handle, deadline)?;
        }
        Ok(())
    }

    /// Takes note of this moment; [`KvWorker::wait_for_news`] returns if anything came after it.
    pub fn observe(&mut self) {
        self.wire.observe();
    }

    /// Sleeps until something may have come since [`KvWorker::observe`], at most until the deadline.
    pub fn wait_for_news(&mut self, deadline: Deadline) {
        // a device says nothing of itself
        let longest = if self.core.is_busy() { ASK_AGAIN } else { NEWS };
        self.wire.wait(deadline.min(Deadline::after(longest)));
    }

    /// What is under way, for people.
    pub fn missing(&self) -> String {
        self.core.missing()
    }

    /// What a key was initialised as.
    pub fn spec(&self, key: Key) -> Option<ValueSpec> {
        self.core.values.get(&key).map(|value| value.spec)
    }

    /// What each server holds of the keys that were initialised here.
    ///
    /// # Errors
    /// Never for keys that [`KvWorker::init`] took.
    pub fn table(&self) -> Result<Vec<ServerLoad>, StoreError> {
        Ok(self.core.options.partition.table(&self.core.specs())?)
    }

    /// What the wire did, with the copies that were made here.
    pub fn stats(&self) -> WireStats {
        let mut stats = self.wire.stats();
        stats.bytes_copied += self.core.copies.of(CopyPurpose::Store);
        stats.bytes_direct += self.core.bytes_read;
        stats
    }

    /// Returns the bytes that were copied here, by purpose, those of [`WireStats::bytes_copied`] among them; with those
    /// of the server in a store of one.
    pub fn copies(&self) -> Copies {
        let mut copies = self.core.copies;
        copies.add(CopyPurpose::Store, self.wire.stats().bytes_copied);
        if let Some(server) = &self.server {
            copies.merge(&server.copies());
        }
        copies
    }

    /// Waits until all that was asked for is done, and says goodbye to the servers.
    ///
    /// # Errors
    /// When a server is lost or does not answer in time.
    pub fn close(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        self.wait_all(deadline)?;
        // servers wait for whoever reads
        self.wait_until(deadline, |core| !core.is_busy())?;
        let leaving = self.ask_all(&Control::Call { head: LEAVE, body: Vec::new() });
        self.wait(leaving, deadline)?;
        Ok(self.wire.close(deadline)?)
    }

    fn push_one(
        &mut self,
        handle: KvHandle,
        key: Key,
        devices: &[Buffer],
        pushing: Pushing<'_>,
    ) -> Result<(), StoreError> {
        self.core.push(self.wire.as_mut(), handle, key, devices, pushing)
    }

    fn pull_one(
        &mut self,
        handle: KvHandle,
        key: Key,
        devices: &[Buffer],
        pulling: Pulling<'_>,
    ) -> Result<(), StoreError> {
        self.core.pull(self.wire.as_mut(), handle, key, devices, pulling)
    }

    /// A list is taken whole or not at all: everything that a user can get wrong is looked at first.
    fn check(&self, keys: &[Key], tensors: &[Vec<Buffer>]) -> Result<(), StoreError> {
        if keys.len() != tensors.len() {
            return Err(StoreError::Count { keys: keys.len(), found: tensors.len() });
        }
        let mut pairs = keys.iter().zip(tensors);
        pairs.try_for_each(|(key, devices)| self.core.check(*key, devices, None).map(|_| ()))
    }

    /// A handle for what `asked` asks for. What it asked for before it failed is done all the same, and nobody
    /// waits for more.
    fn fill(
        &mut self,
        asked: impl FnOnce(&mut KvWorker, KvHandle) -> Result<(), StoreError>,
    ) -> Result<KvHandle, StoreError> {
        let handle = self.core.open_handle();
        let asked = asked(self, handle);
        self.core.close_handle(handle);
        asked.map(|()| handle)
    }
}

impl std::fmt::Debug for KvWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvWorker").field("options", &self.core.options).finish_non_exhaustive()
    }
}

fn timed_out(start_ns: u64, what: String) -> StoreError {
    StoreError::TimedOut { waited: Duration::from_nanos(Clock::now_ns() - start_ns), what }
}
