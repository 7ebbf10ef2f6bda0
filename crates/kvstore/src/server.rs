//! A server's end of the store: it drives the protocol over a wire, keeps the shards in registered memory,
//! applies what workers pushed and answers. The update rule, the place of snapshots and the scheduler are
//! passed in.

mod answers;
mod memory;
pub(crate) mod on_device;
mod requests;
mod standing;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Identity, pulse};
use tensorwire_memory::{Copies, CopyPurpose};

use crate::error::StoreError;
use crate::key::{Key, ShardKey, ValueSpec};
use crate::message::{Answer, RequestId, RequestRefusal};
use crate::partition::Partition;
use crate::pool::Pool;
use crate::ports::{
    DeviceReach, Keep, Membership, MembershipEvent, ShardSnapshot, Snapshot, StoreDevice, Updater,
};
use crate::proto::{Control, Mode, Server, ServerConfig, ServerState, ShardState};
use crate::wire::{PlaceKey, Wire, WireError, WireStats};

use self::answers::{Direct, Outbox};
use self::memory::Shards;
use self::on_device::{ASK_AGAIN, OnDevice};
use self::requests::Opened;
pub use self::standing::{ServerStanding, Serving};

/// The number of the call with which a worker says that it is done; users' own are below.
pub(crate) const LEAVE: u32 = u32::MAX;
/// Longest that a wait sleeps before it asks the scheduler for news.
const NEWS: Duration = Duration::from_millis(50);
/// What is wrong where a snapshot is of other shards.
const AS_SAVED: &str =
    "load what as many servers saved, after init of the same keys with their first values";

/// A user's own function on a server (ps-lite's request handle): who calls, by number, and what it gives.
pub type Function = Box<dyn FnMut(usize, &[u8]) -> Result<Vec<u8>, String> + Send>;

/// What a server's end is told.
#[derive(Clone, Debug)]
pub struct KvServerOptions {
    pub mode: Mode,
    pub partition: Partition,
    /// This server's number.
    pub server: usize,
    /// By number: its life.
    pub workers: Vec<Identity>,
    /// A worker's death does not end the job.
    pub elastic: bool,
    /// Where snapshots go.
    pub checkpoint: Option<Checkpoint>,
    /// Longest that opening a worker's memory may take.
    pub patience: Duration,
}

/// When a server takes snapshots, so that another process can take over from the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// What [`Keep`] is told.
    pub path: String,
    /// Updates of all shards between two snapshots. Workers keep what they pushed since the last.
    pub every: u64,
}

/// What the outside gives a server.
pub struct ServerPorts {
    pub wire: Box<dyn Wire>,
    pub membership: Box<dyn Membership>,
    pub update: Box<dyn Updater>,
    pub keep: Box<dyn Keep>,
    /// In whose memory values lie, and updates are computed ([`Updater::start`]), and how it is reached; none: in the host's.
    /// What is mapped there are whole values that lie on devices.
    pub device: Option<(Arc<dyn StoreDevice>, DeviceReach)>,
}

/// What a server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    pub updates: u64,
    pub snapshots: u64,
    /// Snapshots that could not be kept.
    pub snapshots_failed: u64,
    /// Pushes of each worker that the last whole snapshot holds of every shard: steps, where a step pushes once.
    pub step_kept: u64,
    /// Shards that workers pushed, first values among them, and pulled.
    pub pushes: u64,
    pub pulls: u64,
    /// What these have, whether it was moved or read where it lies.
    pub bytes_pushed: u64,
    pub bytes_pulled: u64,
}

/// A server's end.
pub struct KvServer {
    wire: Box<dyn Wire>,
    membership: Box<dyn Membership>,
    core: Core,
}

/// Everything but the wire.
struct Core {
    options: KvServerOptions,
    standing: Arc<ServerStanding>,
    proto: Server,
    update: Box<dyn Updater>,
    keep: Box<dyn Keep>,
    functions: HashMap<u32, Function>,
    pool: Pool,
    shards: Shards,
    on_device: Option<OnDevice>,
    /// By worker.
    outboxes: Vec<Outbox>,
    /// Direct writes under way, by token.
    sending: HashMap<u64, Direct>,
    next_token: u64,
    /// Values that workers read where they are, by worker and pull.
    mapped: HashMap<(usize, RequestId), ShardKey>,
    /// Regions of workers that are open.
    opened: HashMap<(usize, PlaceKey), Opened>,
    alive: Vec<bool>,
    left: Vec<bool>,
    updates_since_snapshot: u64,
    /// The next snapshot may not wait: it holds what cannot be pushed again.
    snapshot_due: bool,
    /// A shard got its first value since the last look at them.
    is_seeding: bool,
    /// What workers want saved, once nothing is half done.
    saves: VecDeque<(Identity, RequestId, Control)>,
    /// Workers that sent what is none of a worker's requests.
    strange: Vec<(usize, String)>,
    counters: ServerCounters,
    copies: Copies,
    failed: Option<StoreError>,
}

impl KvServer {
    /// A server's end over a wire that is connected to all workers.
    pub fn new(ports: ServerPorts, options: KvServerOptions) -> KvServer {
        let proto = Server::new(options.config());
        KvServer::over(ports, options, proto)
    }

    /// A server that takes over from the last snapshot of [`KvServerOptions::checkpoint`], or from nothing
    /// where none was taken, or one of another job is there; workers bring it up to date.
    ///
    /// # Errors
    /// When there is a snapshot that cannot be read or restored.
    pub fn restored(
        mut ports: ServerPorts,
        options: KvServerOptions,
    ) -> Result<KvServer, StoreError> {
        let path = options.checkpoint.as_ref().map_or("", |checkpoint| checkpoint.path.as_str());
        let kept = ports.keep.load(options.server, path).map_err(StoreError::Snapshot)?;
        let Some(snapshot) = kept else { return Ok(KvServer::new(ports, options)) };
        let state: ServerState = postcard::from_bytes(&snapshot.protocol)
            .map_err(|error| StoreError::Snapshot(error.to_string()))?;
        let of_this_job =
            options.workers.iter().map(|worker| (worker.rank.0, worker.incarnation.0));
        if !state.workers.iter().copied().eq(of_this_job) {
            return Ok(KvServer::new(ports, options));
        }
        let proto = Server::restored(options.config(), state);
        let mut server = KvServer::over(ports, options, proto);
        server.core.counters.step_kept = step_of(&server.core.proto.state());
        server.core.restore(server.wire.as_mut(), snapshot, true)?;
        Ok(server)
    }

    fn over(ports: ServerPorts, options: KvServerOptions, proto: Server) -> KvServer {
        let ServerPorts { wire, membership, update, keep, device } = ports;
        let workers = options.workers.len();
        let shards = Shards::new(device.as_ref().map(|(device, _)| device.clone()));
        let on_device = device.map(OnDevice::new);
        let core = Core {
            outboxes: options.workers.iter().map(|worker| Outbox::new(worker.rank)).collect(),
            options,
            standing: Arc::default(),
            proto,
            update,
            keep,
            functions: HashMap::new(),
            pool: on_device.as_ref().map(OnDevice::host_pool).unwrap_or_default(),
            shards,
            on_device,
            sending: HashMap::new(),
            next_token: 0,
            mapped: HashMap::new(),
            opened: HashMap::new(),
            alive: vec![true; workers],
            left: vec![false; workers],
            updates_since_snapshot: 0,
            snapshot_due: false,
            is_seeding: false,
            saves: VecDeque::new(),
            strange: Vec::new(),
            counters: ServerCounters::default(),
            copies: Copies::default(),
            failed: None,
        };
        KvServer { wire, membership, core }
    }

    /// Gives workers a function to call by `head`; the largest number is the store's own.
    pub fn register(&mut self, head: u32, function: Function) {
        self.core.functions.insert(head, function);
    }

    /// Does what can be done now; true if something was.
    ///
    /// # Errors
    /// When a worker is lost for good, this server's memory or update rule fail, or a snapshot of what workers cannot push
    /// again: first values, an optimizer, what was loaded. Any other snapshot that fails is a warning, and the last whole
    /// one stays.
    pub fn progress(&mut self) -> Result<bool, StoreError> {
        let mut moved = false;
        for event in self.membership.events().map_err(StoreError::Membership)? {
            if let MembershipEvent::World { alive } = event {
                self.core.world(&alive);
                moved = true;
            }
        }
        Ok(self.core.progress(self.wire.as_mut())? || moved)
    }

    /// Serves until every live worker has left. If a snapshot could not be kept, it warns at the end of which step the last
    /// is that could.
    ///
    /// # Errors
    /// As [`KvServer::progress`].
    pub fn serve(&mut self) -> Result<(), StoreError> {
        self.serve_telling(&mut |_| {})
    }

    /// The same, and tells what was done so far: whenever something was, and 20 times a second where nothing is.
    ///
    /// # Errors
    /// As [`KvServer::progress`].
    pub fn serve_telling(&mut self, tell: &mut dyn FnMut(&KvServer)) -> Result<(), StoreError> {
        let _awake = pulse::awake();
        while !self.is_over() {
            pulse::beat();
            tell(self);
            self.wire.observe();
            match self.progress()? {
                true => self.core.standing.moves(),
                false => {
                    let _waits = self.core.standing.does(Serving::Waits);
                    self.wire.wait(Deadline::after(self.core.pause()));
                }
            }
        }
        let ServerCounters { snapshots_failed, step_kept, .. } = self.core.counters;
        if snapshots_failed > 0 {
            let server = self.core.options.server;
            tracing::warn!(
                "server {server} could not keep {snapshots_failed} of its snapshots; the last is of step {step_kept}"
            );
        }
        Ok(())
    }

    /// Returns where [`KvServer::serve`] stands, to be looked at by another thread.
    pub fn standing(&self) -> Arc<ServerStanding> {
        self.core.standing.clone()
    }

    /// Has every live worker left?
    pub fn is_over(&self) -> bool {
        let Core { alive, left, outboxes, .. } = &self.core;
        let is_quiet = |worker: usize| outboxes[worker].is_empty() && left[worker];
        (0..alive.len()).all(|worker| !alive[worker] || is_quiet(worker))
    }

    pub fn counters(&self) -> ServerCounters {
        self.core.counters
    }

    /// What the wire did, with the copies that were made here.
    pub fn stats(&self) -> WireStats {
        let mut stats = self.wire.stats();
        stats.bytes_copied += self.core.copies.of(CopyPurpose::Store);
        stats
    }

    /// Returns the bytes that were copied here, by purpose; those of [`WireStats::bytes_copied`] are among them.
    pub fn copies(&self) -> Copies {
        let mut copies = self.core.copies;
        copies.add(CopyPurpose::Store, self.wire.stats().bytes_copied);
        copies
    }

    /// Why some values go by the host that were to lie where a NIC reaches them; none: none does.
    pub fn why_by_host(&self) -> Option<&str> {
        self.core.on_device.as_ref()?.why_by_host.as_deref()
    }

    /// Says goodbye to the workers.
    ///
    /// # Errors
    /// When a worker is lost or does not answer in time.
    pub fn close(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        Ok(self.wire.close(deadline)?)
    }
}

impl KvServerOptions {
    fn config(&self) -> ServerConfig {
        ServerConfig {
            mode: self.mode,
            workers: self.workers.clone(),
            range: self.partition.range(self.server),
        }
    }
}

impl Core {
    /// How long nothing may be looked at: a device says nothing of itself.
    fn pause(&self) -> Duration {
        let is_busy = self.on_device.as_ref().is_some_and(OnDevice::is_busy);
        if is_busy { ASK_AGAIN } else { NEWS }
    }

    fn progress(&mut self, wire: &mut dyn Wire) -> Result<bool, StoreError> {
        let mut moved = false;
        let mut aside = VecDeque::new();
        // what comes is taken where it lies; what it leads to is done when the wire is free again
        match wire.receive(&mut |message| self.take(&message, &mut aside)) {
            Ok(count) => moved |= count > 0,
            // it is one peer's end, which is told below
            Err(WireError::Lost { .. } | WireError::Garbled { .. }) => moved = true,
            Err(error) => return Err(error.into()),
        }
        self.notice_lost(wire)?;
        self.take_aside(wire, aside);
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.refuse_strange()?;
        moved |= self.act(wire)?;
        let mut tokens = Vec::new();
        wire.finished(&mut tokens)?;
        for token in tokens {
            moved = true;
            if let Some(Direct { shard, .. }) = self.sending.remove(&token) {
                self.proto.on_sent(shard);
            }
        }
        moved |= self.act(wire)?;
        moved |= self.answer(wire)?;
        // what was answered may have let updates through
        moved |= self.act(wire)?;
        self.take_snapshot()?;
        wire.flush()?;
        Ok(moved)
    }

    fn notice_lost(&mut self, wire: &mut dyn Wire) -> Result<(), StoreError> {
        let mut lost = Vec::new();
        wire.lost(&mut lost);
        for (rank, reason) in lost {
            let Some(worker) = self.worker(rank) else { continue };
            if !self.options.elastic && !self.left[worker] {
                return Err(WireError::Lost { rank, reason }.into());
            }
            self.forget(worker);
        }
        Ok(())
    }

    /// Nothing more is sent to a worker.
    fn forget(&mut self, worker: usize) {
        self.outboxes[worker].close();
        let (shards, tokens) = self.outboxes[worker].abandon();
        shards.into_iter().for_each(|shard| self.proto.on_sent(shard));
        let mapped: Vec<_> = self.mapped.keys().filter(|(to, _)| *to == worker).copied().collect();
        for key in mapped {
            self.mapped.remove(&key).into_iter().for_each(|shard| self.proto.on_sent(shard));
        }
        // what was posted is being read until the wire says that it is over
        for token in tokens {
            if let Some(Direct { shard, .. }) = self.sending.remove(&token) {
                self.proto.on_sent(shard);
            }
        }
    }

    fn world(&mut self, alive: &[Identity]) {
        for worker in 0..self.alive.len() {
            let lives = alive.contains(&self.options.workers[worker]);
            if self.alive[worker] && !lives {
                self.alive[worker] = false;
                self.forget(worker);
            }
        }
        self.proto.on_world(alive);
    }

    fn worker(&self, rank: Rank) -> Option<usize> {
        self.options.workers.iter().position(|worker| worker.rank == rank)
    }

    /// Takes a snapshot if it is time.
    fn take_snapshot(&mut self) -> Result<(), StoreError> {
        let Some(checkpoint) = self.options.checkpoint.clone() else { return Ok(()) };
        // fits: shards are few
        let due = checkpoint.every.saturating_mul(self.shards.count() as u64);
        let is_due = self.updates_since_snapshot >= due.max(1) || self.snapshot_due;
        if !is_due {
            return Ok(());
        }
        // a disk may take any time
        let _resting = pulse::resting();
        let standing = self.standing.clone();
        let _keeps = standing.does(Serving::Keeps);
        let (snapshot, state) = self.snapshot()?;
        let kept = self.keep.save(self.options.server, &checkpoint.path, snapshot);
        let is_needed = std::mem::take(&mut self.snapshot_due);
        // one that failed is due again as late as the next
        self.updates_since_snapshot = 0;
        match kept {
            Ok(()) => {
                self.proto.on_snapshot(&state);
                self.counters.snapshots += 1;
                self.counters.step_kept = step_of(&state);
                Ok(())
            }
            Err(what) if is_needed => Err(StoreError::Snapshot(what)),
            Err(what) => {
                self.counters.snapshots_failed += 1;
                let (server, step) = (self.options.server, step_of(&state));
                let kept = self.counters.step_kept;
                tracing::warn!(
                    "no snapshot of server {server} at step {step}: {what}; training goes on, and the last one, of step \
                     {kept}, stays"
                );
                Ok(())
            }
        }
    }

    fn snapshot(&mut self) -> Result<(Snapshot, ServerState), StoreError> {
        let state = self.proto.state();
        let protocol =
            postcard::to_stdvec(&state).map_err(|error| StoreError::Snapshot(error.to_string()))?;
        let shards = self.shards.snapshot(&state, self.update.as_ref())?;
        let bytes = shards.iter().map(ShardSnapshot::bytes).sum();
        self.copies.add(CopyPurpose::Checkpoint, bytes);
        Ok((Snapshot { protocol, shards }, state))
    }

    /// Puts a snapshot's values back; into a server that starts, its shards too.
    fn restore(
        &mut self,
        wire: &mut dyn Wire,
        snapshot: Snapshot,
        starts: bool,
    ) -> Result<(), StoreError> {
        let state = self.proto.state();
        if let Some(bytes) = state.optimizer.filter(|_| starts) {
            self.update.set(&bytes).map_err(StoreError::Update)?;
        }
        for shard in state.shards {
            let is_kept = snapshot.shards.iter().any(|kept| kept.key == shard.shard);
            if shard.seeded && !is_kept {
                let shard = shard.shard.0;
                let what = format!("it has no value of shard {shard}; {AS_SAVED}");
                return Err(StoreError::Snapshot(what));
            }
            // also if it has no value yet: its workers know it
            if starts {
                self.create(wire, shard.shard, shard.spec)?;
            }
        }
        for shard in &snapshot.shards {
            self.shards.check(shard)?;
        }
        for shard in snapshot.shards {
            self.copies.add(CopyPurpose::Checkpoint, shard.bytes());
            self.shards.put_back(shard.key, &shard.weights)?;
            self.update.restore(shard.key, shard.state).map_err(StoreError::Update)?;
        }
        Ok(())
    }

    /// Memory for a shard, and what its updates keep beside it.
    fn create(
        &mut self,
        wire: &mut dyn Wire,
        shard: ShardKey,
        spec: ValueSpec,
    ) -> Result<(), StoreError> {
        let slots = self.slots(wire, &spec);
        let pools = (&mut self.pool, self.on_device.as_mut());
        self.shards.create(pools, wire, shard, spec, &slots)?;
        let first = self.options.partition.range(self.options.server).start;
        let key = Key(shard.0 - first);
        self.update.create(shard, key, &spec).map_err(StoreError::Update)
    }

    /// A first value exists here and at its worker alone: as soon as every shard has one, all are kept.
    fn keep_first_values(&mut self) {
        if std::mem::take(&mut self.is_seeding) && self.options.checkpoint.is_some() {
            self.snapshot_due |= self.proto.state().shards.iter().all(|shard| shard.seeded);
        }
    }

    /// Does what a worker asks of the whole server.
    fn control(&mut self, wire: &mut dyn Wire, worker: usize, what: Control) -> Answer {
        // a user's function may do anything, and a disk take any time
        let _resting = pulse::resting();
        let standing = self.standing.clone();
        let _asked = standing.does(match what {
            Control::Save { .. } | Control::Load { .. } => Serving::Keeps,
            _ => Serving::Calls,
        });
        let failed = |what: String| Answer::Refused { why: RequestRefusal::Failed(what) };
        let server = self.options.server;
        let done = match what {
            Control::SetOptimizer { bytes } => {
                let set = self.update.set(&bytes);
                self.snapshot_due |= set.is_ok();
                set
            }
            Control::Save { path } => self
                .snapshot()
                .map_err(|error| error.to_string())
                .and_then(|(snapshot, _)| self.keep.save(server, &path, snapshot)),
            Control::Load { path } => {
                let kept = self.keep.load(server, &path);
                let kept = kept.and_then(|kept| kept.ok_or(format!("there is nothing at {path}")));
                let loaded = kept.and_then(|snapshot| {
                    self.restore(wire, snapshot, false).map_err(|error| error.to_string())
                });
                self.snapshot_due |= loaded.is_ok();
                loaded
            }
            Control::Call { head: LEAVE, .. } => {
                self.left[worker] = true;
                Ok(())
            }
            Control::Call { head, body } => {
                let Some(function) = self.functions.get_mut(&head) else {
                    return failed(format!("no function {head} is registered on server {server}"));
                };
                return match function(worker, &body) {
                    Ok(body) => Answer::Returned { body },
                    Err(what) => failed(what),
                };
            }
        };
        match done {
            Ok(()) => Answer::Done,
            Err(what) => failed(what),
        }
    }
}

/// The step that every shard has come to, by the pushes of the worker that is furthest.
fn step_of(state: &ServerState) -> u64 {
    let furthest = |shard: &ShardState| shard.rounds.iter().copied().max().unwrap_or(0);
    state.shards.iter().map(furthest).min().unwrap_or(0)
}

impl std::fmt::Debug for ServerPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerPorts").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for KvServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvServer").field("options", &self.core.options).finish_non_exhaustive()
    }
}
