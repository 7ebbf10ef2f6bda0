//! Pooling of images, and the normalisation of responses. Convolutions and batch normalisation are in files of their own.

use tensorwire_graph::{Op, Window};
use tensorwire_tensor::DType;

use super::{convolution, norms};
use crate::builder::{Builder, arguments, is_narrow};
use crate::command::KernelArgument;
use crate::error::LowerError;
use crate::kernels;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (x, y) = (builder.inputs[0].dims(), builder.outputs[0].dims());
    match *builder.op {
        Op::MaxPool { window } => {
            let places = Some(builder.output(1).into());
            pool(builder, kernels::MAX_POOL, fields(window, x, y), [places, None])
        }
        Op::AvgPool { window } => {
            pool(builder, kernels::AVG_POOL, fields(window, x, y), [None, None])
        }
        Op::MaxPoolGrad { window, .. } => {
            let places = Some(builder.input(1).into());
            pool(builder, kernels::MAX_POOL_GRAD, fields(window, y, x), [None, places])
        }
        Op::AvgPoolGrad { window, .. } => {
            pool(builder, kernels::AVG_POOL_GRAD, fields(window, y, x), [None, None])
        }
        Op::LocalResponseNorm { size, alpha, beta, bias } => {
            response_norm(builder, kernels::RESPONSE_NORM, size, [alpha, beta, bias])
        }
        Op::LocalResponseNormGrad { size, alpha, beta, bias } => {
            response_norm(builder, kernels::RESPONSE_NORM_GRAD, size, [alpha, beta, bias])
        }
        Op::BatchNorm { .. } | Op::BatchNormGrad { .. } | Op::Normalize { .. } => {
            norms::batch(builder)
        }
        _ => convolution::lower(builder),
    }
}

/// The fields of `Pooling`, of images `x` whose windows are `y`.
fn fields(window: Window, x: &[usize], y: &[usize]) -> Vec<KernelArgument> {
    let Window { kernel, stride, dilation, before, .. } = window;
    let sizes = x.iter().chain(&y[1..y.len() - 1]);
    let sides = [kernel, stride, dilation, before];
    sizes.chain(sides.iter().flatten()).copied().map(KernelArgument::from).collect()
}

/// Launches a kernel of images, of which `places` are what it writes and what it is given.
fn pool(
    builder: &mut Builder<'_>,
    kernels: kernels::Reals,
    sizes: Vec<KernelArgument>,
    places: [Option<KernelArgument>; 2],
) -> Result<(), LowerError> {
    let dtype = builder.inputs[0].dtype;
    let kernel = builder.of_reals(kernels, dtype)?;
    let [made, given] = places.map(|places| places.unwrap_or(KernelArgument::Nothing));
    let fields = arguments![builder.input(0), builder.output(0), made, given, is_narrow(dtype)];
    builder.spread(kernel, builder.outputs[0].elements(), [sizes, fields].concat());
    Ok(())
}

fn response_norm(
    builder: &mut Builder<'_>,
    kernels: kernels::Reals,
    size: usize,
    [alpha, beta, bias]: [f64; 3],
) -> Result<(), LowerError> {
    let spec = &builder.outputs[0];
    let (dtype, channels): (DType, usize) = (spec.dtype, *spec.dims().last().unwrap_or(&1));
    let kernel = builder.of_reals(kernels, dtype)?;
    let [dy, x, y] = match builder.inputs.len() {
        1 => [None, Some(builder.input(0)), None],
        _ => [0, 1, 2].map(|place| Some(builder.input(place))),
    };
    let narrow = is_narrow(dtype);
    let out = builder.output(0);
    let fields =
        arguments![spec.elements(), channels, size / 2, alpha, beta, bias, narrow, dy, x, y, out];
    builder.spread(kernel, spec.elements(), fields);
    Ok(())
}
