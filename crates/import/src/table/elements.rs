//! Functions of elements, comparisons, and what leaves a tensor as it is.

use tensorwire_nn::{Comparison, DType, Op, Output, Scope, Unary};

use crate::call::Call;
use crate::error::Result;
use crate::module::Argument;
use crate::operators::{Gate, Integers, Turn, Two};
use crate::order::Tensor;
use crate::table::integers;

type Made = Result<Vec<Tensor>>;

/// A function of each element, wherever it lies.
fn each(
    call: &mut Call<'_, '_>,
    f: impl FnOnce(&mut Scope<'_>, &str, Output) -> tensorwire_nn::Result<Output>,
) -> Made {
    let x = call.tensor(if call.given("input").is_some() { "input" } else { "self" })?;
    let output = call.layer("y", |s, name| f(s, name, x.output))?;
    Ok(vec![Tensor { output, ..x }])
}

fn unary(call: &mut Call<'_, '_>, by: Unary) -> Made {
    each(call, |s, name, x| s.unary(name, by, x))
}

pub(super) fn relu(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.relu(name, x))
}

pub(super) fn sigmoid(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.sigmoid(name, x))
}

pub(super) fn tanh(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.tanh(name, x))
}

pub(super) fn gelu(call: &mut Call<'_, '_>) -> Made {
    let by = if call.text("approximate") == "tanh" { Unary::GeluTanh } else { Unary::Gelu };
    unary(call, by)
}

pub(super) fn silu(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Silu)
}

pub(super) fn softplus(call: &mut Call<'_, '_>) -> Made {
    if call.number_or("beta", 1.0)? != 1.0 {
        return call.refuse("only a beta of 1 is known; multiply before and divide behind it");
    }
    unary(call, Unary::Softplus)
}

pub(super) fn mish(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| {
        let y = s.softplus(name, x)?;
        let y = s.tanh(name, y)?;
        s.mul(name, x, y)
    })
}

pub(super) fn hardtanh(call: &mut Call<'_, '_>) -> Made {
    let (least, most) = (call.number("min_val")?, call.number("max_val")?);
    each(call, |s, name, x| s.clamp(name, x, least, most))
}

pub(super) fn relu6(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.clamp(name, x, 0.0, 6.0))
}

/// relu6(x + 3)/6.
fn hard_step(s: &mut Scope<'_>, name: &str, x: Output) -> tensorwire_nn::Result<Output> {
    let three = s.constant(&format!("{name}/three"), 3.0, &[])?;
    let y = s.add(&format!("{name}/moved"), x, three)?;
    let y = s.clamp(&format!("{name}/clamped"), y, 0.0, 6.0)?;
    s.scale(&format!("{name}/step"), y, 1.0 / 6.0)
}

pub(super) fn hardsigmoid(call: &mut Call<'_, '_>) -> Made {
    each(call, hard_step)
}

pub(super) fn hardswish(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| {
        let step = hard_step(s, name, x)?;
        s.mul(name, x, step)
    })
}

/// relu(x) − slope·relu(−x).
pub(super) fn leaky_relu(call: &mut Call<'_, '_>) -> Made {
    let slope = call.number("negative_slope")?;
    each(call, |s, name, x| {
        let above = s.relu(name, x)?;
        let below = s.neg(&format!("{name}/negative"), x)?;
        let below = s.relu(&format!("{name}/below"), below)?;
        let below = s.scale(&format!("{name}/sloped"), below, slope)?;
        s.sub(name, above, below)
    })
}

pub(super) fn exp(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Exp)
}

pub(super) fn log(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Log)
}

pub(super) fn exp_minus_one(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| {
        let (y, one) =
            (s.exp(&format!("{name}/exp"), x)?, s.constant(&format!("{name}/1"), 1.0, &[])?);
        s.sub(name, y, one)
    })
}

pub(super) fn log_of_one_more(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| {
        let one = s.constant(&format!("{name}/1"), 1.0, &[])?;
        let more = s.add(&format!("{name}/more"), x, one)?;
        s.log(name, more)
    })
}

pub(super) fn sqrt(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Sqrt)
}

pub(super) fn rsqrt(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Rsqrt)
}

pub(super) fn abs(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Abs)
}

pub(super) fn neg(call: &mut Call<'_, '_>) -> Made {
    match is_integral(call, "self")? {
        true => {
            let Tensor { output, order } = call.tensor("self")?;
            let zero = call.filled("zero", 0.0, output, &[])?;
            integers::of_two(call, "y", Two::Sub, Pair { a: zero, b: output, order })
        }
        false => unary(call, Unary::Neg),
    }
}

pub(super) fn reciprocal(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Pow { exponent: -1.0 })
}

pub(super) fn square(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.mul(name, x, x))
}

fn turn(call: &mut Call<'_, '_>, by: Turn) -> Made {
    each(call, |s, name, x| s.op(name, by.op(), &[x]))
}

pub(super) fn sin(call: &mut Call<'_, '_>) -> Made {
    turn(call, Turn::Sine)
}

pub(super) fn cos(call: &mut Call<'_, '_>) -> Made {
    turn(call, Turn::Cosine)
}

pub(super) fn pow(call: &mut Call<'_, '_>) -> Made {
    match call.number("exponent")? {
        2.0 => square(call),
        0.5 => sqrt(call),
        exponent => unary(call, Unary::Pow { exponent }),
    }
}

pub(super) fn clamp(call: &mut Call<'_, '_>) -> Made {
    let least = call.number_or("min", f64::NEG_INFINITY)?;
    let most = call.number_or("max", f64::INFINITY)?;
    if !is_integral(call, "self")? {
        return each(call, |s, name, x| s.clamp(name, x, least, most));
    }
    let mut y = call.tensor("self")?;
    for (what, by, limit) in [("min", Two::Max, least), ("max", Two::Min, most)] {
        if limit.is_finite() {
            let b = call.filled(&format!("{what}/limit"), limit, y.output, &[])?;
            let pair = Pair { a: y.output, b, order: y.order.clone() };
            y = integers::of_two(call, what, by, pair)?.remove(0);
        }
    }
    Ok(vec![y])
}

/// True if the argument of this name is a tensor of integers or of what says yes or no.
fn is_integral(call: &Call<'_, '_>, name: &str) -> Result<bool> {
    match call.tensor_or_none(name)? {
        Some(x) => Ok(!call.dtype(x.output)?.is_floating()),
        None => Ok(false),
    }
}

/// Two operands that are broadcast, with their dimensions in one order.
pub(super) struct Pair {
    pub(super) a: Output,
    pub(super) b: Output,
    pub(super) order: Vec<usize>,
}

/// The operands of these names; one of them may be a number. Integers, and what says yes or no, become numbers beside numbers.
pub(super) fn pair(call: &mut Call<'_, '_>, [a, b]: [&str; 2]) -> Result<Pair> {
    let [x, y] = match (call.tensor_or_none(a)?, call.tensor_or_none(b)?) {
        (Some(x), Some(y)) => [x, y],
        (Some(x), None) => {
            let (x, number) = beside_number(call, (a, x), b)?;
            [x, number]
        }
        (None, Some(y)) => {
            let (y, number) = beside_number(call, (b, y), a)?;
            [number, y]
        }
        (None, None) => return call.refuse("two numbers; one tensor is needed"),
    };
    let order = match (x.rank(), y.rank()) {
        (_, 0) => x.order.clone(),
        (0, _) => y.order.clone(),
        (of_x, of_y) if of_x == of_y => {
            // the larger stays as it is
            let [large, small] =
                [call.dims(&x)?, call.dims(&y)?].map(|dims| dims.iter().product::<usize>());
            if large >= small { x.order.clone() } else { y.order.clone() }
        }
        (of_x, of_y) => (0..of_x.max(of_y)).collect(),
    };
    let mut lay = |tensor: &Tensor, what: &str| match tensor.rank() == order.len() {
        true => call.laid(tensor, what, &order),
        false => call.as_plain(tensor, what),
    };
    let (x, y) = (lay(&x, a)?, lay(&y, b)?);
    let (a, b) = (beside(call, a, x, y)?, beside(call, b, y, x)?);
    Ok(Pair { a, b, order })
}

/// A tensor and the number that an argument is, of one type.
fn beside_number(
    call: &mut Call<'_, '_>,
    (what, mut x): (&str, Tensor),
    name: &str,
) -> Result<(Tensor, Tensor)> {
    let number = call.number(name)?;
    if makes_numbers(call) || number.fract() != 0.0 {
        x.output = integers::as_number(call, what, x.output)?;
    } else if makes_integers(call) {
        x.output = integers::as_integer(call, what, x.output)?;
    }
    let output = call.filled(name, number, x.output, &[])?;
    Ok((x, Tensor::plain(output, 0)))
}

fn makes_numbers(call: &Call<'_, '_>) -> bool {
    matches!(call.node.outputs.first(), Some(Some(shape)) if shape.dtype.is_floating())
}

fn makes_integers(call: &Call<'_, '_>) -> bool {
    matches!(call.node.outputs.first(), Some(Some(shape)) if shape.dtype == DType::I32)
}

/// x in the type that it has beside `other`: a number if one of them is or becomes one, else an integer if one of them is.
fn beside(call: &mut Call<'_, '_>, what: &str, x: Output, other: Output) -> Result<Output> {
    let other = call.dtype(other)?;
    if makes_numbers(call) || other.is_floating() {
        return integers::as_number(call, what, x);
    }
    match makes_integers(call) || other == DType::I32 {
        true => integers::as_integer(call, what, x),
        false => Ok(x),
    }
}

/// 1 where a tensor of `u8` is not 0, else 0, in the type of `like`.
pub(super) fn truth_as_number(
    call: &mut Call<'_, '_>,
    what: &str,
    x: Output,
    like: Output,
) -> Result<Output> {
    let one = call.filled(&format!("{what}/one"), 1.0, like, &[])?;
    let zero = call.filled(&format!("{what}/zero"), 0.0, like, &[])?;
    call.layer(&format!("{what}/number"), |s, name| s.select(name, x, one, zero))
}

/// A function of two numbers, or, where it is one, of two integers.
fn arithmetic(
    call: &mut Call<'_, '_>,
    (names, integral): ([&str; 2], Option<Two>),
    f: impl FnOnce(&mut Scope<'_>, &str, Output, Output) -> tensorwire_nn::Result<Output>,
) -> Made {
    let pair = pair(call, names)?;
    match (call.dtype(pair.a)?, integral) {
        (DType::I32, Some(by)) => integers::of_two(call, "y", by, pair),
        (DType::U8, Some(Two::Mul)) => logical(call, pair, Comparison::Greater),
        _ => of_pair(call, pair, f),
    }
}

fn of_pair(
    call: &mut Call<'_, '_>,
    Pair { a, b, order }: Pair,
    f: impl FnOnce(&mut Scope<'_>, &str, Output, Output) -> tensorwire_nn::Result<Output>,
) -> Made {
    let output = call.layer("y", |s, name| f(s, name, a, b))?;
    Ok(vec![Tensor { output, order }])
}

/// `alpha` times the second operand, if it is another than 1.
fn times_alpha(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    alpha: f64,
) -> tensorwire_nn::Result<Output> {
    if alpha == 1.0 { Ok(x) } else { s.scale(&format!("{name}/alpha"), x, alpha) }
}

pub(super) const BOTH: [&str; 2] = ["self", "other"];

/// `by`, if the second operand is not multiplied before.
fn without_alpha(by: Two, alpha: f64) -> Option<Two> {
    (alpha == 1.0).then_some(by)
}

pub(super) fn add(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    arithmetic(call, (BOTH, without_alpha(Two::Add, alpha)), |s, name, a, b| {
        let b = times_alpha(s, name, b, alpha)?;
        s.add(name, a, b)
    })
}

pub(super) fn sub(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    arithmetic(call, (BOTH, without_alpha(Two::Sub, alpha)), |s, name, a, b| {
        let b = times_alpha(s, name, b, alpha)?;
        s.sub(name, a, b)
    })
}

pub(super) fn rsub(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    let turned = ["other", "self"];
    arithmetic(call, (turned, without_alpha(Two::Sub, alpha)), |s, name, b, a| {
        let a = times_alpha(s, name, a, alpha)?;
        s.sub(name, b, a)
    })
}

pub(super) fn mul(call: &mut Call<'_, '_>) -> Made {
    match call.given("other").and_then(Argument::number) {
        Some(by) if !is_integral(call, "self")? => each(call, |s, name, x| s.scale(name, x, by)),
        _ => arithmetic(call, (BOTH, Some(Two::Mul)), |s, name, a, b| s.mul(name, a, b)),
    }
}

pub(super) fn div(call: &mut Call<'_, '_>) -> Made {
    match call.given("other").and_then(Argument::number) {
        Some(by) if !is_integral(call, "self")? => {
            each(call, |s, name, x| s.scale(name, x, 1.0 / by))
        }
        _ => arithmetic(call, (BOTH, None), |s, name, a, b| s.div(name, a, b)),
    }
}

pub(super) fn maximum(call: &mut Call<'_, '_>) -> Made {
    arithmetic(call, (BOTH, Some(Two::Max)), |s, name, a, b| s.maximum(name, a, b))
}

pub(super) fn at_least(call: &mut Call<'_, '_>) -> Made {
    arithmetic(call, (["self", "min"], Some(Two::Max)), |s, name, a, b| s.maximum(name, a, b))
}

pub(super) fn minimum(call: &mut Call<'_, '_>) -> Made {
    arithmetic(call, (BOTH, Some(Two::Min)), |s, name, a, b| s.minimum(name, a, b))
}

fn compare(call: &mut Call<'_, '_>, by: Comparison) -> Made {
    arithmetic(call, (BOTH, None), |s, name, a, b| s.compare(name, by, a, b))
}

pub(super) fn equal(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::Equal)
}

pub(super) fn not_equal(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::NotEqual)
}

pub(super) fn less(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::Less)
}

pub(super) fn less_equal(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::LessEqual)
}

pub(super) fn greater(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::Greater)
}

pub(super) fn greater_equal(call: &mut Call<'_, '_>) -> Made {
    compare(call, Comparison::GreaterEqual)
}

/// 1 where `x` is 0, else 0.
fn is_zero(call: &mut Call<'_, '_>, what: &str, x: Output) -> Result<Output> {
    let zero = call.filled(&format!("{what}/zero"), 0.0, x, &[])?;
    call.layer(what, |s, name| s.compare(name, Comparison::Equal, x, zero))
}

pub(super) fn not(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let output = is_zero(call, "y", x.output)?;
    Ok(vec![Tensor { output, ..x }])
}

/// a > ¬b and a ≥ ¬b, of what is 0 or 1.
fn logical(call: &mut Call<'_, '_>, Pair { a, b, order }: Pair, by: Comparison) -> Made {
    if call.dtype(a)? != DType::U8 || call.dtype(b)? != DType::U8 {
        return call.refuse("only tensors of bool are known here");
    }
    let not_b = is_zero(call, "not", b)?;
    let output = call.layer("y", |s, name| s.compare(name, by, a, not_b))?;
    Ok(vec![Tensor { output, order }])
}

pub(super) fn and(call: &mut Call<'_, '_>) -> Made {
    let pair = pair(call, BOTH)?;
    logical(call, pair, Comparison::Greater)
}

pub(super) fn or(call: &mut Call<'_, '_>) -> Made {
    let pair = pair(call, BOTH)?;
    logical(call, pair, Comparison::GreaterEqual)
}

pub(super) fn select(call: &mut Call<'_, '_>) -> Made {
    let condition = call.plain("condition")?;
    let Pair { a, b, order } = pair(call, BOTH)?;
    let all = Tensor { output: a, order };
    if !all.is_plain() {
        let [x, y] = BOTH.map(|name| call.plain(name));
        return chosen(call, condition, x?, y?);
    }
    chosen(call, condition, a, b)
}

pub(super) fn masked_fill(call: &mut Call<'_, '_>) -> Made {
    let (x, mask) = (call.plain("self")?, call.plain("mask")?);
    let value = match call.tensor_or_none("value")? {
        Some(_) => call.plain("value")?,
        None => {
            let value = call.number("value")?;
            call.filled("value", value, x, &[])?
        }
    };
    chosen(call, mask, value, x)
}

fn chosen(call: &mut Call<'_, '_>, condition: Output, a: Output, b: Output) -> Made {
    if !call.dtype(a)?.is_floating() {
        return integers::chosen(call, condition, [a, b]);
    }
    let output = call.layer("y", |s, name| s.select(name, condition, a, b))?;
    let rank = call.wanted(0)?.len();
    Ok(vec![Tensor::plain(output, rank)])
}

/// As another type: our graph has one floating type, one of integers, and `u8` for bool.
pub(super) fn cast(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    Ok(vec![cast_of(call, x)?])
}

/// x in the type that PyTorch gave of the output.
pub(super) fn cast_of(call: &mut Call<'_, '_>, x: Tensor) -> Result<Tensor> {
    let Some(Some(shape)) = call.node.outputs.first() else { return Ok(x) };
    let (from, to) = (call.dtype(x.output)?, shape.dtype);
    let output = match (from, to) {
        _ if from == to || from.is_floating() && to.is_floating() => x.output,
        (_, DType::U8) => {
            let zero = call.filled("cast/zero", 0.0, x.output, &[])?;
            call.layer("cast", |s, name| s.compare(name, Comparison::NotEqual, x.output, zero))?
        }
        (_, to) if to.is_floating() => integers::as_number(call, "cast", x.output)?,
        (_, DType::I32) => call.op("cast", Integers::OfNumbers.op(), &[x.output])?,
        _ => {
            return call.refuse(format!(
                "{from} as {to} is not known; have the data hold {to} in the first place"
            ));
        }
    };
    Ok(Tensor { output, ..x })
}

pub(super) fn same(call: &mut Call<'_, '_>) -> Made {
    Ok(vec![call.tensor("self")?])
}

pub(super) fn detach(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let output = closed(call, "y", x.output)?;
    Ok(vec![Tensor { output, ..x }])
}

/// x, through which no gradient flows.
pub(super) fn closed(call: &mut Call<'_, '_>, what: &str, x: Output) -> Result<Output> {
    if !call.dtype(x)?.is_floating() {
        return Ok(x);
    }
    let fact = call.ok(call.s.fact(x).cloned())?;
    let dims = call.dims(&Tensor::plain(x, fact.dims.len()))?;
    let spec = tensorwire_tensor::TensorSpec::new(DType::U8, &dims);
    let spec = spec.or_else(|error| call.refuse(error.to_string()))?;
    let shut = call.op(&format!("{what}/shut"), Op::Fill { value: 0.0, spec }, &[])?;
    call.op(what, Gate::op(), &[x, shut])
}
