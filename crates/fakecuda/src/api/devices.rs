//! Starting, GPUs, contexts, and the texts of results.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use tensorwire_device::sys::*;

use super::{answer, in_context, put, started};
use crate::state::{Context, Fake, Outcome, current_handle, set_current};

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    answer(|| match flags {
        0 => Fake::start().map(|_| ()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: room is the caller's duty.
    started(|fake| unsafe { put(version, fake.config.version) })
}

/// Names and texts of the results that come from here.
const TEXTS: &[(CUresult, &CStr, &CStr)] = &[
    (CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (CUDA_ERROR_INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (CUDA_ERROR_OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (CUDA_ERROR_NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (CUDA_ERROR_NO_DEVICE, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (CUDA_ERROR_INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (CUDA_ERROR_INVALID_IMAGE, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (CUDA_ERROR_INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device",
    ),
    (
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these two devices",
    ),
    (CUDA_ERROR_INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.",
    ),
    (
        CUDA_ERROR_OPERATING_SYSTEM,
        c"CUDA_ERROR_OPERATING_SYSTEM",
        c"OS call failed or operation not supported on this OS",
    ),
    (CUDA_ERROR_INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (
        CUDA_ERROR_ILLEGAL_STATE,
        c"CUDA_ERROR_ILLEGAL_STATE",
        c"the operation cannot be performed in the present state",
    ),
    (CUDA_ERROR_NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (CUDA_ERROR_NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        CUDA_ERROR_ILLEGAL_ADDRESS,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (CUDA_ERROR_CONTEXT_IS_DESTROYED, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (CUDA_ERROR_LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (CUDA_ERROR_NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        CUDA_ERROR_STREAM_CAPTURE_MERGE,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"capture was not ended in the same stream as it began",
    ),
    (
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"capturing stream has unjoined work",
    ),
    (
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        CUDA_ERROR_CAPTURED_EVENT,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (CUDA_ERROR_UNKNOWN, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    let found = TEXTS.iter().find(|(code, ..)| *code == error);
    // SAFETY: room is the caller's duty.
    answer(|| unsafe { put(text, found.ok_or(CUDA_ERROR_INVALID_VALUE)?.1.as_ptr()) })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    let found = TEXTS.iter().find(|(code, ..)| *code == error);
    // SAFETY: room is the caller's duty.
    answer(|| unsafe { put(text, found.ok_or(CUDA_ERROR_INVALID_VALUE)?.2.as_ptr()) })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // fits: a machine has few; SAFETY: room is the caller's duty.
    started(|fake| unsafe { put(count, fake.gpus.len() as c_int) })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    started(|fake| {
        fake.gpu(ordinal)?;
        // SAFETY: room is the caller's duty.
        unsafe { put(device, ordinal) }
    })
}

/// Writes a text with its 0, or what there is room for of it.
///
/// # Safety
/// There is room for so many bytes.
unsafe fn put_text(room: *mut c_char, bytes: c_int, text: &str) -> Outcome {
    let bytes = usize::try_from(bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if room.is_null() || bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let length = text.len().min(bytes - 1);
    // SAFETY: the text has so many bytes, and the room one more.
    unsafe {
        room.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        room.add(length).write(0);
    }
    Ok(())
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        // SAFETY: room is the caller's duty.
        unsafe { put_text(name, bytes, "Fake GPU") }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(
    id: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        // SAFETY: room is the caller's duty.
        unsafe { put_text(id, bytes, &format!("0000:{:02X}:00.0", 0x3b + device)) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        let mut bytes = *b"fake GPU number\0";
        bytes[15] = device.to_le_bytes()[0];
        // SAFETY: room is the caller's duty.
        unsafe { put(uuid, CUuuid { bytes }) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        // fits: this machine has 64 bits; SAFETY: room is the caller's duty.
        unsafe { put(bytes, fake.config.memory_bytes as usize) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        let faults = &fake.config.faults;
        let found = match attribute {
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => super::SHARED_MAX as c_int,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => super::SHARED_ALLOWED_MAX,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 108,
            CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => fake.config.compute / 10,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => fake.config.compute % 10,
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
            | CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
            | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS => 1,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => {
                c_int::from(!faults.no_export)
            }
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED => c_int::from(!faults.no_dmabuf),
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING if faults.stale => 0,
            // fits: a small constant
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING => {
                CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as c_int
            }
            CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => 0,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: room is the caller's duty.
        unsafe { put(value, found) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    started(|fake| {
        fake.gpu(device)?;
        fake.gpu(peer)?;
        // SAFETY: room is the caller's duty.
        unsafe { put(can, c_int::from(device != peer && !fake.config.faults.no_peer)) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    started(|fake| {
        let gpu = fake.gpu(device)?;
        gpu.context.check()?;
        gpu.context.retain();
        // SAFETY: room is the caller's duty.
        unsafe { put(context, gpu.context.handle()) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    started(|fake| match fake.gpu(device)?.context.release() {
        true => Ok(()),
        false => Err(CUDA_ERROR_INVALID_CONTEXT),
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    started(|fake| {
        let number = if context.is_null() { 0 } else { Context::number_of(context) };
        if number > fake.gpus.len() || (number == 0 && !context.is_null()) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        set_current(number);
        Ok(())
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    // SAFETY: room is the caller's duty.
    started(|fake| unsafe { put(context, current_handle(fake)) })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    in_context(|fake, context| {
        let used = fake.gpus[context.ordinal].used.load(Ordering::Relaxed);
        let all = fake.config.memory_bytes;
        // fits: this machine has 64 bits; SAFETY: room is the caller's duty.
        unsafe {
            put(free, all.saturating_sub(used) as usize)?;
            put(total, all as usize)
        }
    })
}
