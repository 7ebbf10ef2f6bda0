//! Less of a gradient, and a gradient of that. What is chosen is found by counting magnitudes, as `cpu` does.

use tensorwire_graph::Op;

use crate::builder::{Builder, THREADS, WARP, arguments};
use crate::command::KernelArgument;
use crate::error::LowerError;
use crate::kernels;

/// Magnitudes that are told apart by their upper bits, and then by their lower ones.
const BINS: [usize; 2] = [1 << 15, 1 << 16];

/// Elements of a piece, of which one block is told where its own are to be.
const PIECE: usize = 16 * THREADS;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Quantize { block } => {
            let count = builder.inputs[0].elements();
            let (residual, q, scales) = (builder.output(0), builder.output(1), builder.output(2));
            let x = builder.input(0);
            let blocks = count.div_ceil(block).div_ceil(THREADS / WARP);
            let fields = arguments![count, block, residual, x, q, scales];
            builder.spread_blocks(kernels::QUANTIZE, blocks, fields);
            Ok(())
        }
        Op::Dequantize { block, first } => {
            let count = builder.inputs[0].elements();
            let (q, scales, y) = (builder.input(0), builder.input(1), builder.output(0));
            let fields = arguments![count, block, first, q, scales, y];
            builder.spread(kernels::DEQUANTIZE, count, fields);
            Ok(())
        }
        Op::TopK { count } => top_k(builder, count),
        Op::ScatterElements { first, .. } => {
            let (count, elements) = (builder.inputs[0].elements(), builder.outputs[0].elements());
            let (indices, values, y) = (builder.input(0), builder.input(1), builder.output(0));
            builder.zero(y, builder.outputs[0].bytes());
            let fields = arguments![count, elements, first, indices, values, y];
            builder.spread(kernels::SCATTER_ELEMENTS, count, fields);
            Ok(())
        }
        _ => Err(builder.no_kernel()),
    }
}

fn top_k(builder: &mut Builder<'_>, wanted: usize) -> Result<(), LowerError> {
    let count = builder.inputs[0].elements();
    let (x, residual) = (builder.input(0), builder.output(0));
    let [upper_counts, lower_counts] =
        [builder.workspace(BINS[0], 8)?, builder.workspace(BINS[1], 8)?];
    let [upper, lower] = [builder.workspace(2, 8)?, builder.workspace(2, 8)?];
    let pieces = count.div_ceil(PIECE);
    let of_pieces = builder.workspace(2 * pieces, 8)?;
    builder.zero(upper_counts, 8 * BINS[0]);
    builder.zero(lower_counts, 8 * BINS[1]);
    let fields = arguments![count, residual, x, upper_counts];
    builder.spread(kernels::ADD_GRADIENT, count, fields);
    let nothing = KernelArgument::Nothing;
    let fields = arguments![BINS[0], upper_counts, wanted, nothing, upper];
    builder.spread_blocks(kernels::FIND_LAST, 1, fields);
    let fields = arguments![count, residual, upper, lower_counts];
    builder.spread(kernels::COUNT_LOWER, count, fields);
    let fields = arguments![BINS[1], lower_counts, wanted, upper, lower];
    builder.spread_blocks(kernels::FIND_LAST, 1, fields);
    let (indices, values) = (builder.output(1), builder.output(2));
    let fields = arguments![count, residual, upper, lower, of_pieces, indices, values];
    builder.spread_blocks(kernels::COUNT_PIECES, pieces, fields.clone());
    builder.spread_blocks(kernels::ORDER_PIECES, 1, fields.clone());
    builder.spread_blocks(kernels::CHOOSE, pieces, fields);
    Ok(())
}
