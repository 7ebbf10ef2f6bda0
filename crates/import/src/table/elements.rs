//! Functions of elements, comparisons, and what leaves a tensor as it is.

use tensorwire_nn::{Comparison, DType, Op, Output, Scope, Unary};

use crate::call::Call;
use crate::error::Result;
use crate::module::Argument;
use crate::operators::Gate;
use crate::order::Tensor;

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
    unary(call, Unary::Neg)
}

pub(super) fn reciprocal(call: &mut Call<'_, '_>) -> Made {
    unary(call, Unary::Pow { exponent: -1.0 })
}

pub(super) fn square(call: &mut Call<'_, '_>) -> Made {
    each(call, |s, name, x| s.mul(name, x, x))
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
    each(call, |s, name, x| s.clamp(name, x, least, most))
}

/// Two operands that are broadcast, with their dimensions in one order.
struct Pair {
    a: Output,
    b: Output,
    order: Vec<usize>,
}

/// The operands of these names; one of them may be a number. What says yes or no becomes a number beside numbers.
fn pair(call: &mut Call<'_, '_>, [a, b]: [&str; 2]) -> Result<Pair> {
    let [x, y] = match (call.tensor_or_none(a)?, call.tensor_or_none(b)?) {
        (Some(x), Some(y)) => [x, y],
        (Some(x), None) => {
            let output = call.number(b)?;
            let output = call.filled(b, output, x.output, &[])?;
            [x, Tensor::plain(output, 0)]
        }
        (None, Some(y)) => {
            let output = call.number(a)?;
            let output = call.filled(a, output, y.output, &[])?;
            [Tensor::plain(output, 0), y]
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

/// x, or what it says as a number, if it says yes or no and `other` is a number.
fn beside(call: &mut Call<'_, '_>, what: &str, x: Output, other: Output) -> Result<Output> {
    match call.dtype(x)? == DType::U8 && call.dtype(other)?.is_floating() {
        true => as_number(call, what, x, other),
        false => Ok(x),
    }
}

/// 1 where a tensor of `u8` is not 0, else 0, in the type of `like`.
fn as_number(call: &mut Call<'_, '_>, what: &str, x: Output, like: Output) -> Result<Output> {
    let one = call.filled(&format!("{what}/one"), 1.0, like, &[])?;
    let zero = call.filled(&format!("{what}/zero"), 0.0, like, &[])?;
    call.layer(&format!("{what}/number"), |s, name| s.select(name, x, one, zero))
}

fn of_two(
    call: &mut Call<'_, '_>,
    names: [&str; 2],
    f: impl FnOnce(&mut Scope<'_>, &str, Output, Output) -> tensorwire_nn::Result<Output>,
) -> Made {
    let Pair { a, b, order } = pair(call, names)?;
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

const BOTH: [&str; 2] = ["self", "other"];

pub(super) fn add(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    of_two(call, BOTH, |s, name, a, b| {
        let b = times_alpha(s, name, b, alpha)?;
        s.add(name, a, b)
    })
}

pub(super) fn sub(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    of_two(call, BOTH, |s, name, a, b| {
        let b = times_alpha(s, name, b, alpha)?;
        s.sub(name, a, b)
    })
}

pub(super) fn rsub(call: &mut Call<'_, '_>) -> Made {
    let alpha = call.number_or("alpha", 1.0)?;
    of_two(call, BOTH, |s, name, a, b| {
        let a = times_alpha(s, name, a, alpha)?;
        s.sub(name, b, a)
    })
}

pub(super) fn mul(call: &mut Call<'_, '_>) -> Made {
    match call.given("other").and_then(Argument::number) {
        Some(by) => each(call, |s, name, x| s.scale(name, x, by)),
        None => of_two(call, BOTH, |s, name, a, b| s.mul(name, a, b)),
    }
}

pub(super) fn div(call: &mut Call<'_, '_>) -> Made {
    match call.given("other").and_then(Argument::number) {
        Some(by) => each(call, |s, name, x| s.scale(name, x, 1.0 / by)),
        None => of_two(call, BOTH, |s, name, a, b| s.div(name, a, b)),
    }
}

pub(super) fn maximum(call: &mut Call<'_, '_>) -> Made {
    of_two(call, BOTH, |s, name, a, b| s.maximum(name, a, b))
}

pub(super) fn at_least(call: &mut Call<'_, '_>) -> Made {
    of_two(call, ["self", "min"], |s, name, a, b| s.maximum(name, a, b))
}

pub(super) fn minimum(call: &mut Call<'_, '_>) -> Made {
    of_two(call, BOTH, |s, name, a, b| s.minimum(name, a, b))
}

fn compare(call: &mut Call<'_, '_>, by: Comparison) -> Made {
    of_two(call, BOTH, |s, name, a, b| s.compare(name, by, a, b))
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
fn logical(call: &mut Call<'_, '_>, by: Comparison) -> Made {
    let Pair { a, b, order } = pair(call, BOTH)?;
    if call.dtype(a)? != DType::U8 || call.dtype(b)? != DType::U8 {
        return call.refuse("only tensors of bool are known here");
    }
    let not_b = is_zero(call, "not", b)?;
    let output = call.layer("y", |s, name| s.compare(name, by, a, not_b))?;
    Ok(vec![Tensor { output, order }])
}

pub(super) fn and(call: &mut Call<'_, '_>) -> Made {
    logical(call, Comparison::Greater)
}

pub(super) fn or(call: &mut Call<'_, '_>) -> Made {
    logical(call, Comparison::GreaterEqual)
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
    let output = call.layer("y", |s, name| s.select(name, condition, a, b))?;
    let rank = call.wanted(0)?.len();
    Ok(vec![Tensor::plain(output, rank)])
}

/// Which elements, is ours to draw: from the job's seed, the node's name and the step.
pub(super) fn dropout(call: &mut Call<'_, '_>) -> Made {
    let rate = call.number("p")?;
    match call.is("train") && rate > 0.0 {
        true => each(call, |s, name, x| s.dropout(name, x, rate)),
        false => Ok(vec![call.tensor("input")?]),
    }
}

/// As another type: our graph has one floating type, one of integers, and `u8` for bool.
pub(super) fn cast(call: &mut Call<'_, '_>) -> Made {
    let x = call.tensor("self")?;
    let Some(Some(shape)) = call.node.outputs.first() else { return Ok(vec![x]) };
    let (from, to) = (call.dtype(x.output)?, shape.dtype);
    let output = match (from, to) {
        _ if from == to || from.is_floating() && to.is_floating() => x.output,
        (_, DType::U8) => {
            let zero = call.filled("zero", 0.0, x.output, &[])?;
            call.layer("y", |s, name| s.compare(name, Comparison::NotEqual, x.output, zero))?
        }
        (DType::U8, to) if to.is_floating() => {
            let like = call.layer("like", |s, name| s.zeros(name, &[]))?;
            as_number(call, "y", x.output, like)?
        }
        _ => {
            return call.refuse(format!(
                "{from} as {to} is not known; have the data hold {to} in the first place"
            ));
        }
    };
    Ok(vec![Tensor { output, ..x }])
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
