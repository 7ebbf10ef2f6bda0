//! What goes wrong with a driver or a GPU: which call, what the driver calls it, and what mends it. Knows the driver's
//! numbers, and no call.

use std::ffi::{CStr, c_char};
use std::fmt;

use tensorwire_base::{LOADS_NOTHING, human_bytes};

use crate::device::Device;
use crate::libraries::CudaLibrary;
use crate::sys::*;

/// A result of the driver's that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    /// As CUDA calls it: `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// In CUDA's words: `out of memory`.
    pub text: String,
}

/// Why there is no driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.reason(), self.mend())]
pub enum OpenError {
    Missing { looked_for: String, reason: String },
    Function { looked_for: String, function: &'static str },
    Start { call: &'static str, failure: Box<Failure>, mend: String },
    TooOld { found: DriverVersion, needed: DriverVersion },
}

impl OpenError {
    /// True if this machine has no driver, or none that found a GPU: a machine to compute on the CPU.
    pub fn is_absence(&self) -> bool {
        match self {
            OpenError::Missing { .. } => true,
            OpenError::Start { failure, .. } => failure.code == CUDA_ERROR_NO_DEVICE,
            OpenError::Function { .. } | OpenError::TooOld { .. } => false,
        }
    }

    /// Returns what is wrong.
    pub fn reason(&self) -> String {
        match self {
            OpenError::Missing { looked_for, reason } => {
                format!("the NVIDIA driver's {looked_for} cannot be loaded ({reason})")
            }
            OpenError::Function { looked_for, function } => {
                format!(
                    "{looked_for} has no function {function}: it is no whole driver, or an old one"
                )
            }
            OpenError::Start { call, failure, .. } => {
                format!("the NVIDIA driver does not start: {call} says {failure}")
            }
            OpenError::TooOld { found, needed } => {
                format!("the NVIDIA driver is of CUDA {found}; {needed} or newer is needed")
            }
        }
    }

    /// Returns what to do about it.
    pub fn mend(&self) -> String {
        match self {
            OpenError::Missing { .. } => {
                let usual = "install a driver (525 or newer), in a container run with `docker run --gpus all`, or name \
                             the library with --cuda-driver";
                LOADS_NOTHING.map_or(usual, |program| program.mend).to_owned()
            }
            OpenError::Start { mend, .. } => mend.clone(),
            OpenError::Function { .. } | OpenError::TooOld { .. } => {
                "install a newer driver (525 or newer)".to_owned()
            }
        }
    }
}

/// Why one of CUDA's libraries is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("no {library} was found ({looked_for})")]
    Missing { library: &'static str, looked_for: String },
    #[error("{path} cannot be loaded: {reason}")]
    Load { path: String, reason: String },
    #[error("{path} has no function {function}")]
    Function { path: String, function: &'static str },
    #[error("{path} is of version {found}; {known} can be used")]
    Version { path: String, found: String, known: String },
    #[error("{path} does not start: {reason}")]
    Start { path: String, reason: String },
}

/// The version of CUDA that a driver has, which is not the driver's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    pub major: u32,
    pub minor: u32,
}

/// Why a GPU did not do what it was told to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "there is no GPU {ordinal}: {count} can be seen; name one from 0 on, and see what CUDA_VISIBLE_DEVICES and \
         nvidia-smi -L say"
    )]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "GPU {device} has no {} left: {call} says {failure}, {} of {} are free; end what else uses it (nvidia-smi), \
         or lower the batch size",
        human_bytes(*.asked), human_bytes(*.free), human_bytes(*.total)
    )]
    OutOfMemory {
        device: usize,
        call: &'static str,
        failure: Box<Failure>,
        asked: u64,
        free: u64,
        total: u64,
    },
    /// Nothing works on this GPU any more in this process.
    #[error("GPU {device} is lost to this process: {call} says {failure}; {}", mend_lost(.failure.code))]
    Lost { device: usize, call: &'static str, failure: Box<Failure> },
    #[error("GPU {device} takes no kernels of this image: {call} says {failure}{}; {mend}", log_of(.log))]
    Image { device: usize, call: &'static str, failure: Box<Failure>, log: String, mend: String },
    #[error(
        "the image loaded on GPU {device} has no kernel {kernel}: program and kernels are of different versions"
    )]
    NoSuchKernel { device: usize, kernel: String },
    #[error("GPU {device} cannot {what}; {mend}")]
    Unsupported { device: usize, what: &'static str, mend: &'static str },
    #[error(
        "{what} of GPU {device} did not end within {waited_ms} ms; its work may wait for a peer that is gone, or is \
         larger than the time allowed"
    )]
    TimedOut { device: usize, what: &'static str, waited_ms: u64 },
    #[error(
        "{library} fails on GPU {device}: {call} says {failure}; compute without it (--cuda-libs none), and report this \
         message"
    )]
    Library { device: usize, library: &'static str, call: &'static str, failure: Box<Failure> },
    #[error("{call} fails on GPU {device}: {failure}; {}", mend(.failure.code))]
    Call { device: usize, call: &'static str, failure: Box<Failure> },
}

/// A call that one of CUDA's libraries refuses.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    pub(crate) failure: Box<Failure>,
}

impl Refused {
    /// The error that it is on a GPU.
    pub(crate) fn on(self, device: &Device, library: CudaLibrary) -> DeviceError {
        // a GPU that is lost says so to every call
        if let Err(lost) = device.memory()
            && lost.is_lost()
        {
            return lost;
        }
        let Refused { call, failure } = self;
        DeviceError::Library { device: device.ordinal(), library: library.name(), call, failure }
    }
}

impl DeviceError {
    /// True if the GPU does nothing more for this process: what it had is lost, and only another process can go on.
    pub fn is_lost(&self) -> bool {
        matches!(self, DeviceError::Lost { .. })
    }
}

/// True if every later call in this process fails, too (the manual of CUDA's results: "the process must be terminated
/// and relaunched").
pub(crate) fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUDA_ERROR_UNKNOWN
    )
}

/// What to do about a GPU that is lost.
fn mend_lost(code: CUresult) -> &'static str {
    match code {
        CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process has it for itself, or it fell off the bus: see nvidia-smi, and dmesg | grep -i xid"
        }
        CUDA_ERROR_ECC_UNCORRECTABLE | CUDA_ERROR_NVLINK_UNCORRECTABLE | CUDA_ERROR_UNKNOWN => {
            "the hardware failed or fell off the bus: see dmesg | grep -i xid, reset it (nvidia-smi --gpu-reset) or \
             leave it out, and go on from the last checkpoint"
        }
        CUDA_ERROR_LAUNCH_TIMEOUT => {
            "a kernel ran longer than a GPU with a display allows: use one without, or lower the batch size"
        }
        CUDA_ERROR_MPS_CLIENT_TERMINATED => {
            "the daemon of MPS ended this process: see its log, and what other clients of it did"
        }
        _ => {
            "a kernel was wrong: compute-sanitizer shows where, CUDA_LAUNCH_BLOCKING=1 which; go on from the last \
             checkpoint in a new process"
        }
    }
}

/// What to do about any other result.
pub(crate) fn mend(code: CUresult) -> &'static str {
    match code {
        CUDA_ERROR_NO_DEVICE => {
            "no GPU can be seen: see nvidia-smi, CUDA_VISIBLE_DEVICES, and in a container run with \
             `docker run --gpus all`"
        }
        CUDA_ERROR_STUB_LIBRARY => {
            "this libcuda.so.1 is the toolkit's stub for linking: take its folder out of LD_LIBRARY_PATH"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "libcuda.so.1 and the kernel's module are of different drivers: reboot, or install one version of both"
        }
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "this GPU takes no compatibility driver: take /usr/local/cuda/compat out of LD_LIBRARY_PATH, and install \
             the driver itself"
        }
        CUDA_ERROR_SYSTEM_NOT_READY => {
            "the machine is not ready for CUDA: start nvidia-fabricmanager and nvidia-persistenced, or wait for them"
        }
        CUDA_ERROR_NOT_PERMITTED => {
            "this user or container may not do that: see the options and capabilities of your container"
        }
        CUDA_ERROR_OPERATING_SYSTEM => {
            "the system refused: see dmesg, whether this user may open /dev/nvidia*, and the limits on open files and \
             locked memory (ulimit -n, ulimit -l)"
        }
        CUDA_ERROR_OUT_OF_MEMORY => {
            "the GPU or the host has no memory left: end what else uses it (nvidia-smi, free -m), or lower the batch \
             size"
        }
        CUDA_ERROR_NOT_SUPPORTED => {
            "this GPU, driver or container cannot do that: `tensorwire doctor` says what it can"
        }
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
            "these two GPUs do not reach each other (`nvidia-smi topo -p2p r` shows which do): give --transport tcp, and \
             tensors cross by way of the host"
        }
        CUDA_ERROR_INVALID_DEVICE => {
            "that GPU cannot be seen any more: see nvidia-smi -L and dmesg | grep -i xid"
        }
        _ => "see `tensorwire doctor`; report it with this message if it comes again",
    }
}

/// What to do about an image that is refused.
pub(crate) fn mend_image(code: CUresult, compute: (u32, u32)) -> String {
    let (major, minor) = compute;
    match code {
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the kernels were made by a CUDA newer than the driver: install a newer driver, or have PTX of an older CUDA".to_owned()
        }
        CUDA_ERROR_NO_BINARY_FOR_GPU => format!(
            "the GPU is of compute capability {major}.{minor}, for which the image has no kernels: 8.0 or newer is needed"
        ),
        CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
            "the driver's libnvidia-ptxjitcompiler.so.1 is missing: install the whole driver, or in a container set \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                .to_owned()
        }
        _ => "the kernels are damaged or not CUDA's: install this program anew".to_owned(),
    }
}

/// A library's text, where there is one.
///
/// # Safety
/// It is null, or ends with a 0 and lives until this returns.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::from("unknown");
    }
    // SAFETY: the caller's duty.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn log_of(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(" ({log})") }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { code, name, text } = self;
        write!(f, "{name} ({code}, {text})")
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
