//! One GPU of this process, by its primary context: the one that CUDA's own libraries and PyTorch use. A thread has it as
//! its current context for the time of a call, and what it had before afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;

use crate::driver::Driver;
use crate::error::DeviceError;
use crate::facts::DeviceFacts;
use crate::stream::RawStream;
use crate::sys::*;
use crate::wait::wait;

/// So long what a GPU was told may take to end before memory that it may use is kept for good.
const SETTLE: Duration = Duration::from_secs(10);
/// So often it is looked meanwhile whether another GPU is lost, for which this one may wait.
const LOOK: Duration = Duration::from_secs(1);

/// A GPU. Everything made on it keeps it open.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    facts: DeviceFacts,
    number: CUdevice,
    context: Handle<CUctx_st>,
    /// Those that somebody holds, and those that nobody holds and that may have work.
    streams: Mutex<Vec<Arc<RawStream>>>,
    /// Work did not end in time, or the GPU is lost: nothing that it may use is given back.
    is_stuck: AtomicBool,
    together: OnceLock<Together>,
}

/// A device among those that were opened together.
#[derive(Debug)]
struct Together {
    /// Its number among them.
    number: u32,
    others: Vec<Weak<Device>>,
}

/// An object of the driver's, which any thread may use.
#[derive(Debug)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: objects of the driver belong to a context and not to a thread; the driver's functions lock what they need to
// (the manual, "Thread safety"). Nobody here follows the address.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Handle<T> {}

/// Bytes of a GPU's memory, those of all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    pub free: u64,
    pub total: u64,
}

impl Device {
    /// Opens the GPU of that ordinal. All openings in a process share one context.
    ///
    /// # Errors
    /// When there is none, it lacks what all memory here needs, or the driver refuses.
    pub fn open(driver: &Arc<Driver>, ordinal: usize) -> Result<Arc<Device>, DeviceError> {
        let facts = driver.facts(ordinal)?;
        if !facts.virtual_memory || !facts.unified_addressing {
            let what = "map memory at addresses that the host shares with it";
            let mend = "a GPU of Pascal (2016) or newer can, on Linux of 64 bits and not in vGPU mode: name another";
            return Err(DeviceError::Unsupported { device: ordinal, what, mend });
        }
        let number = driver.handle(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: there is room for the pointer, and the device is there.
        let status = unsafe { (driver.functions.cuDevicePrimaryCtxRetain)(&mut context, number) };
        driver.check(ordinal, "cuDevicePrimaryCtxRetain", status)?;
        Ok(Arc::new(Device {
            driver: driver.clone(),
            facts,
            number,
            context: Handle(context),
            streams: Mutex::default(),
            is_stuck: AtomicBool::new(false),
            together: OnceLock::new(),
        }))
    }

    /// Opens GPUs that work on each other's memory: what one of them allocates or maps the others reach, where the machine
    /// lets them, and is given back when none of them may use it any more. Slabs tell by their space which GPU's they are: it
    /// has the number that the GPU has here.
    ///
    /// # Errors
    /// As of [`Device::open`].
    pub fn open_together(
        driver: &Arc<Driver>,
        ordinals: &[usize],
    ) -> Result<Vec<Arc<Device>>, DeviceError> {
        let opened = ordinals.iter().map(|ordinal| Device::open(driver, *ordinal));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        for (number, device) in (0..).zip(&opened) {
            let others = opened.iter().filter(|other| !Arc::ptr_eq(other, device));
            let others = others.map(Arc::downgrade).collect();
            // set once: the device was opened just now
            let _ = device.together.set(Together { number, others });
        }
        Ok(opened)
    }

    /// Its number among the GPUs that were opened together with it; 0 if it is alone.
    pub fn number_in_process(&self) -> u32 {
        self.together.get().map_or(0, |together| together.number)
    }

    /// Those that were opened together with it, as far as they are open.
    pub(crate) fn others(&self) -> Vec<Arc<Device>> {
        let others = self.together.get().map(|together| &together.others);
        others.into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn context(&self) -> CUcontext {
        self.context.0
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub fn ordinal(&self) -> usize {
        self.facts.ordinal
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Returns how much memory the GPU has, and how much of it nobody uses.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        let (mut free, mut total) = (0, 0);
        self.call("cuMemGetInfo", |functions| {
            // SAFETY: there is room for both numbers; this device's context is current.
            unsafe { (functions.cuMemGetInfo_v2)(&mut free, &mut total) }
        })?;
        // fits: sizes of this machine
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Makes what NICs have written to the GPU's memory visible to what it does next. Takes some microseconds.
    ///
    /// # Errors
    /// When the driver refuses, and where [`DeviceFacts::flush`] is false.
    pub fn flush_remote_writes(&self) -> Result<(), DeviceError> {
        self.call("cuFlushGPUDirectRDMAWrites", |functions| {
            let (target, scope) = (
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            );
            // SAFETY: takes two numbers; this device's context is current.
            unsafe { (functions.cuFlushGPUDirectRDMAWrites)(target, scope) }
        })
    }

    /// The driver's number of it.
    pub(crate) fn number(&self) -> CUdevice {
        self.number
    }

    /// Calls the driver with this device's context current.
    pub(crate) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&Functions) -> CUresult,
    ) -> Result<(), DeviceError> {
        let status = self.try_call(call)?;
        self.check(name, status)
    }

    /// As [`Device::call`], for who looks at the result himself.
    pub(crate) fn try_call(
        &self,
        call: impl FnOnce(&Functions) -> CUresult,
    ) -> Result<CUresult, DeviceError> {
        let _current = self.enter()?;
        Ok(call(&self.driver.functions))
    }

    /// Calls another library of CUDA's with this device's context current.
    pub(crate) fn in_context<T>(&self, call: impl FnOnce() -> T) -> Result<T, DeviceError> {
        let _current = self.enter()?;
        Ok(call())
    }

    pub(crate) fn check(&self, name: &'static str, status: CUresult) -> Result<(), DeviceError> {
        self.driver.check(self.ordinal(), name, status)
    }

    /// As [`Device::check`], of a call that needs `asked` bytes.
    pub(crate) fn check_memory(
        &self,
        name: &'static str,
        status: CUresult,
        asked: u64,
    ) -> Result<(), DeviceError> {
        match status {
            CUDA_ERROR_OUT_OF_MEMORY => Err(self.out_of_memory(name, asked)),
            _ => self.check(name, status),
        }
    }

    pub(crate) fn out_of_memory(&self, call: &'static str, asked: u64) -> DeviceError {
        let MemoryInfo { free, total } =
            self.memory().unwrap_or(MemoryInfo { free: 0, total: self.facts.memory_bytes });
        let (device, failure) = (self.ordinal(), self.driver.failure(CUDA_ERROR_OUT_OF_MEMORY));
        DeviceError::OutOfMemory { device, call, failure, asked, free, total }
    }

    /// The error that a result is, which is no success.
    pub(crate) fn error(&self, call: &'static str, status: CUresult) -> DeviceError {
        self.driver.error(self.ordinal(), call, status)
    }

    /// Makes this device's context the thread's current one, until what is returned is dropped.
    fn enter(&self) -> Result<Current<'_>, DeviceError> {
        let functions = &self.driver.functions;
        let mut before = std::ptr::null_mut();
        // SAFETY: there is room for the pointer.
        let status = unsafe { (functions.cuCtxGetCurrent)(&mut before) };
        self.check("cuCtxGetCurrent", status)?;
        if before == self.context.0 {
            return Ok(Current { functions, before: None });
        }
        // SAFETY: the context lives until this device is dropped.
        let status = unsafe { (functions.cuCtxSetCurrent)(self.context.0) };
        self.check("cuCtxSetCurrent", status)?;
        // who had none needs none
        Ok(Current { functions, before: (!before.is_null()).then_some(before) })
    }

    pub(crate) fn add_stream(&self, stream: Arc<RawStream>) {
        self.streams.lock().push(stream);
    }

    /// Waits until the streams of this process on this GPU, and on those that were opened together with it, have done all that
    /// they were told so far. False if that takes too long, or cannot be known: what they may use must never be given back.
    pub(crate) fn settle(self: &Arc<Self>) -> bool {
        self.settle_alone() && self.others().iter().all(Device::settle_alone)
    }

    /// As [`Device::settle`], of this GPU's streams.
    fn settle_alone(self: &Arc<Self>) -> bool {
        if self.is_stuck.load(Ordering::Relaxed) {
            return false;
        }
        let deadline = Deadline::after(SETTLE);
        let streams = self.streams.lock().clone();
        // others may tell them more meanwhile, which does not concern what goes now
        let told =
            streams.iter().map(|stream| stream.told_so_far(self)).collect::<Result<Vec<_>, _>>();
        let done = told.and_then(|told| {
            let mut done = true;
            for event in told.iter().flatten() {
                done &= self.await_end(deadline, || event.has_passed())?;
            }
            Ok(done)
        });
        drop(streams);
        if matches!(done, Ok(false)) || done.as_ref().is_err_and(DeviceError::is_lost) {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
        let is_done = done.unwrap_or(false);
        if is_done {
            self.drop_idle_streams();
        }
        is_done
    }

    /// Waits for an end of what this GPU was told. False if it does not come before the deadline, or another GPU, for which it may
    /// wait, is lost.
    fn await_end(
        &self,
        deadline: Deadline,
        mut has_ended: impl FnMut() -> Result<bool, DeviceError>,
    ) -> Result<bool, DeviceError> {
        loop {
            if wait(deadline.min(Deadline::after(LOOK)), &mut has_ended)? {
                return Ok(true);
            }
            if deadline.passed() || self.others().iter().any(|other| other.is_lost()) {
                return Ok(false);
            }
        }
    }

    /// True if it says so of one of its streams.
    fn is_lost(&self) -> bool {
        let streams = self.streams.lock().clone();
        streams.iter().any(|stream| {
            !stream.is_capturing(self) && stream.is_idle(self).is_err_and(|error| error.is_lost())
        })
    }

    /// Destroys streams that nobody holds and that have nothing to do.
    fn drop_idle_streams(&self) {
        let mut left = Vec::new();
        self.streams.lock().retain(|stream| {
            // one holder: the list
            let is_left = Arc::strong_count(stream) == 1;
            if is_left {
                left.push(stream.clone());
            }
            !is_left
        });
        for stream in left {
            match stream.is_idle(self) {
                Ok(true) => stream.destroy(self),
                _ => self.add_stream(stream),
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // a context goes only when all its work has ended, for which the driver would wait without an end; nobody holds a
        // stream any more
        let deadline = Deadline::after(SETTLE);
        let streams = std::mem::take(self.streams.get_mut());
        let is_idle =
            |stream: &Arc<RawStream>| self.await_end(deadline, || stream.is_idle(self)) == Ok(true);
        if self.is_stuck.load(Ordering::Relaxed) || !streams.iter().all(is_idle) {
            return;
        }
        for stream in streams {
            stream.destroy(self);
        }
        // SAFETY: retained once by `open`, and released once here; everything made on it held this device.
        let _ = unsafe { (self.driver.functions.cuDevicePrimaryCtxRelease_v2)(self.number) };
    }
}

/// A thread's current context, and the one that it had.
struct Current<'a> {
    functions: &'a Functions,
    before: Option<CUcontext>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was current when this was made; whoever made it so keeps it. If it went meanwhile, the
            // driver says so, and the thread's next call sets its own.
            let _ = unsafe { (self.functions.cuCtxSetCurrent)(before) };
        }
    }
}
