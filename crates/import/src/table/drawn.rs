//! What is drawn. Which numbers, is ours to draw: from the job's seed, the node's name and the step. A copy that evaluates takes the
//! mean of what is drawn.

use tensorwire_nn::{Comparison, Op, Output};
use tensorwire_tensor::TensorSpec;

use crate::call::Call;
use crate::error::Result;
use crate::operators::{Draw, Drawn};
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

/// What is dropped from; what does it in place calls it otherwise.
fn input(call: &Call<'_, '_>) -> Result<Tensor> {
    call.tensor(if call.given("input").is_some() { "input" } else { "self" })
}

pub(super) fn dropout(call: &mut Call<'_, '_>) -> Made {
    let (x, rate) = (input(call)?, call.number("p")?);
    if !call.is("train") || rate == 0.0 {
        return Ok(vec![x]);
    }
    let output = call.layer("y", |s, name| s.dropout(name, x.output, rate))?;
    Ok(vec![Tensor { output, ..x }])
}

/// 1/(1 − rate) where something is kept, else 0.
fn kept(call: &mut Call<'_, '_>, dims: &[usize], rate: f64) -> Result<Output> {
    if !(0.0..1.0).contains(&rate) {
        return call.refuse(format!("a rate of {rate}; from 0 to below 1 is known"));
    }
    call.layer("kept", |s, name| {
        let ones = s.constant(&format!("{name}/ones"), 1.0, dims)?;
        s.dropout(name, ones, rate)
    })
}

/// The dimensions of samples and channels; those of all elements for what drops these.
fn dropped(call: &Call<'_, '_>, x: &Tensor, by_channels: bool) -> Result<Vec<usize>> {
    let dims = call.dims(x)?;
    let size = |(axis, &size): (usize, &usize)| if by_channels && axis > 1 { 1 } else { size };
    Ok(dims.iter().enumerate().map(size).collect())
}

/// Whole channels of a sample.
pub(super) fn feature_dropout(call: &mut Call<'_, '_>) -> Made {
    let (x, rate) = (input(call)?, call.number("p")?);
    if !call.is("train") || rate == 0.0 {
        return Ok(vec![x]);
    }
    let dims = dropped(call, &x, true)?;
    let kept = kept(call, &dims, rate)?;
    let kept = call.laid(&Tensor::plain(kept, dims.len()), "kept", &x.order)?;
    let output = call.layer("y", |s, name| s.mul(name, x.output, kept))?;
    Ok(vec![Tensor { output, ..x }])
}

/// Klambauer et al. 2017: what is dropped becomes SELU's least value, and mean and variance are kept.
pub(super) fn alpha_dropout(call: &mut Call<'_, '_>) -> Made {
    const LEAST: f64 = -1.758_099_340_847_376_6;
    let (x, rate) = (input(call)?, call.number("p")?);
    if !call.is("train") || rate == 0.0 {
        return Ok(vec![x]);
    }
    if draws_nothing(call)? {
        return Ok(vec![x]);
    }
    let by_channels = call.node.operator.contains("feature");
    let dims = dropped(call, &x, by_channels)?;
    let kept = kept(call, &dims, rate)?;
    let kept = call.laid(&Tensor::plain(kept, dims.len()), "kept", &x.order)?;
    let keep = 1.0 - rate;
    let by = (keep + LEAST * LEAST * keep * rate).powf(-0.5);
    let output = call.layer("y", |s, name| {
        let of = |what: &str| format!("{name}/{what}");
        // kept·keep is 1 or 0: by·(x·kept + LEAST·(1 − kept) − LEAST·rate)
        let one = s.scale(&of("one"), kept, keep * by)?;
        let x = s.mul(&of("x"), x.output, one)?;
        let rest = s.scale(&of("rest"), one, -LEAST)?;
        let moved = s.constant(&of("moved"), by * LEAST * keep, &[])?;
        let rest = s.add(&of("least"), rest, moved)?;
        s.add(name, x, rest)
    })?;
    Ok(vec![Tensor { output, ..x }])
}

/// True in evaluation.
fn draws_nothing(call: &mut Call<'_, '_>) -> Result<bool> {
    Ok(call.layer("mode", |s, name| s.draws(name))?.is_none())
}

/// A tensor of PyTorch's dimensions of the output, drawn anew in each step; `mean` in evaluation.
fn drawn(call: &mut Call<'_, '_>, draw: Draw, mean: f64) -> Result<Output> {
    let dims = call.wanted(0)?;
    let spec = TensorSpec::new(call.s.dtype(), &dims);
    let spec = spec.or_else(|error| call.refuse(error.to_string()))?;
    match call.layer("drawn", |s, name| s.draws(name))? {
        Some((key, step)) => call.op("drawn", Drawn::op(draw, key, spec), &[step]),
        None => call.op("drawn", Op::Fill { value: mean, spec }, &[]),
    }
}

/// by·x + to.
fn moved(call: &mut Call<'_, '_>, x: Output, by: f64, to: f64) -> Made {
    let output = call.layer("y", |s, name| {
        let x = s.scale(&format!("{name}/scaled"), x, by)?;
        let to = s.constant(&format!("{name}/to"), to, &[])?;
        s.add(name, x, to)
    })?;
    let rank = call.wanted(0)?.len();
    Ok(vec![Tensor::plain(output, rank)])
}

pub(super) fn uniform(call: &mut Call<'_, '_>) -> Made {
    let (from, to) = (call.number_or("from", 0.0)?, call.number_or("to", 1.0)?);
    let x = drawn(call, Draw::Uniform, 0.5)?;
    moved(call, x, to - from, from)
}

pub(super) fn normal(call: &mut Call<'_, '_>) -> Made {
    let (mean, deviation) = (call.number_or("mean", 0.0)?, call.number_or("std", 1.0)?);
    let x = drawn(call, Draw::Normal, 0.0)?;
    moved(call, x, deviation, mean)
}

/// 1 with a probability, which is a number or each element's own; else 0.
pub(super) fn bernoulli(call: &mut Call<'_, '_>) -> Made {
    let dims = call.wanted(0)?;
    if call.given("p").is_none() {
        let share = call.plain("self")?;
        if draws_nothing(call)? {
            return Ok(vec![Tensor::plain(share, dims.len())]);
        }
        let drawn = drawn(call, Draw::Uniform, 0.5)?;
        let is = call.layer("is", |s, name| s.compare(name, Comparison::Less, drawn, share))?;
        let like = call.layer("like", |s, name| s.zeros(name, &[]))?;
        let output = super::elements::truth_as_number(call, "y", is, like)?;
        return Ok(vec![Tensor::plain(output, dims.len())]);
    }
    let share = call.number("p")?;
    if share <= 0.0 || share >= 1.0 {
        let spec = TensorSpec::new(call.s.dtype(), &dims);
        let spec = spec.or_else(|error| call.refuse(error.to_string()))?;
        let output = call.op("y", Op::Fill { value: share.clamp(0.0, 1.0), spec }, &[])?;
        return Ok(vec![Tensor::plain(output, dims.len())]);
    }
    let kept = kept(call, &dims, 1.0 - share)?;
    let output = call.layer("y", |s, name| s.scale(name, kept, share))?;
    Ok(vec![Tensor::plain(output, dims.len())])
}
