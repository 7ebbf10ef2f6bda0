//! NCCL as `nccl.h` declares it: types, numbers and a table of its functions, those that are used and nothing else.
//! `tests/device/header.rs` holds all of it against a header. Owns nothing.

#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "names and fields are the library's"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::sys::CUstream;

/// A communicator, known by its address alone.
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _private: [u8; 0],
}

pub type ncclComm_t = *mut ncclComm;
pub type ncclResult_t = c_uint;
pub type ncclDataType_t = c_uint;
pub type ncclRedOp_t = c_uint;
pub type cudaStream_t = CUstream;

pub const NCCL_UNIQUE_ID_BYTES: usize = 128;

/// By which the members of a communicator find each other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclUniqueId {
    pub internal: [c_char; NCCL_UNIQUE_ID_BYTES],
}

/// The fields of `ncclConfig_t` that there were first (2.14). A library takes as much of it as `size` says, and has its own
/// values for what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
}

pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// Of the fields above: `NCCL_VERSION(2, 14, 0)`.
pub const CONFIG_VERSION: c_uint = 21400;

/// Makes numbers, and a list of them for who holds them against the header.
macro_rules! numbers {
    ($($name:ident = $value:literal;)*) => {
        $(pub const $name: c_uint = $value;)*

        pub const NUMBERS: &[(&str, c_uint)] = &[$((stringify!($name), $name)),*];
    };
}

numbers! {
    ncclSuccess = 0;
    ncclUnhandledCudaError = 1;
    ncclSystemError = 2;
    ncclInternalError = 3;
    ncclInvalidArgument = 4;
    ncclInvalidUsage = 5;
    ncclRemoteError = 6;
    ncclInProgress = 7;
    ncclSum = 0;
    ncclAvg = 4;
    ncclUint8 = 1;
    ncclFloat32 = 7;
    ncclFloat64 = 8;
    ncclBfloat16 = 9;
}

/// Makes prototypes a table.
macro_rules! functions {
    ($($name:ident: fn($($type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// NCCL's functions by their names in the library.
        #[derive(Clone, Copy, Debug)]
        pub struct NcclFunctions {
            $(pub $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl NcclFunctions {
            /// # Errors
            /// The name of a function that is not there.
            ///
            /// # Safety
            /// `library` is NCCL, or has the same functions, and is never unloaded.
            pub(super) unsafe fn of(
                library: &libloading::Library,
            ) -> Result<NcclFunctions, &'static str> {
                $(
                    // SAFETY: a function of that name in NCCL has this type (nccl.h); that it is NCCL is the caller's duty.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>(
                            stringify!($name).as_bytes(),
                        )
                    };
                    let $name = *found.map_err(|_| stringify!($name))?;
                )*
                Ok(NcclFunctions { $($name,)* })
            }
        }

        /// Name, types of the arguments and of the result, as they are written here.
        pub const NCCL_PROTOTYPES: &[(&str, &[&str], &str)] =
            &[$((stringify!($name), &[$(stringify!($type)),*], concat!($(stringify!($result))?))),*];
    };
}

functions! {
    ncclGetVersion: fn(*mut c_int) -> ncclResult_t;
    ncclGetErrorString: fn(ncclResult_t) -> *const c_char;
    ncclGetLastError: fn(ncclComm_t) -> *const c_char;
    ncclGetUniqueId: fn(*mut ncclUniqueId) -> ncclResult_t;
    ncclCommInitRankConfig:
        fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ncclResult_t;
    ncclCommGetAsyncError: fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
    ncclCommFinalize: fn(ncclComm_t) -> ncclResult_t;
    ncclCommDestroy: fn(ncclComm_t) -> ncclResult_t;
    ncclCommAbort: fn(ncclComm_t) -> ncclResult_t;
    ncclGroupStart: fn() -> ncclResult_t;
    ncclGroupEnd: fn() -> ncclResult_t;
    // (send, receive, elements, ...)
    ncclAllReduce: fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        ncclComm_t,
        cudaStream_t,
    ) -> ncclResult_t;
    ncclBroadcast: fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        cudaStream_t,
    ) -> ncclResult_t;
}
