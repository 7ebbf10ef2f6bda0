//! The operators' arithmetic on CUDA devices. [`lower`] says what a device does for one [`Op`]: commands for a stream, as
//! data. [`modules`] are the kernels that it launches, as PTX that every driver compiles for its device. [`CudaKernels`]
//! tells them to a stream of one GPU. Knows no plan, no ranks, and not what crosses.
//!
//! The kernels are written once, in CUDA C (`kernels/`). A GPU's compiler makes the PTX of them (`cargo xtask ptx`), and a
//! C++ compiler makes a library of them whose threads are loops and fibers (`shim/`), which the tests run on.
//!
//! ```
//! use tensorwire_cuda::{Addresses, Command, Lowering, lower};
//! use tensorwire_graph::Op;
//! use tensorwire_tensor::{DType, TensorSpec};
//!
//! let spec = TensorSpec::new(DType::F32, &[1000, 3])?;
//! let inputs = [spec.clone(), spec.clone()];
//! let lowered = lower(&Op::Add, &inputs, &[spec], false, &Lowering::default())?;
//! let [Command::Launch(launch)] = &lowered.commands[..] else { panic!("one pass over memory") };
//! assert_eq!(launch.kernel, "map_two_f32");
//! let addresses = Addresses {
//!     inputs: &[0x1000, 0x8000],
//!     outputs: &[0x10000],
//!     workspace: 0,
//!     rate_factor: 0,
//!     fault: 0,
//!     progress: 0,
//! };
//! assert_eq!(launch.bytes(&addresses)?.len(), 8 * launch.arguments.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each operator gives the same bits for the same operands every time, on any device: sums are made in an order that
//! depends on the shapes alone. f32 and f64 are computed in themselves, bf16 in f32; [`Rounding`] makes
//! products coarser. Who needs the bits of another
//! back end gets them for what is computed by elements; sums over many elements are added in another order.
#![deny(unsafe_code)] // but for the engine, which launches

mod builder;
mod checks;
mod command;
#[allow(unsafe_code)]
mod engine;
mod error;
mod fault;
mod gpus;
mod kernels;
mod lower;
mod opened;
mod options;
mod several;

use tensorwire_graph::Op;
use tensorwire_kernels::KernelError;
use tensorwire_tensor::{DType, TensorSpec};

pub use checks::CheckedGpu;
pub use command::{
    Address, Addresses, Command, KernelArgument, Launch, LibraryConvolution, LibraryProduct,
    Memory, MissingAddress, ProgramLaunch, ProgramText,
};
pub use engine::{CudaError, CudaKernels, RemoteWrites};
pub use error::LowerError;
pub use fault::DeviceFault;
pub use gpus::{Gpus, products};
pub use kernels::{PtxModule, kernel_names, modules};
pub use opened::OpenedGpus;
pub use options::CudaOptions;
pub use several::CudaDevices;
pub use tensorwire_device::LibrarySearch;
pub use tensorwire_device::nccl::{Nccl, NcclError, NcclId, NcclReduction, NcclVersion};

/// How operators are lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lowering {
    /// Which operator this is to whoever asks: a fault that its kernels find says so.
    pub tag: u32,
    /// Of what products and convolutions multiply.
    pub rounding: Rounding,
    /// Matrix products are a library's, where it can take them ([`Command::Product`]).
    pub products_by_library: bool,
    /// Convolutions of more than one place are a library's, where it can take them ([`Command::Convolution`]).
    pub convolutions_by_library: bool,
}

/// What numbers of f32 are rounded to before they are multiplied, in matrix products, convolutions and recurrent cells.
/// Sums are f32 all the same, and nothing else is rounded: no weight, no result, and not attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    #[default]
    Nothing,
    /// 11 bits: half a unit is 2⁻¹¹.
    Tf32,
    /// 8 bits: half a unit is 2⁻⁸.
    Bf16,
}

impl Rounding {
    /// As kernels are told it of numbers that are kept so (`Factors` of `kernels/device.cuh`).
    fn code(self, kept: DType) -> i64 {
        match (kept, self) {
            (DType::BF16, _) => 1,
            (DType::F32, Rounding::Tf32) => 2,
            (DType::F32, Rounding::Bf16) => 3,
            _ => 0,
        }
    }
}

/// What a device does for one operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// In the order in which one stream does them.
    pub commands: Vec<Command>,
    /// Memory that the commands use besides, at a multiple of 256; what it holds before and after is nobody's.
    pub workspace_bytes: usize,
    tag: u32,
    checks: Vec<fault::Check>,
}

impl Lowered {
    /// The error that a fault is, if this operator's kernels found it.
    pub fn explain(&self, fault: &DeviceFault) -> Option<KernelError> {
        fault.tag().filter(|tag| *tag == self.tag)?;
        // the lower half counts checks from 1
        let check = ((fault.code & 0xffff) as usize).checked_sub(1)?;
        self.checks.get(check).map(|check| check.error(fault))
    }

    /// True if its kernels read values that may be wrong, and so may write a fault.
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }
}

/// Lowers `op`. `inputs` and `outputs` are the operator's in its own order, but the first [`Op::mutated_inputs`] inputs
/// come as `outputs` and are updated in place, as [`Kernels::run`](tensorwire_kernels::Kernels::run) has it. What the
/// other outputs held before is not read. Where it is computed `in_place`, its first input lies in the first output;
/// `inputs` still has it.
///
/// A rule's rate is multiplied by [`KernelArgument::RateFactor`] in each run, in f64, as [`Op::at_rate`] does.
///
/// # Errors
/// [`KernelError::NoKernel`] for operators that are the runtime's to do, and for a user's own that computes on the host alone; otherwise what does not
/// fit: the number of operands, an element type, a shape, a size that no launch can take.
pub fn lower(
    op: &Op,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    in_place: bool,
    options: &Lowering,
) -> Result<Lowered, LowerError> {
    let mut builder = builder::Builder::checked(op, inputs, outputs, in_place, *options)?;
    lower::operator(&mut builder)?;
    Ok(builder.finish())
}
