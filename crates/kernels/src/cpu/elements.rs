//! Functions of elements: plain loops of arithmetic without branches, which the compiler vectorises, a piece of
//! the output at a time.

use pulp::NullaryFnOnce;
use tensorwire_graph::{Binary, Comparison, Reduction, Unary};
use tensorwire_tensor::Element;

use super::Cpu;
use super::map::Chosen;
use super::scratch::with_scratch;
use crate::launch::Source;
use crate::launch::elements::{Elements, Side, Sides};
use crate::launch::reductions::{Axis, Reductions};
use crate::real::Real;
use crate::reference::{GELU_CUBE, GELU_SLOPE, binary, clamp, holds, sign};

impl Elements for Cpu {
    fn unary<T: Real>(&self, by: Unary, x: Source<'_, T>, y: &mut [T]) {
        match by {
            Unary::Gelu => self.map_one(x, y, |x| x * normal(x)),
            // ½·(1 + tanh u) = σ(2u)
            Unary::GeluTanh => self.map_one(x, y, |x| x * gelu_argument(x).fast_sigmoid()),
            Unary::Silu => self.map_one(x, y, |x| x * x.fast_sigmoid()),
            Unary::Softplus => self.map_one(x, y, |x| {
                let positive = if x > T::zero() { x } else { T::zero() };
                positive + ln_1p((-x.abs()).fast_exp())
            }),
            Unary::Exp => self.map_one(x, y, |x| x.fast_exp()),
            Unary::Log => self.map_one(x, y, |x| x.fast_ln()),
            Unary::Sqrt => self.map_one(x, y, |x| x.sqrt()),
            Unary::Rsqrt => self.map_one(x, y, |x| T::one() / x.sqrt()),
            Unary::Pow { exponent: 2.0 } => self.map_one(x, y, |x| x * x),
            Unary::Pow { exponent: 3.0 } => self.map_one(x, y, |x| x * x * x),
            Unary::Pow { exponent } => {
                let exponent = T::narrow(exponent);
                self.map_one(x, y, |x| x.powf(exponent));
            }
            Unary::Abs => self.map_one(x, y, |x| x.abs()),
            Unary::Neg => self.map_one(x, y, |x| -x),
            Unary::Clamp { least, most } => {
                let (least, most) = (T::narrow(least), T::narrow(most));
                self.map_one(x, y, |x| clamp(x, least, most));
            }
        }
    }

    fn unary_grad<T: Real>(&self, by: Unary, dy: Source<'_, T>, of: &[T], dx: &mut [T]) {
        match by {
            Unary::Gelu => self.map_two(dy, of, dx, |dy, x| {
                let density = (T::narrow(-0.5) * x * x).fast_exp() * T::narrow(DENSITY);
                dy * (normal(x) + x * density)
            }),
            Unary::GeluTanh => self.map_two(dy, of, dx, |dy, x| dy * gelu_tanh_slope(x)),
            Unary::Silu => self.map_two(dy, of, dx, |dy, x| {
                let s = x.fast_sigmoid();
                dy * (s * (T::one() + x * (T::one() - s)))
            }),
            Unary::Softplus => self.map_two(dy, of, dx, |dy, x| dy * x.fast_sigmoid()),
            Unary::Exp => self.map_two(dy, of, dx, |dy, y| dy * y),
            Unary::Log => self.map_two(dy, of, dx, |dy, x| dy * (T::one() / x)),
            Unary::Sqrt => self.map_two(dy, of, dx, |dy, y| dy * (T::narrow(0.5) / y)),
            Unary::Rsqrt => {
                self.map_two(dy, of, dx, |dy, y| dy * (T::narrow(-0.5) * (y * y * y)));
            }
            Unary::Pow { exponent: 0.0 } => self.map_two(dy, of, dx, |dy, _| dy * T::zero()),
            Unary::Pow { exponent: 2.0 } => self.map_two(dy, of, dx, |dy, x| dy * (x + x)),
            Unary::Pow { exponent } => {
                let (factor, exponent) = (T::narrow(exponent), T::narrow(exponent - 1.0));
                self.map_two(dy, of, dx, |dy, x| dy * (factor * x.powf(exponent)));
            }
            Unary::Abs => self.map_two(dy, of, dx, |dy, x| dy * sign(x)),
            Unary::Neg => self.map_two(dy, of, dx, |dy, _| -dy),
            Unary::Clamp { least, most } => {
                let (least, most) = (T::narrow(least), T::narrow(most));
                self.map_two(dy, of, dx, |dy, x| {
                    let inside = (x >= least) & (x <= most);
                    dy * if inside { T::one() } else { T::zero() }
                });
            }
        }
    }

    fn binary<T: Real>(&self, by: Binary, sides: &Sides<2>, a: &[T], b: &[T], y: &mut [T]) {
        // one loop a function: the compiler sees which
        match by {
            Binary::Add => self.repeated(sides, a, b, y, |a, b| binary(Binary::Add, a, b)),
            Binary::Sub => self.repeated(sides, a, b, y, |a, b| binary(Binary::Sub, a, b)),
            Binary::Mul => self.repeated(sides, a, b, y, |a, b| binary(Binary::Mul, a, b)),
            Binary::Div => self.repeated(sides, a, b, y, |a, b| binary(Binary::Div, a, b)),
            Binary::Max => self.repeated(sides, a, b, y, |a, b| binary(Binary::Max, a, b)),
            Binary::Min => self.repeated(sides, a, b, y, |a, b| binary(Binary::Min, a, b)),
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
        self.repeated(sides, a, b, y, |a, b| u8::from(holds(by, &a, &b)));
    }

    fn select<T: Real>(&self, a: Source<'_, T>, b: &[T], condition: &[u8], y: &mut [T]) {
        self.pool.each_chunk(y, |start, y| {
            let (b, condition) = (&b[start..][..y.len()], &condition[start..][..y.len()]);
            let f = |a: T, b: T, holds: u8| if holds != 0 { a } else { b };
            self.simd.run(Chosen { x: a.part(start, y.len()), other: b, condition, y, f });
        });
    }

    fn select_grad<T: Real>(&self, holds: bool, dy: Source<'_, T>, condition: &[u8], dx: &mut [T]) {
        self.pool.each_chunk(dx, |start, dx| {
            let condition = &condition[start..][..dx.len()];
            let f = |dy: T, _: T, is: u8| if (is != 0) == holds { dy } else { T::zero() };
            let x = dy.part(start, dx.len());
            self.simd.run(Chosen { x, other: &[], condition, y: dx, f });
        });
    }

    fn expand<T: Element>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]) {
        self.pool.each_chunk(y, |start, y| {
            each_run(sides, start, y, |[at], [step], y| match step {
                0 => y.fill(x[at]),
                _ => y.copy_from_slice(&x[at..][..y.len()]),
            });
        });
    }

    /// One dimension after the other, the last first.
    fn sum_to<T: Real>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]) {
        let Some(last) = sides.0.iter().rposition(|side| side.steps == [0]) else {
            return y.copy_from_slice(x);
        };
        let product = |sides: &[Side<1>]| sides.iter().map(|side| side.size).product();
        let (outer, inner) = (&sides.0[..last], &sides.0[last + 1..]);
        let axis =
            Axis { outer: product(outer), length: sides.0[last].size, inner: product(inner) };
        if outer.iter().all(|side| side.steps != [0]) {
            return self.reduce(Reduction::Sum, axis, x, y);
        }
        with_scratch(axis.outer * axis.inner, |part: &mut [T]| {
            self.reduce(Reduction::Sum, axis, x, part);
            self.sum_to(&Sides([outer, inner].concat()), part, y);
        });
    }
}

impl Cpu {
    /// y ← f(a, b), each repeated as the sides say.
    fn repeated<T: Element, D: Send>(
        &self,
        sides: &Sides<2>,
        a: &[T],
        b: &[T],
        y: &mut [D],
        f: impl Fn(T, T) -> D + Copy + Sync,
    ) {
        self.pool.each_chunk(y, |start, y| {
            self.simd.run(Repeated { sides, start, a, b, y, f });
        });
    }
}

/// 1/√(2π).
const DENSITY: f64 = 0.398_942_280_401_432_7;

/// The distribution function of the standard normal distribution.
#[inline(always)]
fn normal<T: Real>(x: T) -> T {
    let error = (x * T::narrow(std::f64::consts::FRAC_1_SQRT_2)).fast_erf();
    T::narrow(0.5) * (T::one() + error)
}

/// 2u, where GELU is approximated by ½x·(1 + tanh u).
#[inline(always)]
fn gelu_argument<T: Real>(x: T) -> T {
    T::narrow(2.0 * GELU_SLOPE) * (x + T::narrow(GELU_CUBE) * x * x * x)
}

#[inline(always)]
fn gelu_tanh_slope<T: Real>(x: T) -> T {
    // from 10 on this is 0 or 1, and the square of what is far is infinite
    let x = clamp(x, T::narrow(-10.0), T::narrow(10.0));
    let s = gelu_argument(x).fast_sigmoid();
    let inner = T::narrow(2.0 * GELU_SLOPE) * (T::one() + T::narrow(3.0 * GELU_CUBE) * x * x);
    s + x * (s * (T::one() - s)) * inner
}

/// log(1 + x) for x in 0..=1: Kahan's, in which the error of 1 + x cancels (Higham 2002, §1.14.1).
#[inline(always)]
fn ln_1p<T: Real>(x: T) -> T {
    let u = T::one() + x;
    let rest = u - T::one();
    let far = u.fast_ln() * (x / rest);
    if rest == T::zero() { x } else { far }
}

/// Elements `start..` of the large tensor, as many as `y` has.
struct Repeated<'a, T, D, F> {
    sides: &'a Sides<2>,
    start: usize,
    a: &'a [T],
    b: &'a [T],
    y: &'a mut [D],
    f: F,
}

impl<T: Copy, D, F: Fn(T, T) -> D> NullaryFnOnce for Repeated<'_, T, D, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Repeated { sides, start, a, b, y, f } = self;
        each_run(sides, start, y, |[at_a, at_b], steps, y| {
            let len = y.len();
            match steps {
                [0, 0] => {
                    for y in y {
                        *y = f(a[at_a], b[at_b]);
                    }
                }
                [0, _] => {
                    let a = a[at_a];
                    for (y, &b) in y.iter_mut().zip(&b[at_b..][..len]) {
                        *y = f(a, b);
                    }
                }
                [_, 0] => {
                    let b = b[at_b];
                    for (y, &a) in y.iter_mut().zip(&a[at_a..][..len]) {
                        *y = f(a, b);
                    }
                }
                _ => {
                    let (a, b) = (&a[at_a..][..len], &b[at_b..][..len]);
                    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                        *y = f(a, b);
                    }
                }
            }
        });
    }
}

/// Cuts `y`, elements `start..` of the large tensor, where its last side ends, and gives `body` each part with its place
/// and its steps in the operands: 0 or 1.
#[inline(always)]
fn each_run<const N: usize, T>(
    sides: &Sides<N>,
    start: usize,
    y: &mut [T],
    mut body: impl FnMut([usize; N], [usize; N], &mut [T]),
) {
    let Some((last, outer)) = sides.0.split_last() else {
        return body([0; N], [1; N], y);
    };
    let (mut at, mut rest) = (start, y);
    while !rest.is_empty() {
        let column = at % last.size;
        let len = rest.len().min(last.size - column);
        let mut places = last.steps.map(|step| column * step);
        let mut row = at / last.size;
        for side in outer.iter().rev() {
            for (place, step) in places.iter_mut().zip(side.steps) {
                *place += row % side.size * step;
            }
            row /= side.size;
        }
        let (run, behind) = rest.split_at_mut(len);
        body(places, last.steps, run);
        (at, rest) = (at + len, behind);
    }
}
