//! Memory of the host that GPUs reach: allocated so, or allocated by somebody else and registered. Copies from and to it
//! run beside everything else, and streams wait on words of it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use tensorwire_base::Space;
use tensorwire_memory::{CutMark, Slab};

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::sys::*;

/// Memory that the driver allocated, until it is dropped.
struct Pinned {
    device: Arc<Device>,
    start: Handle<c_void>,
}

/// A slab that GPUs reach while this lives. Clones share it.
#[derive(Clone, Debug)]
pub struct Registration {
    registered: Arc<Registered>,
}

#[derive(Debug)]
struct Registered {
    device: Arc<Device>,
    slab: Slab,
    /// Of the first byte, for GPUs to follow.
    address: u64,
}

impl Device {
    /// Allocates pinned memory of the host, zeroed. GPUs have it at the same address.
    ///
    /// # Errors
    /// When there is not so much, or the driver refuses.
    pub fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Slab, DeviceError> {
        // the driver allocates no nothing
        let taken = bytes.max(1);
        let mut start = std::ptr::null_mut();
        self.call("cuMemHostAlloc", |functions| {
            let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
            // SAFETY: there is room for the pointer.
            unsafe { (functions.cuMemHostAlloc)(&mut start, taken, flags) }
        })?;
        let refused = || self.error("cuMemHostAlloc", CUDA_ERROR_INVALID_VALUE);
        let first = NonNull::new(start.cast::<u8>()).ok_or_else(refused)?;
        let pinned = Pinned { device: self.clone(), start: Handle(start) };
        // SAFETY: so many bytes were just allocated, which nobody else knows of.
        unsafe { first.write_bytes(0, taken) };
        // SAFETY: the range is the host's memory, written just now, until `pinned`, the keepalive, is dropped. It starts
        // at a page, it is known to nobody else, and this is its one slab and mark.
        Ok(unsafe { Slab::from_raw(first, bytes, Arc::new(pinned), CutMark::default()) })
    }

    /// Pins memory of the host that somebody else allocated, which the result keeps.
    ///
    /// # Errors
    /// When it is pinned already, cannot be, or the driver refuses.
    ///
    /// # Panics
    /// If the slab is memory of a device.
    pub fn register(self: &Arc<Self>, slab: &Slab) -> Result<Registration, DeviceError> {
        let start: *mut c_void = slab.start().as_ptr().cast();
        let mut address = 0;
        if slab.bytes() > 0 {
            let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
            let status = self.try_call(|functions| {
                // SAFETY: the slab is mapped memory of the host, which `Registered` keeps until it is unregistered.
                unsafe { (functions.cuMemHostRegister_v2)(start, slab.bytes(), flags) }
            })?;
            self.check_memory("cuMemHostRegister", status, slab.bytes() as u64)?;
        }
        // from here on dropping it undoes it
        let (device, slab) = (self.clone(), slab.clone());
        let mut registered = Registered { device, slab, address };
        if registered.slab.bytes() > 0 {
            self.call("cuMemHostGetDevicePointer", |functions| {
                // SAFETY: there is room for the address, and the memory was registered just now.
                unsafe { (functions.cuMemHostGetDevicePointer_v2)(&mut address, start, 0) }
            })?;
        }
        registered.address = address;
        Ok(Registration { registered: Arc::new(registered) })
    }
}

impl Registration {
    /// Address of the slab's first byte, for GPUs to follow: on most machines the host's own.
    pub fn address(&self) -> u64 {
        self.registered.address
    }

    pub fn slab(&self) -> &Slab {
        &self.registered.slab
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        debug_assert_eq!(self.slab.space(), Space::Host);
        if self.slab.bytes() == 0 {
            return;
        }
        if !self.device.settle() {
            // the GPU may still use it: the memory, too, is kept for good
            std::mem::forget(self.slab.clone());
            return;
        }
        let start = self.slab.start().as_ptr().cast();
        // SAFETY: `register` registered it, and this ends it once; no stream has work any more.
        let _ = self.device.try_call(|functions| unsafe { (functions.cuMemHostUnregister)(start) });
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.device.settle() {
            // the GPU may still use it: it is kept for good
            return;
        }
        let start = self.start.0;
        // SAFETY: allocated for this value, and freed once; no stream has work any more, and no slab names it.
        let _ = self.device.try_call(|functions| unsafe { (functions.cuMemFreeHost)(start) });
    }
}
