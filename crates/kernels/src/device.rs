//! What a session asks of the devices that compute for it: one, or several of one process, by number. A kernel or a copy is
//! *started* by a call, and over some time later: all that one device was told is done in the order in which it was told, and
//! nothing is known of two but what [`DeviceKernels::follow`] and copies between them say. A copy is told to the device that it
//! goes to, or that it comes from where it goes to the host. Which devices these are, and how they compute, is the
//! implementation's.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_graph::{NodeId, Op};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan, DmaBuf, Keepalive, Slab};
use tensorwire_tensor::TensorSpec;

use crate::KernelError;

/// The devices that the sessions of a process share.
pub type SharedDevice = Arc<Mutex<dyn DeviceKernels>>;

/// The descriptor by which others map memory of a device, or why there is none.
pub type Shown = Result<OwnedFd, DeviceFailure>;

/// What is lent, and at which byte of it a piece begins.
pub type Piece<'a, T> = (&'a Arc<T>, usize);

/// A tensor in a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOperand<'a> {
    pub spec: &'a TensorSpec,
    /// Address of its first byte, in the device's memory.
    pub address: usize,
}

/// One operator to be computed. Operands are as [`crate::Kernels::run`] and, where it is `in_place`,
/// [`crate::Kernels::run_in_place`] have them.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCall<'a> {
    /// What it is known by: what was made ready for it once is used again.
    pub node: NodeId,
    /// Which device computes it.
    pub device: u32,
    pub op: &'a Op,
    pub inputs: &'a [DeviceOperand<'a>],
    pub outputs: &'a [DeviceOperand<'a>],
    pub in_place: bool,
}

/// A copy that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(pub u64);

/// Why a device did not do what it was told. What fails behind a call is told by a later one.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFailure {
    /// An operator's operands do not fit it, or hold what they must not. The node is that of the call.
    #[error("{source}")]
    Kernel { node: Option<NodeId>, source: Box<KernelError> },
    /// The device itself failed.
    #[error(transparent)]
    Device(Box<dyn Error + Send + Sync>),
}

/// Devices that compute; they are numbered from 0 on. No call but [`DeviceKernels::wait`] and [`DeviceKernels::forget_ahead`]
/// blocks.
pub trait DeviceKernels: Send + std::fmt::Debug {
    /// What computes, for a log's first lines.
    fn description(&self) -> String;

    /// Allocates memory of a device.
    ///
    /// # Errors
    /// When there is not enough. Everywhere else: when a device has failed.
    fn alloc(&mut self, device: u32, bytes: usize) -> Result<Slab, DeviceFailure>;

    /// Allocates memory of a device that another process of this host maps by the descriptor, or says why none can.
    ///
    /// # Errors
    /// When there is not enough.
    fn alloc_shared(&mut self, device: u32, bytes: usize) -> Result<(Slab, Shown), DeviceFailure>;

    /// Returns memory of the device as a NIC's driver takes it.
    ///
    /// # Errors
    /// When the device has no such descriptors.
    fn dma_buf(&mut self, memory: &Slab) -> Result<DmaBuf, DeviceFailure>;

    /// Maps memory that another process of this host allocated so, of as many bytes, for one of its own devices.
    ///
    /// # Errors
    /// When the descriptor is none of a device's memory, or of less of it.
    fn import(&mut self, device: u32, memory: OwnedFd, bytes: usize)
    -> Result<Slab, DeviceFailure>;

    /// Allocates memory of the host that all devices copy from and to while others work.
    ///
    /// # Errors
    /// When there is not enough.
    fn alloc_on_host(&mut self, bytes: usize) -> Result<Slab, DeviceFailure>;

    /// Has all devices copy from and to memory of the host that somebody else allocated while others work, as long as the
    /// result lives. What is not pinned is copied all the same, and holds up whoever starts it.
    ///
    /// # Errors
    /// When the system locks no more memory.
    fn pin(&mut self, slab: &Slab) -> Result<Keepalive, DeviceFailure>;

    /// Starts computing an operator behind all that its device was told before.
    ///
    /// # Errors
    /// When the operands do not fit the operator.
    fn start(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceFailure>;

    /// Starts copying behind all that the devices of both ends were told before. The loans are held until it is over.
    ///
    /// # Errors
    /// When the lengths differ, or neither is memory of the device.
    fn copy(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<CopyId, DeviceFailure> {
        let bytes = from.bytes().min(to.bytes());
        self.copy_piece((&Arc::new(from), 0), (&Arc::new(to), 0), bytes)
    }

    /// As [`DeviceKernels::copy`], a piece that begins at a byte of each.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If the piece is not inside of both.
    fn copy_piece(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure>;

    /// As [`DeviceKernels::copy_piece`] from the host's memory to a device's, or the other way: the host's end is held until it is
    /// over, the device's is guarded by the device's order.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If the piece is not inside of both.
    fn carry(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure>;

    /// Has all that `device` is told from now on come behind all that `other` was told so far.
    ///
    /// # Errors
    /// As everywhere.
    fn follow(&mut self, device: u32, other: u32) -> Result<(), DeviceFailure>;

    /// Starts copying from the host beside all that was started before, to memory of a device that is used by
    /// [`DeviceKernels::take`] alone. `from` is held until [`DeviceKernels::forget_ahead`]; `to` is guarded by the device's order.
    ///
    /// # Errors
    /// When the lengths differ, or the ends are not of the host and of the device.
    fn copy_ahead(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure>;

    /// Starts copying within a device, behind all that was started before and what was copied ahead. What is copied ahead
    /// later comes behind this.
    ///
    /// # Errors
    /// When the lengths differ, or an end is not of the device.
    fn take(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure>;

    /// True once all that was copied ahead is there.
    ///
    /// # Errors
    /// When something failed.
    fn is_ahead_over(&mut self) -> Result<bool, DeviceFailure>;

    /// Waits until what is being copied ahead is there. What was not begun yet to the memory at `to`, for the step before has not
    /// taken what is there, is not copied any more.
    ///
    /// # Errors
    /// When something failed, or the deadline passed.
    fn forget_ahead(&mut self, to: usize, deadline: Deadline) -> Result<(), DeviceFailure>;

    /// Marks where all devices are: a copy of nothing.
    ///
    /// # Errors
    /// As everywhere.
    fn mark(&mut self) -> Result<CopyId, DeviceFailure>;

    /// True once a copy is over; so is then all that it came behind.
    ///
    /// # Errors
    /// When something failed that was started before.
    fn is_over(&mut self, copy: CopyId) -> Result<bool, DeviceFailure>;

    /// Waits until a copy is over.
    ///
    /// # Errors
    /// When something failed that was started before, or the deadline passed.
    fn wait(&mut self, copy: CopyId, deadline: Deadline) -> Result<(), DeviceFailure>;

    /// Makes ready to be told whole steps, whose stream waits at gates and gives signals, so many of each, numbered from 0.
    /// From [`DeviceKernels::begin_step`] to [`DeviceKernels::end_step`] the device is told a step: what it may take of it at the
    /// end, and the rest as gates are opened.
    ///
    /// # Errors
    /// When the device cannot wait for words, or several devices are one, or another session tells it whole steps: they are told
    /// in parts.
    fn prepare_steps(&mut self, _gates: usize, _signals: usize) -> Result<(), DeviceFailure> {
        Err(DeviceFailure::Device("it is told no whole steps".into()))
    }

    /// Whoever made it ready tells it no more of them: another may make it ready.
    fn release_steps(&mut self) {}

    /// True if a device that waits at a gate sees what a NIC has written when it is opened.
    fn sees_remote_writes(&self) -> bool {
        false
    }

    /// Begins a step.
    ///
    /// # Errors
    /// As everywhere.
    fn begin_step(&mut self) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// Copies in the step's order. The host's end is held until the step is over; the device's is guarded by its order. The
    /// host's end is pinned.
    ///
    /// # Errors
    /// As everywhere.
    fn copy_in_step(&mut self, _: DeviceLoan, _: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// Has what follows in the step wait until the gate is opened, and shuts it again.
    ///
    /// # Errors
    /// As everywhere.
    fn wait_at_gate(&mut self, _gate: usize) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// Gives a signal when all that comes before it in the step is done.
    ///
    /// # Errors
    /// As everywhere.
    fn give_signal(&mut self, _signal: usize) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// Starts the step; over when it has waited at all gates, too. The device is told it as one: of what is told piece by piece
    /// behind a shut gate a driver takes so much, and then holds the thread that would open it. None where it cannot be told
    /// so: nothing of the step is started then but what was taken, which may be taken again.
    ///
    /// # Errors
    /// As everywhere.
    fn end_step(&mut self) -> Result<Option<CopyId>, DeviceFailure> {
        self.mark().map(Some)
    }

    /// Opens a gate, once a step that waits there; `is_remote`: for what a NIC has written to the device's memory.
    ///
    /// # Errors
    /// As everywhere.
    fn open_gate(&mut self, _gate: usize, _is_remote: bool) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// True if a signal was given, once.
    fn takes_signal(&mut self, _signal: usize) -> bool {
        false
    }

    /// Gives up a step that waits: nobody opens its gates any more. What of it is not done is not to be used.
    fn discard_step(&mut self) {}

    /// True as long as graphs are made of what comes again and again: some driver makes none.
    fn makes_graphs(&self) -> bool {
        true
    }

    /// Returns how often one was told a graph in the place of the kernels that one is made of.
    fn graphs_launched(&self) -> u64 {
        0
    }

    /// Returns how many matrix products and convolutions it left to a library.
    fn library_calls(&self) -> u64 {
        0
    }

    /// Returns how often it computed what a library that it has does not take.
    fn library_refusals(&self) -> u64 {
        0
    }

    /// Returns how many vectors a library reduced with devices of other processes.
    fn reductions(&self) -> u64 {
        0
    }

    /// Has optimizers that are started from now on change variables at `factor` times their rate.
    ///
    /// # Errors
    /// As everywhere.
    fn set_rate_factor(&mut self, factor: f64) -> Result<(), DeviceFailure>;
}
