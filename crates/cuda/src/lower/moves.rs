//! Operators that move elements of any type and compute nothing. Sizes are in bytes: a kernel moves the widest words that
//! they allow.

use tensorwire_graph::Op;
use tensorwire_kernels::Operand;
use tensorwire_tensor::{DType, RANK_MAX, TensorSpec};

use super::elements;
use crate::builder::{Builder, WARP, arguments};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::fault::Check;
use crate::kernels;

/// Tensors that one launch joins.
const COPIES_MAX: usize = 16;

/// Bytes that a thread moves at least, where there is enough to do.
const WORD_BYTES: usize = 16;

/// A tensor as one dimension in bytes, and what lies before it.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    /// Of what lies along the dimension and behind it.
    bytes: usize,
}

impl Rows {
    fn of(spec: &TensorSpec, axis: usize) -> Rows {
        let (before, along) = spec.dims().split_at(axis);
        let bytes = along.iter().product::<usize>() * spec.dtype.bytes();
        Rows { rows: before.iter().product(), bytes }
    }
}

/// Rows of one tensor that go into those of another.
#[derive(Clone, Copy, Debug)]
struct Copied {
    source: Address,
    source_row: usize,
    run: usize,
    start: usize,
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Concat { axis, .. } => concat(builder, axis),
        Op::Slice { axis, start, .. } => slice(builder, axis, start),
        Op::ConcatGrad { axis } => {
            let parts = builder.inputs.len() - 1;
            let before = &builder.inputs[1..parts];
            let start = before.iter().map(|part| part.dims()[axis]).sum();
            slice(builder, axis, start);
        }
        Op::Pad { axis, before, .. } => pad(builder, axis, before),
        Op::SliceGrad { axis, start } => pad(builder, axis, start),
        Op::Transpose { ref permutation } => transpose(builder, permutation),
        Op::ExpandTo { .. } => elements::expand(builder),
        Op::Gather => gather(builder),
        _ => return Err(builder.no_kernel()),
    }
    Ok(())
}

fn concat(builder: &mut Builder<'_>, axis: usize) {
    let joined = Rows::of(&builder.outputs[0], axis);
    let mut start = 0;
    let mut copies = Vec::with_capacity(builder.inputs.len());
    for (place, part) in builder.inputs.iter().enumerate() {
        let bytes = Rows::of(part, axis).bytes;
        copies.push(Copied { source: builder.input(place), source_row: bytes, run: bytes, start });
        start += bytes;
    }
    copy_rows(builder, joined, &copies);
}

/// The output is what the first input has from `start` on along `axis`.
fn slice(builder: &mut Builder<'_>, axis: usize, start: usize) {
    let (x, y) = (&builder.inputs[0], &builder.outputs[0]);
    let (from, to) = (Rows::of(x, axis), Rows::of(y, axis));
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let source = builder.input(0).behind(start * inner * x.dtype.bytes());
    let copied = Copied { source, source_row: from.bytes, run: to.bytes, start: 0 };
    copy_rows(builder, to, &[copied]);
}

fn copy_rows(builder: &mut Builder<'_>, target: Rows, copies: &[Copied]) {
    let y = builder.output(0);
    if target.rows == 1 && copies.len() <= 2 {
        for copied in copies {
            builder.copy(copied.source, y.behind(copied.start), copied.run);
        }
        return;
    }
    let copies: Vec<Copied> = copies.iter().copied().filter(|copied| copied.run > 0).collect();
    for copies in copies.chunks(COPIES_MAX) {
        let longest = copies.iter().map(|copied| copied.run).max().unwrap_or(0);
        let mut fields = arguments![target.rows, y, target.bytes, copies.len()];
        fields.extend(column(copies, |copied| copied.source.into()));
        fields.extend(column(copies, |copied| copied.source_row.into()));
        fields.extend(column(copies, |copied| copied.run.into()));
        fields.extend(column(copies, |copied| copied.start.into()));
        // a product of two tensors' sizes, which are at most the output's
        let threads = (target.rows * longest).div_ceil(WORD_BYTES);
        builder.spread(kernels::COPY_ROWS, threads, fields);
    }
}

fn column(copies: &[Copied], value: impl Fn(&Copied) -> KernelArgument) -> Vec<KernelArgument> {
    let mut column: Vec<KernelArgument> = copies.iter().map(value).collect();
    column.resize(COPIES_MAX, KernelArgument::Nothing);
    column
}

/// The output is the first input with zeros before and behind it along `axis`, `before` of them before.
fn pad(builder: &mut Builder<'_>, axis: usize, before: usize) {
    let (x, y) = (&builder.inputs[0], &builder.outputs[0]);
    let (from, to) = (Rows::of(x, axis), Rows::of(y, axis));
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let before = before * inner * x.dtype.bytes();
    let after = to.bytes - from.bytes - before;
    let (given, made) = (builder.input(0), builder.output(0));
    let arguments = arguments![to.rows, given, made, before, from.bytes, after];
    builder.spread(kernels::PAD_ROWS, y.bytes().div_ceil(WORD_BYTES), arguments);
}

fn gather(builder: &mut Builder<'_>) {
    let (table, named) = (&builder.inputs[0], builder.inputs[1].elements());
    let (rows, row) = (table.dims()[0], Rows::of(table, 1).bytes);
    let op = builder.name();
    let code = builder.check(Check::Index { op, operand: Operand::Input(1), rows });
    let (from, indices, y) = (builder.input(0), builder.input(1), builder.output(0));
    let fault = KernelArgument::Fault;
    let threads = match row {
        // there is nothing to move, but indices to check
        0 => named,
        _ => (named * row).div_ceil(WORD_BYTES),
    };
    let arguments = arguments![named, rows, row, from, indices, y, fault, code];
    builder.spread(kernels::GATHER, threads, arguments);
}

/// A dimension of x, and how far apart its elements lie in x and in y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turned {
    size: usize,
    in_x: usize,
    in_y: usize,
}

fn transpose(builder: &mut Builder<'_>, permutation: &[usize]) {
    let x = &builder.inputs[0];
    let operands = [builder.input(0), builder.output(0)];
    turn(builder, x.dtype, x.dims(), permutation, operands);
}

/// Elements of x, which has `dims`, in another order of its dimensions.
pub(super) fn turn(
    builder: &mut Builder<'_>,
    dtype: DType,
    dims: &[usize],
    permutation: &[usize],
    [from, to]: [Address; 2],
) {
    let mut sides = turned(dims, permutation);
    // where nothing changes places
    if sides.len() <= 1 {
        builder.copy(from, to, dims.iter().product::<usize>() * dtype.bytes());
        return;
    }
    let take = |sides: &mut Vec<Turned>, is: &dyn Fn(&Turned) -> bool| {
        let at = sides.iter().position(is).unwrap_or(0);
        sides.remove(at)
    };
    let fast_of_x = take(&mut sides, &|side| side.in_x == 1);
    // if that is the fastest of y as well, the slowest of y beside it
    let other = match fast_of_x.in_y {
        1 => sides.pop(),
        _ => Some(take(&mut sides, &|side| side.in_y == 1)),
    };
    let other = other.unwrap_or(Turned { size: 1, in_x: 0, in_y: 0 });
    let tiles = sides.iter().map(|side| side.size).product::<usize>()
        * fast_of_x.size.div_ceil(WARP)
        * other.size.div_ceil(WARP);
    let mut fields = arguments![
        from,
        to,
        fast_of_x.size,
        fast_of_x.in_y,
        other.size,
        other.in_x,
        other.in_y,
        tiles,
        sides.len(),
    ];
    for value in [|side: &Turned| side.size, |side: &Turned| side.in_x, |side: &Turned| side.in_y] {
        let mut column: Vec<usize> = sides.iter().map(value).collect();
        column.resize(RANK_MAX, 0);
        fields.extend(column.into_iter().map(KernelArgument::from));
    }
    builder.spread_blocks(kernels::TURN.of(dtype), tiles, fields);
}

/// The dimensions of x in y's order, without those of 1, where those that stay neighbours are one.
fn turned(dims: &[usize], permutation: &[usize]) -> Vec<Turned> {
    let step = |at: usize| dims[at + 1..].iter().product::<usize>();
    let mut sides: Vec<Turned> = Vec::with_capacity(dims.len());
    for &from in permutation.iter().filter(|from| dims[**from] != 1) {
        let (size, in_x) = (dims[from], step(from));
        match sides.last_mut() {
            Some(last) if last.in_x == in_x * size => {
                *last = Turned { size: last.size * size, in_x, in_y: 1 };
            }
            _ => sides.push(Turned { size, in_x, in_y: 1 }),
        }
    }
    let mut behind = 1;
    for side in sides.iter_mut().rev() {
        side.in_y = behind;
        behind *= side.size;
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_stay_so_are_one_dimension() {
        let side = |size, in_x, in_y| Turned { size, in_x, in_y };
        assert_eq!(turned(&[2, 3, 4], &[0, 1, 2]), [side(24, 1, 1)]);
        assert_eq!(turned(&[2, 3, 4], &[1, 2, 0]), [side(12, 1, 2), side(2, 12, 1)]);
        assert_eq!(turned(&[2, 1, 4], &[2, 1, 0]), [side(4, 1, 2), side(2, 4, 1)]);
        assert_eq!(turned(&[2, 3, 4], &[1, 0, 2]), [side(3, 4, 8), side(2, 12, 4), side(4, 1, 1)]);
    }
}
