//! Matrix products. Tiles are blocks; where there are few of them, the inner dimension is cut into parts, whose sums are
//! added afterwards in their order. How it is cut depends on the sizes alone.

use tensorwire_device::{MatrixProduct, ProductFactor, RealType};
use tensorwire_graph::Op;
use tensorwire_tensor::DType;

use crate::builder::{Builder, arguments, computed_bytes, is_narrow, kept_as};
use crate::command::{Address, Command, KernelArgument, LibraryProduct};
use crate::error::LowerError;
use crate::{Rounding, kernels};

/// Rows and columns of a tile, and of a wide one.
const TILE: usize = 64;
const WIDE_TILE: usize = 128;

/// Wide tiles are used where there are at least so many: as many blocks as a large device runs at a time.
const WIDE_TILES: usize = 192;

/// Blocks that keep a device busy.
const BLOCKS_WANTED: usize = 256;

/// Parts of the inner dimension are no shorter, so that adding their sums is cheap.
const PART_DEPTH: usize = 256;

/// Parts of the inner dimension at most.
const PARTS_MAX: usize = 64;

/// Where a dimension's neighbours are along a matrix' sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    /// From a row to the next, or from a column.
    pub(super) outer: usize,
    /// Along the inner dimension.
    pub(super) depth: usize,
    /// From one matrix to the next.
    pub(super) batch: usize,
}

/// The sizes of products that are as many as `batch`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    pub(super) batch: usize,
}

/// How the sizes are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    pub(super) is_wide: bool,
    across: usize,
    down: usize,
    pub(super) parts: usize,
    part_depth: usize,
}

impl Sizes {
    pub(super) fn tiling(&self, dtype: DType) -> Tiling {
        let tiles = |tile: usize| {
            let (down, across) = (self.rows.div_ceil(tile), self.columns.div_ceil(tile));
            (down, across, down.saturating_mul(across).saturating_mul(self.batch))
        };
        // f64 has twice the registers
        let (_, _, wide) = tiles(WIDE_TILE);
        let is_wide = dtype != DType::F64 && wide >= WIDE_TILES;
        let (down, across, all) = tiles(if is_wide { WIDE_TILE } else { TILE });
        let wanted = BLOCKS_WANTED.div_ceil(all.max(1)).min(PARTS_MAX);
        let part_depth = self.depth.div_ceil(wanted).max(PART_DEPTH).next_multiple_of(16);
        let parts = self.depth.div_ceil(part_depth).max(1);
        Tiling { is_wide, across, down, parts, part_depth }
    }

    /// The elements of all products.
    pub(super) fn elements(&self) -> usize {
        self.rows * self.columns * self.batch
    }
}

impl Tiling {
    /// None where there are more than can be counted.
    pub(super) fn blocks(&self, batch: usize) -> Option<usize> {
        let tiles = self.across.checked_mul(self.down)?;
        tiles.checked_mul(self.parts)?.checked_mul(batch)
    }

    /// The fields of the kernels' structure.
    pub(super) fn fields(&self, sizes: &Sizes) -> Vec<KernelArgument> {
        let Sizes { rows, columns, depth, batch } = *sizes;
        let Tiling { across, down, parts, part_depth, .. } = *self;
        arguments![rows, columns, depth, across, down, batch, parts, part_depth]
    }
}

/// Numbers, and how they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    pub(super) at: Address,
    pub(super) narrow: bool,
    pub(super) sides: Sides,
}

/// Numbers that are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) at: Address,
    pub(super) narrow: bool,
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (transpose_a, transpose_b) = match *builder.op {
        Op::MatMul { transpose_a, transpose_b } | Op::BatchMatMul { transpose_a, transpose_b } => {
            (transpose_a, transpose_b)
        }
        _ => return Err(builder.no_kernel()),
    };
    let (a, b) = (&builder.inputs[0], &builder.inputs[1]);
    let (&[.., a_rows, a_columns], &[.., b_rows, b_columns]) = (a.dims(), b.dims()) else {
        return Err(builder.no_kernel());
    };
    let (rows, depth) = if transpose_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let columns = if transpose_b { b_rows } else { b_columns };
    let batch = a.dims()[..a.dims().len() - 2].iter().product();
    let sizes = Sizes { rows, columns, depth, batch };
    let dtype = builder.inputs[0].dtype;
    let narrow = is_narrow(dtype);
    let factor = |at, sides| Factor { at, narrow, sides };
    let a = factor(builder.input(0), sides(a_rows, a_columns, transpose_a));
    let b = factor(builder.input(1), sides(b_rows, b_columns, !transpose_b));
    let y = Target { at: builder.output(0), narrow };
    product(builder, dtype, sizes, [a, b], y)
}

/// Of a matrix of rows; where it is `turned` the product's outer dimension are its columns.
fn sides(rows: usize, columns: usize, turned: bool) -> Sides {
    let batch = rows * columns;
    match turned {
        true => Sides { outer: 1, depth: columns, batch },
        false => Sides { outer: columns, depth: 1, batch },
    }
}

/// y ← a·b, each product behind the one before, of what `dtype` is computed in.
pub(super) fn product(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    factors: [Factor; 2],
    y: Target,
) -> Result<(), LowerError> {
    if sizes.elements() == 0 {
        return Ok(());
    }
    if builder.options.products_by_library
        && let Some(product) = by_library(builder, dtype, sizes, factors, y)?
    {
        builder.by_library(Command::Product(product));
        return Ok(());
    }
    let tiling = sizes.tiling(dtype);
    if tiling.parts == 1 {
        return launch(builder, dtype, sizes, tiling, factors, y);
    }
    let (count, parts) = (sizes.elements(), tiling.parts);
    let partial = builder.workspace(count.saturating_mul(parts), computed_bytes(dtype))?;
    let sums = Target { at: partial, narrow: false };
    launch(builder, dtype, sizes, tiling, factors, sums)?;
    sum_parts(builder, dtype, Parts { partial, parts, count, groups: [1, 1] }, y)
}

/// The product as a library takes it, with factors rounded to bf16 before it where that is asked for; none, where it is of
/// types or in an order that no library has.
fn by_library(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    [a, b]: [Factor; 2],
    y: Target,
) -> Result<Option<LibraryProduct>, LowerError> {
    let Sizes { rows, columns, depth, batch } = sizes;
    let rounding = builder.options.rounding;
    let kept = |narrow: bool| match kept_as(dtype, narrow) {
        DType::F64 => RealType::F64,
        DType::BF16 => RealType::Bf16,
        _ => RealType::F32,
    };
    let is_rounded = |of: RealType| of == RealType::F32 && rounding == Rounding::Bf16;
    let given = [kept(a.narrow), kept(b.narrow)];
    let of = given.map(|of| if is_rounded(of) { RealType::Bf16 } else { of });
    let result = kept(y.narrow);
    // sums of what was narrow are kept in either
    let fits =
        of[0] == of[1] && (result == of[0] || (of[0], result) == (RealType::Bf16, RealType::F32));
    let lies = [lying(a.sides, [rows, depth]), lying(b.sides, [columns, depth])];
    let (true, [Some(a_lies), Some(b_lies)]) = (fits && depth > 0, lies) else { return Ok(None) };
    // b's rows are its columns here
    let turned = [!a_lies.by_outer, b_lies.by_outer];
    let mut operands = [a.at, b.at];
    for (at, (given, size)) in
        operands.iter_mut().zip(given.into_iter().zip([rows * depth, columns * depth]))
    {
        if is_rounded(given) {
            let count = size.saturating_mul(batch);
            let narrow = builder.workspace(count, DType::BF16.bytes())?;
            let [_, f32_bf16, ..] = kernels::CASTS;
            builder.spread(f32_bf16, count, arguments![count, *at, narrow]);
            *at = narrow;
        }
    }
    let factor = |of, is_turned, lies: Lying| ProductFactor {
        of,
        is_turned,
        row_step: lies.row_step,
        batch_step: lies.batch_step,
    };
    let product = MatrixProduct {
        rows,
        columns,
        depth,
        batch,
        a: factor(of[0], turned[0], a_lies),
        b: factor(of[1], turned[1], b_lies),
        result,
        rounds_to_tf32: rounding == Rounding::Tf32 && of[0] == RealType::F32,
    };
    Ok(Some(LibraryProduct { product, operands: [operands[0], operands[1], y.at] }))
}

/// How a matrix lies: rows of its inner dimension, or, where it is not `by_outer`, of its outer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lying {
    by_outer: bool,
    row_step: usize,
    batch_step: usize,
}

/// None, where its numbers do not lie one behind the other.
fn lying(sides: Sides, [outer, depth]: [usize; 2]) -> Option<Lying> {
    let Sides { outer: to_next, depth: to_deeper, batch: batch_step } = sides;
    let by_outer = |row_step| Lying { by_outer: true, row_step, batch_step };
    if to_deeper == 1 && (to_next == depth || outer == 1) {
        return Some(by_outer(depth));
    }
    if to_next == 1 && (to_deeper == outer || depth == 1) {
        return Some(Lying { by_outer: false, ..by_outer(outer) });
    }
    None
}

fn launch(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    tiling: Tiling,
    factors: [Factor; 2],
    y: Target,
) -> Result<(), LowerError> {
    let kernel = match tiling.is_wide {
        true => kernels::PRODUCT.wide,
        false => builder.of_reals(kernels::PRODUCT.reals, dtype)?,
    };
    let mut fields = tiling.fields(&sizes);
    for Factor { at, narrow, sides: Sides { outer, depth, batch } } in factors {
        let code = builder.options.rounding.code(kept_as(dtype, narrow));
        fields.extend(arguments![at, code, outer, depth, batch]);
    }
    fields.extend(arguments![y.at, y.narrow]);
    builder.blocks(kernel, tiling.blocks(sizes.batch), fields)
}

/// Sums of parts, one part behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) partial: Address,
    pub(super) parts: usize,
    pub(super) count: usize,
    /// How many groups a row has, and how long they are; the result has their elements side by side.
    pub(super) groups: [usize; 2],
}

pub(super) fn sum_parts(
    builder: &mut Builder<'_>,
    dtype: DType,
    of: Parts,
    y: Target,
) -> Result<(), LowerError> {
    let kernel = builder.of_reals(kernels::SUM_PARTS, dtype)?;
    let Parts { partial, parts, count, groups: [groups, group] } = of;
    builder.spread(kernel, count, arguments![count, parts, partial, y.at, y.narrow, groups, group]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_are_cut_along_the_inner_dimension() {
        let sizes = |rows, columns, depth| Sizes { rows, columns, depth, batch: 1 };
        let cut = sizes(64, 4096, 4096).tiling(DType::F32);
        assert_eq!((cut.is_wide, cut.parts, cut.part_depth), (false, 4, 1024));
        assert_eq!(cut.blocks(1), Some(256));
        let whole = sizes(4096, 4096, 4096).tiling(DType::F32);
        assert_eq!((whole.is_wide, whole.parts), (true, 1));
        let small = sizes(3, 5, 7).tiling(DType::F64);
        assert_eq!((small.parts, small.blocks(1)), (1, Some(1)));
        // nothing to add up is a part, so that zeros are written
        assert_eq!(sizes(3, 5, 0).tiling(DType::F32).parts, 1);
    }
}
