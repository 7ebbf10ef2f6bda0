//! Memory of GPUs and pinned memory of the host.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags};
use tensorwire_device::sys::*;

use super::{in_context, put, started};
use crate::space::Allocation;
use crate::state::{Fake, Outcome, Pinned};

/// What fresh memory holds, where that is asked for: a number that is none.
const GARBAGE: u8 = 0xff;

/// Fails if this is the allocation that finds no memory.
fn count_allocation(fake: &Fake) -> Outcome {
    let number = fake.counts.allocations.fetch_add(1, Ordering::Relaxed) + 1;
    if number == fake.config.faults.out_of_memory { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    grain: *mut usize,
    properties: *const CUmemAllocationProp,
    _which: CUmemAllocationGranularity_flags,
) -> CUresult {
    started(|fake| {
        // SAFETY: the properties are there or null.
        let properties = unsafe { properties.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        fake.gpu(properties.location.id)?;
        // SAFETY: room is the caller's duty.
        unsafe { put(grain, fake.config.grain) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        // SAFETY: the properties are there or null.
        let properties = unsafe { properties.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let CUmemAllocationProp { type_, location, requestedHandleTypes, .. } = *properties;
        let wrong = type_ != CU_MEM_ALLOCATION_TYPE_PINNED
            || location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
            || requestedHandleTypes > CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            || bytes == 0
            || !bytes.is_multiple_of(fake.config.grain)
            || flags != 0;
        if wrong {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let gpu = fake.gpu(location.id)?;
        count_allocation(fake)?;
        let (order, all) = (Ordering::Relaxed, fake.config.memory_bytes);
        let room = |used: u64| used.checked_add(bytes as u64).filter(|used| *used <= all);
        gpu.used.fetch_update(order, order, room).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let made = Allocation::new(bytes, location.id as usize, gpu.used.clone());
        let made = made.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        if fake.config.faults.garbage {
            made.fill(GARBAGE);
        }
        // SAFETY: room is the caller's duty.
        unsafe { put(handle, fake.allocations.add(Arc::new(made)) as u64) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    started(|fake| fake.allocations.remove(handle as usize).map(|_| ()))
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    _wanted: CUdeviceptr,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        let grain = fake.config.grain;
        if flags != 0 || alignment > grain || !bytes.is_multiple_of(grain) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let reserved = fake.space.write().reserve(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: room is the caller's duty.
        unsafe { put(address, reserved) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    started(|fake| fits(fake.space.write().free(address, bytes)))
}

fn fits(done: bool) -> Outcome {
    if done { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        let allocation = fake.allocations.get(handle as usize);
        let allocation = allocation.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        fits(flags == 0 && fake.space.write().map(address, bytes, offset, &allocation))
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    started(|fake| {
        let _no_kernel = fake.running.write();
        fits(fake.unmap(address, bytes))
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    in_context(|fake, _| {
        for at in 0..count {
            // SAFETY: so many descriptions are there.
            let CUmemAccessDesc { location, flags } = unsafe { access.add(at).read() };
            if flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                || location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
            {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            fake.gpu(location.id)?;
            // fits: it is one of a few
            let device = location.id as usize;
            let mut space = fake.space.write();
            let allocation = space.allocation(address, bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let is_far = allocation.device.is_some_and(|of| of != device);
            if is_far && fake.config.faults.no_peer {
                return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
            }
            fits(space.allow(address, bytes, device))?;
        }
        Ok(())
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    descriptor: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        let allocation = fake.allocations.get(handle as usize);
        let allocation = allocation.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        // what is another process's cannot be shown again
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            || flags != 0
            || allocation.device.is_none()
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if fake.config.faults.no_export {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let file = allocation.export().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: room for a descriptor, which this kind is, is the caller's duty.
        unsafe { put(descriptor.cast::<c_int>(), file.into_raw_fd()) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    descriptor: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    in_context(|fake, _| {
        let number = c_int::try_from(descriptor.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller has it open until this returns.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let made = Allocation::import(file).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: room is the caller's duty.
        unsafe { put(handle, fake.allocations.add(Arc::new(made)) as u64) }
    })
}

/// Gives the whole allocation's file: what registers it as a dma-buf fails, and what maps it finds the bytes.
///
/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    descriptor: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: CUmemRangeHandleType,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        let page = rustix::param::page_size();
        let is_whole = (address as usize).is_multiple_of(page) && bytes.is_multiple_of(page);
        if kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || bytes == 0 || !is_whole {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if fake.config.faults.no_dmabuf {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let allocation = fake.space.read().allocation(address, bytes);
        let file = allocation.ok_or(CUDA_ERROR_INVALID_VALUE)?.export();
        let file = file.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: room for a descriptor, which this kind is, is the caller's duty.
        unsafe { put(descriptor.cast::<c_int>(), file.into_raw_fd()) }
    })
}

/// Adds a pinned range; false if it touches another.
fn pin(fake: &Fake, at: usize, bytes: usize, is_own: bool) -> bool {
    let mut pinned = fake.pinned.write();
    let before = pinned.range(..at + bytes).next_back();
    if before.is_some_and(|(start, found)| start + found.bytes > at) {
        return false;
    }
    pinned.insert(at, Pinned { bytes, is_own });
    true
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    start: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> CUresult {
    in_context(|fake, _| {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        count_allocation(fake)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping aliases nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)
        };
        let mapped = mapped.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        if fake.config.faults.garbage {
            // SAFETY: so many bytes were just mapped.
            unsafe { mapped.cast::<u8>().write_bytes(GARBAGE, bytes) };
        }
        pin(fake, mapped.addr(), bytes, true);
        // SAFETY: room is the caller's duty.
        unsafe { put(start, mapped) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    started(|fake| {
        let _no_kernel = fake.running.write();
        let mut pinned = fake.pinned.write();
        let found = pinned.get(&start.addr()).copied().filter(|found| found.is_own);
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pinned.remove(&start.addr());
        // SAFETY: mapped by `cuMemHostAlloc`, and known here only until now.
        let unmapped = unsafe { rustix::mm::munmap(start, found.bytes) };
        unmapped.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(
    start: *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> CUresult {
    in_context(|fake, _| {
        let end = start.addr().checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let space = fake.space.read();
        let is_gpus = space.contains(start.addr() as u64) || space.contains(end as u64);
        drop(space);
        if start.is_null() || bytes == 0 || is_gpus {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        match pin(fake, start.addr(), bytes, false) {
            true => Ok(()),
            false => Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(start: *mut c_void) -> CUresult {
    started(|fake| {
        let _no_kernel = fake.running.write();
        let mut pinned = fake.pinned.write();
        let found = pinned.get(&start.addr()).copied().filter(|found| !found.is_own);
        found.ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        pinned.remove(&start.addr());
        Ok(())
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut CUdeviceptr,
    start: *mut c_void,
    _flags: c_uint,
) -> CUresult {
    in_context(|fake, _| {
        let pinned = fake.pinned.read();
        if !crate::state::is_pinned(&pinned, start.addr(), 1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: room is the caller's duty.
        unsafe { put(address, start.addr() as u64) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFlushGPUDirectRDMAWrites(
    _target: CUflushGPUDirectRDMAWritesTarget,
    _scope: CUflushGPUDirectRDMAWritesScope,
) -> CUresult {
    in_context(|fake, context| {
        fake.show_remote_writes(context.ordinal);
        Ok(())
    })
}

/// What a NIC writes to a GPU's memory. With the fault `stale` nothing that a stream was told before sees it, until it is
/// flushed; what it is told later does. No function of the driver's.
///
/// # Safety
/// `bytes` bytes are at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCudaRemoteWrite(
    address: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> CUresult {
    started(|fake| {
        // SAFETY: the caller's duty.
        let written = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        fake.write_remotely(address, written).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

/// What a NIC reads there, which comes behind what was written so before. No function of the driver's.
///
/// # Safety
/// There is room for `bytes` bytes at `into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCudaRemoteRead(
    address: CUdeviceptr,
    into: *mut c_void,
    bytes: usize,
) -> CUresult {
    started(|fake| {
        // SAFETY: the caller's duty.
        let room = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes) };
        fake.read_remotely(address, room).ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}
