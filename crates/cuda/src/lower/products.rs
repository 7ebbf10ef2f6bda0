//! Matrix products. Tiles are blocks; where there are few of them, the inner dimension is cut into parts, whose sums are
//! added afterwards in their order. How it is cut depends on the sizes alone.

use tensorwire_graph::Op;
use tensorwire_tensor::DType;

use crate::builder::{Builder, arguments, computed_bytes};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

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

/// A matrix' elements: in storage, and how they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    pub(super) at: Address,
    pub(super) sides: Sides,
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
    let (a, b) = (
        Factor { at: builder.input(0), sides: sides(a_rows, a_columns, transpose_a) },
        Factor { at: builder.input(1), sides: sides(b_rows, b_columns, !transpose_b) },
    );
    product(builder, builder.inputs[0].dtype, sizes, [a, b], builder.output(0))
}

/// Of a matrix of rows; where it is `turned` the product's outer dimension are its columns.
fn sides(rows: usize, columns: usize, turned: bool) -> Sides {
    let batch = rows * columns;
    match turned {
        true => Sides { outer: 1, depth: columns, batch },
        false => Sides { outer: columns, depth: 1, batch },
    }
}

/// y of `dtype` ← a·b, each product behind the one before.
pub(super) fn product(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    factors: [Factor; 2],
    y: Address,
) -> Result<(), LowerError> {
    if sizes.elements() == 0 {
        return Ok(());
    }
    let tiling = sizes.tiling(dtype);
    if tiling.parts == 1 {
        return launch(builder, dtype, sizes, tiling, factors, [Some(y), None]);
    }
    let count = sizes.elements();
    let partial = builder.workspace(count.saturating_mul(tiling.parts), computed_bytes(dtype))?;
    launch(builder, dtype, sizes, tiling, factors, [None, Some(partial)])?;
    sum_parts(builder, dtype, Parts { partial, parts: tiling.parts, count, groups: [1, 1] }, y)
}

/// As [`product`], of numbers as they are computed, into storage of `dtype`.
pub(super) fn computed_product(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    factors: [Factor; 2],
    y: Address,
) -> Result<(), LowerError> {
    if dtype != DType::BF16 || sizes.elements() == 0 {
        return product(builder, dtype, sizes, factors, y);
    }
    let tiling = sizes.tiling(DType::F32);
    let count = sizes.elements();
    let partial = builder.workspace(count.saturating_mul(tiling.parts), DType::F32.bytes())?;
    launch(builder, DType::F32, sizes, tiling, factors, [None, Some(partial)])?;
    sum_parts(builder, dtype, Parts { partial, parts: tiling.parts, count, groups: [1, 1] }, y)
}

/// Writes what is stored, or the sums of parts.
fn launch(
    builder: &mut Builder<'_>,
    dtype: DType,
    sizes: Sizes,
    tiling: Tiling,
    [a, b]: [Factor; 2],
    [y, partial]: [Option<Address>; 2],
) -> Result<(), LowerError> {
    let wide = kernels::wide(kernels::PRODUCT_WIDE, dtype).filter(|_| tiling.is_wide);
    let kernel = match wide {
        Some(kernel) => kernel,
        None => builder.of_floats(kernels::PRODUCT, dtype)?,
    };
    let mut fields = tiling.fields(&sizes);
    for Factor { at, sides: Sides { outer, depth, batch } } in [a, b] {
        fields.extend(arguments![at, outer, depth, batch]);
    }
    fields.extend(arguments![y, partial]);
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
    y: Address,
) -> Result<(), LowerError> {
    let kernel = builder.of_floats(kernels::SUM_PARTS, dtype)?;
    let Parts { partial, parts, count, groups: [groups, group] } = of;
    builder.spread(kernel, count, arguments![count, parts, partial, y, groups, group]);
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
