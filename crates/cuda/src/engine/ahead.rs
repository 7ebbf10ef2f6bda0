//! Copies to the GPU that run beside what computes, on a stream of their own: of what the next step is fed. Events keep the
//! two streams from each other: what is taken has come, and what is copied next waits until it is taken. The stream is made
//! with the device: a driver may make none while another one waits.

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_device::{Device, DeviceError, Event, Stream};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan};

use super::{CudaKernels, Failed};

/// The stream, with what it is told.
#[derive(Debug)]
pub(super) struct Ahead {
    stream: Stream,
    /// Behind the last copy.
    arrived: Event,
    /// In the stream that computes, behind the last that was taken.
    taken: Event,
    /// What the host must not write until the copies are over.
    under_way: Vec<DeviceLoan>,
}

impl Ahead {
    pub(super) fn new(device: &Arc<Device>) -> Result<Ahead, DeviceError> {
        Ok(Ahead {
            stream: device.stream()?,
            arrived: device.event()?,
            taken: device.event()?,
            under_way: Vec::new(),
        })
    }

    /// Starts a copy from the host. The target is free for it when all that was taken is taken.
    pub(super) fn start(
        &mut self,
        from: DeviceLoan,
        to: &DeviceWriteLoan,
    ) -> Result<(), DeviceError> {
        let bytes = 0..from.bytes().min(to.bytes());
        self.stream.wait_event(&self.taken)?;
        self.stream.copy_to_device(&from, bytes, to, 0)?;
        self.under_way.push(from);
        self.arrived.record(&self.stream)
    }

    /// Has `stream` copy within the GPU what was started here.
    pub(super) fn take(
        &self,
        stream: &Stream,
        from: &DeviceLoan,
        to: &DeviceWriteLoan,
    ) -> Result<(), DeviceError> {
        let bytes = 0..from.bytes().min(to.bytes());
        self.come_before(stream)?;
        stream.copy_within_device(from, bytes, to, 0)?;
        self.are_taken(stream)
    }

    /// What was started here has come before `stream` goes on.
    pub(super) fn come_before(&self, stream: &Stream) -> Result<(), DeviceError> {
        stream.wait_event(&self.arrived)
    }

    /// What is started from here on waits until `stream` comes here.
    pub(super) fn are_taken(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.taken.record(stream)
    }

    /// True once all copies that were begun are over, as behind [`Ahead::wait`].
    pub(super) fn is_over(&mut self) -> Result<bool, DeviceError> {
        let is_over = self.arrived.has_passed()?;
        if is_over {
            self.under_way.clear();
        }
        Ok(is_over)
    }

    /// Waits until all copies are over: the host may write again what they came from.
    pub(super) fn wait(&mut self, deadline: Deadline) -> Result<(), DeviceError> {
        self.arrived.synchronize(deadline)?;
        self.under_way.clear();
        Ok(())
    }
}

impl CudaKernels {
    pub(super) fn copied_ahead(
        &mut self,
        from: DeviceLoan,
        to: DeviceWriteLoan,
    ) -> Result<(), Failed> {
        self.check()?;
        let Some((from, to)) = self.steps.keep_back(from, to) else { return Ok(()) };
        // what computes does so meanwhile
        if !self.is_held() && self.segments.are_pending() {
            self.flush()?;
        }
        Ok(self.ahead.start(from, &to)?)
    }

    pub(super) fn taken(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), Failed> {
        self.check()?;
        if self.takes_in_step() {
            self.step_took(from, to);
            return Ok(());
        }
        self.flush()?;
        Ok(self.ahead.take(&self.stream, &from, &to)?)
    }
}
