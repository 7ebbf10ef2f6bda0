//! From an operator and untyped operands to a back end's typed loop. All checks are here, once, for
//! all back ends: a back end sees slices whose lengths fit, labels that are classes or −1, indices that
//! name rows. One file a family; element types are told apart here.

pub(crate) mod element_wise;
pub(crate) mod images;
pub(crate) mod moves;
mod operands;
pub(crate) mod recurrent;
pub(crate) mod reductions;
mod storage;
pub(crate) mod updates;

use tensorwire_graph::Op;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::DType;

use crate::error::{KernelError, Operand};
use crate::real::Real;
use element_wise::ElementWise;
use images::{Convolutions, Images};
use moves::Moves;
use operands::Operands;
use recurrent::Recurrences;
use reductions::Reductions;
use updates::Updates;

pub(crate) use element_wise::Source;

/// One back end. Shapes are checked, so that an element count and a few sizes say all. Nothing is assumed of
/// what an output holds, but where it is the source.
pub(crate) trait Backend: Convolutions {
    /// What computes everything else: the back end itself, or another's.
    type Loops: Products + ElementWise + Reductions + Moves + Images + Recurrences + Updates;

    fn loops(&self) -> &Self::Loops;
}

/// The matrix products of one back end.
pub(crate) trait Products {
    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]);
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
    // the operand that tells the type is the first of all
    let first = if op.mutated_inputs() > 0 || operands.in_place {
        operands.outputs.first().map(|v| (Operand::Output(0), v.dtype()))
    } else {
        operands.inputs.first().map(|x| (Operand::Input(0), x.dtype()))
    };
    match op {
        Op::Fill { value, spec } => {
            return element_wise::fill(backend.loops(), &mut operands, *value, spec);
        }
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Transpose { .. }
        | Op::Gather => {
            // without operands, the counts are checked before the type matters
            let dtype = first.map_or(DType::F32, |(_, dtype)| dtype);
            return moves::launch(backend.loops(), op, dtype, &mut operands);
        }
        Op::Cast { to } => return element_wise::cast(backend.loops(), &mut operands, *to),
        _ => {}
    }
    match first {
        Some((_, DType::F64)) => float::<f64, B>(backend, op, &mut operands),
        Some((_, DType::F32)) | None => float::<f32, B>(backend, op, &mut operands),
        Some((_, DType::BF16)) if has_kernel(op) => storage::in_f32(backend, op, operands),
        Some((operand, found)) if has_kernel(op) => {
            let expected = "f32, f64 or bf16".to_owned();
            Err(KernelError::DType { op: op.name(), operand, expected, found })
        }
        Some(_) => Err(KernelError::NoKernel { op: op.name() }),
    }
}

fn has_kernel(op: &Op) -> bool {
    let is_data = matches!(op, Op::Input { .. } | Op::Variable { .. } | Op::Reshape { .. });
    !is_data && *op != Op::NoOp && op.edge().is_none() && op.vector().is_none()
}

fn float<T: Real, B: Backend>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::MatMul { transpose_a, transpose_b } => {
            matmul::<T, _>(backend.loops(), operands, *transpose_a, *transpose_b)
        }
        Op::BiasAdd
        | Op::Relu
        | Op::ReluGrad
        | Op::Sigmoid
        | Op::SigmoidGrad
        | Op::Tanh
        | Op::TanhGrad
        | Op::Add
        | Op::Sub
        | Op::Mul
        | Op::Div
        | Op::Scale { .. }
        | Op::ScaleBy
        | Op::Dropout { .. } => element_wise::launch::<T, _>(backend.loops(), op, operands),
        Op::SumRows
        | Op::SoftmaxCrossEntropy
        | Op::CountCorrect
        | Op::ReduceMax
        | Op::Reduce { .. }
        | Op::ReduceGrad { .. }
        | Op::Softmax
        | Op::SoftmaxGrad => reductions::launch::<T, _>(backend.loops(), op, operands),
        Op::ScatterRows => moves::scatter_rows::<T, _>(backend.loops(), operands),
        Op::Recurrent { cell } => recurrent::forward::<T, _>(backend.loops(), operands, *cell),
        Op::RecurrentGrad { cell, sequence, finals } => {
            recurrent::backward::<T, _>(backend.loops(), operands, *cell, *sequence, *finals)
        }
        Op::Apply { rule } => updates::apply::<T, _>(backend.loops(), operands, *rule),
        Op::ApplyRows { rule } => updates::apply_rows::<T, _>(backend.loops(), operands, *rule),
        Op::ApplyAverage { rate } => {
            updates::apply_average::<T, _>(backend.loops(), operands, *rate)
        }
        // not of floating operands, and so done above
        Op::Fill { .. }
        | Op::Cast { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Transpose { .. }
        | Op::Gather => Err(KernelError::NoKernel { op: operands.op }),
        Op::Input { .. }
        | Op::Variable { .. }
        | Op::NoOp
        | Op::Send { .. }
        | Op::Recv { .. }
        | Op::SendDyn { .. }
        | Op::RecvDyn { .. }
        | Op::AllReduce { .. }
        | Op::Broadcast { .. }
        | Op::Reshape { .. } => Err(KernelError::NoKernel { op: operands.op }),
        Op::Conv2d { .. }
        | Op::Conv2dGradInput { .. }
        | Op::Conv2dGradWeight { .. }
        | Op::MaxPool { .. }
        | Op::MaxPoolGrad { .. }
        | Op::AvgPool { .. }
        | Op::AvgPoolGrad { .. }
        | Op::BatchNorm { .. }
        | Op::BatchNormGrad { .. }
        | Op::Normalize { .. }
        | Op::LocalResponseNorm { .. }
        | Op::LocalResponseNormGrad { .. } => images::run::<T, B>(backend, op, operands),
    }
}

fn matmul<T: Real, L: Products>(
    loops: &L,
    operands: &mut Operands<'_, '_, '_>,
    transpose_a: bool,
    transpose_b: bool,
) -> Result<(), KernelError> {
    let ([a, b], [y]) = operands.exactly()?;
    let (a_rows, a_columns) = a.matrix()?;
    let (b_rows, b_columns) = b.matrix()?;
    let (m, k) = if transpose_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let n = if transpose_b { b_rows } else { b_columns };
    b.expect_dims(&if transpose_b { [n, k] } else { [k, n] })?;
    y.expect_dims(&[m, n])?;
    let product = Product { m, n, k, transpose_a, transpose_b };
    loops.matmul::<T>(product, a.elements()?, b.elements()?, y.elements_mut()?);
    Ok(())
}
