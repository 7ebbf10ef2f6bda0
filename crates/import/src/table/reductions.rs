//! Sums, means, maxima and what is made of them along dimensions.

use tensorwire_nn::{Output, Scope};

use super::elements::closed;
use super::integers;
use crate::call::Call;
use crate::error::Result;
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

type Over = fn(&mut Scope<'_>, &str, Output, &[usize], bool) -> tensorwire_nn::Result<Output>;

fn over(call: &mut Call<'_, '_>, reduce: Over) -> Made {
    let x = call.tensor("self")?;
    let axes = call.axes("dim", x.rank())?;
    let keep = call.is("keepdim");
    let at: Vec<usize> = axes.iter().map(|&axis| x.order[axis]).collect();
    let output = call.layer("y", |s, name| reduce(s, name, x.output, &at, keep))?;
    if keep {
        return Ok(vec![Tensor { output, ..x }]);
    }
    let gone = |at: usize| axes.iter().filter(|&&axis| x.order[axis] < at).count();
    let left = (0..x.rank()).filter(|axis| !axes.contains(axis));
    let order = left.map(|axis| x.order[axis] - gone(x.order[axis])).collect();
    Ok(vec![Tensor { output, order }])
}

pub(super) fn mean(call: &mut Call<'_, '_>) -> Made {
    over(call, |s, name, x, axes, keep| s.mean_over(name, x, axes, keep))
}

pub(super) fn sum(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    if !call.dtype(x.output)?.is_floating() {
        let axes = call.axes("dim", x.rank())?;
        return integers::sum(call, &axes);
    }
    over(call, |s, name, x, axes, keep| s.sum_over(name, x, axes, keep))
}

pub(super) fn max(call: &mut Call<'_, '_>) -> Made {
    over(call, |s, name, x, axes, keep| s.max_over(name, x, axes, keep))
}

/// Σ (x − mean)²/(n − correction).
pub(super) fn variance(call: &mut Call<'_, '_>) -> Made {
    let x = call.plain("self")?;
    let dims = call.dims(&call.tensor("self")?)?;
    let axes = call.axes("dim", dims.len())?;
    let usual = call.number_or("unbiased", 1.0)?;
    let (keep, correction) = (call.is("keepdim"), call.number_or("correction", usual)?);
    // fits: a count of elements, exact in f64
    let count = axes.iter().map(|&axis| dims[axis]).product::<usize>() as f64;
    let output = call.layer("y", |s, name| {
        let mean = s.mean_over(&format!("{name}/mean"), x, &axes, true)?;
        let centred = s.sub(&format!("{name}/centred"), x, mean)?;
        let squares = s.mul(&format!("{name}/squares"), centred, centred)?;
        let sum = s.sum_over(&format!("{name}/sum"), squares, &axes, keep)?;
        s.scale(name, sum, 1.0 / (count - correction))
    })?;
    Ok(vec![Tensor::plain(output, call.wanted(0)?.len())])
}

/// √Σ x².
pub(super) fn norm(call: &mut Call<'_, '_>) -> Made {
    if call.number_or("ord", 2.0)? != 2.0 {
        return call.refuse("only the norm of 2 is known; write another by abs, pow and sum");
    }
    let x = call.plain("self")?;
    let axes = call.axes("dim", call.tensor("self")?.rank())?;
    let keep = call.is("keepdim");
    let output = call.layer("y", |s, name| {
        let squares = s.mul(&format!("{name}/squares"), x, x)?;
        let sum = s.sum_over(&format!("{name}/sum"), squares, &axes, keep)?;
        s.sqrt(name, sum)
    })?;
    Ok(vec![Tensor::plain(output, call.wanted(0)?.len())])
}

/// x with dimension `dim` as the last in memory.
fn along(call: &mut Call<'_, '_>) -> Result<Tensor> {
    let x = call.tensor("self")?;
    let axis = call.axis(call.int("dim")?, x.rank())?;
    let (at, last) = (x.order[axis], x.rank().saturating_sub(1));
    if at == last {
        return Ok(x);
    }
    let moved = |place: usize| match place {
        place if place == at => last,
        place => place - usize::from(place > at),
    };
    let order: Vec<usize> = x.order.iter().map(|&place| moved(place)).collect();
    let output = call.laid(&x, "self", &order)?;
    Ok(Tensor { output, order })
}

pub(super) fn softmax(call: &mut Call<'_, '_>) -> Made {
    let x = along(call)?;
    let output = call.layer("y", |s, name| s.softmax(name, x.output))?;
    Ok(vec![Tensor { output, ..x }])
}

/// log Σ eˣ along the last dimension in memory, which stays as 1, and x less its maximum.
fn summed(call: &mut Call<'_, '_>, x: &Tensor) -> Result<[Output; 3]> {
    let last = x.rank().saturating_sub(1);
    let most = call.layer("most", |s, name| s.max_over(name, x.output, &[last], true))?;
    // it cancels itself: no gradient is lost
    let most = closed(call, "most/closed", most)?;
    call.layer("sum", |s, name| {
        let below = s.sub(&format!("{name}/below"), x.output, most)?;
        let each = s.exp(&format!("{name}/exp"), below)?;
        let sum = s.sum_over(&format!("{name}/sum"), each, &[last], true)?;
        Ok([below, s.log(name, sum)?, most])
    })
}

pub(super) fn log_softmax(call: &mut Call<'_, '_>) -> Made {
    let x = along(call)?;
    let [below, sum, _] = summed(call, &x)?;
    let output = call.layer("y", |s, name| s.sub(name, below, sum))?;
    Ok(vec![Tensor { output, ..x }])
}

pub(super) fn log_sum_exp(call: &mut Call<'_, '_>) -> Made {
    let [dim] = call.ints("dim")?[..] else {
        return call.refuse("only one dimension is known; flatten those that are meant");
    };
    let x = call.tensor("self")?;
    let axis = call.axis(dim, x.rank())?;
    let mut permutation: Vec<usize> = (0..x.rank()).filter(|&other| other != axis).collect();
    permutation.push(axis);
    let x = x.permuted(&permutation);
    let x = Tensor::plain(call.as_plain(&x, "self")?, x.rank());
    let [_, sum, most] = summed(call, &x)?;
    let y = call.layer("whole", |s, name| s.add(name, sum, most))?;
    Ok(vec![call.reshaped("y", y)?])
}
