//! What a caller reads and fills between runs. Where a tensor lies in a device's memory, it looks at a copy of it in the
//! host's: made when it is asked for, and brought back when it was filled.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_graph::Output;
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_memory::{
    Arena, Buffer, Copies, CopyPurpose, DeviceLoan, DeviceWriteLoan, Keepalive, Loan, LoanError,
    Place, ReadGuard, WriteGuard, WriteLoan,
};

use crate::error::AllocError;

/// A tensor's bytes, to be read.
#[derive(Debug)]
pub struct Reading<'a>(Read<'a>);

#[derive(Debug)]
enum Read<'a> {
    /// Where the tensor lies.
    There(ReadGuard<'a>),
    /// In a copy of it.
    Mirrored(Loan),
}

/// A tensor's bytes, to be filled. They are the tensor's once this is dropped.
#[derive(Debug)]
pub struct Writing<'a>(Write<'a>);

#[derive(Debug)]
enum Write<'a> {
    /// Where the tensor lies.
    There(WriteGuard<'a>),
    /// In a copy of it.
    Mirrored(Box<Mirrored<'a>>),
}

/// A copy of a device's tensor that is being filled.
#[derive(Debug)]
struct Mirrored<'a> {
    mirrors: &'a Mirrors,
    mirror: Buffer,
    /// There until it is dropped.
    filled: Option<WriteLoan>,
    /// Nobody uses the tensor meanwhile.
    target: Option<DeviceWriteLoan>,
}

/// Why a tensor cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
    #[error(transparent)]
    Lent(#[from] LoanError),
    #[error(transparent)]
    Memory(#[from] AllocError),
    #[error(transparent)]
    Device(#[from] DeviceFailure),
}

/// The copies of one session's tensors.
pub(crate) struct Mirrors {
    device: SharedDevice,
    /// The session's memory of the host, which the device copies from and to.
    _pinned: Vec<Keepalive>,
    /// Longest that a copy may take.
    patience: Duration,
    buffers: Mutex<HashMap<Output, Buffer>>,
    copies: Mutex<Copies>,
    /// Why what was filled could not be brought to the device.
    failure: Mutex<Option<DeviceFailure>>,
}

impl std::fmt::Debug for Mirrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirrors").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Mirrors {
    pub(crate) fn new(device: SharedDevice, pinned: Vec<Keepalive>, patience: Duration) -> Mirrors {
        Mirrors {
            device,
            _pinned: pinned,
            patience,
            buffers: Mutex::default(),
            copies: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn copies(&self) -> Copies {
        *self.copies.lock()
    }

    /// What failed behind the back of a caller who had filled a tensor, once.
    pub(crate) fn failure(&self) -> Option<DeviceFailure> {
        self.failure.lock().take()
    }

    /// A tensor's bytes, behind all that was started before.
    pub(crate) fn read(&self, output: Output, tensor: &Buffer) -> Result<Loan, MirrorError> {
        let (mirror, into) = self.mirror(output, tensor.bytes())?;
        self.copy(CopyPurpose::ToHost, tensor.lend_to_device()?, into)?;
        Ok(mirror.lend()?)
    }

    /// The same, to be filled.
    pub(crate) fn write(
        &self,
        output: Output,
        tensor: &Buffer,
    ) -> Result<Writing<'_>, MirrorError> {
        let (mirror, into) = self.mirror(output, tensor.bytes())?;
        self.copy(CopyPurpose::ToHost, tensor.lend_to_device()?, into)?;
        let (filled, target) =
            (Some(mirror.lend_for_writing()?), Some(tensor.lend_to_device_for_writing()?));
        let mirrored = Mirrored { mirrors: self, mirror, filled, target };
        Ok(Writing(Write::Mirrored(Box::new(mirrored))))
    }

    /// Memory for a copy of an output: that of the last time, unless somebody still reads it.
    fn mirror(
        &self,
        output: Output,
        bytes: usize,
    ) -> Result<(Buffer, DeviceWriteLoan), MirrorError> {
        let mut buffers = self.buffers.lock();
        let last = buffers.get(&output).filter(|mirror| mirror.bytes() == bytes);
        if let Some((mirror, loan)) =
            last.and_then(|mirror| Some((mirror, mirror.lend_to_device_for_writing().ok()?)))
        {
            return Ok((mirror.clone(), loan));
        }
        let slab = self.device.lock().alloc_on_host(bytes)?;
        let places = [Place { offset: 0, bytes }];
        let mut made = Arena::new(&slab, &places).map_err(AllocError::from)?.into_buffers();
        let mirror = made.remove(0);
        let loan = mirror.lend_to_device_for_writing()?;
        buffers.insert(output, mirror.clone());
        Ok((mirror, loan))
    }

    fn copy(
        &self,
        purpose: CopyPurpose,
        from: DeviceLoan,
        to: DeviceWriteLoan,
    ) -> Result<(), DeviceFailure> {
        // fits: a length is at most isize::MAX
        let bytes = to.bytes() as u64;
        let mut device = self.device.lock();
        let copy = device.copy(from, to)?;
        device.wait(copy, Deadline::after(self.patience))?;
        self.copies.lock().add(purpose, bytes);
        Ok(())
    }
}

impl Drop for Mirrored<'_> {
    fn drop(&mut self) {
        drop(self.filled.take());
        let Some(target) = self.target.take() else { return };
        // it was lent for writing until now, so it can be lent
        let Ok(from) = self.mirror.lend_to_device() else { return };
        if let Err(failure) = self.mirrors.copy(CopyPurpose::ToDevice, from, target) {
            *self.mirrors.failure.lock() = Some(failure);
        }
    }
}

impl<'a> Reading<'a> {
    pub(crate) fn there(guard: ReadGuard<'a>) -> Reading<'a> {
        Reading(Read::There(guard))
    }

    pub(crate) fn mirrored(loan: Loan) -> Reading<'a> {
        Reading(Read::Mirrored(loan))
    }
}

impl<'a> Writing<'a> {
    pub(crate) fn there(guard: WriteGuard<'a>) -> Writing<'a> {
        Writing(Write::There(guard))
    }
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Read::There(guard) => guard,
            Read::Mirrored(loan) => loan.as_ref(),
        }
    }
}

impl Deref for Writing<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Write::There(guard) => guard,
            Write::Mirrored(mirrored) => mirrored.filled.as_deref().unwrap_or_default(),
        }
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Write::There(guard) => guard,
            Write::Mirrored(mirrored) => mirrored.filled.as_deref_mut().unwrap_or_default(),
        }
    }
}
