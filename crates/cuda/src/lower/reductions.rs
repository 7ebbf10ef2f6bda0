//! Operators that make few elements of many: sums of dimensions, softmax, norms of gradients, rows that are added.

use tensorwire_graph::{Op, Reduction};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_tensor::{DType, TensorSpec};

use super::element_wise::parts;
use super::{losses, rows};
use crate::builder::{Builder, THREADS, WARP, arguments, computed_bytes, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

/// A tensor as one dimension, what lies before it and what lies behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    outer: usize,
    length: usize,
    inner: usize,
}

/// Numbers that a reduction reads or writes.
#[derive(Clone, Copy, Debug)]
struct Kept {
    at: Address,
    narrow: bool,
}

/// Threads that keep a device busy.
const THREADS_WANTED: usize = 1 << 16;

/// Rows of at most so many elements are added by a thread each.
const THREAD_ROW: usize = 32;

/// Rows from so many elements on are worked on by a block each.
const BLOCK_ROW: usize = 1024;

/// What is cut into parts is cut into no shorter ones.
const PART_LENGTH: usize = 128;

/// Parts at most: as many as a block adds at a time.
const PARTS_MAX: usize = 1024;

/// Tensors that one launch of `clip_scale` adds.
const CLIP_TENSORS: usize = 64;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::SumRows => {
            let columns = builder.outputs[0].elements();
            let rows = builder.inputs[0].elements().checked_div(columns).unwrap_or(0);
            reduce_input(builder, Reduction::Sum, Axis { outer: 1, length: rows, inner: columns })
        }
        Op::ReduceMax => {
            expect_elements(builder)?;
            let length = builder.inputs[0].elements();
            reduce_input(builder, Reduction::Max, Axis { outer: 1, length, inner: 1 })
        }
        Op::Reduce { by, axis } => {
            let along = axis_of(builder.inputs[0].dims(), axis);
            if by != Reduction::Sum && along.length == 0 {
                expect_elements(builder)?;
            }
            reduce_input(builder, by, along)
        }
        Op::ReduceGrad { by, axis } => reduce_grad(builder, by, axis),
        Op::SumTo { .. } => sum_to(builder),
        Op::Softmax | Op::SoftmaxGrad => softmax(builder),
        Op::SquareSums => square_sums(builder),
        Op::ClipScale { norm } => clip_scale(builder, norm),
        Op::ScatterRows | Op::AddRows => rows::lower(builder),
        _ => losses::lower(builder),
    }
}

/// How many blocks rows are done by, and whether a block does one: else each of its warps does.
pub(super) fn teams(rows: usize, columns: usize) -> (usize, bool) {
    match columns >= BLOCK_ROW {
        true => (rows, true),
        false => (rows.div_ceil(THREADS / WARP), false),
    }
}

fn expect_elements(builder: &Builder<'_>) -> Result<(), LowerError> {
    let (op, found) = (builder.name(), &builder.inputs[0]);
    match found.elements() {
        0 => {
            let (operand, found) = (Operand::Input(0), found.clone());
            Err(KernelError::NoElements { op, operand, found }.into())
        }
        _ => Ok(()),
    }
}

fn axis_of(dims: &[usize], axis: usize) -> Axis {
    let (outer, inner) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
    Axis { outer, length: dims[axis], inner }
}

fn code(by: Reduction) -> i64 {
    match by {
        Reduction::Sum => 0,
        Reduction::Mean => 1,
        Reduction::Max => 2,
    }
}

fn reduce_input(builder: &mut Builder<'_>, by: Reduction, axis: Axis) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let kept = |at| Kept { at, narrow: is_narrow(dtype) };
    let (x, y) = (kept(builder.input(0)), kept(builder.output(0)));
    reduce(builder, dtype, by, axis, [x, y])
}

/// Reduces x to y, in two steps where there is too little to do at a time.
fn reduce(
    builder: &mut Builder<'_>,
    dtype: DType,
    by: Reduction,
    axis: Axis,
    [x, y]: [Kept; 2],
) -> Result<(), LowerError> {
    let results = axis.outer * axis.inner;
    let threads = if axis.inner == 1 { results.saturating_mul(THREADS) } else { results };
    let wanted = THREADS_WANTED.div_ceil(threads.max(1)).min(PARTS_MAX);
    let part = axis.length.div_ceil(wanted).max(PART_LENGTH);
    let parts = axis.length.div_ceil(part).max(1);
    let divisor = axis.length;
    if parts == 1 {
        return reduce_once(builder, dtype, by, axis, [1, axis.length], [x, y], Some(divisor));
    }
    let partial = builder.workspace(results.saturating_mul(parts), computed_bytes(dtype))?;
    let partial = Kept { at: partial, narrow: false };
    reduce_once(builder, dtype, by, axis, [parts, part], [x, partial], None)?;
    let rest = Axis { outer: results, length: parts, inner: 1 };
    reduce_once(builder, dtype, by, rest, [1, parts], [partial, y], Some(divisor))
}

/// By parts of so many places each. Where it is the last step a mean is divided.
fn reduce_once(
    builder: &mut Builder<'_>,
    dtype: DType,
    by: Reduction,
    axis: Axis,
    [parts, part]: [usize; 2],
    [x, y]: [Kept; 2],
    divisor: Option<usize>,
) -> Result<(), LowerError> {
    let Axis { outer, length, inner } = axis;
    let results = outer * inner * parts;
    let by_thread = inner != 1 || part <= THREAD_ROW;
    let (blocks, by_block) = teams(results, part);
    let mut fields = arguments![code(by), outer, length, inner, parts, part];
    fields.extend(arguments![x.at, x.narrow, y.at, y.narrow]);
    fields.extend(arguments![divisor.is_some(), divisor.unwrap_or(1), by_block]);
    match by_thread {
        true => {
            let kernel = builder.of_reals(kernels::REDUCE_COLUMNS, dtype)?;
            builder.spread(kernel, results, fields);
        }
        false => {
            let kernel = builder.of_reals(kernels::REDUCE_ROWS, dtype)?;
            builder.spread_blocks(kernel, blocks, fields);
        }
    }
    Ok(())
}

fn reduce_grad(builder: &mut Builder<'_>, by: Reduction, axis: usize) -> Result<(), LowerError> {
    let x = &builder.inputs[1];
    let kernel = builder.of_reals(kernels::REDUCE_GRAD, x.dtype)?;
    let Axis { outer, length, inner } = axis_of(x.dims(), axis);
    let (dy, given, y) = (builder.input(0), builder.input(1), builder.input(2));
    let narrow = is_narrow(x.dtype);
    let fields =
        arguments![code(by), outer, length, inner, narrow, dy, given, y, builder.output(0)];
    let threads = if by == Reduction::Max { outer * inner } else { x.elements() };
    if x.elements() > 0 {
        builder.spread(kernel, threads, fields);
    }
    Ok(())
}

/// Dimension by dimension, those that are neighbours at a time, from the last.
fn sum_to(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (x, y) = (&builder.inputs[0], &builder.outputs[0]);
    let (dtype, mut axes) = (x.dtype, summed(x.dims(), y.dims()));
    let mut from = Kept { at: builder.input(0), narrow: is_narrow(dtype) };
    let last = axes.pop();
    for axis in axes {
        let sums = builder.workspace(axis.outer * axis.inner, computed_bytes(dtype))?;
        let sums = Kept { at: sums, narrow: false };
        reduce(builder, dtype, Reduction::Sum, axis, [from, sums])?;
        from = sums;
    }
    match last {
        Some(axis) => {
            let y = Kept { at: builder.output(0), narrow: is_narrow(dtype) };
            reduce(builder, dtype, Reduction::Sum, axis, [from, y])
        }
        None => {
            builder.copy(builder.input(0), builder.output(0), x.bytes());
            Ok(())
        }
    }
}

/// The dimensions of x that y has not or has as 1, neighbours as one, from the last: each as it is when those behind it
/// are summed.
fn summed(x: &[usize], y: &[usize]) -> Vec<Axis> {
    let before = x.len() - y.len();
    let mut axes: Vec<Axis> = Vec::new();
    // of what is kept behind the dimension at hand
    let (mut inner, mut was_summed) = (1, false);
    for at in (0..x.len()).rev() {
        let is_summed = x[at] != 1 && (at < before || y[at - before] == 1);
        let outer = x[..at].iter().product();
        match (is_summed, axes.last_mut()) {
            (true, Some(last)) if was_summed => {
                *last = Axis { outer, length: last.length * x[at], inner };
            }
            (true, _) => axes.push(Axis { outer, length: x[at], inner }),
            (false, _) => inner *= x[at],
        }
        // a dimension of 1 parts nothing
        was_summed = is_summed || (was_summed && x[at] == 1);
    }
    axes
}

fn softmax(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let spec = &builder.outputs[0];
    let columns = spec.dims().last().copied().unwrap_or(1);
    let rows = spec.elements().checked_div(columns).unwrap_or(0);
    let (blocks, by_block) = teams(rows, columns);
    let (kernels, dy, x) = match builder.op {
        Op::Softmax => (kernels::SOFTMAX, None, builder.input(0)),
        _ => (kernels::SOFTMAX_GRAD, Some(builder.input(0)), builder.input(1)),
    };
    let kernel = builder.of_reals(kernels, spec.dtype)?;
    let narrow = is_narrow(spec.dtype);
    let fields = arguments![rows, columns, narrow, dy, x, builder.output(0), by_block];
    builder.spread_blocks(kernel, blocks, fields);
    Ok(())
}

fn square_sums(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (first, ranks) = (&builder.inputs[0], builder.inputs.len());
    let rows = builder.outputs[0].elements();
    let columns = first.dims().iter().skip(1).product::<usize>();
    let y = builder.output(0);
    if columns == 0 {
        builder.zero(y, builder.outputs[0].bytes());
        return Ok(());
    }
    let parts = parts(builder, builder.input_range(0..ranks), first)?;
    let kernel = builder.of_reals(kernels::SQUARE_SUMS, first.dtype)?;
    let (blocks, team) = match teams(rows, columns) {
        _ if columns <= THREAD_ROW => (rows.div_ceil(THREADS), 0),
        (blocks, false) => (blocks, 1i64),
        (blocks, true) => (blocks, 2),
    };
    let fields = arguments![rows, columns, ranks, y, team];
    builder.spread_blocks(kernel, blocks, [fields, parts].concat());
    Ok(())
}

fn clip_scale(builder: &mut Builder<'_>, norm: f64) -> Result<(), LowerError> {
    let tensors: Vec<(usize, &TensorSpec)> = builder.inputs.iter().enumerate().collect();
    let rounds = tensors.chunks(CLIP_TENSORS);
    let (mut before, last) = (None, rounds.len() - 1);
    for (round, tensors) in rounds.enumerate() {
        let after = match round == last {
            true => None,
            false => Some(builder.workspace(1, DType::F64.bytes())?),
        };
        let mut fields = arguments![tensors.len(), before, after, builder.output(0), norm];
        let mut sums: Vec<KernelArgument> =
            tensors.iter().map(|(place, _)| builder.input(*place).into()).collect();
        let mut sizes: Vec<KernelArgument> =
            tensors.iter().map(|(_, spec)| spec.elements().into()).collect();
        sums.resize(CLIP_TENSORS, KernelArgument::Nothing);
        sizes.resize(CLIP_TENSORS, KernelArgument::Nothing);
        fields.extend(sums);
        fields.extend(sizes);
        builder.spread_blocks(kernels::CLIP_SCALE, 1, fields);
        before = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_summed_together_from_the_last() {
        let axis = |outer, length, inner| Axis { outer, length, inner };
        assert_eq!(summed(&[2, 3, 4], &[3, 1]), [axis(6, 4, 1), axis(1, 2, 3)]);
        assert_eq!(summed(&[2, 3, 4], &[4]), [axis(1, 6, 4)]);
        assert_eq!(summed(&[2, 1, 4], &[]), [axis(1, 8, 1)]);
        assert_eq!(summed(&[2, 3], &[2, 3]), []);
        assert_eq!(summed(&[5, 2, 3], &[1, 2, 1]), [axis(10, 3, 1), axis(1, 5, 2)]);
    }
}
