//! cuBLASLt as `cublasLt.h` declares it (12.9 and 13.10): what is used of it and nothing else. `tests/device/header.rs` holds
//! it against a header. Who calls has the duties that the library's manual states.

use std::ffi::{c_char, c_float, c_int, c_uint, c_void};

use super::CUstream;
use super::library::{library, numbers};

/// Objects of the library, each known by its address alone.
macro_rules! opaque {
    ($($handle:ident)*) => {$( pub type $handle = *mut c_void; )*};
}
opaque! { cublasLtHandle_t cublasLtMatmulDesc_t cublasLtMatrixLayout_t cublasLtMatmulPreference_t }

// Enumerations, as the numbers that they are in C.
pub type cublasStatus_t = c_uint;
pub type cublasComputeType_t = c_uint;
pub type cudaDataType_t = c_uint;
pub type cublasLtMatmulDescAttributes_t = c_uint;
pub type cublasLtMatrixLayoutAttribute_t = c_uint;
pub type cublasLtMatmulPreferenceAttributes_t = c_uint;
pub type cublasLtMatmulAlgoConfigAttributes_t = c_uint;

/// What is to be computed how: bits that the library alone understands.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct cublasLtMatmulAlgo_t {
    pub data: [u64; 8],
}

/// An answer of the heuristic.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct cublasLtMatmulHeuristicResult_t {
    pub algo: cublasLtMatmulAlgo_t,
    pub workspaceSize: usize,
    pub state: cublasStatus_t,
    pub wavesCount: c_float,
    pub reserved: [c_int; 4],
}

numbers! { CUBLAS_LT_CONSTANTS;
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,

    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
    CUBLAS_COMPUTE_64F = 70,

    CUBLAS_OP_N = 0,
    CUBLAS_OP_T = 1,

    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16BF = 14,

    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3,
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
}

library! {
    /// cuBLASLt's functions by their names in the library.
    pub struct CublasLtFunctions, CUBLAS_LT_PROTOTYPES;

    cublasLtGetVersion: fn() -> usize;
    cublasLtGetStatusName: fn(cublasStatus_t) -> *const c_char;
    cublasLtGetStatusString: fn(cublasStatus_t) -> *const c_char;
    cublasLtCreate: fn(*mut cublasLtHandle_t) -> cublasStatus_t;
    cublasLtDestroy: fn(cublasLtHandle_t) -> cublasStatus_t;
    cublasLtMatmulDescCreate:
        fn(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t) -> cublasStatus_t;
    cublasLtMatmulDescDestroy: fn(cublasLtMatmulDesc_t) -> cublasStatus_t;
    cublasLtMatmulDescSetAttribute: fn(
        cublasLtMatmulDesc_t,
        cublasLtMatmulDescAttributes_t,
        *const c_void,
        usize,
    ) -> cublasStatus_t;
    // (out, type, rows, columns, from a column to the next)
    cublasLtMatrixLayoutCreate:
        fn(*mut cublasLtMatrixLayout_t, cudaDataType_t, u64, u64, i64) -> cublasStatus_t;
    cublasLtMatrixLayoutDestroy: fn(cublasLtMatrixLayout_t) -> cublasStatus_t;
    cublasLtMatrixLayoutSetAttribute: fn(
        cublasLtMatrixLayout_t,
        cublasLtMatrixLayoutAttribute_t,
        *const c_void,
        usize,
    ) -> cublasStatus_t;
    cublasLtMatmulPreferenceCreate: fn(*mut cublasLtMatmulPreference_t) -> cublasStatus_t;
    cublasLtMatmulPreferenceDestroy: fn(cublasLtMatmulPreference_t) -> cublasStatus_t;
    cublasLtMatmulPreferenceSetAttribute: fn(
        cublasLtMatmulPreference_t,
        cublasLtMatmulPreferenceAttributes_t,
        *const c_void,
        usize,
    ) -> cublasStatus_t;
    // (handle, what, A, B, C, D, preference, room for so many answers, answers, how many there are)
    cublasLtMatmulAlgoGetHeuristic: fn(
        cublasLtHandle_t,
        cublasLtMatmulDesc_t,
        cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t,
        cublasLtMatmulPreference_t,
        c_int,
        *mut cublasLtMatmulHeuristicResult_t,
        *mut c_int,
    ) -> cublasStatus_t;
    cublasLtMatmulAlgoConfigGetAttribute: fn(
        *const cublasLtMatmulAlgo_t,
        cublasLtMatmulAlgoConfigAttributes_t,
        *mut c_void,
        usize,
        *mut usize,
    ) -> cublasStatus_t;
    // (handle, what, alpha, A, B, beta, C, D, how, workspace, its bytes, stream)
    cublasLtMatmul: fn(
        cublasLtHandle_t,
        cublasLtMatmulDesc_t,
        *const c_void,
        *const c_void,
        cublasLtMatrixLayout_t,
        *const c_void,
        cublasLtMatrixLayout_t,
        *const c_void,
        *const c_void,
        cublasLtMatrixLayout_t,
        *mut c_void,
        cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        CUstream,
    ) -> cublasStatus_t;
}
