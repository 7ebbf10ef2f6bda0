//! Normalisations.

use tensorwire_graph::SampleNorm;
use tensorwire_nn::{Averages, Op, Output};

use crate::call::Call;
use crate::error::Result;
use crate::order::{Tensor, channels_last};

type Made = Result<Vec<Tensor>>;

/// The vector that is the argument `name`, or one of this value in every element.
fn vector(
    call: &mut Call<'_, '_>,
    name: &str,
    value: f64,
    size: usize,
    like: Output,
) -> Result<Output> {
    match call.tensor_or_none(name)? {
        None => call.filled(name, value, like, &[size]),
        Some(tensor) => {
            let flat = call.as_plain(&tensor, name)?;
            match tensor.rank() {
                1 => Ok(flat),
                _ => call.layer(&format!("{name}/flat"), |s, node| s.reshape(node, flat, &[size])),
            }
        }
    }
}

/// By the batch's own mean and variance, or by given ones.
pub(super) fn batch_norm(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("input")?;
    let order = channels_last(x.rank());
    let channels = call.dims(&x)?[1.min(x.rank() - 1)];
    let x = call.laid(&x, "input", &order)?;
    let epsilon = call.number("eps")?;
    let shift = vector(call, "bias", 0.0, channels, x)?;
    let scale = match call.tensor_or_none("weight")? {
        None => None,
        Some(_) => Some(vector(call, "weight", 1.0, channels, x)?),
    };
    if !call.is("training") {
        let output = normalized(call, x, [scale, Some(shift)], epsilon)?;
        return Ok(vec![Tensor { output, order }]);
    }
    let output = match (call.average("running_mean"), call.average("running_var")) {
        (Some(mean), Some(variance)) => {
            let rate = call.number("momentum")?;
            let averages = Averages { mean: &mean, variance: &variance, rate, unbiased: true };
            call.layer("y", |s, name| s.batch_norm_by(name, x, (scale, shift), epsilon, &averages))?
        }
        _ => {
            let scaled = scale.is_some();
            let inputs: Vec<Output> = [Some(x), scale, Some(shift)].into_iter().flatten().collect();
            call.op("y", Op::BatchNorm { epsilon, scaled }, &inputs)?
        }
    };
    Ok(vec![Tensor { output, order }])
}

/// (x − mean)/√(variance + epsilon)·scale + shift, with a mean and a variance that never change.
fn normalized(
    call: &mut Call<'_, '_>,
    x: Output,
    [scale, shift]: [Option<Output>; 2],
    epsilon: f64,
) -> Result<Output> {
    let (mean, variance) = (call.plain("running_mean")?, call.plain("running_var")?);
    call.layer("y", |s, name| {
        let of = |what: &str| format!("{name}/{what}");
        let little = s.constant(&of("epsilon"), epsilon, &[])?;
        let variance = s.add(&of("variance"), variance, little)?;
        let mut by = s.rsqrt(&of("rsqrt"), variance)?;
        if let Some(scale) = scale {
            by = s.mul(&of("scale"), by, scale)?;
        }
        let centred = s.sub(&of("centred"), x, mean)?;
        let y = s.mul(&of("scaled"), centred, by)?;
        match shift {
            Some(shift) => s.add(name, y, shift),
            None => Ok(y),
        }
    })
}

/// By the statistics of the last dimensions, as many as are normalised together.
fn by_sample(call: &mut Call<'_, '_>, by: SampleNorm, epsilon: f64) -> Made {
    let x = call.tensor("input")?;
    let together = call.ints("normalized_shape")?.len();
    let order: Vec<usize> = match x.order.last() {
        Some(last) if together == 1 && last + 1 == x.rank() => x.order.clone(),
        _ => (0..x.rank()).collect(),
    };
    let dims = call.dims(&x)?;
    let x = call.laid(&x, "input", &order)?;
    let size: usize = dims[dims.len() - together..].iter().product();
    let rows = dims[..dims.len() - together].iter().product();
    let flat = match together == 1 && dims.len() > 1 {
        true => x,
        false => call.layer("rows", |s, name| s.reshape(name, x, &[rows, size]))?,
    };
    let mut inputs = vec![flat, vector(call, "weight", 1.0, size, flat)?];
    if by.is_centred() {
        inputs.push(vector(call, "bias", 0.0, size, flat)?);
    }
    let y = call.op("norm", Op::SampleNorm { by, epsilon }, &inputs)?;
    let output = match flat == x {
        true => y,
        false => call.layer("y", |s, name| s.reshape(name, y, &dims))?,
    };
    Ok(vec![Tensor { output, order }])
}

pub(super) fn layer_norm(call: &mut Call<'_, '_>) -> Made {
    let epsilon = call.number("eps")?;
    by_sample(call, SampleNorm::Layer, epsilon)
}

pub(super) fn rms_norm(call: &mut Call<'_, '_>) -> Made {
    let epsilon = call.number_or("eps", f64::from(f32::EPSILON))?;
    by_sample(call, SampleNorm::Rms, epsilon)
}

pub(super) fn group_norm(call: &mut Call<'_, '_>) -> Made {
    // fits: groups are few
    let groups = call.int("num_groups")? as usize;
    by_groups(call, groups)
}

/// Each channel of each sample by itself.
pub(super) fn instance_norm(call: &mut Call<'_, '_>) -> Made {
    if !call.is("use_input_stats") || call.given("running_mean").is_some() {
        return call.refuse("running statistics are not known here; leave track_running_stats out");
    }
    let channels = call.dims(&call.tensor("input")?)?[1];
    by_groups(call, channels)
}

fn by_groups(call: &mut Call<'_, '_>, groups: usize) -> Made {
    let x = call.tensor("input")?;
    let order = channels_last(x.rank());
    let channels = call.dims(&x)?[1];
    let x = call.laid(&x, "input", &order)?;
    let scale = vector(call, "weight", 1.0, channels, x)?;
    let shift = vector(call, "bias", 0.0, channels, x)?;
    let norm = Op::SampleNorm { by: SampleNorm::Group { groups }, epsilon: call.number("eps")? };
    let output = call.op("y", norm, &[x, scale, shift])?;
    Ok(vec![Tensor { output, order }])
}
