//! What a GPU has to do with the others of its process: it says how far it was told, waits for others to come so far, and
//! copies from their memory.

use tensorwire_device::{Device, Event};
use tensorwire_kernels::{CopyId, DeviceFailure, Piece};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan};

use super::{CudaKernels, Failed};

impl CudaKernels {
    /// Makes `event` the point behind all that this GPU was told so far.
    pub(crate) fn record(&mut self, event: &Event) -> Result<(), DeviceFailure> {
        let done = self.recorded(event);
        self.kept(done)
    }

    /// Has all that this GPU is told from now on wait until another's `event` has passed, as it was last recorded.
    pub(crate) fn wait_for(&mut self, event: &Event) -> Result<(), DeviceFailure> {
        let done = self.waited_for(event);
        self.kept(done)
    }

    /// Starts a copy from another GPU's memory, behind all that this one was told.
    pub(crate) fn copy_from(
        &mut self,
        peer: &Device,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure> {
        let done = self.copied_from(peer, from, to, bytes);
        self.kept(done)
    }

    fn recorded(&mut self, event: &Event) -> Result<(), Failed> {
        self.check()?;
        self.flush()?;
        Ok(event.record(&self.stream)?)
    }

    fn waited_for(&mut self, event: &Event) -> Result<(), Failed> {
        self.check()?;
        // what was started before does not wait
        self.flush()?;
        Ok(self.stream.wait_event(event)?)
    }

    fn copied_from(
        &mut self,
        peer: &Device,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, Failed> {
        self.check()?;
        self.flush()?;
        Ok(self.flights.start_from(peer, &self.stream, (from, to), bytes)?)
    }
}
