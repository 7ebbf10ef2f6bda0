//! From an operator and untyped operands to a back end's typed loop. All checks are here, once, for
//! all back ends: a back end sees slices whose lengths fit and labels that are classes or −1.

pub(crate) mod images;
mod operands;

use tensorwire_graph::{Op, Rule};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, Element};

use crate::error::{KernelError, Operand};
use crate::real::Real;
use operands::Operands;

/// The loops of one back end, one per operator. Shapes are checked, so that an element count and one
/// dimension say all. Nothing is assumed of what an output holds, but where it is the source.
pub(crate) trait Backend: images::Images {
    fn fill<T: Element>(&self, value: T, y: &mut [T]);
    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]);
    /// `y` and `x` have rows of `bias.len()`.
    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]);
    /// `x` has rows of `y.len()`.
    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]);
    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]);
    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]);
    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]);
    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]);
    /// → loss. `logits` and `dlogits` have `labels.len()` rows.
    fn softmax_cross_entropy<T: Real>(&self, logits: &[T], labels: &[i32], dlogits: &mut [T]) -> T;
    fn count_correct<T: Real>(&self, logits: &[T], labels: &[i32]) -> i64;
    /// `x` has at least one element.
    fn reduce_max<T: Real>(&self, x: &[T]) -> T;
    fn apply_sgd<T: Real>(&self, rule: Sgd<T>, v: &mut [T], gradients: &[&[T]]);
    fn apply_momentum<T: Real>(
        &self,
        rule: Momentum<T>,
        v: &mut [T],
        u: &mut [T],
        gradients: &[&[T]],
    );
}

/// Where an element-wise operator's first input lies; it has as many elements as the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a, T> {
    Apart(&'a [T]),
    /// In the output's elements, each of which is read before it is written.
    InPlace,
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

/// v ← v − rate·(share·Σ gradients); `share` is 1/W.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd<T> {
    pub(crate) rate: T,
    pub(crate) share: T,
}

/// u ← momentum·u + share·Σ gradients; v ← v − rate·u.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Momentum<T> {
    pub(crate) rate: T,
    pub(crate) momentum: T,
    pub(crate) share: T,
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
    if let Op::Fill { value, spec } = op {
        return fill(backend, &mut operands, *value, spec);
    }
    // the operand that tells f32 from f64 is the first of all
    let first = if op.mutated_inputs() > 0 || operands.in_place {
        operands.outputs.first().map(|v| (Operand::Output(0), v.dtype()))
    } else {
        operands.inputs.first().map(|x| (Operand::Input(0), x.dtype()))
    };
    match first {
        Some((_, DType::F64)) => float::<f64, B>(backend, op, &mut operands),
        // without operands, the counts are checked before the type matters
        Some((_, DType::F32)) | None => float::<f32, B>(backend, op, &mut operands),
        Some((operand, found)) if has_kernel(op) => {
            let expected = "f32 or f64".to_owned();
            Err(KernelError::DType { op: op.name(), operand, expected, found })
        }
        Some(_) => Err(KernelError::NoKernel { op: op.name() }),
    }
}

fn has_kernel(op: &Op) -> bool {
    let is_data = matches!(op, Op::Input { .. } | Op::Variable { .. } | Op::Reshape { .. });
    !is_data && *op != Op::NoOp && op.edge().is_none()
}

fn float<T: Real, B: Backend>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::MatMul { transpose_a, transpose_b } => {
            matmul::<T, B>(backend, operands, *transpose_a, *transpose_b)
        }
        Op::BiasAdd => {
            let (x, [bias], y) = operands.element_wise()?;
            let (_, n) = x.matrix()?;
            bias.expect_dims(&[n])?;
            backend.bias_add::<T>(x.source()?, bias.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::SumRows => {
            let ([x], [y]) = operands.exactly()?;
            let (_, n) = x.matrix()?;
            y.expect_dims(&[n])?;
            backend.sum_rows::<T>(x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::Relu => {
            let (x, [], y) = operands.element_wise()?;
            backend.relu::<T>(x.source()?, y.elements_mut()?);
            Ok(())
        }
        Op::ReluGrad => {
            let (dy, [y], dx) = operands.element_wise()?;
            y.expect_dims(dy.dims())?;
            backend.relu_grad::<T>(dy.source()?, y.elements()?, dx.elements_mut()?);
            Ok(())
        }
        Op::Add => {
            let (a, [b], y) = operands.element_wise()?;
            b.expect_dims(a.dims())?;
            backend.add::<T>(a.source()?, b.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::ScaleBy => {
            let (x, [scale], y) = operands.element_wise()?;
            scale.expect_dims(&[])?;
            backend.scale_by::<T>(x.source()?, scale.elements()?[0], y.elements_mut()?);
            Ok(())
        }
        Op::SoftmaxCrossEntropy => softmax_cross_entropy::<T, B>(backend, operands),
        Op::CountCorrect => count_correct::<T, B>(backend, operands),
        Op::ReduceMax => reduce_max::<T, B>(backend, operands),
        Op::Apply { rule: Rule::Sgd { rate } } => apply_sgd::<T, B>(backend, operands, *rate),
        Op::Apply { rule: Rule::Momentum { rate, momentum } } => {
            apply_momentum::<T, B>(backend, operands, *rate, *momentum)
        }
        Op::Fill { .. }
        | Op::Input { .. }
        | Op::Variable { .. }
        | Op::NoOp
        | Op::Send { .. }
        | Op::Recv { .. }
        | Op::SendDyn { .. }
        | Op::RecvDyn { .. }
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
        // in the making
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn matmul<T: Real, B: Backend>(
    backend: &B,
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
    backend.matmul::<T>(product, a.elements()?, b.elements()?, y.elements_mut()?);
    Ok(())
}

fn softmax_cross_entropy<T: Real, B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([logits, labels], [loss, dlogits]) = operands.exactly()?;
    let (rows, classes) = logits.matrix()?;
    labels.expect_dims(&[rows])?;
    loss.expect_dims(&[])?;
    dlogits.expect_dims(&[rows, classes])?;
    let labels = labels.elements()?;
    check_labels(op, labels, classes)?;
    let loss = loss.elements_mut()?;
    loss[0] =
        backend.softmax_cross_entropy::<T>(logits.elements()?, labels, dlogits.elements_mut()?);
    Ok(())
}

fn count_correct<T: Real, B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([logits, labels], [correct]) = operands.exactly()?;
    let (rows, classes) = logits.matrix()?;
    labels.expect_dims(&[rows])?;
    correct.expect_dims(&[])?;
    let labels = labels.elements()?;
    check_labels(op, labels, classes)?;
    let correct = correct.elements_mut()?;
    correct[0] = backend.count_correct::<T>(logits.elements()?, labels);
    Ok(())
}

fn reduce_max<T: Real, B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let ([x], [y]) = operands.exactly()?;
    y.expect_dims(&[])?;
    x.expect_elements()?;
    let y = y.elements_mut()?;
    y[0] = backend.reduce_max::<T>(x.elements()?);
    Ok(())
}

fn apply_sgd<T: Real, B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rate: f64,
) -> Result<(), KernelError> {
    let (gradients, [v]) = operands.gradients::<T, 1>()?;
    let rule = Sgd { rate: T::narrow(rate), share: share(gradients.len()) };
    backend.apply_sgd::<T>(rule, v.elements_mut()?, &gradients);
    Ok(())
}

fn apply_momentum<T: Real, B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rate: f64,
    momentum: f64,
) -> Result<(), KernelError> {
    let (gradients, [v, u]) = operands.gradients::<T, 2>()?;
    u.expect_dims(v.dims())?;
    let rule = Momentum {
        rate: T::narrow(rate),
        momentum: T::narrow(momentum),
        share: share(gradients.len()),
    };
    backend.apply_momentum::<T>(rule, v.elements_mut()?, u.elements_mut()?, &gradients);
    Ok(())
}

/// 1/W in T: exact where W is a power of two, else one rounding.
fn share<T: Real>(world_size: usize) -> T {
    T::one() / T::from_count(world_size)
}

fn check_labels(op: &'static str, labels: &[i32], classes: usize) -> Result<(), KernelError> {
    let fits = |label: i32| label == -1 || usize::try_from(label).is_ok_and(|l| l < classes);
    match labels.iter().position(|&label| !fits(label)) {
        None => Ok(()),
        Some(row) => Err(KernelError::Label { op, row, label: labels[row], classes }),
    }
}

fn fill<B: Backend>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    value: f64,
    spec: &tensorwire_tensor::TensorSpec,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([], [y]) = operands.exactly()?;
    y.expect_dims(spec.dims())?;
    let refused = || KernelError::FillValue { op, value, dtype: spec.dtype };
    match spec.dtype {
        DType::F32 => backend.fill(f32::narrow(value), y.elements_mut()?),
        DType::F64 => backend.fill(value, y.elements_mut()?),
        // integers take whole numbers within their range only; `as` saturates, so others differ
        DType::I32 => backend.fill(
            exactly(value as i32, value, |v| v.into()).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
        DType::I64 => backend.fill(
            exactly(value as i64, value, |v| v as f64).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
        DType::BF16 => backend.fill(half::bf16::from_f64(value), y.elements_mut()?),
        DType::U8 => backend.fill(
            exactly(value as u8, value, |v| v.into()).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
    }
    Ok(())
}

/// `cast`, if turning it back gives `value` again.
fn exactly<T: Copy>(cast: T, value: f64, widen: impl Fn(T) -> f64) -> Option<T> {
    (widen(cast) == value).then_some(cast)
}
