//! The operators' arithmetic: [`Kernels::run`] computes one [`Op`] from tensors that are lent to it
//! into tensors that are lent to it. Knows no graph, no ranks and no buffers' homes, and allocates
//! no output: where a result lies is the plan's business, before and after.
//!
//! Three back ends compute the same operators. `reference` is plain loops in the order in which the
//! formulas are written: the oracle of the tests. `cpu` is what training runs on. `onednn` has the
//! library of that name, where it is installed, compute convolutions, and `cpu` the rest. Each gives the
//! same bits for the same operands every time, `cpu` also for any number of threads.
//!
//! ```
//! use tensorwire_graph::Op;
//! use tensorwire_kernels::check::Tensor;
//! use tensorwire_kernels::{KernelChoice, Kernels};
//!
//! let kernels = Kernels::open(KernelChoice::Cpu, 2)?;
//! let (a, b) = (Tensor::new(&[3], &[1.0f32, 2.0, 3.0]), Tensor::new(&[3], &[0.5f32, 0.5, 0.5]));
//! let mut sum = Tensor::new(&[3], &[0.0f32; 3]);
//! kernels.run(&Op::Add, &[a.view(), b.view()], &mut [sum.view_mut()])?;
//! assert_eq!(sum.to_vec::<f32>(), [1.5, 2.5, 3.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Operators of your own
//!
//! An operator is a type with rules, [`CustomOperator`](tensorwire_graph::CustomOperator), which planning needs, and a
//! kernel, [`CustomKernel`]. [`custom`] makes an [`Op`] of it, which goes wherever ours go: it is placed, planned, sent
//! and differentiated like them, and [`check`] holds it to what they are held to.
//!
//! ```
//! use tensorwire_graph::{Backward, CustomOperator, Gradient, Op, Refusal};
//! use tensorwire_kernels::check::{self, Tensor, Tolerance};
//! use tensorwire_kernels::{Call, CustomKernel, custom};
//! use tensorwire_tensor::{DType, Fact};
//!
//! /// y = x², by elements.
//! #[derive(Debug)]
//! struct Square;
//!
//! impl CustomOperator for Square {
//!     fn name(&self) -> &'static str {
//!         "Square"
//!     }
//!
//!     fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
//!         match inputs {
//!             [x] if x.dtype.is_floating() => Ok(vec![x.clone()]),
//!             _ => Err("one floating tensor is needed".into()),
//!         }
//!     }
//!
//!     // dx = 2·x·dy, made of operators that are there
//!     fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
//!         let (x, dy) = (backward.inputs()[0], backward.flowing()[0].ok_or("nothing flows")?);
//!         let product = backward.add(Op::Mul, &[x, dy])?;
//!         let dx = backward.add(Op::Scale { by: 2.0 }, &[product])?;
//!         Ok(vec![Some(dx.into())])
//!     }
//!
//!     fn works_in_place(&self) -> bool {
//!         true
//!     }
//! }
//!
//! impl CustomKernel for Square {
//!     fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
//!         match call.dtype() {
//!             Some(DType::F64) => call.by_elements(|x: f64, []| x * x)?,
//!             _ => call.by_elements(|x: f32, []| x * x)?,
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let (x, y) = (Tensor::new(&[2], &[3.0f64, -0.5]), Tensor::new(&[2], &[9.0f64, 0.25]));
//! check::gradient(&custom(Square), &[x.clone()])?;
//! check::agreement(&check::backends(), &custom(Square), &[x], &[y], Tolerance::Bits)?;
//! # Ok::<(), check::Mismatch>(())
//! ```

pub mod check;
mod cpu;
mod device;
mod error;
mod folding;
mod functions;
mod gemm;
mod lanes;
mod launch;
mod onednn;
mod program;
mod real;
mod reference;

use std::path::Path;

use tensorwire_graph::Op;
use tensorwire_memory::{TensorMut, TensorRef};

pub use cpu::{SimdLevel, Threads};
pub use device::{
    CopyId, DeviceCall, DeviceFailure, DeviceKernels, DeviceOperand, Piece, SharedDevice, Shown,
};
pub use error::{KernelError, Operand};
pub use folding::{FoldElement, FoldKind, Folding, NoFold};
pub use launch::custom::{Call, CustomKernel, custom};
pub use onednn::OpenError;
pub use program::{
    CudaArgument, CudaCall, CudaKernel, CudaLaunch, CudaLaunches, CudaProgram, CudaSize, PtxEntry,
    check_entry, custom_with_cuda,
};

/// Which back end to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KernelChoice {
    /// `OneDnn` where the library can be loaded, else `Cpu`.
    #[default]
    Auto,
    Cpu,
    /// oneDNN, of which `libdnnl.so.3` is found by the dynamic linker.
    OneDnn,
    /// Plain loops on one thread.
    Reference,
}

/// A back end, opened: built once per process, run from any thread.
#[derive(Debug)]
pub struct Kernels {
    backend: Opened,
    /// Why [`KernelChoice::Auto`] did not take another.
    instead: Option<String>,
}

#[derive(Debug)]
enum Opened {
    Cpu(cpu::Cpu),
    OneDnn(onednn::OneDnn),
    Reference(reference::Reference),
}

impl Kernels {
    /// Opens a back end that uses `threads` threads (0 counts as 1). With one thread everything runs
    /// on the caller's; with more they are this back end's own. The results of `Cpu` and `Reference` do
    /// not depend on the number; with `OneDnn` sums may be added in another order on another number.
    ///
    /// # Errors
    /// With [`KernelChoice::OneDnn`] alone, where the library is missing or cannot be used.
    pub fn open(choice: KernelChoice, threads: usize) -> Result<Kernels, OpenError> {
        match choice {
            KernelChoice::Auto => {
                Ok(Kernels::open_onednn(None, threads).unwrap_or_else(|refused| {
                    let instead = Some(format!("no oneDNN: {refused}"));
                    Kernels { instead, ..Kernels::open_at_level(SimdLevel::detect(), threads) }
                }))
            }
            KernelChoice::Cpu => Ok(Kernels::open_at_level(SimdLevel::detect(), threads)),
            KernelChoice::OneDnn => Kernels::open_onednn(None, threads),
            KernelChoice::Reference => Ok(Kernels::reference()),
        }
    }

    fn reference() -> Kernels {
        Kernels { backend: Opened::Reference(reference::Reference), instead: None }
    }

    /// As [`Kernels::open`] of [`KernelChoice::OneDnn`], with the library of that path instead of the one
    /// that the dynamic linker finds.
    ///
    /// # Errors
    /// Where the library is missing or cannot be used.
    pub fn open_onednn(library: Option<&Path>, threads: usize) -> Result<Kernels, OpenError> {
        let cpu = cpu::Cpu::open(SimdLevel::detect(), threads);
        let backend = Opened::OneDnn(onednn::OneDnn::open(library, cpu, threads)?);
        Ok(Kernels { backend, instead: None })
    }

    /// Opens the `cpu` back end with element-wise kernels that use no instructions beyond `level`, or
    /// beyond what the machine has. For tests: the matrix product still picks its own.
    #[doc(hidden)]
    pub fn open_at_level(level: SimdLevel, threads: usize) -> Kernels {
        Kernels { backend: Opened::Cpu(cpu::Cpu::open(level, threads)), instead: None }
    }

    /// What was picked, for a log's first lines.
    pub fn description(&self) -> String {
        let picked = match &self.backend {
            Opened::Cpu(cpu) => cpu.description(),
            Opened::OneDnn(onednn) => onednn.description(),
            Opened::Reference(_) => "reference: plain loops, 1 thread".to_owned(),
        };
        match &self.instead {
            Some(instead) => format!("{picked} ({instead})"),
            None => picked,
        }
    }

    /// Returns what the bits of results depend on: that these kernels compute, or a library of that version on so many threads.
    pub fn determined_by(&self) -> String {
        match &self.backend {
            Opened::Cpu(_) | Opened::Reference(_) => "own".to_owned(),
            Opened::OneDnn(onednn) => onednn.determined_by(),
        }
    }

    /// Computes `op`. `inputs` and `outputs` are the operator's in its own order, but the first
    /// [`Op::mutated_inputs`] inputs come as `outputs` and are updated in place. What the other
    /// outputs held before is not read. After an error the outputs' contents are unspecified.
    ///
    /// # Errors
    /// [`KernelError::NoKernel`] for operators that are the runtime's to do; otherwise what does not
    /// fit: the number of operands, an element type, a shape, a label.
    pub fn run(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        match &self.backend {
            Opened::Cpu(cpu) => launch::run(cpu, op, inputs, outputs),
            Opened::OneDnn(onednn) => launch::run(onednn, op, inputs, outputs),
            Opened::Reference(reference) => launch::run(reference, op, inputs, outputs),
        }
    }

    /// Computes `op` over its first input: the first of `outputs` holds that input when this starts,
    /// and the output, with the bits that [`Kernels::run`] gives, when it ends. `rest` are the other
    /// inputs. After an error the outputs' contents are unspecified.
    ///
    /// # Errors
    /// [`KernelError::NotInPlace`] for operators that are not [`Op::works_in_place`]; otherwise as
    /// [`Kernels::run`], with operands named by the operator's own order: `rest` starts at input 1.
    pub fn run_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        match &self.backend {
            Opened::Cpu(cpu) => launch::run_in_place(cpu, op, rest, outputs),
            Opened::OneDnn(onednn) => launch::run_in_place(onednn, op, rest, outputs),
            Opened::Reference(reference) => launch::run_in_place(reference, op, rest, outputs),
        }
    }
}
