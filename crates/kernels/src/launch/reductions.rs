//! Operators that make few elements of many: sums, losses, softmax, and their gradients.

use tensorwire_graph::{Op, Reduction};

use super::elements::{self, Elements};
use super::moves::{Moves, add_rows, scatter_rows};
use super::operands::Operands;
use super::updates::share;
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end that reduce.
pub(crate) trait Reductions {
    /// `x` has rows of `y.len()`.
    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]);
    /// → loss. `logits` and `dlogits` have `labels.len()` rows; each label is a class or the ignored one.
    fn softmax_cross_entropy<T: Real>(
        &self,
        target: Target<T>,
        logits: &[T],
        labels: &[i32],
        dlogits: &mut [T],
    ) -> T;
    /// How many rows have their label among their `k` largest logits.
    fn count_within<T: Real>(&self, k: usize, logits: &[T], labels: &[i32]) -> i64;
    /// `x` has at least one element.
    fn reduce_max<T: Real>(&self, x: &[T]) -> T;
    /// `x` is [outer, length, inner], `y` [outer, inner]. There is a length, but for a sum.
    fn reduce<T: Real>(&self, by: Reduction, axis: Axis, x: &[T], y: &mut [T]);
    /// `dy` and `y` are [outer, inner], `x` and `dx` [outer, length, inner].
    fn reduce_grad<T: Real>(
        &self,
        by: Reduction,
        axis: Axis,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    );
    /// Of rows of `columns`, of which there is at least one.
    fn softmax<T: Real>(&self, columns: usize, x: &[T], y: &mut [T]);
    fn softmax_grad<T: Real>(&self, columns: usize, dy: &[T], y: &[T], dx: &mut [T]);
    /// Of each row of `columns` of share·Σ gradients the sum of the squares.
    fn square_sums<T: Real>(&self, share: T, columns: usize, gradients: &[&[T]], y: &mut [f64]);
}

/// What a row's softmax is to be, given its label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Target<T> {
    /// Shared by all classes, the label's among them.
    pub(crate) smoothing: T,
    /// The label of rows that do not count.
    pub(crate) ignored: i32,
}

/// The label of padding where nothing else is said.
const PADDING: i32 = -1;

/// A tensor as one dimension, what lies before it and what lies behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) outer: usize,
    pub(crate) length: usize,
    pub(crate) inner: usize,
}

impl Axis {
    /// Dimension `axis` of `dims`, which has it.
    pub(super) fn of(dims: &[usize], axis: usize) -> Axis {
        Axis {
            outer: dims[..axis].iter().product(),
            length: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }
}

pub(super) fn launch<T: Real, B: Reductions + Moves + Elements>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::SumRows => {
            let ([x], [y]) = operands.exactly()?;
            let (_, n) = x.rows()?;
            y.expect_dims(&[n])?;
            backend.sum_rows::<T>(x.elements()?, y.elements_mut()?);
        }
        Op::SoftmaxCrossEntropy => {
            softmax_cross_entropy::<T, B>(backend, operands, 0.0, PADDING)?;
        }
        Op::CrossEntropy { smoothing, ignored } => {
            softmax_cross_entropy::<T, B>(backend, operands, *smoothing, *ignored)?;
        }
        Op::CountCorrect => count_within::<T, B>(backend, operands, 1)?,
        Op::CountWithin { k } => count_within::<T, B>(backend, operands, *k)?,
        Op::ScatterRows => scatter_rows::<T, B>(backend, operands)?,
        Op::AddRows => add_rows::<T, B>(backend, operands)?,
        Op::SumTo { to } => elements::sum_to::<T, B>(backend, operands, to)?,
        Op::ReduceMax => {
            let ([x], [y]) = operands.exactly()?;
            y.expect_dims(&[])?;
            x.expect_elements()?;
            let y = y.elements_mut()?;
            y[0] = backend.reduce_max::<T>(x.elements()?);
        }
        Op::Reduce { by, axis } => {
            let ([x], [y]) = operands.exactly()?;
            x.expect_axis(*axis)?;
            y.expect_dims(&without(x.dims(), *axis))?;
            let sizes = Axis::of(x.dims(), *axis);
            if *by != Reduction::Sum && sizes.length == 0 {
                x.expect_elements()?;
            }
            backend.reduce::<T>(*by, sizes, x.elements()?, y.elements_mut()?);
        }
        Op::ReduceGrad { by, axis } => {
            let ([dy, x, y], [dx]) = operands.exactly()?;
            x.expect_axis(*axis)?;
            let reduced = without(x.dims(), *axis);
            dy.expect_dims(&reduced)?;
            y.expect_dims(&reduced)?;
            dx.expect_dims(x.dims())?;
            let sizes = Axis::of(x.dims(), *axis);
            let (dy, x, y) = (dy.elements()?, x.elements()?, y.elements()?);
            backend.reduce_grad::<T>(*by, sizes, dy, x, y, dx.elements_mut()?);
        }
        Op::SquareSums => square_sums::<T, B>(backend, operands)?,
        Op::ClipScale { norm } => clip_scale(operands, *norm)?,
        Op::Softmax => {
            let ([x], [y]) = operands.exactly()?;
            let columns = x.columns()?;
            y.expect_dims(x.dims())?;
            let (x, y) = (x.elements::<T>()?, y.elements_mut()?);
            if columns > 0 {
                backend.softmax(columns, x, y);
            }
        }
        Op::SoftmaxGrad => {
            let ([dy, y], [dx]) = operands.exactly()?;
            let columns = y.columns()?;
            dy.expect_dims(y.dims())?;
            dx.expect_dims(y.dims())?;
            let (dy, y, dx) = (dy.elements::<T>()?, y.elements()?, dx.elements_mut()?);
            if columns > 0 {
                backend.softmax_grad(columns, dy, y, dx);
            }
        }
        _ => return Err(KernelError::NoKernel { op: operands.op }),
    }
    Ok(())
}

fn square_sums<T: Real, B: Reductions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let op = operands.op;
    let (inputs, [y]) = operands.any()?;
    let Some(first) = inputs.first() else { return Err(KernelError::NoGradients { op }) };
    let dims = first.dims();
    y.expect_dims(&[dims.first().copied().unwrap_or(1)])?;
    let columns = dims.iter().skip(1).product();
    let mut gradients = Vec::with_capacity(inputs.len());
    for gradient in &inputs {
        gradient.expect_dims(dims)?;
        gradients.push(gradient.elements::<T>()?);
    }
    let y = y.elements_mut::<f64>()?;
    match columns {
        0 => y.fill(0.0),
        _ => backend.square_sums(share(gradients.len()), columns, &gradients, y),
    }
    Ok(())
}

/// So far is a norm from 0 that it can be divided by (PyTorch's).
const NORM_EPSILON: f64 = 1e-6;

/// The same few additions for all back ends.
fn clip_scale(operands: &mut Operands<'_, '_, '_>, norm: f64) -> Result<(), KernelError> {
    let (inputs, [y]) = operands.any()?;
    y.expect_dims(&[])?;
    let mut sum = 0.0;
    for sums in inputs {
        sum = sums.elements::<f64>()?.iter().fold(sum, |sum, squares| sum + squares);
    }
    y.elements_mut::<f64>()?[0] = (norm / (sum.sqrt() + NORM_EPSILON)).min(1.0);
    Ok(())
}

fn without(dims: &[usize], axis: usize) -> Vec<usize> {
    [&dims[..axis], &dims[axis + 1..]].concat()
}

fn softmax_cross_entropy<T: Real, B: Reductions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    smoothing: f64,
    ignored: i32,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([logits, labels], [loss, dlogits]) = operands.exactly()?;
    let (rows, classes) = logits.matrix()?;
    labels.expect_dims(&[rows])?;
    loss.expect_dims(&[])?;
    dlogits.expect_dims(&[rows, classes])?;
    let labels = labels.elements()?;
    check_labels(op, labels, classes, ignored)?;
    let loss = loss.elements_mut()?;
    let target = Target { smoothing: T::narrow(smoothing), ignored };
    let (logits, dlogits) = (logits.elements()?, dlogits.elements_mut()?);
    loss[0] = backend.softmax_cross_entropy::<T>(target, logits, labels, dlogits);
    Ok(())
}

fn count_within<T: Real, B: Reductions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    k: usize,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([logits, labels], [correct]) = operands.exactly()?;
    let (rows, classes) = logits.matrix()?;
    labels.expect_dims(&[rows])?;
    correct.expect_dims(&[])?;
    let labels = labels.elements()?;
    check_labels(op, labels, classes, PADDING)?;
    let correct = correct.elements_mut()?;
    correct[0] = backend.count_within::<T>(k, logits.elements()?, labels);
    Ok(())
}

fn check_labels(
    op: &'static str,
    labels: &[i32],
    classes: usize,
    ignored: i32,
) -> Result<(), KernelError> {
    let fits = |label: i32| label == ignored || usize::try_from(label).is_ok_and(|l| l < classes);
    match labels.iter().position(|&label| !fits(label)) {
        None => Ok(()),
        Some(row) => Err(KernelError::Label { op, row, label: labels[row], classes, ignored }),
    }
}
