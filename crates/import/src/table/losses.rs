//! Losses: the mean over a batch, as PyTorch's modules have it when nothing else is said.

use tensorwire_nn::{CrossEntropy, DType, Output};

use crate::call::Call;
use crate::error::Result;
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

/// PyTorch's numbers of what is made of a loss for each element: none, mean, sum.
const NONE: f64 = 0.0;
const MEAN: f64 = 1.0;

/// Logits with classes last, `f[rows, c]`, and the labels of the rows, `i32[rows]`.
fn rows(call: &mut Call<'_, '_>) -> Result<[Output; 2]> {
    let (logits, target) = (call.tensor("self")?, call.tensor("target")?);
    let dims = call.dims(&logits)?;
    let classes = usize::from(dims.len() > 1);
    let mut permutation: Vec<usize> = (0..dims.len()).filter(|&axis| axis != classes).collect();
    permutation.push(classes);
    let turned = logits.permuted(&permutation);
    let logits = call.as_plain(&turned, "self")?;
    let target = call.as_plain(&target, "target")?;
    if call.dtype(target)? != DType::I32 {
        return call.refuse(
            "targets that are shares of classes are not known; give the number of the class",
        );
    }
    let count: usize = dims.iter().product::<usize>() / dims[classes].max(1);
    let logits = call.layer("rows", |s, name| s.reshape(name, logits, &[count, dims[classes]]))?;
    let labels = call.layer("labels", |s, name| s.reshape(name, target, &[count]))?;
    Ok([logits, labels])
}

fn of_labels(call: &mut Call<'_, '_>, smoothing: f64) -> Made {
    if call.given("weight").is_some() {
        return call.refuse("weights of classes are not known; leave them out");
    }
    if call.number_or("reduction", MEAN)? != MEAN {
        return call.refuse("only the mean is known of this loss; leave reduction out");
    }
    let ignored = call.number_or("ignore_index", -100.0)?;
    let [logits, labels] = rows(call)?;
    // fits: a label
    let target = CrossEntropy { smoothing, ignored: ignored as i32 };
    let output = call.layer("y", |s, name| s.cross_entropy(name, logits, labels, target))?;
    Ok(vec![Tensor::plain(output, 0)])
}

pub(super) fn cross_entropy(call: &mut Call<'_, '_>) -> Made {
    let smoothing = call.number_or("label_smoothing", 0.0)?;
    of_labels(call, smoothing)
}

/// Of logarithms of probabilities the cross-entropy is the same: their own softmax is what they are.
pub(super) fn nll(call: &mut Call<'_, '_>) -> Made {
    match call.is_made_by("self", "aten.log_softmax.int") {
        true => of_labels(call, 0.0),
        false => call.refuse("only what log_softmax makes is known here; use cross_entropy"),
    }
}

/// What is asked for of a loss of each element.
fn reduced(call: &mut Call<'_, '_>, each: Output, order: Vec<usize>) -> Made {
    let axes: Vec<usize> = (0..order.len()).collect();
    let output = match call.number_or("reduction", MEAN)? {
        NONE => return Ok(vec![Tensor { output: each, order }]),
        MEAN => call.layer("y", |s, name| s.mean_over(name, each, &axes, false))?,
        _ => call.layer("y", |s, name| s.sum_over(name, each, &axes, false))?,
    };
    Ok(vec![Tensor::plain(output, 0)])
}

/// self − target, and the order of dimensions.
fn difference(call: &mut Call<'_, '_>) -> Result<(Output, Vec<usize>)> {
    let x = call.tensor("self")?;
    let target = call.tensor("target")?;
    if call.dims(&x)? != call.dims(&target)? {
        return call.refuse("the target is of another shape; give it the prediction's");
    }
    let target = call.laid(&target, "target", &x.order)?;
    let y = call.layer("difference", |s, name| s.sub(name, x.output, target))?;
    Ok((y, x.order))
}

pub(super) fn squared_error(call: &mut Call<'_, '_>) -> Made {
    let (difference, order) = difference(call)?;
    let each = call.layer("squares", |s, name| s.mul(name, difference, difference))?;
    reduced(call, each, order)
}

pub(super) fn absolute_error(call: &mut Call<'_, '_>) -> Made {
    let (difference, order) = difference(call)?;
    let each = call.layer("each", |s, name| s.abs(name, difference))?;
    reduced(call, each, order)
}

pub(super) fn binary_with_logits(call: &mut Call<'_, '_>) -> Made {
    if call.given("weight").is_some() || call.given("pos_weight").is_some() {
        return call.refuse("weights are not known here; leave them out");
    }
    if call.number_or("reduction", MEAN)? != MEAN {
        return call.refuse("only the mean is known of this loss; leave reduction out");
    }
    let (x, target) = (call.plain("self")?, call.plain("target")?);
    let output = call.layer("y", |s, name| s.binary_cross_entropy_with_logits(name, x, target))?;
    Ok(vec![Tensor::plain(output, 0)])
}
