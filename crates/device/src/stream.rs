//! A queue of work of a GPU: copies, fills, words, kernels, in the order in which it is told. Nothing here waits for work
//! but [`Stream::synchronize`].

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Clock, Deadline};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan, Keepalive, Slab};

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::event::Event;
use crate::module::Function;
use crate::sys::*;
use crate::wait::wait;
use crate::word::{Until, Word};

/// More urgent than any GPU knows: the driver takes the most urgent that there is.
const URGENT: i32 = i32::MIN / 2;

/// A stream. What it was told goes on when it is dropped.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    raw: Arc<RawStream>,
}

/// The driver's stream, which its device keeps until it is idle.
#[derive(Debug)]
pub(crate) struct RawStream {
    handle: Handle<CUstream_st>,
    /// What the graph needs that is being captured; none while none is.
    kept: Mutex<Option<Vec<Keepalive>>>,
}

impl Device {
    /// Makes a stream.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn stream(self: &Arc<Self>) -> Result<Stream, DeviceError> {
        self.stream_of(0)
    }

    /// Makes a stream whose kernels go before those of others: for what others wait for.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn urgent_stream(self: &Arc<Self>) -> Result<Stream, DeviceError> {
        self.stream_of(URGENT)
    }

    fn stream_of(self: &Arc<Self>, priority: i32) -> Result<Stream, DeviceError> {
        let mut stream = std::ptr::null_mut();
        self.call("cuStreamCreateWithPriority", |functions| {
            // not ordered with the default stream, which is others'
            let flags = CU_STREAM_NON_BLOCKING;
            // SAFETY: there is room for the pointer.
            unsafe { (functions.cuStreamCreateWithPriority)(&mut stream, flags, priority) }
        })?;
        let raw = Arc::new(RawStream { handle: Handle(stream), kept: Mutex::default() });
        self.add_stream(raw.clone());
        Ok(Stream { device: self.clone(), raw })
    }

    /// The error of a wait since `start_ns`.
    pub(crate) fn timed_out(&self, what: &'static str, start_ns: u64) -> DeviceError {
        let waited_ms = Clock::now_ns().saturating_sub(start_ns) / 1_000_000;
        DeviceError::TimedOut { device: self.ordinal(), what, waited_ms }
    }
}

impl Stream {
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's stream, for CUDA's libraries. It lives as long as this one.
    pub fn handle(&self) -> *mut c_void {
        self.raw().cast()
    }

    /// Copies a range of the host's memory to byte `at` of a GPU's. Until the stream has passed here, nobody writes the
    /// source nor uses the target otherwise.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Panics
    /// If a range is not inside, or one of them is memory of the wrong side.
    pub fn copy_to_device(
        &self,
        source: &DeviceLoan,
        range: Range<usize>,
        target: &DeviceWriteLoan,
        at: usize,
    ) -> Result<(), DeviceError> {
        assert!(!source.space().is_device() && target.space().is_device());
        let Some(Copying { from, to, bytes }) = self.copying(source, range, target, at) else {
            return Ok(());
        };
        self.device.call("cuMemcpyHtoDAsync", |functions| {
            let from = on_host(source.slab(), from);
            // SAFETY: both ranges lie inside of what is lent. Memory of this crate is given back only when the stream is
            // idle (see `Device::settle`), and from other memory of the host the driver reads before it returns.
            unsafe { (functions.cuMemcpyHtoDAsync_v2)(to as u64, from, bytes, self.raw()) }
        })
    }

    /// Copies a range of a GPU's memory to byte `at` of the host's. Until the stream has passed here, nobody writes the
    /// source nor uses the target otherwise.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Panics
    /// If a range is not inside, or one of them is memory of the wrong side.
    pub fn copy_to_host(
        &self,
        source: &DeviceLoan,
        range: Range<usize>,
        target: &DeviceWriteLoan,
        at: usize,
    ) -> Result<(), DeviceError> {
        assert!(source.space().is_device() && !target.space().is_device());
        let Some(Copying { from, to, bytes }) = self.copying(source, range, target, at) else {
            return Ok(());
        };
        self.device.call("cuMemcpyDtoHAsync", |functions| {
            let to = on_host(target.slab(), to);
            // SAFETY: as for `copy_to_device`: other memory of the host the driver has written when it returns.
            unsafe { (functions.cuMemcpyDtoHAsync_v2)(to, from as u64, bytes, self.raw()) }
        })
    }

    /// Copies a range of a GPU's memory to byte `at` of a GPU's, the same one or one that it reaches. The two do not
    /// overlap. Until the stream has passed here, nobody writes the source nor uses the target otherwise.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Panics
    /// If a range is not inside, or one of them is memory of the host.
    pub fn copy_within_device(
        &self,
        source: &DeviceLoan,
        range: Range<usize>,
        target: &DeviceWriteLoan,
        at: usize,
    ) -> Result<(), DeviceError> {
        assert!(source.space().is_device() && target.space().is_device());
        let Some(Copying { from, to, bytes }) = self.copying(source, range, target, at) else {
            return Ok(());
        };
        // fits: addresses of this machine
        // SAFETY: both ranges lie inside of what is lent, which is given back only when the stream is idle.
        unsafe { self.copy_at(from as u64, to as u64, bytes) }
    }

    /// Copies a range of another GPU's memory to byte `at` of this one's. The driver takes it from memory to memory where the
    /// GPUs reach each other, else by way of the host. Until the stream has passed here, nobody writes the source nor uses the
    /// target otherwise.
    ///
    /// # Errors
    /// When the driver refuses, or a GPU is lost.
    ///
    /// # Panics
    /// If a range is not inside, or one of them is memory of the host.
    pub fn copy_from_peer(
        &self,
        peer: &Device,
        source: &DeviceLoan,
        range: Range<usize>,
        target: &DeviceWriteLoan,
        at: usize,
    ) -> Result<(), DeviceError> {
        assert!(source.space().is_device() && target.space().is_device());
        let Some(Copying { from, to, bytes }) = self.copying(source, range, target, at) else {
            return Ok(());
        };
        // fits: addresses of this machine
        let (from, to) = (from as u64, to as u64);
        self.device.call("cuMemcpyPeerAsync", |functions| {
            let (here, there) = (self.device.context(), peer.context());
            // SAFETY: both ranges lie inside of what is lent, which is given back only when the streams of both GPUs are idle
            // (see `Device::open_together`); both contexts live as long as their devices.
            unsafe { (functions.cuMemcpyPeerAsync)(to, here, from, there, bytes, self.raw()) }
        })
    }

    /// Fills a range of a GPU's memory with a byte. Until the stream has passed here, nobody else uses it.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Panics
    /// If the range is not inside, or is memory of the host.
    pub fn set(
        &self,
        target: &DeviceWriteLoan,
        range: Range<usize>,
        byte: u8,
    ) -> Result<(), DeviceError> {
        assert!(target.space().is_device());
        check_inside(&range, target.bytes());
        self.keep(target.slab());
        // fits: an address of this machine
        let start = (target.address() + range.start) as u64;
        // SAFETY: the range lies inside of what is lent, which is given back only when the stream is idle.
        unsafe { self.set_at(start, range.len(), byte) }
    }

    /// As [`Stream::copy_within_device`], by addresses.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Safety
    /// Both are memory that the GPU reaches, of so many bytes, which do not overlap. It lives until the stream has passed
    /// here, where the stream is being captured for each launch of the graph, and nobody else uses it otherwise.
    pub unsafe fn copy_at(&self, from: u64, to: u64, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.call("cuMemcpyDtoDAsync", |functions| {
            // SAFETY: the caller's duty.
            unsafe { (functions.cuMemcpyDtoDAsync_v2)(to, from, bytes, self.raw()) }
        })
    }

    /// As [`Stream::set`], by an address.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    ///
    /// # Safety
    /// As of [`Stream::copy_at`].
    pub unsafe fn set_at(&self, to: u64, bytes: usize, byte: u8) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.call("cuMemsetD8Async", |functions| {
            // SAFETY: the caller's duty.
            unsafe { (functions.cuMemsetD8Async)(to, byte, bytes, self.raw()) }
        })
    }

    /// Has all that follows wait until `event` has passed, as it was last recorded.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    pub fn wait_event(&self, event: &Event) -> Result<(), DeviceError> {
        self.device.call("cuStreamWaitEvent", |functions| {
            // SAFETY: both live; the driver keeps what it needs of the event.
            unsafe { (functions.cuStreamWaitEvent)(self.raw(), event.raw(), 0) }
        })
    }

    /// Has all that follows wait until somebody has written the word so. A wait that never ends keeps the stream and its
    /// memory for good: whoever writes the word writes it also when he fails.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    pub fn wait_value32(&self, word: &Word, until: Until) -> Result<(), DeviceError> {
        let (value, flags) = match until {
            Until::Equal(value) => (value, CU_STREAM_WAIT_VALUE_EQ),
            Until::AtLeast(value) => (value, CU_STREAM_WAIT_VALUE_GEQ),
        };
        self.keep(word.slab());
        self.device.call("cuStreamWaitValue32", |functions| {
            // SAFETY: the word is aligned memory that GPUs reach, given back only when the stream is idle.
            unsafe { (functions.cuStreamWaitValue32_v2)(self.raw(), word.address(), value, flags) }
        })
    }

    /// Writes the word behind all that the stream was told so far, whose effects are seen by who sees the word.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    pub fn write_value32(&self, word: &Word, value: u32) -> Result<(), DeviceError> {
        self.keep(word.slab());
        self.device.call("cuStreamWriteValue32", |functions| {
            let flags = CU_STREAM_WRITE_VALUE_DEFAULT;
            // SAFETY: as for `wait_value32`.
            unsafe { (functions.cuStreamWriteValue32_v2)(self.raw(), word.address(), value, flags) }
        })
    }

    /// Launches a kernel that takes one structure by value, whose bytes are `arguments`.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost. What the kernel does wrong shows in a later call, too.
    ///
    /// # Safety
    /// `arguments` are what the kernel takes, whole. What the kernel reaches by them is memory that nobody else uses,
    /// or that it only reads, and that lives until the stream has passed here; where the stream is being captured, for
    /// each launch of the graph.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u8],
    ) -> Result<(), DeviceError> {
        let mut size = arguments.len();
        let kind = |number: u32| std::ptr::without_provenance_mut::<c_void>(number as usize);
        let mut extra = [
            kind(CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT),
            arguments.as_ptr().cast_mut().cast(),
            kind(CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT),
            (&raw mut size).cast(),
            kind(CU_LAUNCH_PARAM_END_AS_INT),
        ];
        let ([x, y, z], [bx, by, bz]) = (grid, block);
        self.keep(function);
        self.device.call("cuLaunchKernel", |functions| {
            // SAFETY: function and stream live, and the driver copies the arguments before it returns; what they name is
            // the caller's duty.
            unsafe {
                (functions.cuLaunchKernel)(
                    function.raw(),
                    x,
                    y,
                    z,
                    bx,
                    by,
                    bz,
                    shared_bytes,
                    self.raw(),
                    std::ptr::null_mut(),
                    extra.as_mut_ptr(),
                )
            }
        })
    }

    /// True if all that it was told is done.
    ///
    /// # Errors
    /// When something of it failed, or the GPU is lost.
    pub fn query(&self) -> Result<bool, DeviceError> {
        self.raw.is_idle(&self.device)
    }

    /// Waits until all that it was told is done.
    ///
    /// # Errors
    /// As [`Stream::query`], and when the deadline comes first.
    pub fn synchronize(&self, deadline: Deadline) -> Result<(), DeviceError> {
        let start = Clock::now_ns();
        match wait(deadline, || self.query())? {
            true => Ok(()),
            false => Err(self.device.timed_out("a stream", start)),
        }
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw.handle.0
    }

    pub(crate) fn start_keeping(&self) {
        *self.raw.kept.lock() = Some(Vec::new());
    }

    pub(crate) fn stop_keeping(&self) -> Vec<Keepalive> {
        self.raw.kept.lock().take().unwrap_or_default()
    }

    /// Keeps something for the graph, while one is captured.
    fn keep<T: Clone + Send + Sync + 'static>(&self, needed: &T) {
        if let Some(kept) = &mut *self.raw.kept.lock() {
            kept.push(Arc::new(needed.clone()));
        }
    }

    /// The ends of a copy, checked and kept; none where there is nothing to copy.
    fn copying(
        &self,
        source: &DeviceLoan,
        range: Range<usize>,
        target: &DeviceWriteLoan,
        at: usize,
    ) -> Option<Copying> {
        check_inside(&range, source.bytes());
        let bytes = range.len();
        check_inside(&(at..at.saturating_add(bytes)), target.bytes());
        if bytes == 0 {
            return None;
        }
        self.keep(source.slab());
        self.keep(target.slab());
        let (from, to) = (source.address() + range.start, target.address() + at);
        Some(Copying { from, to, bytes })
    }
}

/// Two addresses, and how much.
struct Copying {
    from: usize,
    to: usize,
    bytes: usize,
}

/// A pointer to an address inside of a slab of the host.
fn on_host(slab: &Slab, address: usize) -> *mut c_void {
    slab.start().as_ptr().wrapping_add(address - slab.address()).cast()
}

fn check_inside(range: &Range<usize>, bytes: usize) {
    assert!(range.start <= range.end && range.end <= bytes, "{range:?} of {bytes} bytes");
}

impl RawStream {
    /// True if what it is told is being captured, also by way of another stream: asking it whether it is idle would end
    /// that, and what is captured does not run yet.
    pub(crate) fn is_capturing(&self, device: &Device) -> bool {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let asked = device.try_call(|functions| {
            // SAFETY: there is room for the number, and the stream lives.
            unsafe { (functions.cuStreamIsCapturing)(self.handle.0, &mut status) }
        });
        asked.is_ok() && status != CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// True if all that it was told is done.
    pub(crate) fn is_idle(&self, device: &Device) -> Result<bool, DeviceError> {
        let status = device.try_call(|functions| {
            // SAFETY: the stream lives: whoever asks holds it.
            unsafe { (functions.cuStreamQuery)(self.handle.0) }
        })?;
        match status {
            CUDA_ERROR_NOT_READY => Ok(false),
            _ => device.check("cuStreamQuery", status).map(|()| true),
        }
    }

    /// An event behind all that it was told; none, where all of it is done, or it is being captured and does none of it.
    pub(crate) fn told_so_far(&self, device: &Arc<Device>) -> Result<Option<Event>, DeviceError> {
        if self.is_capturing(device) || self.is_idle(device)? {
            return Ok(None);
        }
        let event = device.event()?;
        event.record_on(self.handle.0)?;
        Ok(Some(event))
    }

    /// Gives it back to the driver: by its device, once, when nobody else holds it.
    pub(crate) fn destroy(&self, device: &Device) {
        // SAFETY: made for this value, which nobody uses any more.
        let _ =
            device.try_call(|functions| unsafe { (functions.cuStreamDestroy_v2)(self.handle.0) });
    }
}
