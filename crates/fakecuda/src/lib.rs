//! A CUDA driver without a GPU, for tests: the same functions as libcuda.so.1 for what this project calls, over memory
//! and threads of the host. Whoever opens a driver by its path opens this one as the real one, in whole programs, too.
//! It is strict where the real one is not, or crashes. It encodes a reading of CUDA: suites run on a GPU where there is one.
//!
//! | what CUDA has | what it is here |
//! |---|---|
//! | memory of a GPU | an anonymous file, mapped at addresses that the host has nothing at |
//! | a descriptor of it | the file's: another process really maps the same memory |
//! | a stream | a thread with a queue |
//! | a graph | what was told while it was captured, in that order |
//! | a kernel | a function of a library that has the same source compiled for the CPU |
//!
//! The same file is CUDA's libraries, too, as far as this project calls them (`cublas_lt.rs`, `cudnn.rs`, `nccl.rs`, `nvrtc.rs`): [`libraries`] gives it
//! their names.
//!
//! The environment says what the machine is:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUDA_DEVICES` | how many GPUs there are (1) |
//! | `FAKE_CUDA_MEMORY` | bytes of each (4 GiB) |
//! | `FAKE_CUDA_GRAIN_KIB` | what allocations are multiples of: a power of two, from a page to 2048 (as those of GPUs are, and without it) |
//! | `FAKE_CUDA_VERSION`, `FAKE_CUDA_COMPUTE` | as the driver says them (12040, 80) |
//! | `FAKE_CUDA_CUBLAS`, `FAKE_CUDA_CUDNN` | versions of cuBLASLt and cuDNN, as they say them (130100, 90400) |
//! | `FAKE_CUDA_NVRTC` | NVRTC's version, as the driver says its own (the driver's) |
//! | `FAKE_CUDA_KERNELS` | the library that runs kernels: `tensorwire_shim_launch`, `_error`, and `_has` if it likes |
//! | `FAKE_CUDA_GUARD` | 1: the host cannot follow addresses of a GPU but while a kernel runs. Slow with much memory, and no NIC can register it |
//! | `FAKE_CUDA_SEED` | of all that is random (1) |
//! | `FAKE_CUDA_FAULTS` | what goes wrong, with commas between |
//!
//! | fault | |
//! |---|---|
//! | `delay=N` | streams sleep up to N µs before what they do, every other time |
//! | `queue=N` | a stream takes N things at a time, a graph as one: whoever tells it more waits, and after 60 s nothing works any more (CUDA has it at about 1,024, and waits for good) |
//! | `counted` | of `queue=N`, a graph is as many things as are in it (so an H200 has it, with a graph of 2,000 fills behind a word) |
//! | `lazy` | kernels that are used for the first time, products and convolutions of a shape, images, handles of libraries and streams that are made wait until the streams of the GPU have nothing to do, and after 60 s nothing works any more (CUDA loads lazily, and waits for good) |
//! | `oom=N` | the N-th allocation finds no memory |
//! | `launch=N` | the N-th kernel fails, and all that comes after |
//! | `lost=N` | the GPU is gone after N calls |
//! | `hang=N` | the N-th wait of a stream for a word does not end |
//! | `stale` | what `fakeCudaRemoteWrite` writes is not seen before a flush, or by what a stream is told later; the GPU orders no writes |
//! | `garbage` | fresh memory holds bytes of 255 |
//! | `nolibrary`, `noalgorithm` | CUDA's libraries do not start; they have no algorithm for anything |
//! | `product=N`, `convolution=N` | the N-th matrix product of cuBLASLt's fails, or convolution of cuDNN's |
//! | `compile=N` | NVRTC fails in the N-th program |
//! | `program=N` | the N-th kernel of those that NVRTC compiled reads what is not there |
//! | `nopeer`, `noexport`, `nodmabuf`, `nograph` | the GPU cannot do that |

// the names are the driver's, and NCCL's
#![allow(non_snake_case, non_upper_case_globals)]

pub mod api;
mod capture;
mod config;
pub mod cublas_lt;
pub mod cudnn;
mod event;
mod kernels;
pub mod nccl;
mod nic;
mod numbers;
pub mod nvrtc;
mod random;
mod space;
mod state;
mod stream;
mod work;

use std::path::{Path, PathBuf};

use tensorwire_device::sys::Functions;
use tensorwire_device::sys::cublas_lt::CublasLtFunctions;
use tensorwire_device::sys::cudnn::CudnnFunctions;
use tensorwire_device::sys::nvrtc::NvrtcFunctions;

pub use nic::FakeNic;

/// Where cargo has put the library beside the calling test's program; none where it is not built.
pub fn library() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let name = "libtensorwire_fakecuda.so";
    let places = test.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    places
        .chain(test.parent().map(|folder| folder.join("deps").join(name)))
        .find(|path| path.exists())
}

/// Puts the names of CUDA's libraries for [`library`] into a folder, where they are looked for.
///
/// # Errors
/// When the folder takes no links.
pub fn libraries(folder: &Path) -> std::io::Result<()> {
    let library = library().ok_or(std::io::ErrorKind::NotFound)?;
    for name in ["libcublasLt.so.13", "libcudnn.so.9", "libnvrtc.so.12"] {
        std::os::unix::fs::symlink(&library, folder.join(name))?;
    }
    Ok(())
}

/// The functions of NVRTC by the types of its table.
pub const NVRTC: NvrtcFunctions = nvrtc_functions();

const fn nvrtc_functions() -> NvrtcFunctions {
    macro_rules! table {
        ($($name:ident)*) => { NvrtcFunctions { $($name: nvrtc::$name,)* } };
    }
    table! {
        nvrtcVersion nvrtcGetErrorString nvrtcGetNumSupportedArchs nvrtcGetSupportedArchs
        nvrtcCreateProgram nvrtcDestroyProgram nvrtcCompileProgram
        nvrtcGetPTXSize nvrtcGetPTX nvrtcGetCUBINSize nvrtcGetCUBIN
        nvrtcGetProgramLogSize nvrtcGetProgramLog
    }
}

/// The functions of cuBLASLt by the types of its table.
pub const CUBLAS_LT: CublasLtFunctions = cublas_lt_functions();

const fn cublas_lt_functions() -> CublasLtFunctions {
    macro_rules! table {
        ($($name:ident)*) => { CublasLtFunctions { $($name: cublas_lt::$name,)* } };
    }
    table! {
        cublasLtGetVersion cublasLtGetStatusName cublasLtGetStatusString
        cublasLtCreate cublasLtDestroy
        cublasLtMatmulDescCreate cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
        cublasLtMatrixLayoutCreate cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
        cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy
        cublasLtMatmulPreferenceSetAttribute
        cublasLtMatmulAlgoGetHeuristic cublasLtMatmulAlgoConfigGetAttribute cublasLtMatmul
    }
}

/// The functions of cuDNN by the types of its table.
pub const CUDNN: CudnnFunctions = cudnn_functions();

const fn cudnn_functions() -> CudnnFunctions {
    macro_rules! table {
        ($($name:ident)*) => { CudnnFunctions { $($name: cudnn::$name,)* } };
    }
    table! {
        cudnnGetVersion cudnnGetErrorString cudnnGetLastErrorString
        cudnnCreate cudnnDestroy cudnnSetStream
        cudnnBackendCreateDescriptor cudnnBackendDestroyDescriptor
        cudnnBackendSetAttribute cudnnBackendGetAttribute cudnnBackendFinalize cudnnBackendExecute
    }
}

/// The functions here by the types of the driver's table: one that is of another type does not compile.
pub const FUNCTIONS: Functions = functions();

const fn functions() -> Functions {
    macro_rules! table {
        ($($name:ident)*) => { Functions { $($name: api::$name,)* } };
    }
    table! {
        cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString
        cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetUuid_v2 cuDeviceTotalMem_v2
        cuDeviceGetAttribute cuDeviceGetPCIBusId cuDeviceCanAccessPeer
        cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxSetCurrent cuCtxGetCurrent
        cuMemGetInfo_v2
        cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamQuery cuStreamWaitEvent
        cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery
        cuMemGetAllocationGranularity cuMemCreate cuMemRelease cuMemAddressReserve cuMemAddressFree
        cuMemMap cuMemUnmap cuMemSetAccess cuMemExportToShareableHandle
        cuMemImportFromShareableHandle cuMemGetHandleForAddressRange
        cuMemHostAlloc cuMemFreeHost cuMemHostRegister_v2 cuMemHostUnregister
        cuMemHostGetDevicePointer_v2
        cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyPeerAsync
        cuMemsetD8Async
        cuMemsetD32Async cuStreamWaitValue32_v2 cuStreamWriteValue32_v2 cuFlushGPUDirectRDMAWrites
        cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuFuncSetAttribute cuLaunchKernel
        cuStreamBeginCapture_v2 cuStreamIsCapturing cuStreamEndCapture cuGraphInstantiateWithFlags
        cuGraphDestroy cuGraphLaunch cuGraphExecDestroy
    }
}
