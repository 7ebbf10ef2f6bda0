//! From an operator and untyped operands to a back end's typed loop. All checks are here, once, for
//! all back ends: a back end sees slices whose lengths fit, labels that are classes or −1, indices that
//! name rows. One file a family; element types are told apart here.

pub(crate) mod attention;
pub(crate) mod compression;
pub(crate) mod custom;
pub(crate) mod element_wise;
pub(crate) mod elements;
pub(crate) mod images;
pub(crate) mod moves;
pub(crate) mod norms;
mod operands;
pub(crate) mod recurrent;
pub(crate) mod reductions;
mod storage;
pub(crate) mod updates;

use tensorwire_graph::{Family, Kind, Op};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::DType;

use crate::cpu::Threads;
use crate::error::{KernelError, Operand};
use crate::real::Real;
use attention::Attentions;
use compression::Compressions;
use element_wise::ElementWise;
use elements::Elements;
use images::{Convolutions, Images};
use moves::Moves;
use norms::Norms;
use operands::Operands;
use recurrent::Recurrences;
use reductions::Reductions;
use updates::Updates;

pub(crate) use element_wise::Source;

/// One back end. Shapes are checked, so that an element count and a few sizes say all. Nothing is assumed of
/// what an output holds, but where it is the source.
pub(crate) trait Backend: Convolutions {
    /// What computes everything else: the back end itself, or another's.
    type Loops: Products
        + ElementWise
        + Elements
        + Reductions
        + Moves
        + Images
        + Attentions
        + Compressions
        + Norms
        + Recurrences
        + Updates;

    fn loops(&self) -> &Self::Loops;

    /// The threads that a user's kernel may use.
    fn threads(&self) -> Threads<'_>;
}

/// The matrix products of one back end.
pub(crate) trait Products {
    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]);
    /// As many products as `y` has room for, of operands one behind the other; none of them is empty.
    fn batch_matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]);
}

/// y[m,n] = a·b with a: [m,k] and b: [k,n], after the transpositions; `a` is stored as [k,m] where
/// `transpose_a` says so, `b` as [n,k] where `transpose_b` does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
}

/// Checks the operands of `op` and has `backend` compute it.
pub(crate) fn run<B: Backend>(
    backend: &B,
    op: &Op,
    inputs: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
) -> Result<(), KernelError> {
    launch(backend, op, Operands { op: op.name(), inputs, outputs, in_place: false })
}

/// As [`run`], with the first input in the first output.
pub(crate) fn run_in_place<B: Backend>(
    backend: &B,
    op: &Op,
    rest: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
) -> Result<(), KernelError> {
    if !op.works_in_place() {
        return Err(KernelError::NotInPlace { op: op.name() });
    }
    launch(backend, op, Operands { op: op.name(), inputs: rest, outputs, in_place: true })
}

fn launch<B: Backend>(
    backend: &B,
    op: &Op,
    mut operands: Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let facts = op.facts();
    // the operand that tells the type is the first of all
    let first = if facts.mutated_inputs > 0 || operands.in_place {
        operands.outputs.first().map(|v| (Operand::Output(0), v.dtype()))
    } else {
        operands.inputs.first().map(|x| (Operand::Input(0), x.dtype()))
    };
    let Kind::Kernel(family) = facts.kind else {
        return Err(KernelError::NoKernel { op: facts.name });
    };
    match op {
        Op::Fill { value, spec } => {
            return element_wise::fill(backend.loops(), &mut operands, *value, spec);
        }
        Op::Cast { to } => return element_wise::cast(backend.loops(), &mut operands, *to),
        Op::Compare { by } => return elements::compare(backend.loops(), &mut operands, *by),
        Op::Custom(own) => return custom::run(op, own, backend.threads(), operands),
        _ if family == Family::Compression => {
            return compression::launch(backend.loops(), op, &mut operands);
        }
        _ if family == Family::Movement => {
            // without operands, the counts are checked before the type matters
            let dtype = first.map_or(DType::F32, |(_, dtype)| dtype);
            return moves::launch(backend.loops(), op, dtype, &mut operands);
        }
        _ => {}
    }
    let compute = Floats { backend, op, family };
    match first {
        Some((_, DType::F64)) => compute.run::<f64>(&mut operands),
        Some((_, DType::F32)) | None => compute.run::<f32>(&mut operands),
        Some((_, DType::BF16)) => {
            storage::check_types(op, &operands)?;
            let read = if operands.in_place { 1 } else { facts.mutated_inputs };
            storage::in_f32(operands, read, |operands| compute.run::<f32>(operands))
        }
        Some((operand, found)) => {
            let expected = "f32, f64 or bf16".to_owned();
            Err(KernelError::DType { op: facts.name, operand, expected, found })
        }
    }
}

/// An operator of floating operands, and who computes it.
struct Floats<'a, B> {
    backend: &'a B,
    op: &'a Op,
    family: Family,
}

impl<B: Backend> Floats<'_, B> {
    fn run<T: Real>(&self, operands: &mut Operands<'_, '_, '_>) -> Result<(), KernelError> {
        let (op, loops) = (self.op, self.backend.loops());
        match self.family {
            Family::Product => product::<T, _>(loops, op, operands),
            Family::ElementWise => element_wise::launch::<T, _>(loops, op, operands),
            Family::Reduction => reductions::launch::<T, _>(loops, op, operands),
            Family::Attention => attention::launch::<T, _>(loops, op, operands),
            Family::Norm => norms::launch::<T, _>(loops, op, operands),
            Family::Image => images::run::<T, B>(self.backend, op, operands),
            Family::Recurrence => recurrent::launch::<T, _>(loops, op, operands),
            Family::Update => updates::launch::<T, _>(loops, op, operands),
            // theirs are done above: elements may be of any type
            Family::Movement | Family::Compression | Family::Custom => {
                Err(KernelError::NoKernel { op: operands.op })
            }
        }
    }
}

fn product<T: Real, L: Products>(
    loops: &L,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let (transposed, is_batch) = match *op {
        Op::MatMul { transpose_a, transpose_b } => ([transpose_a, transpose_b], false),
        Op::BatchMatMul { transpose_a, transpose_b } => ([transpose_a, transpose_b], true),
        _ => return Err(KernelError::NoKernel { op: operands.op }),
    };
    let [transpose_a, transpose_b] = transposed;
    let ([a, b], [y]) = operands.exactly()?;
    let (batch, a_rows, a_columns) = if is_batch {
        a.matrices()?
    } else {
        let (rows, columns) = a.matrix()?;
        (&[][..], rows, columns)
    };
    let (b_rows, b_columns) = if is_batch {
        let (_, rows, columns) = b.matrices()?;
        (rows, columns)
    } else {
        b.matrix()?
    };
    let (m, k) = if transpose_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let n = if transpose_b { b_rows } else { b_columns };
    b.expect_dims(&[batch, &if transpose_b { [n, k] } else { [k, n] }].concat())?;
    y.expect_dims(&[batch, &[m, n]].concat())?;
    let product = Product { m, n, k, transpose_a, transpose_b };
    let (a, b, y) = (a.elements()?, b.elements()?, y.elements_mut()?);
    match is_batch {
        false => loops.matmul::<T>(product, a, b, y),
        true if y.is_empty() => {}
        true if k == 0 => y.fill(T::zero()),
        true => loops.batch_matmul::<T>(product, a, b, y),
    }
    Ok(())
}
