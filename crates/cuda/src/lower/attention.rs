//! Attention, and the positions that it sees.

use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Op, Rotary};
use tensorwire_tensor::DType;

use crate::builder::{Builder, THREADS, WARP, arguments, computed_bytes, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

/// Rows and columns of a tile.
const TILE: usize = 64;
/// Of f64.
const TILE_F64: usize = 32;

/// q[b,h,t,d], k and v[b,g,s,d], or as the order of heads says.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    depth: usize,
}

/// Where the operands are; the last four are a gradient's.
#[derive(Clone, Copy, Debug, Default)]
struct Operands {
    y: Option<Address>,
    lse: Option<Address>,
    dy: Option<Address>,
    level: Option<Address>,
    made: [Option<Address>; 3],
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Attention(by) => {
            let (y, lse) = (Some(builder.output(0)), Some(builder.output(1)));
            let fields = fields(builder, &by, 0, Operands { y, lse, ..Operands::default() });
            let sizes = sizes(builder, &by, 0);
            tiles(builder, kernels::ATTENTION, sizes, [sizes.heads, sizes.queries], fields)
        }
        Op::AttentionGrad(by) => attention_grad(builder, &by),
        Op::Rotary(by) => rotary(builder, &by),
        _ => Err(builder.no_kernel()),
    }
}

/// The sizes, q being input `first`.
fn sizes(builder: &Builder<'_>, by: &Attention, first: usize) -> Sizes {
    let (q, k) = (builder.inputs[first].dims(), builder.inputs[first + 1].dims());
    let [heads, positions] = by.heads.axes();
    Sizes {
        batch: q[0],
        heads: q[heads],
        groups: k[heads],
        queries: q[positions],
        keys: k[positions],
        depth: q[3],
    }
}

/// From one sample, head and position to the next.
fn steps(order: HeadOrder, heads: usize, positions: usize, depth: usize) -> [usize; 3] {
    let batch = heads * positions * depth;
    match order {
        HeadOrder::Outer => [batch, positions * depth, depth],
        HeadOrder::Inner => [batch, depth, heads * depth],
    }
}

/// The fields of `Attention`, q being input `first`.
fn fields(
    builder: &Builder<'_>,
    by: &Attention,
    first: usize,
    operands: Operands,
) -> Vec<KernelArgument> {
    let Sizes { batch, heads, groups, queries, keys, depth } = sizes(builder, by, first);
    let narrow = is_narrow(builder.inputs[0].dtype);
    let mut fields = arguments![batch, heads, groups, queries, keys, depth, by.scale, narrow];
    fields.extend(steps(by.heads, heads, queries, depth).map(KernelArgument::from));
    fields.extend(steps(by.heads, groups, keys, depth).map(KernelArgument::from));
    let last = builder.inputs.len() - 1;
    let mask = (by.mask == AttentionMask::Given).then(|| builder.input(last));
    let code: i64 = match (by.mask, builder.inputs[last].dtype) {
        (AttentionMask::None, _) => 0,
        (AttentionMask::Causal, _) => 1,
        (AttentionMask::Given, DType::U8) => 3,
        (AttentionMask::Given, _) => 2,
    };
    fields.extend(arguments![code, mask]);
    let dims = builder.inputs[last].dims();
    let step = |axis: usize| match dims[axis] {
        1 => 0,
        _ => dims[axis + 1..].iter().product(),
    };
    let mask_steps = match mask {
        Some(_) => [0, 1, 2, 3].map(step),
        None => [0; 4],
    };
    fields.extend(mask_steps.map(KernelArgument::from));
    fields.extend((first..first + 3).map(|place| KernelArgument::Address(builder.input(place))));
    fields.extend(arguments![operands.y, operands.lse, operands.dy, operands.level]);
    fields.extend(operands.made.map(KernelArgument::from));
    fields
}

/// Launches a kernel of a block for each tile of rows of a head, and as many columns of the depth.
fn tiles(
    builder: &mut Builder<'_>,
    kernels: kernels::Reals,
    sizes: Sizes,
    [heads, rows]: [usize; 2],
    fields: Vec<KernelArgument>,
) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let kernel = builder.of_reals(kernels, dtype)?;
    let tile = if dtype == DType::F64 { TILE_F64 } else { TILE };
    let blocks = rows.div_ceil(tile).checked_mul(sizes.depth.div_ceil(tile));
    let blocks = blocks.and_then(|tiles| tiles.checked_mul(heads));
    builder.blocks(kernel, blocks.and_then(|tiles| tiles.checked_mul(sizes.batch)), fields)
}

fn attention_grad(builder: &mut Builder<'_>, by: &Attention) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let sizes = sizes(builder, by, 1);
    let queries = sizes.batch * sizes.heads * sizes.queries;
    let level = builder.workspace(queries, computed_bytes(dtype))?;
    let operands = Operands {
        y: Some(builder.input(4)),
        lse: Some(builder.input(5)),
        dy: Some(builder.input(0)),
        level: Some(level),
        made: [0, 1, 2].map(|place| Some(builder.output(place))),
    };
    let fields = fields(builder, by, 1, operands);
    let kernel = builder.of_reals(kernels::ATTENTION_LEVEL, dtype)?;
    builder.spread_blocks(kernel, queries.div_ceil(THREADS / WARP), fields.clone());
    let (of_keys, of_queries) = ([sizes.groups, sizes.keys], [sizes.heads, sizes.queries]);
    tiles(builder, kernels::ATTENTION_GRAD_KEYS, sizes, of_keys, fields.clone())?;
    tiles(builder, kernels::ATTENTION_GRAD_QUERIES, sizes, of_queries, fields)
}

fn rotary(builder: &mut Builder<'_>, by: &Rotary) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let [heads, positions] = by.heads.axes().map(|axis| x.dims()[axis]);
    let half = x.dims()[3] / 2;
    if x.elements() == 0 {
        return Ok(());
    }
    let count = positions * half;
    let turns = builder.workspace(2 * count, computed_bytes(x.dtype))?;
    let kernel = builder.of_reals(kernels::ROTARY_ANGLES, x.dtype)?;
    let fields = arguments![positions, half, by.offset, by.base, by.inverse, turns];
    builder.spread(kernel, count, fields);
    let kernel = builder.of_reals(kernels::ROTARY, x.dtype)?;
    // rows of one position that follow each other
    let heads = match by.heads {
        HeadOrder::Outer => 1,
        HeadOrder::Inner => heads,
    };
    let (rows, narrow) = (x.elements() / (2 * half), is_narrow(x.dtype));
    let (given, y) = (builder.input(0), builder.output(0));
    let fields = arguments![rows, half, positions, heads, narrow, turns, given, y];
    builder.spread(kernel, rows * half, fields);
    Ok(())
}
