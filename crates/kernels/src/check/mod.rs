//! The checks that every operator goes through, ours and yours: [`gradient`] holds a gradient rule against central
//! differences, [`agreement`] holds a kernel against results that are known, on every back end. They compute with
//! tensors of their own ([`Tensor`]) on whatever [`Computes`]; a program that trains needs none of this.
//!
//! ```
//! use tensorwire_graph::Op;
//! use tensorwire_kernels::check::{self, Mismatch, Tensor, Tolerance};
//!
//! let x = Tensor::new(&[2, 2], &[-1.0f64, 0.5, 2.0, 0.25]);
//! check::gradient(&Op::Tanh, &[x.clone()])?;
//!
//! let doubled = Tensor::new(&[2, 2], &[-2.0f64, 1.0, 4.0, 0.5]);
//! check::agreement(&check::backends(), &Op::Add, &[x.clone(), x], &[doubled], Tolerance::Bits)?;
//! # Ok::<(), Mismatch>(())
//! ```

mod net;
mod tensor;

use std::fmt;

use tensorwire_graph::{GraphError, Op, infer};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{Fact, TensorSpec};

use crate::{CudaLaunches, KernelError, Kernels, Opened, SimdLevel};

pub use net::{Net, central_differences, gradient};
pub use tensor::Tensor;

/// How far results may be from what is expected.
#[derive(Clone, Copy)]
pub enum Tolerance<'a> {
    /// The same bits, but any NaN for any other.
    Bits,
    /// At most what this gives for an output, an element of it, and the value that is expected there. A NaN is
    /// expected where there is one, and nowhere else.
    Within(&'a dyn Fn(usize, usize, f64) -> f64),
}

impl fmt::Debug for Tolerance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tolerance::Bits => "Bits",
            Tolerance::Within(_) => "Within(..)",
        })
    }
}

/// What is held against known results: back ends, and whatever else computes operators.
pub trait Computes: fmt::Debug {
    /// For messages.
    fn description(&self) -> String;

    /// As [`Kernels::run`].
    ///
    /// # Errors
    /// When it does not compute `op` of these.
    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError>;

    /// As [`Kernels::run_in_place`].
    ///
    /// # Errors
    /// When it does not compute `op` of these over its first input.
    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError>;

    /// A name that those share which must give the same bits of `op`; none where sums may be added in another order.
    fn kin(&self, op: &Op) -> Option<String>;
}

impl Computes for Kernels {
    fn description(&self) -> String {
        Kernels::description(self)
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, inputs, outputs)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run_in_place(op, rest, outputs)
    }

    /// A library's sums depend on the threads, the reference adds in an order of its own, and so does each vector level.
    fn kin(&self, op: &Op) -> Option<String> {
        match (op, &self.backend) {
            (Op::Custom(_), _) => Some("one kernel".to_owned()),
            (_, Opened::Cpu(_)) => {
                let description = self.description();
                description.rsplit_once(", ").map(|(level, _)| level.to_owned())
            }
            _ => None,
        }
    }
}

/// What an operator does that it should not.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    #[error(
        "{op}: element {element} of the gradient of input {input} is {found}; central differences give {expected}"
    )]
    Gradient { op: &'static str, input: usize, element: usize, found: f64, expected: f64 },
    #[error(
        "{op}: element {element} of the gradient of input {input} is {found} if it alone is wanted, and {expected} \
         with the others"
    )]
    Wanted { op: &'static str, input: usize, element: usize, found: f64, expected: f64 },
    #[error(
        "{op} on {backend}: element {element} of output {output} is {found}; expected {expected}"
    )]
    Value {
        op: &'static str,
        backend: String,
        output: usize,
        element: usize,
        found: f64,
        expected: f64,
    },
    #[error("{op}: output {output} is {found}; expected {expected}")]
    Spec { op: &'static str, output: usize, found: String, expected: TensorSpec },
    #[error("{op} makes {found} outputs; expected {expected}")]
    Outputs { op: &'static str, found: usize, expected: usize },
    #[error("on {backend}: {source}")]
    Kernel { backend: String, source: KernelError },
    #[error(transparent)]
    Program(#[from] KernelError),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The back ends that need no library: `reference`, and `cpu` at every vector level of this machine, on one thread and
/// on several.
pub fn backends() -> Vec<Kernels> {
    let levels = [SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512];
    let here = levels.into_iter().filter(|level| *level <= SimdLevel::detect());
    let cpus =
        here.flat_map(|level| [1, 2, 3].map(|threads| Kernels::open_at_level(level, threads)));
    std::iter::once(Kernels::reference()).chain(cpus).collect()
}

/// Runs `op` on each of `backends` and compares what it makes with `expected`. Where the operator works in place it is
/// computed over its first input, too, and must give the same bits; and so it must on any number of threads. The bits of
/// the outputs are all ones before: an operator that adds to what was there shows it. What a user's operator would launch on
/// GPUs for such operands is checked without one, too.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn agreement<C: Computes>(
    backends: &[C],
    op: &Op,
    inputs: &[Tensor],
    expected: &[Tensor],
    tolerance: Tolerance<'_>,
) -> Result<(), Mismatch> {
    let specs = outputs_of(op, inputs)?;
    if specs.len() != expected.len() {
        let (found, expected) = (specs.len(), expected.len());
        return Err(Mismatch::Outputs { op: op.name(), found, expected });
    }
    for (output, (found, expected)) in specs.iter().zip(expected).enumerate() {
        if found != expected.spec() {
            let (found, expected) = (found.to_string(), expected.spec().clone());
            return Err(Mismatch::Spec { op: op.name(), output, found, expected });
        }
    }
    if let Op::Custom(custom) = op {
        // what it would launch on a GPU is looked at also where none is
        let inputs: Vec<TensorSpec> = inputs.iter().map(|input| input.spec().clone()).collect();
        CudaLaunches::of(custom, &inputs, &specs)?;
    }
    let mut firsts: Vec<(String, Vec<Tensor>)> = Vec::new();
    for kernels in backends {
        let made = run(kernels, op, inputs)?;
        compare(op, kernels, &made, expected, tolerance)?;
        if op.works_in_place() {
            let over = run_in_place(kernels, op, inputs)?;
            compare(op, kernels, &over, &made, Tolerance::Bits)?;
        }
        let Some(kin) = kernels.kin(op) else { continue };
        match firsts.iter().find(|(of, _)| *of == kin) {
            Some((_, first)) => compare(op, kernels, &made, first, Tolerance::Bits)?,
            None => firsts.push((kin, made)),
        }
    }
    Ok(())
}

/// What `op` makes of `inputs`. An operator that changes variables makes nothing, and is not for this.
///
/// # Errors
/// When the operator does not take the inputs.
pub fn run<C: Computes + ?Sized>(
    kernels: &C,
    op: &Op,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Mismatch> {
    let specs = outputs_of(op, inputs)?;
    let mut made: Vec<Tensor> = specs.into_iter().map(Tensor::of).collect();
    let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorMut<'_>> = made.iter_mut().map(Tensor::view_mut).collect();
    kernels.compute(op, &inputs, &mut outputs).map_err(|source| on(kernels, source))?;
    drop(outputs);
    Ok(made)
}

/// As [`run`], over a copy of the first input.
fn run_in_place<C: Computes>(
    kernels: &C,
    op: &Op,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Mismatch> {
    let specs = outputs_of(op, inputs)?;
    let mut made: Vec<Tensor> = inputs.iter().take(1).cloned().collect();
    made.extend(specs.into_iter().skip(1).map(Tensor::of));
    let rest: Vec<TensorRef<'_>> = inputs.iter().skip(1).map(Tensor::view).collect();
    let mut outputs: Vec<TensorMut<'_>> = made.iter_mut().map(Tensor::view_mut).collect();
    kernels.compute_in_place(op, &rest, &mut outputs).map_err(|source| on(kernels, source))?;
    drop(outputs);
    Ok(made)
}

fn on<C: Computes + ?Sized>(kernels: &C, source: KernelError) -> Mismatch {
    Mismatch::Kernel { backend: kernels.description(), source }
}

fn outputs_of(op: &Op, inputs: &[Tensor]) -> Result<Vec<TensorSpec>, Mismatch> {
    let facts: Vec<Fact> = inputs.iter().map(|input| Fact::from(input.spec())).collect();
    let made = infer(op.name(), op, &facts)?;
    let spec = |fact: &Fact| match fact.spec() {
        Some(Ok(spec)) => Ok(spec),
        // inference gives what is known where all inputs are
        _ => Err(Mismatch::Graph(GraphError::Invalid {
            node: op.name().to_owned(),
            what: format!("makes {fact} of what is known"),
        })),
    };
    made.iter().map(spec).collect()
}

fn compare<C: Computes>(
    op: &Op,
    kernels: &C,
    found: &[Tensor],
    expected: &[Tensor],
    tolerance: Tolerance<'_>,
) -> Result<(), Mismatch> {
    for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_floating = expected.spec().dtype.is_floating();
        let fits = |element: usize, found: f64, expected: f64| match tolerance {
            _ if found.is_nan() || expected.is_nan() => found.is_nan() && expected.is_nan(),
            Tolerance::Within(most) if is_floating => {
                found == expected || (found - expected).abs() <= most(output, element, expected)
            }
            _ => found.to_bits() == expected.to_bits(),
        };
        let pairs = found.numbers().into_iter().zip(expected.numbers()).enumerate();
        for (element, (found, expected)) in pairs {
            if !fits(element, found, expected) {
                let (op, backend) = (op.name(), kernels.description());
                return Err(Mismatch::Value { op, backend, output, element, found, expected });
            }
        }
    }
    Ok(())
}
