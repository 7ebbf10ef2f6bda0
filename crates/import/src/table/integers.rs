//! What is made of integers and of truths: functions of two, sums, places. A truth is 0 or 1 of `u8`.

use tensorwire_nn::{DType, Output};

use crate::call::Call;
use crate::error::Result;
use crate::operators::{Integers, Two};
use crate::order::Tensor;
use crate::table::elements::{self, Pair};

type Made = Result<Vec<Tensor>>;

/// x as an integer, if it says yes or no.
pub(super) fn as_integer(call: &mut Call<'_, '_>, what: &str, x: Output) -> Result<Output> {
    match call.dtype(x)? {
        DType::U8 => call.op(&format!("{what}/integer"), Integers::OfNumbers.op(), &[x]),
        _ => Ok(x),
    }
}

/// x as a number, if it is an integer or says yes or no.
pub(super) fn as_number(call: &mut Call<'_, '_>, what: &str, x: Output) -> Result<Output> {
    match call.dtype(x)? {
        DType::I32 => {
            let dtype = call.s.dtype();
            call.op(&format!("{what}/number"), Integers::AsNumbers { dtype }.op(), &[x])
        }
        DType::U8 => {
            let what = format!("{what}/number");
            let like = call.layer(&format!("{what}/like"), |s, name| s.zeros(name, &[]))?;
            elements::truth_as_number(call, &what, x, like)
        }
        _ => Ok(x),
    }
}

/// A function of two integers, with their dimensions as PyTorch gave those of the output.
pub(super) fn of_two(call: &mut Call<'_, '_>, what: &str, by: Two, pair: Pair) -> Made {
    let Pair { a, b, order } = pair;
    let wanted = call.wanted(0)?;
    let mut dims = vec![0; order.len()];
    order.iter().zip(&wanted).for_each(|(&at, &size)| dims[at] = size);
    let [a, b] = [("self", a), ("other", b)].map(|(side, x)| {
        let side = format!("{what}/{side}");
        let x = as_integer(call, &side, x)?;
        repeated(call, &side, x, &dims)
    });
    let output = call.op(what, Integers::Two(by).op(), &[a?, b?])?;
    Ok(vec![Tensor { output, order }])
}

/// x repeated to these dimensions.
fn repeated(call: &mut Call<'_, '_>, what: &str, x: Output, dims: &[usize]) -> Result<Output> {
    let rank = call.ok(call.s.fact(x))?.dims.len();
    match call.dims(&Tensor::plain(x, rank))? == dims {
        true => Ok(x),
        false => call.layer(&format!("{what}/repeated"), |s, name| s.expand(name, x, dims)),
    }
}

/// The condition's choice among integers or truths, of any shapes that fit.
pub(super) fn chosen(call: &mut Call<'_, '_>, condition: Output, [a, b]: [Output; 2]) -> Made {
    let wanted = call.wanted(0)?;
    let all = [("condition", condition), ("a", a), ("b", b)];
    let [condition, a, b] = all.map(|(what, x)| repeated(call, what, x, &wanted));
    let output = call.op("y", Integers::Select.op(), &[condition?, a?, b?])?;
    Ok(vec![Tensor::plain(output, wanted.len())])
}

const ROUNDED: &str = "only integers are divided with rounding here; divide without, or detach it";

pub(super) fn floor_divide(call: &mut Call<'_, '_>) -> Made {
    let pair = elements::pair(call, elements::BOTH)?;
    match call.dtype(pair.a)?.is_floating() {
        true => call.refuse(ROUNDED),
        false => of_two(call, "y", Two::Divide, pair),
    }
}

pub(super) fn div_rounded(call: &mut Call<'_, '_>) -> Made {
    match call.text("rounding_mode") {
        "" => elements::div(call),
        "floor" => floor_divide(call),
        _ => call.refuse(ROUNDED),
    }
}

pub(super) fn remainder(call: &mut Call<'_, '_>) -> Made {
    let pair = elements::pair(call, elements::BOTH)?;
    match call.dtype(pair.a)?.is_floating() {
        true => {
            call.refuse("only the remainder of integers is known; write it by what has a gradient")
        }
        false => of_two(call, "y", Two::Remainder, pair),
    }
}

/// The sums of all up to each.
pub(super) fn cumulate(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let axis = x.order[call.axis(call.int("dim")?, x.rank())?];
    let integers = as_integer(call, "self", x.output)?;
    let output = call.op("y", Integers::Cumulate { axis }.op(), &[integers])?;
    Ok(vec![Tensor { output, ..x }])
}

/// Sums of integers over `axes`.
pub(super) fn sum(call: &mut Call<'_, '_>, axes: &[usize]) -> Made {
    let x = call.tensor("self")?;
    let mut y = as_integer(call, "self", x.output)?;
    let mut at: Vec<usize> = axes.iter().map(|&axis| x.order[axis]).collect();
    at.sort_unstable();
    for axis in at.into_iter().rev() {
        y = call.op(&format!("over_{axis}"), Integers::Sum { axis }.op(), &[y])?;
    }
    let left: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
    // what is left, in the module's order
    let place = |axis: usize| left.iter().filter(|&&other| x.order[other] < x.order[axis]).count();
    let order = left.iter().map(|&axis| place(axis)).collect();
    let y = call.as_plain(&Tensor { output: y, order }, "left")?;
    Ok(vec![call.reshaped("y", y)?])
}

/// The place of the largest along a dimension, or of all.
pub(super) fn largest(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let (output, axis) = match call.given("dim") {
        Some(_) => (call.as_plain(&x, "self")?, call.axis(call.int("dim")?, x.rank())?),
        None => {
            let plain = call.as_plain(&x, "self")?;
            let all = call.dims(&x)?.iter().product();
            (call.layer("flat", |s, name| s.reshape(name, plain, &[all]))?, 0)
        }
    };
    let places = call.op("places", Integers::Largest { axis }.op(), &[output])?;
    Ok(vec![call.reshaped("y", places)?])
}
