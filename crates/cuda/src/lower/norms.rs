//! Normalisation over a batch, and of each sample by itself.

use tensorwire_graph::{Op, SampleNorm};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_tensor::{DType, TensorSpec};

use super::reductions::teams;
use crate::builder::{Builder, THREADS, WARP, arguments, computed_bytes, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

/// Threads that keep a device busy.
const THREADS_WANTED: usize = 1 << 16;

/// Rows that a thread adds at least.
const PART_ROWS: usize = 32;

/// Parts of the rows at most: a warp joins them.
const PARTS_MAX: usize = 1024;

/// Rows of channels, in parts.
#[derive(Clone, Copy, Debug)]
struct Columns {
    rows: usize,
    columns: usize,
    parts: usize,
    part_rows: usize,
}

impl Columns {
    fn of(x: &TensorSpec) -> Columns {
        let columns = x.dims().last().copied().unwrap_or(1);
        let rows = x.elements().checked_div(columns).unwrap_or(0);
        let wanted = THREADS_WANTED.div_ceil(columns.max(1)).min(PARTS_MAX);
        let part_rows = rows.div_ceil(wanted).max(PART_ROWS);
        Columns { rows, columns, parts: rows.div_ceil(part_rows).max(1), part_rows }
    }

    fn threads(&self) -> usize {
        self.parts * self.columns
    }

    /// Blocks of a kernel of a warp for each channel.
    fn warps(&self) -> usize {
        self.columns.div_ceil(THREADS / WARP)
    }
}

pub(super) fn batch(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::BatchNorm { epsilon, scaled } => batch_norm(builder, epsilon, scaled),
        Op::BatchNormGrad { epsilon, scaled } => batch_norm_grad(builder, epsilon, scaled),
        Op::Normalize { epsilon, scaled } => {
            let (scale, shift) = affine(builder, scaled);
            let first = 2 + usize::from(scaled);
            let statistics = [builder.input(first), builder.input(first + 1)];
            let narrow = is_narrow(builder.inputs[0].dtype);
            normalize(builder, epsilon, (scale, shift), statistics, narrow)
        }
        _ => Err(builder.no_kernel()),
    }
}

/// The scale, if there is one, and the shift, which follow x.
fn affine(builder: &Builder<'_>, scaled: bool) -> (Option<Address>, Address) {
    match scaled {
        true => (Some(builder.input(1)), builder.input(2)),
        false => (None, builder.input(1)),
    }
}

fn batch_norm(builder: &mut Builder<'_>, epsilon: f64, scaled: bool) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let (dtype, narrow, columns) = (x.dtype, is_narrow(x.dtype), Columns::of(x));
    if has_no_rows(x) {
        let (op, operand, found) = (builder.name(), Operand::Input(0), x.clone());
        return Err(KernelError::NoElements { op, operand, found }.into());
    }
    let bytes = computed_bytes(dtype);
    let [mean, squares] = two(builder, columns.threads(), bytes)?;
    let [joined_mean, variance] = two(builder, columns.columns, bytes)?;
    let Columns { rows, columns: channels, parts, part_rows } = columns;
    let given = builder.input(0);
    let moments = arguments![rows, channels, parts, part_rows, given, narrow, mean, squares];
    let kernel = builder.of_reals(kernels::COLUMN_MOMENTS, dtype)?;
    builder.spread(kernel, columns.threads(), moments.clone());
    let kernel = builder.of_reals(kernels::JOIN_MOMENTS, dtype)?;
    let (kept_mean, kept_variance) = (builder.output(1), builder.output(2));
    let fields = arguments![joined_mean, variance, kept_mean, kept_variance];
    builder.spread_blocks(kernel, columns.warps(), [moments, fields].concat());
    let affine = affine(builder, scaled);
    normalize(builder, epsilon, affine, [joined_mean, variance], false)
}

/// True if a dimension before the last is 0.
fn has_no_rows(x: &TensorSpec) -> bool {
    x.dims().split_last().is_some_and(|(_, rows)| rows.contains(&0))
}

fn two(
    builder: &mut Builder<'_>,
    elements: usize,
    bytes: usize,
) -> Result<[Address; 2], LowerError> {
    Ok([builder.workspace(elements, bytes)?, builder.workspace(elements, bytes)?])
}

/// y of the first input, with a mean and a variance.
fn normalize(
    builder: &mut Builder<'_>,
    epsilon: f64,
    (scale, shift): (Option<Address>, Address),
    [mean, variance]: [Address; 2],
    statistics_narrow: bool,
) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let (count, columns) = (x.elements(), Columns::of(x).columns);
    let kernel = builder.of_reals(kernels::NORMALIZE, x.dtype)?;
    let (given, y, narrow) = (builder.input(0), builder.output(0), is_narrow(x.dtype));
    let fields = arguments![
        count,
        columns,
        narrow,
        given,
        scale,
        shift,
        mean,
        variance,
        statistics_narrow,
        epsilon,
        y
    ];
    builder.spread(kernel, count, fields);
    Ok(())
}

/// What Σ dy and Σ dy·x̂ of each channel are made of.
struct Normalized {
    mean: Option<Address>,
    spread: Address,
    epsilon: f64,
    /// Positions, groups and the channels of one, of samples; zeros of channels.
    sample: [usize; 3],
}

/// Writes Σ dy and Σ dy·x̂: where they are computed, if that is asked for, and the outputs, which may be missing.
fn column_gradients(
    builder: &mut Builder<'_>,
    of: Normalized,
    sums: Option<[Address; 2]>,
    [dshift, dscale]: [Option<Address>; 2],
) -> Result<(), LowerError> {
    let x = &builder.inputs[1];
    let (dtype, narrow, columns) = (x.dtype, is_narrow(x.dtype), Columns::of(x));
    let [of_shift, of_scale] = two(builder, columns.threads(), computed_bytes(dtype))?;
    let Columns { rows, columns: channels, parts, part_rows } = columns;
    let (dy, given) = (builder.input(0), builder.input(1));
    let mut fields = arguments![rows, channels, narrow, parts, part_rows, dy, given];
    fields.extend(arguments![of.mean, of.spread, of.epsilon]);
    fields.extend(of.sample.map(KernelArgument::from));
    fields.extend(arguments![of_shift, of_scale]);
    let kernel = builder.of_reals(kernels::COLUMN_GRADIENTS, dtype)?;
    builder.spread(kernel, columns.threads(), fields);
    let kernel = builder.of_reals(kernels::JOIN_GRADIENTS, dtype)?;
    let (shift_sum, scale_sum) = (sums.map(|sums| sums[0]), sums.map(|sums| sums[1]));
    let fields = arguments![
        channels, parts, narrow, of_shift, of_scale, shift_sum, scale_sum, dshift, dscale
    ];
    builder.spread_blocks(kernel, columns.warps(), fields);
    Ok(())
}

fn batch_norm_grad(
    builder: &mut Builder<'_>,
    epsilon: f64,
    scaled: bool,
) -> Result<(), LowerError> {
    let x = &builder.inputs[1];
    let (dtype, narrow, columns) = (x.dtype, is_narrow(x.dtype), Columns::of(x));
    let (mean, variance) = (builder.input(2), builder.input(3));
    let scale = scaled.then(|| builder.input(4));
    let dshift = builder.output(1 + usize::from(scaled));
    let dscale = scaled.then(|| builder.output(1));
    let sums = two(builder, columns.columns, computed_bytes(dtype))?;
    let of = Normalized { mean: Some(mean), spread: variance, epsilon, sample: [0; 3] };
    column_gradients(builder, of, Some(sums), [Some(dshift), dscale])?;
    let kernel = builder.of_reals(kernels::BATCH_NORM_GRAD, dtype)?;
    let (dy, given, dx) = (builder.input(0), builder.input(1), builder.output(0));
    let [of_shift, of_scale] = sums;
    let mut fields = arguments![columns.rows, columns.columns, narrow, dy, given, mean, variance];
    fields.extend(arguments![scale, epsilon, of_shift, of_scale, dx]);
    builder.spread(kernel, x.elements(), fields);
    Ok(())
}

/// x as [samples, positions, groups, size].
#[derive(Clone, Copy, Debug)]
struct Samples {
    samples: usize,
    positions: usize,
    groups: usize,
    size: usize,
}

impl Samples {
    fn of(x: &TensorSpec, by: SampleNorm) -> Samples {
        let dims = x.dims();
        let (channels, before) = dims.split_last().map_or((1, dims), |(last, all)| (*last, all));
        match by {
            SampleNorm::Layer | SampleNorm::Rms => {
                let samples = before.iter().product();
                Samples { samples, positions: 1, groups: 1, size: channels }
            }
            SampleNorm::Group { groups } => Samples {
                samples: before.first().copied().unwrap_or(1),
                positions: before.iter().skip(1).product(),
                groups,
                size: channels / groups.max(1),
            },
        }
    }

    fn statistics(&self) -> usize {
        self.samples * self.groups
    }
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::SampleNorm { by, epsilon } => {
            let samples = samples(builder, 0, by)?;
            let more = usize::from(by.is_centred());
            let shift = by.is_centred().then(|| builder.input(2));
            let mean = by.is_centred().then(|| builder.output(1));
            let rstd = builder.output(1 + more);
            let mut fields = arguments![builder.input(0), builder.input(1), shift];
            fields.extend(arguments![KernelArgument::Nothing, builder.output(0), mean, rstd]);
            sample_norm(builder, kernels::SAMPLE_NORM, samples, epsilon, fields)
        }
        Op::SampleNormGrad { by } => sample_norm_grad(builder, by),
        _ => Err(builder.no_kernel()),
    }
}

/// The samples of input `x`. A mean is of at least one element, unless there is none.
fn samples(builder: &Builder<'_>, x: usize, by: SampleNorm) -> Result<Samples, LowerError> {
    let samples = Samples::of(&builder.inputs[x], by);
    if samples.positions == 0 {
        let (op, operand, found) = (builder.name(), Operand::Input(x), builder.inputs[x].clone());
        return Err(KernelError::NoElements { op, operand, found }.into());
    }
    Ok(samples)
}

/// Launches a kernel of a warp or a block for each statistic.
fn sample_norm(
    builder: &mut Builder<'_>,
    kernels: kernels::Reals,
    samples: Samples,
    epsilon: f64,
    operands: Vec<KernelArgument>,
) -> Result<(), LowerError> {
    let dtype: DType = builder.inputs[0].dtype;
    let kernel = builder.of_reals(kernels, dtype)?;
    let Samples { samples: count, positions, groups, size } = samples;
    let (blocks, by_block) = teams(samples.statistics(), positions * size);
    let mut fields = arguments![count, positions, groups, size, epsilon, is_narrow(dtype)];
    fields.extend(operands);
    fields.extend(arguments![by_block]);
    builder.spread_blocks(kernel, blocks, fields);
    Ok(())
}

fn sample_norm_grad(builder: &mut Builder<'_>, by: SampleNorm) -> Result<(), LowerError> {
    let samples = samples(builder, 1, by)?;
    let more = usize::from(by.is_centred());
    let mean = by.is_centred().then(|| builder.input(2));
    let (rstd, scale) = (builder.input(2 + more), builder.input(3 + more));
    let (dscale, dshift) = (builder.output(1), by.is_centred().then(|| builder.output(2)));
    let mut fields = arguments![builder.input(1), scale, KernelArgument::Nothing];
    fields.extend(arguments![builder.input(0), builder.output(0), mean, rstd]);
    sample_norm(builder, kernels::SAMPLE_NORM_GRAD, samples, 0.0, fields)?;
    let sample = [samples.positions, samples.groups, samples.size];
    let of = Normalized { mean, spread: rstd, epsilon: 0.0, sample };
    column_gradients(builder, of, None, [dshift, Some(dscale)])
}
