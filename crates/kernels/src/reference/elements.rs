//! Functions of elements, one after the other.

use tensorwire_graph::{Binary, Comparison, Unary};
use tensorwire_tensor::Element;

use super::Reference;
use super::element_wise::{each, sigmoid};
use crate::functions::erf;
use crate::launch::Source;
use crate::launch::elements::{Elements, Sides};
use crate::real::Real;

impl Elements for Reference {
    fn unary<T: Real>(&self, by: Unary, x: Source<'_, T>, y: &mut [T]) {
        each(x, y, |_, x| value(by, x));
    }

    fn unary_grad<T: Real>(&self, by: Unary, dy: Source<'_, T>, of: &[T], dx: &mut [T]) {
        each(dy, dx, |i, dy| dy * derivative(by, of[i]));
    }

    fn binary<T: Real>(&self, by: Binary, sides: &Sides<2>, a: &[T], b: &[T], y: &mut [T]) {
        for (i, y) in y.iter_mut().enumerate() {
            let [at_a, at_b] = places(sides, i);
            *y = binary(by, a[at_a], b[at_b]);
        }
    }

    fn compare<T: Element + PartialOrd>(
        &self,
        by: Comparison,
        sides: &Sides<2>,
        a: &[T],
        b: &[T],
        y: &mut [u8],
    ) {
        for (i, y) in y.iter_mut().enumerate() {
            let [at_a, at_b] = places(sides, i);
            *y = u8::from(holds(by, &a[at_a], &b[at_b]));
        }
    }

    fn select<T: Real>(&self, a: Source<'_, T>, b: &[T], condition: &[u8], y: &mut [T]) {
        each(a, y, |i, a| if condition[i] != 0 { a } else { b[i] });
    }

    fn select_grad<T: Real>(&self, holds: bool, dy: Source<'_, T>, condition: &[u8], dx: &mut [T]) {
        each(dy, dx, |i, dy| if (condition[i] != 0) == holds { dy } else { T::zero() });
    }

    fn expand<T: Element>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]) {
        for (i, y) in y.iter_mut().enumerate() {
            let [at] = places(sides, i);
            *y = x[at];
        }
    }

    fn sum_to<T: Real>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]) {
        y.fill(T::zero());
        for (i, &x) in x.iter().enumerate() {
            let [at] = places(sides, i);
            y[at] += x;
        }
    }
}

/// Where element `i` of the large tensor lies in the operands.
fn places<const N: usize>(sides: &Sides<N>, i: usize) -> [usize; N] {
    let (mut rest, mut places) = (i, [0; N]);
    for side in sides.0.iter().rev() {
        for (place, step) in places.iter_mut().zip(side.steps) {
            *place += rest % side.size * step;
        }
        rest /= side.size;
    }
    places
}

fn value<T: Real>(by: Unary, x: T) -> T {
    let one = T::one();
    match by {
        Unary::Gelu => x * normal(x),
        Unary::GeluTanh => T::narrow(0.5) * x * (one + gelu_argument(x).tanh()),
        Unary::Silu => x * sigmoid(x),
        Unary::Softplus => x.max(T::zero()) + (-x.abs()).exp().ln_1p(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => one / x.sqrt(),
        Unary::Pow { exponent } => x.powf(T::narrow(exponent)),
        Unary::Abs => x.abs(),
        Unary::Neg => -x,
        Unary::Clamp { least, most } => clamp(x, T::narrow(least), T::narrow(most)),
    }
}

/// Of the function's value where [`Unary::derives_from_value`] says so.
fn derivative<T: Real>(by: Unary, of: T) -> T {
    let (zero, one) = (T::zero(), T::one());
    match by {
        Unary::Gelu => {
            let density =
                (T::narrow(-0.5) * of * of).exp() / T::narrow(std::f64::consts::TAU.sqrt());
            normal(of) + of * density
        }
        Unary::GeluTanh => {
            let squashed = gelu_argument(of).tanh();
            let rise = one - squashed * squashed;
            let inner = T::narrow(GELU_SLOPE) * (one + T::narrow(3.0 * GELU_CUBE) * of * of);
            let rising = if rise == zero { zero } else { of * rise * inner };
            T::narrow(0.5) * (one + squashed + rising)
        }
        Unary::Silu => {
            let s = sigmoid(of);
            s * (one + of * (one - s))
        }
        Unary::Softplus => sigmoid(of),
        Unary::Exp => of,
        Unary::Log => one / of,
        Unary::Sqrt => T::narrow(0.5) / of,
        Unary::Rsqrt => T::narrow(-0.5) * (of * of * of),
        Unary::Pow { exponent: 0.0 } => zero,
        Unary::Pow { exponent } => T::narrow(exponent) * of.powf(T::narrow(exponent - 1.0)),
        Unary::Abs => sign(of),
        Unary::Neg => -one,
        Unary::Clamp { least, most } => {
            let is_inside = of >= T::narrow(least) && of <= T::narrow(most);
            if is_inside { one } else { zero }
        }
    }
}

/// √(2/π).
pub(crate) const GELU_SLOPE: f64 = 0.797_884_560_802_865_4;

pub(crate) const GELU_CUBE: f64 = 0.044_715;

fn gelu_argument<T: Real>(x: T) -> T {
    T::narrow(GELU_SLOPE) * (x + T::narrow(GELU_CUBE) * x * x * x)
}

/// The distribution function of the standard normal distribution.
fn normal<T: Real>(x: T) -> T {
    // f32 and f64 are numbers of f64
    let wide = x.to_f64().unwrap_or(f64::NAN);
    let error = T::narrow(erf(wide * std::f64::consts::FRAC_1_SQRT_2));
    T::narrow(0.5) * (T::one() + error)
}

/// A NaN stays.
#[inline(always)]
pub(crate) fn clamp<T: Real>(x: T, least: T, most: T) -> T {
    let x = if x < least { least } else { x };
    if x > most { most } else { x }
}

/// 0 at 0 and at NaN.
#[inline(always)]
pub(crate) fn sign<T: Real>(x: T) -> T {
    let positive = if x > T::zero() { T::one() } else { T::zero() };
    if x < T::zero() { -T::one() } else { positive }
}

#[inline(always)]
pub(crate) fn binary<T: Real>(by: Binary, a: T, b: T) -> T {
    match by {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => {
            if a >= b || a.is_nan() {
                a
            } else {
                b
            }
        }
        Binary::Min => {
            if a <= b || a.is_nan() {
                a
            } else {
                b
            }
        }
    }
}

#[inline(always)]
pub(crate) fn holds<T: PartialOrd>(by: Comparison, a: &T, b: &T) -> bool {
    match by {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterEqual => a >= b,
    }
}
