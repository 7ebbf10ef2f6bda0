//! Convolutions of images. Where a window is one place they are matrix products; where groups are narrow a thread makes each
//! result; else they are products whose operands the kernels bring from where windows look, with the weight turned before.
//! A library takes all whose windows are more than one place, as they lie.

use tensorwire_device::{ConvolutionPass, ImageConvolution, RealType};
use tensorwire_graph::{Op, Window};
use tensorwire_tensor::DType;

use super::moves;
use super::products::{self, Factor, Parts, Sides, Sizes, Target, Tiling};
use crate::builder::{Builder, arguments, computed_bytes, is_narrow};
use crate::command::{Address, Command, KernelArgument, LibraryConvolution};
use crate::error::LowerError;
use crate::{Rounding, kernels};

/// Channels of a group, in or out, from which on a tile is worth it.
const GROUP_TILE: usize = 16;

/// What kernels divide is below this.
const DIVIDED_MAX: usize = (1 << 31) - 1;

/// Threads that keep a device busy.
const THREADS_WANTED: usize = 1 << 16;

/// Positions that a thread adds at least.
const PART_POSITIONS: usize = 64;

/// x[n,h,w,c] and w[o,c/groups,kh,kw] → y[n,oh,ow,o].
#[derive(Clone, Copy, Debug)]
struct Convolution {
    batch: usize,
    size: [usize; 2],
    channels: usize,
    windows: [usize; 2],
    outputs: usize,
    groups: usize,
    window: Window,
}

impl Convolution {
    fn of(x: &[usize], y: &[usize], groups: usize, window: Window) -> Option<Convolution> {
        let (&[batch, height, width, channels], &[_, rows, columns, outputs]) = (x, y) else {
            return None;
        };
        let (size, windows) = ([height, width], [rows, columns]);
        Some(Convolution { batch, size, channels, windows, outputs, groups, window })
    }

    fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    fn group_outputs(&self) -> usize {
        self.outputs / self.groups
    }

    /// Places of all images.
    fn places(&self) -> usize {
        self.batch * self.size[0] * self.size[1]
    }

    /// Windows of all images.
    fn positions(&self) -> usize {
        self.batch * self.windows[0] * self.windows[1]
    }

    /// True if each window is its one place.
    fn is_product(&self) -> bool {
        self.groups == 1 && self.window == Window::valid([1, 1], [1, 1])
    }

    fn is_narrow(&self) -> bool {
        self.groups > 1 && self.group_channels().min(self.group_outputs()) < GROUP_TILE
    }

    /// The fields of `Images`.
    fn fields(&self) -> Vec<KernelArgument> {
        let Window { kernel, stride, dilation, before, .. } = self.window;
        let [height, width] = self.size;
        let [rows, columns] = self.windows;
        let mut fields = arguments![height, width, self.channels, rows, columns, self.outputs];
        fields.extend(arguments![self.group_channels(), self.group_outputs()]);
        for pair in [kernel, stride, dilation, before] {
            fields.extend(pair.map(KernelArgument::from));
        }
        let divided =
            [width, height, columns, rows, self.group_channels(), self.group_outputs(), kernel[1]];
        divided.into_iter().for_each(|by| fields.extend(divider(by)));
        fields
    }
}

/// The fields of `Divider`: n/by = n·multiplier/2^shift, rounded down, for n below 2³¹ (Granlund and Montgomery 1994).
fn divider(by: usize) -> Vec<KernelArgument> {
    let by = by.max(1);
    let shift = 31 + by.next_power_of_two().trailing_zeros();
    // below 2³²: the power of two is less than 2·by
    let multiplier = ((1u128 << shift) / by as u128 + 1) as i64;
    arguments![by, multiplier, i64::from(shift)]
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (first, second, y) = (&builder.inputs[0], &builder.inputs[1], &builder.outputs[0]);
    let shape = match *builder.op {
        Op::Conv2d { window, groups } => Convolution::of(first.dims(), y.dims(), groups, window),
        Op::Conv2dGradInput { window, groups, .. } => {
            Convolution::of(y.dims(), first.dims(), groups, window)
        }
        Op::Conv2dGradWeight { window, groups } => {
            Convolution::of(second.dims(), first.dims(), groups, window)
        }
        _ => None,
    };
    let shape = shape.ok_or_else(|| builder.no_kernel())?;
    if y.elements() == 0 {
        return Ok(());
    }
    // a sum of nothing is 0
    if first.elements() == 0 || second.elements() == 0 {
        builder.zero(builder.output(0), y.bytes());
        return Ok(());
    }
    let most = shape
        .places()
        .max(shape.positions())
        .max(shape.taps().saturating_mul(shape.group_channels().max(shape.group_outputs())));
    builder.at_most("places of images", Some(most), DIVIDED_MAX)?;
    if shape.is_product() {
        return product(builder, shape);
    }
    if builder.options.convolutions_by_library {
        return by_library(builder, shape);
    }
    if shape.is_narrow() {
        return by_threads(builder, shape);
    }
    match builder.op {
        Op::Conv2d { .. } => convolve(builder, shape),
        Op::Conv2dGradInput { .. } => grad_input(builder, shape),
        _ => grad_weight(builder, shape),
    }
}

/// Of windows of one place: y = x·wᵀ, dx = dy·w, dw = dyᵀ·x.
fn product(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let Convolution { channels, outputs, .. } = shape;
    let positions = shape.positions();
    let rows = |columns: usize| Sides { outer: columns, depth: 1, batch: 0 };
    let columns = |columns: usize| Sides { outer: 1, depth: columns, batch: 0 };
    let (sizes, a, b) = match builder.op {
        Op::Conv2d { .. } => ([positions, outputs, channels], rows(channels), rows(channels)),
        Op::Conv2dGradInput { .. } => {
            ([positions, channels, outputs], rows(outputs), columns(channels))
        }
        _ => ([outputs, channels, positions], columns(outputs), columns(channels)),
    };
    let [rows, columns, depth] = sizes;
    let dtype = builder.inputs[0].dtype;
    let narrow = is_narrow(dtype);
    let factors = [
        Factor { at: builder.input(0), narrow, sides: a },
        Factor { at: builder.input(1), narrow, sides: b },
    ];
    let y = Target { at: builder.output(0), narrow };
    products::product(builder, dtype, Sizes { rows, columns, depth, batch: 1 }, factors, y)
}

/// The convolution as a library takes it, of numbers that are rounded to bf16 before it where that is asked for: these are
/// numbers of TF32, too, and the library has no other product of them whose result is f32.
fn by_library(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let rounding = if dtype == DType::F32 { builder.options.rounding } else { Rounding::Nothing };
    let mut given = [builder.input(0), builder.input(1)];
    if rounding == Rounding::Bf16 {
        for (place, at) in given.iter_mut().enumerate() {
            let count = builder.inputs[place].elements();
            let narrow = builder.workspace(count, DType::BF16.bytes())?;
            let rounded = builder.workspace(count, DType::F32.bytes())?;
            let [_, f32_bf16, .., bf16_f32, _] = kernels::CASTS;
            builder.spread(f32_bf16, count, arguments![count, *at, narrow]);
            builder.spread(bf16_f32, count, arguments![count, narrow, rounded]);
            *at = rounded;
        }
    }
    let ([first, second], made) = (given, builder.output(0));
    let (pass, operands) = match builder.op {
        Op::Conv2d { .. } => (ConvolutionPass::Forward, [first, second, made]),
        Op::Conv2dGradInput { .. } => (ConvolutionPass::GradInput, [made, second, first]),
        _ => (ConvolutionPass::GradWeight, [second, made, first]),
    };
    let Convolution { batch, size, channels, windows, outputs, groups, window } = shape;
    let Window { kernel, stride, dilation, before, .. } = window;
    let of = match dtype {
        DType::F64 => RealType::F64,
        DType::BF16 => RealType::Bf16,
        _ => RealType::F32,
    };
    let rounds_to_tf32 = rounding != Rounding::Nothing;
    let convolution = ImageConvolution {
        pass,
        of,
        batch,
        size,
        channels,
        windows,
        outputs,
        groups,
        kernel,
        stride,
        dilation,
        before,
        rounds_to_tf32,
    };
    builder.by_library(Command::Convolution(LibraryConvolution { convolution, operands }));
    Ok(())
}

/// The weight, with `dims` [o or groups, …], in another order.
fn turned_weight(
    builder: &mut Builder<'_>,
    dims: &[usize],
    permutation: &[usize],
) -> Result<Address, LowerError> {
    let w = &builder.inputs[1];
    let turned = builder.workspace(w.elements(), w.dtype.bytes())?;
    moves::turn(builder, w.dtype, dims, permutation, [builder.input(1), turned]);
    Ok(turned)
}

fn convolve(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dims = [shape.outputs, shape.group_channels(), shape.taps()];
    let w = turned_weight(builder, &dims, &[0, 2, 1])?;
    let sizes = Sizes {
        rows: shape.positions(),
        columns: shape.group_outputs(),
        depth: shape.taps() * shape.group_channels(),
        batch: shape.groups,
    };
    tiles(builder, shape, sizes, kernels::CONVOLVE, w)
}

fn grad_input(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dims = [shape.groups, shape.group_outputs(), shape.group_channels(), shape.taps()];
    let w = turned_weight(builder, &dims, &[0, 2, 3, 1])?;
    let sizes = Sizes {
        rows: shape.places(),
        columns: shape.group_channels(),
        depth: shape.taps() * shape.group_outputs(),
        batch: shape.groups,
    };
    tiles(builder, shape, sizes, kernels::CONVOLVE_GRAD_INPUT, w)
}

/// Launches a kernel of tiles over the first input and the turned weight.
fn tiles(
    builder: &mut Builder<'_>,
    shape: Convolution,
    sizes: Sizes,
    of: kernels::Tiles,
    w: Address,
) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let (tiling, count) = (sizes.tiling(dtype), builder.outputs[0].elements());
    let y = Target { at: builder.output(0), narrow: is_narrow(dtype) };
    let x = builder.input(0);
    if tiling.parts == 1 {
        return launch(builder, of, shape, (sizes, tiling), [x, w], y, count);
    }
    let parts = tiling.parts;
    let partial = builder.workspace(count.saturating_mul(parts), computed_bytes(dtype))?;
    let sums = Target { at: partial, narrow: false };
    launch(builder, of, shape, (sizes, tiling), [x, w], sums, count)?;
    products::sum_parts(builder, dtype, Parts { partial, parts, count, groups: [1, 1] }, y)
}

fn grad_weight(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let sizes = Sizes {
        rows: shape.group_outputs(),
        columns: shape.taps() * shape.group_channels(),
        depth: shape.positions(),
        batch: shape.groups,
    };
    let (tiling, count) = (sizes.tiling(dtype), builder.outputs[0].elements());
    let parts = tiling.parts;
    let partial = builder.workspace(count.saturating_mul(parts), computed_bytes(dtype))?;
    let operands = [builder.input(0), builder.input(1)];
    let sums = Target { at: partial, narrow: false };
    let of = kernels::CONVOLVE_GRAD_WEIGHT;
    launch(builder, of, shape, (sizes, tiling), operands, sums, count)?;
    let y = Target { at: builder.output(0), narrow: is_narrow(dtype) };
    let groups = [shape.taps(), shape.group_channels()];
    products::sum_parts(builder, dtype, Parts { partial, parts, count, groups }, y)
}

fn launch(
    builder: &mut Builder<'_>,
    of: kernels::Tiles,
    shape: Convolution,
    (sizes, tiling): (Sizes, Tiling),
    [a, b]: [Address; 2],
    y: Target,
    count: usize,
) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let kernel = match tiling.is_wide {
        true => of.wide,
        false => builder.of_reals(of.reals, dtype)?,
    };
    let mut fields = tiling.fields(&sizes);
    fields.extend(shape.fields());
    let code = builder.options.rounding.code(dtype);
    fields.extend(arguments![a, b, code, y.at, y.narrow, count]);
    builder.blocks(kernel, tiling.blocks(sizes.batch), fields)
}

fn by_threads(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let (a, b, y) = (builder.input(0), builder.input(1), builder.output(0));
    let (kernels, positions) = match builder.op {
        Op::Conv2d { .. } => (kernels::THREAD_CONVOLVE, shape.positions()),
        Op::Conv2dGradInput { .. } => (kernels::THREAD_GRAD_INPUT, shape.places()),
        _ => return weight_by_threads(builder, shape),
    };
    let kernel = builder.of_reals(kernels, dtype)?;
    let mut fields = shape.fields();
    let code = builder.options.rounding.code(dtype);
    fields.extend(arguments![positions, a, b, code, y, is_narrow(dtype), 1usize, positions]);
    builder.spread(kernel, builder.outputs[0].elements(), fields);
    Ok(())
}

fn weight_by_threads(builder: &mut Builder<'_>, shape: Convolution) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let (positions, count) = (shape.positions(), builder.outputs[0].elements());
    let part = positions.div_ceil(THREADS_WANTED.div_ceil(count)).max(PART_POSITIONS);
    let parts = positions.div_ceil(part);
    let partial = builder.workspace(count.saturating_mul(parts), computed_bytes(dtype))?;
    let kernel = builder.of_reals(kernels::THREAD_GRAD_WEIGHT, dtype)?;
    let (a, b) = (builder.input(0), builder.input(1));
    let mut fields = shape.fields();
    let code = builder.options.rounding.code(dtype);
    fields.extend(arguments![positions, a, b, code, partial, false, parts, part]);
    builder.spread(kernel, count.saturating_mul(parts), fields);
    let y = Target { at: builder.output(0), narrow: is_narrow(dtype) };
    products::sum_parts(builder, dtype, Parts { partial, parts, count, groups: [1, 1] }, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_by_multiplication_is_divided() {
        let most = DIVIDED_MAX as u64;
        for by in (1..300).chain([511, 512, 513, 65_535, 65_536, 1_000_003, DIVIDED_MAX]) {
            let [_, KernelArgument::Integer(multiplier), KernelArgument::Integer(shift)] =
                divider(by)[..]
            else {
                panic!("two numbers");
            };
            assert!(multiplier < 1 << 32);
            let by = by as u64;
            let near = [0, 1, by - 1, by, by + 1, most / by * by, most - 1, most, most / 2, 12_345];
            for n in near.into_iter().filter(|n| *n <= most) {
                assert_eq!((n * multiplier.cast_unsigned()) >> shift, n / by, "{n}/{by}");
            }
        }
    }
}
