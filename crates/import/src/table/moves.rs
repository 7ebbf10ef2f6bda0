//! What changes where elements lie, and not what they are.

use tensorwire_nn::{DType, Op, Output};
use tensorwire_tensor::TensorSpec;

use crate::call::Call;
use crate::error::Result;
use crate::module::Argument;
use crate::operators::Constant;
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

pub(super) fn reshape(call: &mut Call<'_, '_>) -> Made {
    let x = call.plain("self")?;
    Ok(vec![call.reshaped("y", x)?])
}

pub(super) fn unsqueeze(call: &mut Call<'_, '_>) -> Made {
    reshape(call)
}

pub(super) fn squeeze(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let dims = call.dims(&x)?;
    let mut gone: Vec<usize> = call.axes("dim", x.rank())?;
    gone.retain(|&axis| dims.get(axis) == Some(&1));
    Ok(vec![without(call, "y", &x, &gone)?])
}

/// x without some dimensions of 1.
fn without(call: &mut Call<'_, '_>, what: &str, x: &Tensor, gone: &[usize]) -> Result<Tensor> {
    let lost: Vec<usize> = gone.iter().map(|&axis| x.order[axis]).collect();
    let place = |axis: usize| axis - lost.iter().filter(|&&lost| lost < axis).count();
    let left = (0..x.rank()).filter(|axis| !gone.contains(axis));
    let order: Vec<usize> = left.map(|axis| place(x.order[axis])).collect();
    let dims = call.dims(x)?;
    let mut to = vec![0; order.len()];
    for (axis, &at) in (0..x.rank()).filter(|axis| !gone.contains(axis)).zip(&order) {
        to[at] = dims[axis];
    }
    let output = call.layer(what, |s, name| s.reshape(name, x.output, &to))?;
    Ok(Tensor { output, order })
}

pub(super) fn permute(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let permutation = call.axes("dims", x.rank())?;
    Ok(vec![x.permuted(&permutation)])
}

fn swapped(call: &Call<'_, '_>, x: &Tensor, dims: [i64; 2]) -> Made {
    let [a, b] = dims.map(|dim| call.axis(dim, x.rank()));
    let mut permutation: Vec<usize> = (0..x.rank()).collect();
    permutation.swap(a?, b?);
    Ok(vec![x.permuted(&permutation)])
}

pub(super) fn transpose(call: &mut Call<'_, '_>) -> Made {
    let dims = [call.int("dim0")?, call.int("dim1")?];
    swapped(call, &call.tensor("self")?, dims)
}

pub(super) fn matrix_transpose(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    if x.rank() < 2 { Ok(vec![x]) } else { swapped(call, &x, [-2, -1]) }
}

pub(super) fn move_dimension(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let from = call.axis(call.int("source")?, x.rank())?;
    let to = call.axis(call.int("destination")?, x.rank())?;
    let mut permutation: Vec<usize> = (0..x.rank()).filter(|&axis| axis != from).collect();
    permutation.insert(to, from);
    Ok(vec![x.permuted(&permutation)])
}

pub(super) fn expand(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    Ok(vec![expanded(call, "y", x, 0)?])
}

pub(super) fn broadcast(call: &mut Call<'_, '_>) -> Made {
    let tensors = call.tensors("tensors")?.into_iter().enumerate();
    tensors.map(|(place, x)| expanded(call, &format!("y_{place}"), x, place)).collect()
}

/// x repeated to the dimensions that PyTorch gave of an output.
fn expanded(call: &mut Call<'_, '_>, what: &str, x: Tensor, output: usize) -> Result<Tensor> {
    let dims = call.wanted(output)?;
    if call.dims(&x)? == dims {
        return Ok(x);
    }
    let x = call.as_plain(&x, what)?;
    let output = call.layer(what, |s, name| s.expand(name, x, &dims))?;
    Ok(Tensor::plain(output, dims.len()))
}

pub(super) fn repeat(call: &mut Call<'_, '_>) -> Made {
    let mut y = call.plain("self")?;
    let dims = call.wanted(0)?;
    let mut had = call.dims(&call.tensor("self")?)?;
    while had.len() < dims.len() {
        had.insert(0, 1);
    }
    y = call.layer("self/ones", |s, name| s.reshape(name, y, &had))?;
    for (axis, times) in call.ints("repeats")?.into_iter().enumerate() {
        // fits: the product is a tensor's size
        let parts = vec![y; times.max(0) as usize];
        if parts.len() != 1 {
            y = call.layer(&format!("along_{axis}"), |s, name| s.concat(name, axis, &parts))?;
        }
    }
    Ok(vec![Tensor::plain(y, dims.len())])
}

pub(super) fn cat(call: &mut Call<'_, '_>) -> Made {
    let rank = call.wanted(0)?.len();
    let mut tensors = call.tensors("tensors")?;
    // PyTorch leaves out vectors of nothing, whatever the others are
    tensors.retain(|tensor| tensor.rank() == rank);
    let Some(first) = tensors.first() else { return call.refuse("there is nothing to join") };
    let order = first.order.clone();
    let axis = call.axis(call.int("dim")?, rank)?;
    let mut parts = Vec::with_capacity(tensors.len());
    for (place, tensor) in tensors.iter().enumerate() {
        parts.push(call.laid(tensor, &format!("part_{place}"), &order)?);
    }
    let output = match parts[..] {
        [one] => one,
        _ => call.layer("y", |s, name| s.concat(name, order[axis], &parts))?,
    };
    Ok(vec![Tensor { output, order }])
}

pub(super) fn stack(call: &mut Call<'_, '_>) -> Made {
    let dims = call.wanted(0)?;
    let axis = call.axis(call.int("dim")?, dims.len())?;
    let mut one = dims.clone();
    one[axis] = 1;
    let mut parts = Vec::new();
    for (place, tensor) in call.tensors("tensors")?.iter().enumerate() {
        let x = call.as_plain(tensor, &format!("part_{place}"))?;
        parts.push(call.layer(&format!("part_{place}"), |s, name| s.reshape(name, x, &one))?);
    }
    let output = call.layer("y", |s, name| s.concat(name, axis, &parts))?;
    Ok(vec![Tensor::plain(output, dims.len())])
}

/// Some elements along a dimension of x.
fn part(
    call: &mut Call<'_, '_>,
    what: &str,
    x: &Tensor,
    axis: usize,
    [start, length]: [usize; 2],
) -> Result<Tensor> {
    let axis = x.order[axis];
    let output = match call.ok(call.s.size(x.output, axis))? == length {
        true => x.output,
        false => {
            call.layer(what, |s, name| s.slice(name, x.output, axis, start..start + length))?
        }
    };
    Ok(Tensor { output, order: x.order.clone() })
}

pub(super) fn slice(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = call.axis(call.int("dim")?, x.rank())?;
    let size = call.dims(&x)?[axis];
    let start = counted(call.given("start").and_then(Argument::number).unwrap_or(0.0), size);
    let length = call.wanted(0)?[axis];
    // fits: PyTorch takes positive steps alone
    let step = call.number_or("step", 1.0)? as usize;
    if step == 1 || length < 2 {
        return Ok(vec![part(call, "y", &x, axis, [start, length])?]);
    }
    Ok(vec![every(call, &x, axis, [start, length, step])?])
}

/// Each element of x so many steps behind the one before: the first of each stretch of so many.
fn every(
    call: &mut Call<'_, '_>,
    x: &Tensor,
    axis: usize,
    [start, length, step]: [usize; 3],
) -> Result<Tensor> {
    let size = call.dims(x)?[axis];
    let there = (length * step).min(size - start);
    let mut stretches = part(call, "stretches", x, axis, [start, there])?.output;
    let axis = x.order[axis];
    let mut apart = Vec::with_capacity(x.rank() + 1);
    for at in 0..x.rank() {
        apart.push(call.ok(call.s.size(stretches, at))?);
    }
    if there < length * step {
        stretches = padded(call, stretches, &apart, axis, [0, length * step - there], 0.0)?;
    }
    apart[axis] = length;
    let taken = apart.clone();
    apart.insert(axis + 1, step);
    let output = call.layer("y", |s, name| {
        let apart = s.reshape(&format!("{name}/apart"), stretches, &apart)?;
        let first = s.slice(&format!("{name}/first"), apart, axis + 1, 0..1)?;
        s.reshape(name, first, &taken)
    })?;
    Ok(Tensor { output, order: x.order.clone() })
}

/// The places `count - 1` to 0.
pub(super) fn from_last(call: &mut Call<'_, '_>, what: &str, count: usize) -> Result<Output> {
    let spec = TensorSpec::new(DType::I32, &[count]);
    let spec = spec.or_else(|error| call.refuse(error.to_string()))?;
    // fits: what is counted are the rows of a tensor of i32 places
    let bytes: Vec<u8> = (0..count as i32).rev().flat_map(i32::to_le_bytes).collect();
    call.op(&format!("{what}/places"), Constant::op(spec, bytes.into()), &[])
}

/// A place along a dimension, counted from the end if it is negative, and no further than the end.
fn counted(place: f64, size: usize) -> usize {
    // fits: places are far below 2^53
    let place = if place < 0.0 { place + size as f64 } else { place };
    (place.max(0.0) as usize).min(size)
}

/// x with another tensor's elements, repeated to its dimensions.
pub(super) fn copy(call: &mut Call<'_, '_>) -> Made {
    let src = call.tensor("src")?;
    let cast = super::elements::cast_of(call, src)?;
    Ok(vec![expanded(call, "y", cast, 0)?])
}

/// x with one number, or one element, everywhere.
pub(super) fn fill(call: &mut Call<'_, '_>) -> Made {
    let dims = call.wanted(0)?;
    if let Some(value) = call.tensor_or_none("value")? {
        let cast = super::elements::cast_of(call, value)?;
        return Ok(vec![expanded(call, "y", cast, 0)?]);
    }
    let value = call.number_or("value", 0.0)?;
    let x = call.tensor("self")?;
    let output = call.filled("y", value, x.output, &dims)?;
    Ok(vec![Tensor::plain(output, dims.len())])
}

/// x with `src` from `start` on along a dimension.
fn with_part(call: &mut Call<'_, '_>, axis: usize, start: usize) -> Made {
    let x = call.tensor("self")?;
    let dims = call.dims(&x)?;
    let mut of = dims.clone();
    let src = call.tensor("src")?;
    of[axis] = if src.rank() == dims.len() { call.dims(&src)?[axis] } else { 1 };
    let src = call.as_plain(&src, "src")?;
    let src = call.layer("src/part", |s, name| s.reshape(name, src, &of))?;
    let end = start + of[axis];
    let mut parts = Vec::new();
    if start > 0 {
        let before = part(call, "before", &x, axis, [0, start])?;
        parts.push(call.as_plain(&before, "before")?);
    }
    parts.push(src);
    if end < dims[axis] {
        let after = part(call, "after", &x, axis, [end, dims[axis] - end])?;
        parts.push(call.as_plain(&after, "after")?);
    }
    let output = match parts[..] {
        [all] => all,
        _ => call.layer("y", |s, name| s.concat(name, axis, &parts))?,
    };
    Ok(vec![Tensor::plain(output, dims.len())])
}

pub(super) fn slice_scatter(call: &mut Call<'_, '_>) -> Made {
    if call.number_or("step", 1.0)? != 1.0 {
        return call.refuse(
            "every so-many-th element is changed in place; assign a new tensor, made by stack",
        );
    }
    let dims = call.wanted(0)?;
    let axis = call.axis(call.number_or("dim", 0.0)? as i64, dims.len())?;
    let start = counted(call.number_or("start", 0.0)?, dims[axis]);
    with_part(call, axis, start)
}

pub(super) fn select_scatter(call: &mut Call<'_, '_>) -> Made {
    let dims = call.wanted(0)?;
    let axis = call.axis(call.int("dim")?, dims.len())?;
    let start = counted(call.number("index")?, dims[axis]);
    with_part(call, axis, start)
}

pub(super) fn narrow(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = call.axis(call.int("dim")?, x.rank())?;
    let start = counted(call.number("start")?, call.dims(&x)?[axis]);
    let length = call.wanted(0)?[axis];
    Ok(vec![part(call, "y", &x, axis, [start, length])?])
}

pub(super) fn select(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = call.axis(call.int("dim")?, x.rank())?;
    let start = counted(call.number("index")?, call.dims(&x)?[axis]);
    let one = part(call, "part", &x, axis, [start, 1])?;
    Ok(vec![without(call, "y", &one, &[axis])?])
}

/// What leaves at one end of a dimension comes in at the other.
pub(super) fn roll(call: &mut Call<'_, '_>) -> Made {
    let mut x = call.tensor("self")?;
    let (shifts, dims) = (call.ints("shifts")?, call.ints("dims")?);
    if shifts.len() != dims.len() {
        return call.refuse("a roll of the flat tensor is not known; say the dimensions");
    }
    for (place, (shift, dim)) in shifts.into_iter().zip(dims).enumerate() {
        let axis = call.axis(dim, x.rank())?;
        let size = call.dims(&x)?[axis];
        // fits: less than the size
        let first = (-shift).rem_euclid(size.max(1) as i64) as usize;
        if first == 0 {
            continue;
        }
        let begin = part(call, &format!("begin_{place}"), &x, axis, [first, size - first])?;
        let end = part(call, &format!("end_{place}"), &x, axis, [0, first])?;
        let (parts, axis) = ([begin.output, end.output], x.order[axis]);
        x.output = call.layer(&format!("y_{place}"), |s, name| s.concat(name, axis, &parts))?;
    }
    Ok(vec![x])
}

/// The last element of some dimensions first.
pub(super) fn flip(call: &mut Call<'_, '_>) -> Made {
    let mut x = call.tensor("self")?;
    for (place, axis) in call.axes("dims", x.rank())?.into_iter().enumerate() {
        let dims = call.dims(&x)?;
        let places = from_last(call, &format!("along_{place}"), dims[axis])?;
        let mut first: Vec<usize> = (0..x.rank()).filter(|&other| other != axis).collect();
        first.insert(0, axis);
        let rows = call.as_plain(&x.permuted(&first), &format!("first_{place}"))?;
        let of: Vec<usize> = first.iter().map(|&axis| dims[axis]).collect();
        let flat = [dims[axis], of[1..].iter().product()];
        let output = call.layer(&format!("y_{place}"), |s, name| {
            let rows = s.reshape(&format!("{name}/rows"), rows, &flat)?;
            let turned = s.gather(&format!("{name}/gather"), rows, places)?;
            s.reshape(name, turned, &of)
        })?;
        let mut order = vec![0; first.len()];
        first.iter().enumerate().for_each(|(at, &axis)| order[axis] = at);
        x = Tensor { output, order };
    }
    Ok(vec![x])
}

/// As many parts as there are outputs, each as long as PyTorch says.
pub(super) fn split(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = call.axis(call.number_or("dim", 0.0)? as i64, x.rank())?;
    let (mut start, mut parts) = (0, Vec::new());
    for output in 0..call.node.outputs.len() {
        let length = call.wanted(output)?[axis];
        parts.push(part(call, &format!("part_{output}"), &x, axis, [start, length])?);
        start += length;
    }
    Ok(parts)
}

pub(super) fn unbind(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = call.axis(call.number_or("dim", 0.0)? as i64, x.rank())?;
    let mut parts = Vec::new();
    for output in 0..call.node.outputs.len() {
        let one = part(call, &format!("part_{output}"), &x, axis, [output, 1])?;
        parts.push(without(call, &format!("y_{output}"), &one, &[axis])?);
    }
    Ok(parts)
}

/// Pairs of numbers from the last dimension on: how much is put before it and behind, or left out if negative.
pub(super) fn pad(call: &mut Call<'_, '_>) -> Made {
    if !matches!(call.text("mode"), "" | "constant") {
        return call
            .refuse(format!("padding by '{}' is not known; use 'constant'", call.text("mode")));
    }
    let x = call.tensor("self")?;
    let value = call.number_or("value", 0.0)?;
    let (mut output, mut dims) = (call.as_plain(&x, "self")?, call.dims(&x)?);
    for (place, pair) in call.ints("pad")?.chunks(2).enumerate() {
        let axis = dims.len() - 1 - place;
        let [before, after] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        let kept = |by: i64| usize::try_from(-by).unwrap_or(0);
        if before < 0 || after < 0 {
            let range = kept(before)..dims[axis].saturating_sub(kept(after));
            dims[axis] = range.len();
            output =
                call.layer(&format!("cut_{axis}"), |s, name| s.slice(name, output, axis, range))?;
        }
        let [before, after] = [before, after].map(|by| usize::try_from(by).unwrap_or(0));
        if before + after > 0 {
            output = padded(call, output, &dims, axis, [before, after], value)?;
            dims[axis] += before + after;
        }
    }
    Ok(vec![Tensor::plain(output, dims.len())])
}

fn padded(
    call: &mut Call<'_, '_>,
    x: Output,
    dims: &[usize],
    axis: usize,
    [before, after]: [usize; 2],
    value: f64,
) -> Result<Output> {
    if value == 0.0 && call.dtype(x)? != DType::I32 {
        return call.op(&format!("padded_{axis}"), Op::Pad { axis, before, after }, &[x]);
    }
    let mut parts = Vec::new();
    for (size, what) in [(before, "before"), (0, ""), (after, "after")] {
        let mut of = dims.to_vec();
        of[axis] = size;
        match (what, size) {
            ("", _) => parts.push(x),
            (_, 0) => {}
            _ => parts.push(call.filled(&format!("{what}_{axis}"), value, x, &of)?),
        }
    }
    call.layer(&format!("padded_{axis}"), |s, name| s.concat(name, axis, &parts))
}
