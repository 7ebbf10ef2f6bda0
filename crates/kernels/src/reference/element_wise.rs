//! Element by element.

use tensorwire_graph::dropout_keeps;
use tensorwire_tensor::Element;

use super::Reference;
use crate::launch::Source;
use crate::launch::element_wise::{ElementWise, Mask};
use crate::real::{Floating, Real, cast};

impl ElementWise for Reference {
    fn fill<T: Element>(&self, value: T, y: &mut [T]) {
        for y in y {
            *y = value;
        }
    }

    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]) {
        each(x, y, |i, x| x + bias[i % bias.len()]);
    }

    /// A NaN stays a NaN: a run that has diverged should show it.
    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        each(x, y, |_, x| if x <= T::zero() { T::zero() } else { x });
    }

    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        each(dy, dx, |i, dy| if y[i] > T::zero() { dy } else { T::zero() });
    }

    fn sigmoid<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        each(x, y, |_, x| sigmoid(x));
    }

    fn sigmoid_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        each(dy, dx, |i, dy| dy * y[i] * (T::one() - y[i]));
    }

    fn tanh<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        each(x, y, |_, x| x.tanh());
    }

    fn tanh_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        each(dy, dx, |i, dy| dy * (T::one() - y[i] * y[i]));
    }

    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        each(a, y, |i, a| a + b[i]);
    }

    fn mean<T: Real>(&self, share: T, parts: &[&[T]], y: &mut [T]) {
        for (i, y) in y.iter_mut().enumerate() {
            *y = super::updates::folded(parts, i) * share;
        }
    }

    fn sub<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        each(a, y, |i, a| a - b[i]);
    }

    fn mul<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        each(a, y, |i, a| a * b[i]);
    }

    fn div<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        each(a, y, |i, a| a / b[i]);
    }

    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]) {
        each(x, y, |_, x| x * scale);
    }

    fn dropout<T: Real>(&self, mask: Mask, x: Source<'_, T>, y: &mut [T]) {
        let Mask { rate, key, step } = mask;
        let kept = T::narrow(1.0 - rate);
        each(x, y, |i, x| match dropout_keeps(key, step, i as u64, rate) {
            true => x / kept,
            false => T::zero(),
        });
    }

    fn cast<S: Floating, D: Floating>(&self, x: &[S], y: &mut [D]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = cast(x);
        }
    }
}

pub(super) fn sigmoid<T: Real>(x: T) -> T {
    T::one() / (T::one() + (-x).exp())
}

/// y[i] ← f(i, x[i]) for every i.
pub(super) fn each<T: Real>(x: Source<'_, T>, y: &mut [T], f: impl Fn(usize, T) -> T) {
    for (i, y) in y.iter_mut().enumerate() {
        let x = match x {
            Source::Apart(x) => x[i],
            Source::InPlace => *y,
        };
        *y = f(i, x);
    }
}
