//! A point in what a stream was told: others wait for it, or ask whether it has passed.

use std::sync::Arc;

use tensorwire_base::{Clock, Deadline};

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::stream::Stream;
use crate::sys::*;
use crate::wait::wait;

/// An event. One that was never recorded has passed.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: Handle<CUevent_st>,
}

impl Device {
    /// Makes an event, to be recorded any number of times.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn event(self: &Arc<Self>) -> Result<Event, DeviceError> {
        let mut event = std::ptr::null_mut();
        self.call("cuEventCreate", |functions| {
            // SAFETY: there is room for the pointer.
            unsafe { (functions.cuEventCreate)(&mut event, CU_EVENT_DISABLE_TIMING) }
        })?;
        Ok(Event { device: self.clone(), handle: Handle(event) })
    }
}

impl Event {
    /// Makes it the point behind all that `stream` was told so far.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.record_on(stream.raw())
    }

    /// `stream`: one that lives.
    pub(crate) fn record_on(&self, stream: CUstream) -> Result<(), DeviceError> {
        self.device.call("cuEventRecord", |functions| {
            // SAFETY: both live.
            unsafe { (functions.cuEventRecord)(self.handle.0, stream) }
        })
    }

    /// True if all that is before it is done.
    ///
    /// # Errors
    /// When something before it failed, or the GPU is lost.
    pub fn has_passed(&self) -> Result<bool, DeviceError> {
        let status = self.device.try_call(|functions| {
            // SAFETY: the event lives.
            unsafe { (functions.cuEventQuery)(self.handle.0) }
        })?;
        match status {
            CUDA_ERROR_NOT_READY => Ok(false),
            _ => self.device.check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Waits until it has passed.
    ///
    /// # Errors
    /// As [`Event::has_passed`], and when the deadline comes first.
    pub fn synchronize(&self, deadline: Deadline) -> Result<(), DeviceError> {
        let start = Clock::now_ns();
        match wait(deadline, || self.has_passed())? {
            true => Ok(()),
            false => Err(self.device.timed_out("an event", start)),
        }
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.handle.0
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made for this value, and destroyed once; the driver keeps what is still to come of it.
        let _ = self
            .device
            .try_call(|functions| unsafe { (functions.cuEventDestroy_v2)(self.handle.0) });
    }
}
