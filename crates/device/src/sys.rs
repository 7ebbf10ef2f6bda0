//! CUDA's driver as `cuda.h` declares it (12.4): types, constants and a table of its functions, those that are used and
//! nothing else. `tests/device/header.rs` holds all of it against a header. Who calls has the duties that the driver's
//! manual states. Owns nothing.

#![allow(non_camel_case_types, non_snake_case, reason = "names and fields are the driver's")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use std::fmt;

pub use constants::*;

mod constants;
pub mod cublas_lt;
pub mod cudnn;
mod library;
pub mod nvrtc;

/// Objects of the driver, each known by its address alone.
macro_rules! opaque {
    ($($visible:vis struct $name:ident, by its $handle:ident;)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        $visible struct $name {
            _private: [u8; 0],
        }
        $visible type $handle = *mut $name;
    )*};
}
opaque! {
    pub struct CUctx_st, by its CUcontext;
    pub struct CUmod_st, by its CUmodule;
    pub struct CUfunc_st, by its CUfunction;
    pub struct CUevent_st, by its CUevent;
    pub struct CUstream_st, by its CUstream;
    pub struct CUgraph_st, by its CUgraph;
    pub struct CUgraphExec_st, by its CUgraphExec;
}

pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUmemGenericAllocationHandle = u64;
pub type cuuint32_t = u32;

// Enumerations, as the numbers that they are in C.
pub type CUresult = c_uint;
pub type CUdevice_attribute = c_uint;
pub type CUmemAllocationType = c_uint;
pub type CUmemAllocationHandleType = c_uint;
pub type CUmemLocationType = c_uint;
pub type CUmemAccess_flags = c_uint;
pub type CUmemAllocationGranularity_flags = c_uint;
pub type CUmemRangeHandleType = c_uint;
pub type CUjit_option = c_uint;
pub type CUfunction_attribute = c_uint;
pub type CUstreamCaptureMode = c_uint;
pub type CUstreamCaptureStatus = c_uint;
pub type CUflushGPUDirectRDMAWritesTarget = c_uint;
pub type CUflushGPUDirectRDMAWritesScope = c_uint;

/// Makes structures, and a list of their fields for who holds them against the header.
macro_rules! structures {
    ($($visible:vis struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            $visible struct $name {
                $(pub $field: $type,)*
            }
        )*

        /// Each structure, its bytes, and where each field starts.
        pub const STRUCTURES: &[(&str, usize, &[(&str, usize)])] = &[
            $((
                stringify!($name),
                size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            )),*
        ];
    };
}

structures! {
    pub struct CUuuid { bytes: [c_uchar; 16] }
    pub struct CUmemLocation { type_: CUmemLocationType, id: c_int }
    pub struct CUmemAccessDesc { location: CUmemLocation, flags: CUmemAccess_flags }
    pub struct CUmemAllocationProp {
        type_: CUmemAllocationType,
        requestedHandleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32HandleMetaData: usize,
        allocFlags: AllocFlags,
    }
    pub struct AllocFlags {
        compressionType: c_uchar,
        gpuDirectRDMACapable: c_uchar,
        usage: c_ushort,
        reserved: [c_uchar; 4],
    }
}

/// Makes prototypes a table.
macro_rules! functions {
    ($($name:ident: fn($($type:ty),* $(,)?);)*) => {
        /// The driver's functions by their names in the library. All return a [`CUresult`].
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($type),*) -> CUresult,)*
        }

        impl Functions {
            /// # Errors
            /// The name of a function that is not there.
            ///
            /// # Safety
            /// `library` is CUDA's driver, or has the same functions, and is never unloaded.
            pub(crate) unsafe fn of(library: &libloading::Library) -> Result<Functions, &'static str> {
                $(
                    // SAFETY: a function of that name in the driver has this type (cuda.h); that it is the driver is
                    // the caller's duty.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) -> CUresult>(
                            stringify!($name).as_bytes(),
                        )
                    };
                    let $name = *found.map_err(|_| stringify!($name))?;
                )*
                Ok(Functions { $($name,)* })
            }
        }

        /// Name and types of the arguments, as they are written here.
        pub const PROTOTYPES: &[(&str, &[&str])] =
            &[$((stringify!($name), &[$(stringify!($type)),*])),*];
    };
}

functions! {
    cuInit: fn(c_uint);
    cuDriverGetVersion: fn(*mut c_int);
    cuGetErrorName: fn(CUresult, *mut *const c_char);
    cuGetErrorString: fn(CUresult, *mut *const c_char);
    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGet: fn(*mut CUdevice, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2: fn(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2: fn(*mut usize, CUdevice);
    cuDeviceGetAttribute: fn(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceGetPCIBusId: fn(*mut c_char, c_int, CUdevice);
    cuDeviceCanAccessPeer: fn(*mut c_int, CUdevice, CUdevice);
    cuDevicePrimaryCtxRetain: fn(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2: fn(CUdevice);
    cuCtxSetCurrent: fn(CUcontext);
    cuCtxGetCurrent: fn(*mut CUcontext);
    cuMemGetInfo_v2: fn(*mut usize, *mut usize);

    cuStreamCreateWithPriority: fn(*mut CUstream, c_uint, c_int);
    cuStreamDestroy_v2: fn(CUstream);
    cuStreamQuery: fn(CUstream);
    cuStreamWaitEvent: fn(CUstream, CUevent, c_uint);
    cuEventCreate: fn(*mut CUevent, c_uint);
    cuEventDestroy_v2: fn(CUevent);
    cuEventRecord: fn(CUevent, CUstream);
    cuEventQuery: fn(CUevent);

    cuMemGetAllocationGranularity:
        fn(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    // (out, bytes, properties, flags)
    cuMemCreate: fn(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
    cuMemRelease: fn(CUmemGenericAllocationHandle);
    // (out, bytes, alignment, wanted address, flags)
    cuMemAddressReserve: fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    cuMemAddressFree: fn(CUdeviceptr, usize);
    // (address, bytes, offset in the allocation, allocation, flags)
    cuMemMap: fn(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
    cuMemUnmap: fn(CUdeviceptr, usize);
    cuMemSetAccess: fn(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    // (out: a descriptor, allocation, kind, flags)
    cuMemExportToShareableHandle:
        fn(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, u64);
    // (out, the descriptor as a pointer, kind)
    cuMemImportFromShareableHandle:
        fn(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    // (out: a descriptor, address, bytes, kind, flags)
    cuMemGetHandleForAddressRange: fn(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, u64);
    cuMemHostAlloc: fn(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost: fn(*mut c_void);
    cuMemHostRegister_v2: fn(*mut c_void, usize, c_uint);
    cuMemHostUnregister: fn(*mut c_void);
    cuMemHostGetDevicePointer_v2: fn(*mut CUdeviceptr, *mut c_void, c_uint);

    cuMemcpyHtoDAsync_v2: fn(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2: fn(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2: fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
    // (target, its context, source, its context, bytes, stream)
    cuMemcpyPeerAsync: fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    cuMemsetD8Async: fn(CUdeviceptr, c_uchar, usize, CUstream);
    cuMemsetD32Async: fn(CUdeviceptr, c_uint, usize, CUstream);
    cuStreamWaitValue32_v2: fn(CUstream, CUdeviceptr, cuuint32_t, c_uint);
    cuStreamWriteValue32_v2: fn(CUstream, CUdeviceptr, cuuint32_t, c_uint);
    cuFlushGPUDirectRDMAWrites:
        fn(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);

    // (out, image, options, their kinds, their values)
    cuModuleLoadDataEx:
        fn(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuModuleUnload: fn(CUmodule);
    cuModuleGetFunction: fn(*mut CUfunction, CUmodule, *const c_char);
    cuFuncSetAttribute: fn(CUfunction, CUfunction_attribute, c_int);
    // (function, grid, block, bytes of shared memory, stream, arguments one by one, arguments in a buffer)
    cuLaunchKernel: fn(
        CUfunction,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        CUstream,
        *mut *mut c_void,
        *mut *mut c_void,
    );

    cuStreamBeginCapture_v2: fn(CUstream, CUstreamCaptureMode);
    cuStreamIsCapturing: fn(CUstream, *mut CUstreamCaptureStatus);
    cuStreamEndCapture: fn(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags: fn(*mut CUgraphExec, CUgraph, u64);
    cuGraphDestroy: fn(CUgraph);
    cuGraphLaunch: fn(CUgraphExec, CUstream);
    cuGraphExecDestroy: fn(CUgraphExec);
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CUDA's driver")
    }
}
