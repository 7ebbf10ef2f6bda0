//! Convolutions and poolings. Images come with their channels second and are computed with their channels last.

use tensorwire_nn::{Op, Output, Window};

use crate::call::Call;
use crate::error::Result;
use crate::order::{Tensor, channels_last};

type Made = Result<Vec<Tensor>>;

/// Images of the argument `name` with their channels last, and their height and width.
fn images(call: &mut Call<'_, '_>, name: &str) -> Result<(Output, [usize; 2])> {
    let x = call.tensor(name)?;
    if x.rank() != 4 {
        return call.refuse("a batch of images [n, c, h, w] is needed");
    }
    let dims = call.dims(&x)?;
    Ok((call.laid(&x, name, &channels_last(4))?, [dims[2], dims[3]]))
}

fn as_images(output: Output) -> Vec<Tensor> {
    vec![Tensor { output, order: channels_last(4) }]
}

pub(super) fn conv2d(call: &mut Call<'_, '_>) -> Made {
    let (x, _) = images(call, "input")?;
    let weight = call.tensor("weight")?;
    let dims = call.dims(&weight)?;
    let kernel = [dims[2], dims[3]];
    let stride = call.pair("stride", [1, 1])?;
    let dilation = call.pair("dilation", [1, 1])?;
    let (before, after) = match call.text("padding") {
        "" => {
            let padding = call.pair("padding", [0, 0])?;
            (padding, padding)
        }
        "valid" => ([0, 0], [0, 0]),
        // PyTorch puts the odd one behind
        _ => {
            let all = [0, 1].map(|side| dilation[side] * (kernel[side] - 1));
            (all.map(|all| all / 2), all.map(|all| all - all / 2))
        }
    };
    let window = Window { kernel, stride, dilation, before, after };
    let weight = call.as_plain(&weight, "weight")?;
    let output = convolved(call, x, weight, window)?;
    Ok(as_images(output))
}

fn convolved(call: &mut Call<'_, '_>, x: Output, weight: Output, window: Window) -> Result<Output> {
    // fits: groups are few
    let groups = call.number_or("groups", 1.0)? as usize;
    let y = call.op("conv", Op::Conv2d { window, groups }, &[x, weight])?;
    match call.tensor_or_none("bias")? {
        None => Ok(y),
        Some(bias) => {
            let bias = call.as_plain(&bias, "bias")?;
            call.op("y", Op::BiasAdd, &[y, bias])
        }
    }
}

/// Images of one row.
pub(super) fn conv1d(call: &mut Call<'_, '_>) -> Made {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    if x.rank() != 3 {
        return call.refuse("a batch of sequences [n, c, l] is needed");
    }
    let (dims, of_weight) = (call.dims(&x)?, call.dims(&weight)?);
    let x = call.laid(&x, "input", &channels_last(3))?;
    let x =
        call.layer("input/row", |s, name| s.reshape(name, x, &[dims[0], 1, dims[2], dims[1]]))?;
    let weight = call.as_plain(&weight, "weight")?;
    let to = [of_weight[0], of_weight[1], 1, of_weight[2]];
    let weight = call.layer("weight/row", |s, name| s.reshape(name, weight, &to))?;
    let one = |call: &Call<'_, '_>, name: &str, otherwise| {
        call.pair(name, [otherwise; 2]).map(|pair| pair[1])
    };
    let padding = one(call, "padding", 0)?;
    let window = Window {
        kernel: [1, of_weight[2]],
        stride: [1, one(call, "stride", 1)?],
        dilation: [1, one(call, "dilation", 1)?],
        before: [0, padding],
        after: [0, padding],
    };
    let y = convolved(call, x, weight, window)?;
    let wanted = call.wanted(0)?;
    let to = [wanted[0], wanted[2], wanted[1]];
    let output = call.layer("rows", |s, name| s.reshape(name, y, &to))?;
    Ok(vec![Tensor { output, order: channels_last(3) }])
}

/// The windows of a pooling, as many as PyTorch has: where it rounds up, the last ones reach over the padding.
fn pooling(call: &Call<'_, '_>, size: [usize; 2], padding: [usize; 2]) -> Result<Window> {
    let kernel = call.pair("kernel_size", [1, 1])?;
    let stride = call.pair("stride", kernel)?;
    let dilation = call.pair("dilation", [1, 1])?;
    let wanted = call.wanted(0)?;
    let mut after = padding;
    if call.is("ceil_mode") {
        for side in 0..2 {
            let reach =
                (wanted[2 + side] - 1) * stride[side] + dilation[side] * (kernel[side] - 1) + 1;
            after[side] = after[side].max(reach.saturating_sub(size[side] + padding[side]));
        }
    }
    Ok(Window { kernel, stride, dilation, before: padding, after })
}

pub(super) fn max_pool(call: &mut Call<'_, '_>) -> Made {
    let (x, size) = images(call, "self")?;
    let window = pooling(call, size, call.pair("padding", [0, 0])?)?;
    Ok(as_images(call.op("y", Op::MaxPool { window }, &[x])?))
}

pub(super) fn avg_pool(call: &mut Call<'_, '_>) -> Made {
    let (mut x, mut size) = images(call, "self")?;
    let mut padding = call.pair("padding", [0, 0])?;
    if call.given("divisor_override").is_some() {
        return call.refuse("divisor_override is not known; scale the result instead");
    }
    // our mean leaves padding out: what counts is put there
    if padding != [0, 0] && call.is("count_include_pad") {
        if call.is("ceil_mode") {
            return call.refuse(
                "padding that counts, with ceil_mode, is not known; leave one of them out",
            );
        }
        for side in 0..2 {
            let pad = Op::Pad { axis: 1 + side, before: padding[side], after: padding[side] };
            x = call.op(&format!("padded_{side}"), pad, &[x])?;
            size[side] += 2 * padding[side];
        }
        padding = [0, 0];
    }
    let window = pooling(call, size, padding)?;
    Ok(as_images(call.op("y", Op::AvgPool { window }, &[x])?))
}

pub(super) fn adaptive_avg_pool(call: &mut Call<'_, '_>) -> Made {
    let (x, size) = images(call, "self")?;
    let wanted = call.wanted(0)?;
    let to = [wanted[2], wanted[3]];
    if to == size {
        return Ok(as_images(x));
    }
    if (0..2).any(|side| size[side] % to[side] != 0) {
        return call.refuse(format!(
            "{}×{} images as {}×{}: only windows of one size are known; choose a size that divides the images'",
            size[0], size[1], to[0], to[1]
        ));
    }
    let kernel = [0, 1].map(|side| size[side] / to[side]);
    let window = Window::valid(kernel, kernel);
    Ok(as_images(call.op("y", Op::AvgPool { window }, &[x])?))
}
