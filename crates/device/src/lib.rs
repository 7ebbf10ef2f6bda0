//! GPUs by CUDA's driver, which is loaded at run time: memory that other processes map and NICs reach, pinned memory of
//! the host, streams, events, words that streams wait on, kernels of an image, and graphs of what a stream was told.
//! Nothing of CUDA is needed to build. Knows no operators, no ranks, and not what a kernel computes.
//!
//! | file | what |
//! |---|---|
//! | `sys.rs`, `sys/` | the driver's functions, structures and numbers |
//! | `driver.rs`, `facts.rs` | the loaded driver, and what its GPUs are |
//! | `device.rs` | one GPU and this process's context on it |
//! | `memory.rs`, `host.rs` | memory of the GPU; memory of the host that it reaches |
//! | `stream.rs`, `word.rs`, `event.rs`, `graph.rs` | what a GPU is told, in which order, and when it is done |
//! | `module.rs` | images of kernels |
//! | `libraries.rs` | where CUDA's other libraries lie |
//! | `nccl.rs`, `cublas_lt.rs`, `cudnn.rs` | NCCL's communicators, matrix products by cuBLASLt, convolutions by cuDNN |
//! | `nvrtc.rs` | CUDA C, compiled at run time |
//! | `error.rs` | what went wrong, and what mends it |
//!
//! # What is safe here, and what is not
//! A GPU works later than it is told to. Memory that this crate allocates, maps or pins is given back when every stream
//! of its GPU is idle, or never: what a GPU may still work on belongs to nobody else. *When* bytes may be touched is the
//! duty of who plans the work, as with a remote writer ([`tensorwire_memory`]): events and the order of a stream say so,
//! and no loan can. A launch is `unsafe`: its arguments are addresses that only the kernel understands.
//!
//! No wait is the driver's own: all of them poll, and end at a deadline. One thing blocks: a copy to or from memory of
//! the host that is not pinned, until what was told the stream before is done. Pin what is copied.

mod cublas_lt;
mod cudnn;
mod device;
mod driver;
mod error;
mod event;
mod facts;
mod graph;
mod host;
mod libraries;
mod memory;
mod module;
pub mod nccl;
mod nvrtc;
mod stream;
pub mod sys;
mod wait;
mod word;

pub use cublas_lt::{
    CublasLt, LIBRARY_ALIGNMENT, MatrixProduct, ProductFactor, ProductPlan, RealType,
};
pub use cudnn::{ConvolutionPass, ConvolutionPlan, Cudnn, ImageConvolution};
pub use device::{Device, MemoryInfo};
pub use driver::{Driver, SONAME};
pub use error::{DeviceError, DriverVersion, Failure, LibraryError, OpenError};
pub use event::Event;
pub use facts::{DeviceFacts, WritesOrdering};
pub use graph::Graph;
pub use host::Registration;
pub use libraries::{CudaLibrary, FoundLibrary, LibrarySearch, LibraryVersion, LoadedLibrary};
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use nvrtc::{CompileError, CompiledProgram, Nvrtc};
pub use stream::Stream;
pub use word::{Until, Word};
