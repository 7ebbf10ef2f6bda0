//! NVRTC as `nvrtc.h` declares it (12.9 and 13.5): what is used of it and nothing else. `tests/device/header.rs` holds it
//! against a header. Who calls has the duties that the library's manual states.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::library::{library, numbers};

/// A program, known by its address alone.
pub type nvrtcProgram = *mut c_void;
/// An enumeration, as the number that it is in C.
pub type nvrtcResult = c_uint;

numbers! { NVRTC_CONSTANTS;
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
}

library! {
    /// NVRTC's functions by their names in the library.
    pub struct NvrtcFunctions, NVRTC_PROTOTYPES;

    nvrtcVersion: fn(*mut c_int, *mut c_int) -> nvrtcResult;
    nvrtcGetErrorString: fn(nvrtcResult) -> *const c_char;
    nvrtcGetNumSupportedArchs: fn(*mut c_int) -> nvrtcResult;
    nvrtcGetSupportedArchs: fn(*mut c_int) -> nvrtcResult;
    // (out, source, its name, how many headers, headers, their names)
    nvrtcCreateProgram: fn(
        *mut nvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> nvrtcResult;
    nvrtcDestroyProgram: fn(*mut nvrtcProgram) -> nvrtcResult;
    nvrtcCompileProgram: fn(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
    nvrtcGetPTXSize: fn(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetPTX: fn(nvrtcProgram, *mut c_char) -> nvrtcResult;
    nvrtcGetCUBINSize: fn(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetCUBIN: fn(nvrtcProgram, *mut c_char) -> nvrtcResult;
    nvrtcGetProgramLogSize: fn(nvrtcProgram, *mut usize) -> nvrtcResult;
    nvrtcGetProgramLog: fn(nvrtcProgram, *mut c_char) -> nvrtcResult;
}
