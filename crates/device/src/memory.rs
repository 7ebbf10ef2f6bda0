//! Memory of a GPU: one allocation, mapped where this process finds it, that other processes map by a file descriptor
//! and NICs reach. Knows not how a descriptor travels.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use tensorwire_memory::{CutMark, DmaBuf, Slab};

use crate::device::Device;
use crate::error::DeviceError;
use crate::sys::*;

/// Memory of a GPU. Clones share it; the last of them, and of the slabs over it, gives it back, once the GPU is idle.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    mapped: Arc<Mapped>,
    bytes: u64,
}

/// An allocation and where it is mapped. What is not there yet is not undone.
struct Mapped {
    device: Arc<Device>,
    allocation: CUmemGenericAllocationHandle,
    address: CUdeviceptr,
    /// Of the whole allocation.
    bytes: usize,
    is_mapped: bool,
    mark: CutMark,
}

impl Device {
    /// Allocates memory of this GPU, which holds whatever it held before. Others of this host can map it, and NICs reach
    /// it, where the GPU can do that ([`crate::DeviceFacts`]).
    ///
    /// # Errors
    /// When there is not so much, or the driver refuses.
    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<DeviceMemory, DeviceError> {
        let properties = self.properties();
        let rounded = self.rounded(&properties, bytes)?;
        let mut allocation = 0;
        let status = self.try_call(|functions| {
            // SAFETY: there is room for the handle, and the properties live until this returns.
            unsafe { (functions.cuMemCreate)(&mut allocation, rounded, &properties, 0) }
        })?;
        self.check_memory("cuMemCreate", status, bytes)?;
        self.map(allocation, rounded, bytes)
    }

    /// Maps memory that another process of this host allocated, on this GPU or on one that this GPU reaches. `bytes`: as
    /// that process says; what it lies about is refused.
    ///
    /// # Errors
    /// When the descriptor is no memory of a GPU, has fewer bytes, is out of reach, or the driver refuses.
    pub fn import(
        self: &Arc<Self>,
        fd: impl AsFd,
        bytes: u64,
    ) -> Result<DeviceMemory, DeviceError> {
        let rounded = self.rounded(&self.properties(), bytes)?;
        let mut allocation = 0;
        self.call("cuMemImportFromShareableHandle", |functions| {
            // fits: a descriptor is a small number, which the driver takes in the place of a pointer
            let descriptor = fd.as_fd().as_raw_fd() as usize as *mut c_void;
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            // SAFETY: there is room for the handle; the descriptor is open until this returns, and the driver takes a
            // reference of its own.
            unsafe { (functions.cuMemImportFromShareableHandle)(&mut allocation, descriptor, kind) }
        })?;
        self.map(allocation, rounded, bytes)
    }

    /// Returns a dma-buf over memory of this GPU that this process allocated, for a NIC's driver (`ibv_reg_dmabuf_mr`).
    ///
    /// # Errors
    /// When the GPU has none, or the driver refuses.
    pub fn dma_buf(&self, memory: &Slab) -> Result<DmaBuf, DeviceError> {
        if !self.facts().dmabuf {
            return Err(DeviceError::Unsupported {
                device: self.ordinal(),
                what: "show its memory as a dma-buf",
                mend: "load nvidia-peermem (modprobe nvidia-peermem), or install the open kernel modules of the driver",
            });
        }
        let (page, start) = (rustix::param::page_size(), memory.address());
        let first = start / page * page;
        // fits: an allocation ends with a page
        let length = (start + memory.bytes().max(1)).next_multiple_of(page) - first;
        let mut fd: c_int = -1;
        self.call("cuMemGetHandleForAddressRange", |functions| {
            let (room, kind) = ((&raw mut fd).cast(), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
            // SAFETY: there is room for a descriptor, which this kind is; the slab keeps its memory mapped, and of a range
            // that is not mapped the driver says so.
            unsafe {
                (functions.cuMemGetHandleForAddressRange)(room, first as u64, length, kind, 0)
            }
        })?;
        let fd = owned(self, "cuMemGetHandleForAddressRange", fd)?;
        // fits: usize is 64 bits wide
        Ok(DmaBuf { fd, offset: (start - first) as u64, bytes: memory.bytes() as u64 })
    }

    /// What every allocation is here.
    fn properties(&self) -> CUmemAllocationProp {
        let facts = self.facts();
        CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: match facts.export {
                true => CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                false => CU_MEM_HANDLE_TYPE_NONE,
            },
            location: self.location(),
            allocFlags: AllocFlags {
                gpuDirectRDMACapable: u8::from(facts.rdma),
                ..AllocFlags::default()
            },
            ..CUmemAllocationProp::default()
        }
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: self.number() }
    }

    /// The bytes that an allocation takes: a multiple of what the GPU deals in, and never none.
    fn rounded(&self, properties: &CUmemAllocationProp, bytes: u64) -> Result<usize, DeviceError> {
        let mut grain = 0;
        self.call("cuMemGetAllocationGranularity", |functions| {
            let which = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            // SAFETY: there is room for the number, and the properties live until this returns.
            unsafe { (functions.cuMemGetAllocationGranularity)(&mut grain, properties, which) }
        })?;
        let bytes = usize::try_from(bytes.max(1)).ok();
        let rounded = bytes.and_then(|bytes| bytes.checked_next_multiple_of(grain.max(1)));
        // nothing has so much memory
        rounded.ok_or_else(|| self.out_of_memory("cuMemCreate", u64::MAX))
    }

    /// Maps an allocation, which belongs to the result from here on.
    fn map(
        self: &Arc<Self>,
        allocation: CUmemGenericAllocationHandle,
        rounded: usize,
        bytes: u64,
    ) -> Result<DeviceMemory, DeviceError> {
        let (device, mark) = (self.clone(), CutMark::default());
        let mut mapped =
            Mapped { device, allocation, address: 0, bytes: rounded, is_mapped: false, mark };
        let status = self.try_call(|functions| {
            // SAFETY: there is room for the address; the driver chooses it.
            unsafe { (functions.cuMemAddressReserve)(&mut mapped.address, rounded, 0, 0, 0) }
        })?;
        self.check_memory("cuMemAddressReserve", status, bytes)?;
        self.call("cuMemMap", |functions| {
            // SAFETY: the range was reserved just now and nothing is mapped there; the allocation is this value's.
            unsafe { (functions.cuMemMap)(mapped.address, rounded, 0, allocation, 0) }
        })?;
        mapped.is_mapped = true;
        mapped.allow(self)?;
        for other in self.others() {
            // where it does not reach this memory, the driver takes what it copies from there by way of the host
            let _ = mapped.allow(&other);
        }
        Ok(DeviceMemory { mapped: Arc::new(mapped), bytes })
    }
}

impl DeviceMemory {
    /// Address of the first byte, for GPUs to follow.
    pub fn address(&self) -> u64 {
        self.mapped.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory as a slab, which keeps it.
    pub fn slab(&self) -> Slab {
        let address = usize::try_from(self.mapped.address).ok().and_then(NonZero::new);
        // the driver maps nothing at 0, and an address of the host's size
        let address = address.expect("mapped memory has an address");
        // fits: so many bytes are mapped
        let bytes = self.bytes as usize;
        // SAFETY: the range is mapped memory of the device until `Mapped`, the keepalive, is dropped, which has the mark.
        unsafe {
            let device = self.mapped.device.number_in_process();
            Slab::on_device(device, address, bytes, self.mapped.clone(), self.mapped.mark.clone())
        }
    }

    /// Returns a descriptor by which another process of this host maps the same memory ([`Device::import`]).
    ///
    /// # Errors
    /// When the GPU has no such descriptors, the memory is another process's, or the driver refuses.
    pub fn export(&self) -> Result<OwnedFd, DeviceError> {
        let Mapped { device, allocation, .. } = &*self.mapped;
        if !device.facts().export {
            return Err(DeviceError::Unsupported {
                device: device.ordinal(),
                what: "show its memory to other processes",
                mend: "let tensors cross by way of the host: give --transport tcp",
            });
        }
        let mut fd: c_int = -1;
        device.call("cuMemExportToShareableHandle", |functions| {
            let (room, kind) = ((&raw mut fd).cast(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            // SAFETY: there is room for a descriptor, which this kind is; the allocation lives.
            unsafe { (functions.cuMemExportToShareableHandle)(room, *allocation, kind, 0) }
        })?;
        owned(device, "cuMemExportToShareableHandle", fd)
    }

    /// Lets kernels and copies of another GPU of this process reach the memory.
    ///
    /// # Errors
    /// When that GPU does not reach this one, or the driver refuses.
    pub fn allow(&self, device: &Device) -> Result<(), DeviceError> {
        self.mapped.allow(device)
    }
}

/// A descriptor that the driver gave away.
fn owned(device: &Device, call: &'static str, fd: c_int) -> Result<OwnedFd, DeviceError> {
    if fd < 0 {
        // it says that all is well, and gives none
        return Err(device.error(call, CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: the driver has just made this descriptor for the caller, who owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // a child process has no use for it; where that fails, it has it
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    Ok(fd)
}

impl Mapped {
    fn allow(&self, device: &Device) -> Result<(), DeviceError> {
        let access = CUmemAccessDesc {
            location: device.location(),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        self.device.call("cuMemSetAccess", |functions| {
            // SAFETY: the range is mapped by this value, and the description lives until this returns.
            unsafe { (functions.cuMemSetAccess)(self.address, self.bytes, &access, 1) }
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_mapped && !self.device.settle() {
            // the GPU may still use it: it is kept for good
            return;
        }
        let _ = self.device.try_call(|functions| {
            // SAFETY: each was made for this value and is undone once, in the opposite order. No stream of this process
            // has work any more, and no slab and no clone names the memory: they hold this value.
            unsafe {
                if self.is_mapped {
                    (functions.cuMemUnmap)(self.address, self.bytes);
                }
                if self.address != 0 {
                    (functions.cuMemAddressFree)(self.address, self.bytes);
                }
                (functions.cuMemRelease)(self.allocation)
            }
        });
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} of GPU {}", self.bytes, self.address, self.device.ordinal())
    }
}
