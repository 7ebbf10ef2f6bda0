//! Operators that move elements of any type and compute nothing, and the sum that scatters rows.

use half::bf16;
use tensorwire_graph::Op;
use tensorwire_tensor::{DType, Element};

use super::Source;
use super::elements::{self, Elements};
use super::operands::{Input, Operands};
use super::reductions::Axis;
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end that move elements.
pub(crate) trait Moves {
    /// `y` is `rows` times a run of each part, one behind the other.
    fn concat<T: Element>(&self, rows: usize, parts: &[&[T]], y: &mut [T]);
    /// `y` is elements start.. of each of x's `axis.outer` runs, `length`·`axis.inner` of each.
    fn slice<T: Element>(&self, axis: Axis, start: usize, length: usize, x: &[T], y: &mut [T]);
    /// `y` is x's runs of `axis.length`·`axis.inner`, with zeros before and behind each.
    fn pad<T: Element>(&self, axis: Axis, before: usize, after: usize, x: &[T], y: &mut [T]);
    /// `x` has `dims`, `y` dims[permutation[d]] as dimension d.
    fn transpose<T: Element>(&self, dims: &[usize], permutation: &[usize], x: &[T], y: &mut [T]);
    /// `y` has a row of `columns` for each index; the indices name rows of `table`.
    fn gather<T: Element>(&self, columns: usize, table: &[T], indices: &[i32], y: &mut [T]);
    /// `rows` has a row of `columns` for each index; the indices name rows of `y`.
    fn scatter_rows<T: Real>(&self, columns: usize, rows: &[T], indices: &[i32], y: &mut [T]);
    /// As [`Moves::scatter_rows`], added to `x`.
    fn add_rows<T: Real>(
        &self,
        columns: usize,
        x: Source<'_, T>,
        rows: &[T],
        indices: &[i32],
        y: &mut [T],
    );
}

pub(super) fn launch<B: Moves + Elements>(
    backend: &B,
    op: &Op,
    dtype: DType,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match dtype {
        DType::F32 => typed::<f32, B>(backend, op, operands),
        DType::F64 => typed::<f64, B>(backend, op, operands),
        DType::I32 => typed::<i32, B>(backend, op, operands),
        DType::I64 => typed::<i64, B>(backend, op, operands),
        DType::U8 => typed::<u8, B>(backend, op, operands),
        DType::BF16 => typed::<bf16, B>(backend, op, operands),
    }
}

fn typed<T: Element, B: Moves + Elements>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::Concat { axis, .. } => concat::<T, B>(backend, operands, *axis),
        Op::ConcatGrad { axis } => concat_grad::<T, B>(backend, operands, *axis),
        Op::SliceGrad { axis, start } => slice_grad::<T, B>(backend, operands, *axis, *start),
        Op::Slice { axis, start, length } => {
            let ([x], [y]) = operands.exactly()?;
            x.expect_axis(*axis)?;
            let sizes = Axis::of(x.dims(), *axis);
            if start.checked_add(*length).is_none_or(|end| end > sizes.length) {
                let reach = format!("that reach {start} + {length} along dimension {axis}");
                return Err(x.misshapen(reach));
            }
            y.expect_dims(&replaced(x.dims(), *axis, *length))?;
            backend.slice::<T>(sizes, *start, *length, x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::Pad { axis, before, after } => {
            let ([x], [y]) = operands.exactly()?;
            x.expect_axis(*axis)?;
            let sizes = Axis::of(x.dims(), *axis);
            let padded =
                sizes.length.checked_add(*before).and_then(|size| size.checked_add(*after));
            let Some(padded) = padded else {
                return Err(x.misshapen(format!("that can be padded by {before} and {after}")));
            };
            y.expect_dims(&replaced(x.dims(), *axis, padded))?;
            backend.pad::<T>(sizes, *before, *after, x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::Transpose { permutation } => {
            let ([x], [y]) = operands.exactly()?;
            let dims = x.dims();
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..dims.len()) {
                return Err(x.misshapen(format!("that {permutation:?} permutes")));
            }
            let permuted: Vec<usize> = permutation.iter().map(|&from| dims[from]).collect();
            y.expect_dims(&permuted)?;
            backend.transpose::<T>(dims, permutation, x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::ExpandTo { to } => elements::expand::<T, B>(backend, operands, to),
        Op::Gather => {
            let ([table, indices], [y]) = operands.exactly()?;
            let (rows, columns) = table.matrix()?;
            let indices = checked_indices(&indices, rows)?;
            y.expect_dims(&[indices.len(), columns])?;
            backend.gather::<T>(columns, table.elements()?, indices, y.elements_mut()?);
            Ok(())
        }
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn concat<T: Element, B: Moves>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    axis: usize,
) -> Result<(), KernelError> {
    let (inputs, [y]) = operands.any()?;
    let Some(first) = inputs.first() else {
        return Err(KernelError::InputCount { op: operands.op, expected: 1, found: 0 });
    };
    first.expect_axis(axis)?;
    let (mut parts, mut joined) = (Vec::with_capacity(inputs.len()), 0usize);
    for input in &inputs {
        input.expect_axis(axis)?;
        let length = input.dims()[axis];
        input.expect_dims(&replaced(first.dims(), axis, length))?;
        joined = joined.saturating_add(length);
        parts.push(input.elements::<T>()?);
    }
    y.expect_dims(&replaced(first.dims(), axis, joined))?;
    let rows = Axis::of(first.dims(), axis).outer;
    backend.concat::<T>(rows, &parts, y.elements_mut()?);
    Ok(())
}

fn concat_grad<T: Element, B: Moves>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    axis: usize,
) -> Result<(), KernelError> {
    let (inputs, [dx]) = operands.any()?;
    let [dy, before @ .., x] = &inputs[..] else {
        let found = inputs.len();
        return Err(KernelError::InputCount { op: operands.op, expected: 2, found });
    };
    dy.expect_axis(axis)?;
    let mut start = 0usize;
    for input in before {
        input.expect_axis(axis)?;
        start = start.saturating_add(input.dims()[axis]);
    }
    x.expect_axis(axis)?;
    let (sizes, length) = (Axis::of(dy.dims(), axis), x.dims()[axis]);
    x.expect_dims(&replaced(dy.dims(), axis, length))?;
    if start.checked_add(length).is_none_or(|end| end > sizes.length) {
        return Err(dy.misshapen(format!("that reach {start} + {length} along dimension {axis}")));
    }
    dx.expect_dims(x.dims())?;
    backend.slice::<T>(sizes, start, length, dy.elements()?, dx.elements_mut()?);
    Ok(())
}

fn slice_grad<T: Element, B: Moves>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    axis: usize,
    start: usize,
) -> Result<(), KernelError> {
    let ([dy, x], [dx]) = operands.exactly()?;
    dy.expect_axis(axis)?;
    x.expect_axis(axis)?;
    let (sizes, size) = (Axis::of(dy.dims(), axis), x.dims()[axis]);
    x.expect_dims(&replaced(dy.dims(), axis, size))?;
    let end = start.checked_add(sizes.length).filter(|end| *end <= size);
    let Some(end) = end else {
        let length = sizes.length;
        return Err(x.misshapen(format!("that reach {start} + {length} along dimension {axis}")));
    };
    dx.expect_dims(x.dims())?;
    backend.pad::<T>(sizes, start, size - end, dy.elements()?, dx.elements_mut()?);
    Ok(())
}

pub(super) fn scatter_rows<T: Real, B: Moves>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let ([rows, indices, like], [y]) = operands.exactly()?;
    let (count, columns) = like.matrix()?;
    let indices = checked_indices(&indices, count)?;
    rows.expect_dims(&[indices.len(), columns])?;
    y.expect_dims(like.dims())?;
    backend.scatter_rows::<T>(columns, rows.elements()?, indices, y.elements_mut()?);
    Ok(())
}

pub(super) fn add_rows<T: Real, B: Moves>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let (x, [rows, indices], y) = operands.element_wise()?;
    let (count, columns) = y.matrix()?;
    let indices = checked_indices(&indices, count)?;
    rows.expect_dims(&[indices.len(), columns])?;
    backend.add_rows::<T>(columns, x.source()?, rows.elements()?, indices, y.elements_mut()?);
    Ok(())
}

/// The indices, which name some of `rows` rows.
pub(super) fn checked_indices<'i>(
    indices: &Input<'i>,
    rows: usize,
) -> Result<&'i [i32], KernelError> {
    indices.expect_dims(&[indices.dims().iter().product()])?;
    let elements = indices.elements::<i32>()?;
    let fits = |index: i32| usize::try_from(index).is_ok_and(|index| index < rows);
    match elements.iter().position(|&index| !fits(index)) {
        None => Ok(elements),
        Some(place) => {
            let (op, operand) = indices.name();
            Err(KernelError::Index { op, operand, place, index: elements[place], rows })
        }
    }
}

fn replaced(dims: &[usize], axis: usize, size: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    dims[axis] = size;
    dims
}
