//! What the store needs of the outside: arithmetic, a place for snapshots, and the scheduler. All are passed
//! in, so that nothing here knows what a gradient is, where files are, or who watches whom.

use std::os::fd::OwnedFd;

use tensorwire_base::Rank;
use tensorwire_fabric::Identity;
use tensorwire_memory::{Buffer, DmaBuf, Keepalive, Slab};
use tensorwire_tensor::DType;

use crate::key::{Key, ShardKey, ValueSpec};

/// Something that a device was told; it is over when all is that was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceMark(pub u64);

/// A device in whose memory values lie, of which a process has addresses alone. What it is told it does later, in the order
/// in which it is told. Where a worker has several, each tensor lies in the memory of one of them, which copies it from there and
/// to there; of a server the first alone has values. Every error is a text that says which device, and what to do.
pub trait StoreDevice: Send + Sync + std::fmt::Debug {
    /// Allocates memory of the device of this number, which devices of other processes of this host map by the file.
    ///
    /// # Errors
    /// When there is not enough.
    fn alloc(&self, number: u32, bytes: usize) -> Result<(Slab, OwnedFd), String>;

    /// Allocates memory that nobody else sees.
    ///
    /// # Errors
    /// When there is not enough.
    fn alloc_unseen(&self, bytes: usize) -> Result<Slab, String>;

    /// Has the device copy from and to memory of the host without the host's help, as long as the result lives. Without it the
    /// host waits for such copies.
    ///
    /// # Errors
    /// When the system locks no more memory.
    fn pin(&self, memory: &Slab) -> Result<Keepalive, String>;

    /// Returns memory of the device as a NIC's driver takes it.
    ///
    /// # Errors
    /// When the device has no such descriptors.
    fn dma_buf(&self, memory: &Slab) -> Result<DmaBuf, String>;

    /// Maps memory that another process allocated so.
    ///
    /// # Errors
    /// When the file is no memory of a device, or of less of it.
    fn import(&self, memory: OwnedFd, bytes: usize) -> Result<Slab, String>;

    /// Starts copying the first `bytes` bytes of a buffer to another, from its byte `at` on; either may be the host's. The loans
    /// are held until it is over; parts of one buffer may be written at the same time.
    ///
    /// # Errors
    /// When a buffer is in use, or the device has failed. So everywhere below.
    fn copy(
        &self,
        from: &Buffer,
        to: &Buffer,
        at: usize,
        bytes: usize,
    ) -> Result<DeviceMark, String>;

    /// Starts copying `bytes` bytes between the host's memory and the device's: those from `at` on of `from` become the first of
    /// `to`. The host's end is lent until it is over; memory of the device is guarded by the order of what that is told.
    ///
    /// # Errors
    /// As [`StoreDevice::copy`].
    fn carry(&self, from: (&Buffer, usize), to: &Buffer, bytes: usize) -> Result<(), String>;

    /// Marks where the device is.
    ///
    /// # Errors
    /// As [`StoreDevice::copy`].
    fn mark(&self) -> Result<DeviceMark, String>;

    /// True once it is over.
    ///
    /// # Errors
    /// As [`StoreDevice::copy`].
    fn is_over(&self, mark: DeviceMark) -> Result<bool, String>;

    /// Returns the bytes of a buffer of the device once all that was told before is done. It waits, and so does
    /// [`StoreDevice::write`].
    ///
    /// # Errors
    /// As [`StoreDevice::copy`].
    fn read(&self, from: &Buffer) -> Result<Vec<u8>, String>;

    /// Writes the first bytes of a buffer of the device.
    ///
    /// # Errors
    /// As [`StoreDevice::copy`].
    fn write(&self, bytes: &[u8], to: &Buffer) -> Result<(), String>;
}

/// How what is pushed gets into the memory of a server's device, and values get out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceReach {
    /// It maps the memory of workers' devices, and they map its own.
    Mapped,
    /// A NIC reads and writes it for workers. What goes in messages goes by memory of the host.
    ByNic,
    /// By memory of the server's host, which the device copies from and to: there it is as if there were no device.
    ByHost,
}

/// Adds tensors: those of a worker's devices, before one push.
pub trait Reduce: Send {
    /// into ← into + from, element by element.
    ///
    /// # Errors
    /// When there is no arithmetic for the type.
    fn add(&mut self, dtype: DType, into: &mut [u8], from: &[u8]) -> Result<(), String>;
}

/// The rows of one worker's sparse push: i32 indices, sorted, and as many rows.
#[derive(Clone, Copy, Debug)]
pub struct PushedRows<'a> {
    pub indices: &'a [u8],
    pub rows: &'a [u8],
}

/// The same in memory of a device, which may have room for more.
#[derive(Clone, Debug)]
pub struct DeviceRows {
    pub count: usize,
    pub indices: Buffer,
    pub rows: Buffer,
}

/// A tensor of an update's state: a slot of the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// How a server changes what it holds.
pub trait Updater: Send {
    /// A shard was created: makes the state that is kept beside it.
    ///
    /// # Errors
    /// When the shard cannot be updated as it was asked for. So everywhere below; the text reaches the worker.
    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String>;

    /// weights ← what the pushes, in rank order, make of them. Where it fails, the round is over all the same.
    fn apply(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String>;

    /// As [`Updater::apply`], of pushes that are less than a value each: what a worker gave to
    /// [`crate::KvWorker::push_encoded`]. Any bytes may come, at most as many as a slot has.
    fn apply_encoded(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String> {
        let _ = (weights, pushes);
        Err(format!("shard {}: whole values are pushed to servers of this rule", shard.0))
    }

    /// As [`Updater::apply`], of memory of a device, which may have room for more: starts it. It is over once [`StoreDevice::mark`] says so that comes behind;
    /// until then the buffers stay as they are.
    ///
    /// # Errors
    /// As [`Updater::apply`].
    fn start(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[Buffer],
    ) -> Result<(), String> {
        let _ = (weights, pushes);
        Err(format!("shard {} lies on a device, where this rule cannot be computed", shard.0))
    }

    /// As [`Updater::start`], where each push is some rows.
    ///
    /// # Errors
    /// As [`Updater::apply`].
    fn start_rows(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[DeviceRows],
    ) -> Result<(), String> {
        let _ = (weights, pushes);
        Err(format!("shard {} lies on a device, where no rows are taken", shard.0))
    }

    /// As [`Updater::apply`], where each push is some rows.
    fn apply_rows(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[PushedRows<'_>],
    ) -> Result<(), String>;

    /// From now on updates are made as `bytes` says: what a worker gave to `set_optimizer`. The shards that
    /// exist get fresh state.
    fn set(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// The value of which a shard's weights are the rounded form: as many elements of a wider type. None: they are no such form.
    fn wide(&self, shard: ShardKey, weights: &[u8]) -> Option<Vec<u8>> {
        let _ = (shard, weights);
        None
    }

    /// Returns what is kept beside a shard.
    ///
    /// # Errors
    /// When some of it cannot be read: a snapshot without it would be restored to other values.
    fn state(&self, shard: ShardKey) -> Result<Vec<StateTensor>, String>;

    /// Puts back what [`Updater::state`] gave.
    fn restore(&mut self, shard: ShardKey, state: Vec<StateTensor>) -> Result<(), String>;
}

/// A server's state at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The protocol's: versions, rounds, who was answered.
    pub protocol: Vec<u8>,
    pub shards: Vec<ShardSnapshot>,
}

/// A shard in a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardSnapshot {
    pub key: ShardKey,
    pub spec: ValueSpec,
    pub weights: Vec<u8>,
    pub state: Vec<StateTensor>,
}

impl ShardSnapshot {
    /// Returns the bytes of its weights and state.
    pub fn bytes(&self) -> u64 {
        let state: usize = self.state.iter().map(|tensor| tensor.bytes.len()).sum();
        // fits: sizes in memory
        (self.weights.len() + state) as u64
    }
}

/// Where snapshots are kept.
pub trait Keep: Send {
    /// Keeps a snapshot of server `server`, whole or not at all, instead of the one before.
    ///
    /// # Errors
    /// When it cannot be written, with what to do.
    fn save(&mut self, server: usize, to: &str, snapshot: Snapshot) -> Result<(), String>;

    /// The snapshot that was kept last; none if none was.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    fn load(&mut self, server: usize, from: &str) -> Result<Option<Snapshot>, String>;
}

/// What the scheduler tells.
#[derive(Clone, Debug, PartialEq)]
pub enum MembershipEvent {
    /// Only these workers live now.
    World { alive: Vec<Identity> },
    /// Another process, which the fabric is connected to, took over from this server.
    ServerReplaced { server: usize, rank: Rank },
}

/// The scheduler, as workers and servers see it.
pub trait Membership: Send {
    /// Says that this worker is at its next barrier; returns the barrier's number.
    ///
    /// # Errors
    /// When the scheduler is gone. So everywhere below.
    fn enter_barrier(&mut self) -> Result<u64, String>;

    /// Are all workers at the barrier?
    fn is_released(&mut self, barrier: u64) -> bool;

    /// What the scheduler told since the last call.
    fn events(&mut self) -> Result<Vec<MembershipEvent>, String>;
}
