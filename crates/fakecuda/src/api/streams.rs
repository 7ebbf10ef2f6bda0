//! Streams, events, copies, fills and words.

use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::sync::Arc;

use tensorwire_device::sys::*;

use super::{in_context, on_stream, pointer, put, same, started};
use crate::capture::Capture;
use crate::event::{Event, Recorded};
use crate::state::{Context, Fake, Outcome, is_pinned};
use crate::stream::{Op, Stream};
use crate::{cublas_lt, cudnn};

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    _flags: c_uint,
    _priority: c_int,
) -> CUresult {
    in_context(|fake, context| {
        fake.before_making(context, "a stream that is made")?;
        let made = Stream::start(fake, context.clone())?;
        // SAFETY: room is the caller's duty.
        unsafe { put(stream, pointer(fake.streams.add(made))) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    started(|fake| {
        let stream = fake.streams.remove(stream.addr())?;
        if let Some(capture) = stream.capture() {
            capture.invalidate();
        }
        stream.end();
        Ok(())
    })
}

/// Fails, and ends the capture for good, if the stream is captured.
fn not_captured(stream: &Stream) -> Outcome {
    match stream.capture() {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    on_stream(stream, |_, stream| {
        not_captured(stream)?;
        let is_idle = stream.is_idle();
        // what failed meanwhile
        stream.context.check()?;
        if is_idle { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    on_stream(stream, |_, stream| {
        let found = match stream.capture() {
            None => CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.is_invalid() => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => CU_STREAM_CAPTURE_STATUS_ACTIVE,
        };
        // SAFETY: room is the caller's duty.
        unsafe { put(status, found) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _flags: c_uint) -> CUresult {
    in_context(|fake, context| {
        let made = Arc::new(Event::new(context.clone()));
        // SAFETY: room is the caller's duty.
        unsafe { put(event, pointer(fake.events.add(made))) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    started(|fake| fake.events.remove(event.addr()).map(|_| ()))
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    on_stream(stream, |fake, stream| {
        let event = fake.events.get(event.addr())?;
        same(&event.context, &stream.context)?;
        match stream.capture() {
            Some(capture) => {
                event.capture(&capture, capture.clocks(stream));
                Ok(())
            }
            None => {
                let record = event.issue();
                stream.tell(Op::Record { event, record })
            }
        }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    in_context(|fake, _| {
        let event = fake.events.get(event.addr())?;
        let has_passed = event.query()?;
        event.context.check()?;
        if has_passed { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        let event = fake.events.get(event.addr())?;
        match (event.recorded(), stream.capture()) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::Outside(record), None) => stream.tell(Op::WaitEvent { event, record }),
            (Recorded::Outside(_), Some(capture)) => {
                capture.invalidate();
                Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::Captured(of, clocks), own) => {
                let of = of.upgrade().ok_or(CUDA_ERROR_CAPTURED_EVENT)?;
                if let Some(own) = own.filter(|own| !Arc::ptr_eq(own, &of)) {
                    own.invalidate();
                    of.invalidate();
                    return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
                }
                of.join(stream, clocks);
                Ok(())
            }
        }
    })
}

/// Fails unless a GPU reaches the bytes now; they are looked up again when it works on them.
fn reached(fake: &Fake, stream: &Stream, address: u64, bytes: usize) -> Outcome {
    let pinned = fake.pinned.read();
    let place = fake.place(address, bytes, stream.context.ordinal, &pinned);
    place.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Memory of the host: pinned, or not. An address of a GPU is none.
fn is_pinned_host(fake: &Fake, start: *const c_void, bytes: usize) -> Outcome<bool> {
    if start.is_null() || fake.space.read().contains(start.addr() as u64) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(is_pinned(&fake.pinned.read(), start.addr(), bytes))
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        reached(fake, stream, to, bytes)?;
        if is_pinned_host(fake, from, bytes)? {
            return stream.tell(Op::Copy { from: from.addr() as u64, to, bytes });
        }
        // a driver may take it; it would be read when the graph runs, and nobody could know until when
        not_captured(stream)?;
        // SAFETY: so many bytes are there until this returns: the caller's duty.
        let staged = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        stream.tell(Op::Staged { from: staged.into(), to })
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        reached(fake, stream, from, bytes)?;
        if is_pinned_host(fake, to, bytes)? {
            return stream.tell(Op::Copy { from, to: to.addr() as u64, bytes });
        }
        not_captured(stream)?;
        stream.tell(Op::Unstaged { from, to: to.addr(), bytes })?;
        stream.wait_idle()
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        reached(fake, stream, from, bytes)?;
        reached(fake, stream, to, bytes)?;
        let length = bytes as u64;
        // what a GPU makes of that nobody says
        if from < to + length && to < from + length && bytes > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        stream.tell(Op::Copy { from, to, bytes })
    })
}

/// Each address is looked up as its context's GPU has it. The stream is of either.
///
/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        let device = |context: CUcontext, address: u64| {
            let at =
                Context::number_of(context).checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            let gpu = fake.gpus.get(at).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            gpu.context.check()?;
            let space = fake.space.read();
            let there = space.bytes(address, bytes, at).ok_or(CUDA_ERROR_INVALID_VALUE);
            there.map(|_| at)
        };
        let (from_device, to_device) = (device(from_context, from)?, device(to_context, to)?);
        if ![from_device, to_device].contains(&stream.context.ordinal) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (from, to) = ((from, from_device), (to, to_device));
        stream.tell(Op::CopyBetween { from, to, bytes })
    })
}

fn fill(stream: CUstream, to: u64, value: u32, count: usize, width: usize) -> CUresult {
    on_stream(stream, |fake, stream| {
        let bytes = count.checked_mul(width).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        reached(fake, stream, to, bytes)?;
        if !to.is_multiple_of(width as u64) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        stream.tell(Op::Fill { to, count, value, width })
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: c_uchar,
    count: usize,
    stream: CUstream,
) -> CUresult {
    fill(stream, to, value.into(), count, 1)
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32Async(
    to: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> CUresult {
    fill(stream, to, value, count, 4)
}

fn word(fake: &Fake, stream: &Stream, address: u64) -> Outcome {
    if !address.is_multiple_of(4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    reached(fake, stream, address, 4)
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        word(fake, stream, address)?;
        if ![CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_EQ].contains(&flags) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        stream.tell(Op::WaitValue { address, value, condition: flags })
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        word(fake, stream, address)?;
        if flags != CU_STREAM_WRITE_VALUE_DEFAULT {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        stream.tell(Op::WriteValue { address, value })
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        if stream.capture().is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        if fake.config.faults.no_graph {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // the others forbid calls of whole threads, which is not imitated here
        if mode != CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        Capture::begin(stream);
        Ok(())
    })
}

/// Streams that are made from now on sleep as this seed says. No function of the driver's.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaSeed(seed: u64) -> CUresult {
    started(|fake| {
        *fake.seeds.lock() = (seed, 0);
        Ok(())
    })
}

/// How many allocations, streams, events, graphs, images and objects of libraries there are. No function of the driver's.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaAlive() -> u64 {
    let count = |fake: &Fake| {
        let graphs = fake.recordings.count() + fake.execs.count();
        let made = fake.allocations.count() + fake.streams.count() + fake.events.count();
        let made = made + fake.members.count();
        // fits: a count of things in memory
        (made
            + graphs
            + fake.images.count()
            + fake.pinned.read().len()
            + cublas_lt::alive()
            + cudnn::alive()) as u64
    };
    Fake::get().map_or(0, count)
}
