//! Convolutions and poolings. Images come with their channels second and are computed with their channels last.

use tensorwire_nn::{Op, Output, Window};

use crate::call::Call;
use crate::error::Result;
use crate::order::{Tensor, channels_last};
use crate::table::moves::from_last;

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

/// A convolution turned around, as one: zeros go between the elements, and the kernel is turned.
pub(super) fn conv_transpose2d(call: &mut Call<'_, '_>) -> Made {
    let (x, size) = images(call, "input")?;
    let weight = call.tensor("weight")?;
    let of_weight = call.dims(&weight)?;
    let weight = call.as_plain(&weight, "weight")?;
    let sides = Turned {
        kernel: [of_weight[2], of_weight[3]],
        stride: call.pair("stride", [1, 1])?,
        dilation: call.pair("dilation", [1, 1])?,
        padding: call.pair("padding", [0, 0])?,
        more: call.pair("output_padding", [0, 0])?,
    };
    let y = turned_around(call, (x, size), (weight, &of_weight), sides)?;
    Ok(as_images(y))
}

/// Images of one row.
pub(super) fn conv_transpose1d(call: &mut Call<'_, '_>) -> Made {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    if x.rank() != 3 {
        return call.refuse("a batch of sequences [n, c, l] is needed");
    }
    let (dims, of_weight) = (call.dims(&x)?, call.dims(&weight)?);
    let x = call.laid(&x, "input", &channels_last(3))?;
    let x =
        call.layer("input/row", |s, name| s.reshape(name, x, &[dims[0], 1, dims[2], dims[1]]))?;
    let weight = call.as_plain(&weight, "weight")?;
    let row = |call: &Call<'_, '_>, name: &str, otherwise| {
        call.pair(name, [otherwise; 2]).map(|pair| [otherwise, pair[1]])
    };
    let sides = Turned {
        kernel: [1, of_weight[2]],
        stride: row(call, "stride", 1)?,
        dilation: row(call, "dilation", 1)?,
        padding: row(call, "padding", 0)?,
        more: row(call, "output_padding", 0)?,
    };
    let y = turned_around(call, (x, [1, dims[2]]), (weight, &of_weight), sides)?;
    let wanted = call.wanted(0)?;
    let to = [wanted[0], wanted[2], wanted[1]];
    let output = call.layer("rows", |s, name| s.reshape(name, y, &to))?;
    Ok(vec![Tensor { output, order: channels_last(3) }])
}

/// What a transposed convolution is given, by side.
#[derive(Clone, Copy)]
struct Turned {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 2],
    more: [usize; 2],
}

/// x: `f[n, h, w, c]`; weight: `[inputs, outputs/groups, …]`.
fn turned_around(
    call: &mut Call<'_, '_>,
    (mut x, size): (Output, [usize; 2]),
    (weight, of_weight): (Output, &[usize]),
    sides: Turned,
) -> Result<Output> {
    let Turned { kernel, stride, dilation, padding, more } = sides;
    let (images, channels) = (call.ok(call.s.size(x, 0))?, of_weight[0]);
    let mut window = Window { dilation, ..Window::valid(kernel, [1, 1]) };
    let mut now = size;
    for side in 0..2 {
        let every = stride[side];
        if every > 1 {
            // behind each element so many zeros, the last, too
            let (outer, inner) = match side {
                0 => (images, now[1] * channels),
                _ => (images * now[0], channels),
            };
            let apart = [outer, now[side], 1, inner];
            now[side] *= every;
            let to = [images, now[0], now[1], channels];
            x = call.layer(&format!("apart_{side}"), |s, name| {
                let x = s.reshape(&format!("{name}/elements"), x, &apart)?;
                let pad = Op::Pad { axis: 2, before: 0, after: every - 1 };
                let x = s.op(&format!("{name}/zeros"), pad, &[x])?;
                s.reshape(name, x, &to)
            })?;
        }
        // fits: sizes of images
        let reach = (dilation[side] * (kernel[side] - 1)) as i64 - padding[side] as i64;
        let after = reach + more[side] as i64 - (every as i64 - 1);
        let cut = [reach, after].map(|by| usize::try_from(-by).unwrap_or(0));
        if cut != [0, 0] {
            let range = cut[0]..now[side] - cut[1];
            now[side] = range.len();
            x = call.layer(&format!("cut_{side}"), |s, name| s.slice(name, x, 1 + side, range))?;
        }
        window.before[side] = usize::try_from(reach).unwrap_or(0);
        window.after[side] = usize::try_from(after).unwrap_or(0);
    }
    let weight = turned_kernel(call, weight, of_weight, kernel)?;
    convolved(call, x, weight, window)
}

/// The kernel of a convolution, `[outputs, inputs/groups, h, w]`, that undoes where those of one with this weight came from.
fn turned_kernel(
    call: &mut Call<'_, '_>,
    weight: Output,
    dims: &[usize],
    kernel: [usize; 2],
) -> Result<Output> {
    // fits: groups are few
    let groups = call.number_or("groups", 1.0)? as usize;
    let (inputs, outputs, places) = (dims[0] / groups, dims[1], kernel[0] * kernel[1]);
    let from_last = from_last(call, "weight", places)?;
    call.layer("weight/turned", |s, name| {
        let of = |what: &str| format!("{name}/{what}");
        let x = s.reshape(&of("groups"), weight, &[groups, inputs, outputs, places])?;
        let x = s.transpose(&of("places"), x, &[3, 0, 2, 1])?;
        let x = s.reshape(&of("rows"), x, &[places, groups * outputs * inputs])?;
        let x = s.gather(&of("from_last"), x, from_last)?;
        let x = s.reshape(&of("parts"), x, &[places, groups * outputs, inputs])?;
        let x = s.transpose(&of("last"), x, &[1, 2, 0])?;
        s.reshape(name, x, &[groups * outputs, inputs, kernel[0], kernel[1]])
    })
}

/// Each element as many times as the images grow, side by side.
pub(super) fn nearest(call: &mut Call<'_, '_>) -> Made {
    let (mut x, size) = images(call, "input")?;
    let wanted = call.wanted(0)?;
    let (images, channels) = (wanted[0], wanted[1]);
    let mut now = size;
    for side in 0..2 {
        let to = wanted[2 + side];
        if !to.is_multiple_of(size[side]) {
            return call.refuse(format!("{} as {to}: only whole factors are known", size[side]));
        }
        let (outer, inner) = match side {
            0 => (images, now[1] * channels),
            _ => (images * now[0], channels),
        };
        let times = to / size[side];
        now[side] = to;
        let all = [images, now[0], now[1], channels];
        x = call.layer(&format!("times_{side}"), |s, name| {
            let x = s.reshape(&format!("{name}/one"), x, &[outer, size[side], 1, inner])?;
            let x = s.expand(&format!("{name}/each"), x, &[outer, size[side], times, inner])?;
            s.reshape(name, x, &all)
        })?;
    }
    Ok(as_images(x))
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
