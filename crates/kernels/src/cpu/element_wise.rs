//! Element by element: loops over pieces.

use tensorwire_graph::dropout_keeps;
use tensorwire_tensor::Element;

use super::update::Folded;
use super::{Cpu, map, pool};
use crate::launch::Source;
use crate::launch::element_wise::{ElementWise, Mask};
use crate::real::{Floating, Real, cast};

impl ElementWise for Cpu {
    fn fill<T: Element>(&self, value: T, y: &mut [T]) {
        self.pool.each_chunk(y, |_, y| y.fill(value));
    }

    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]) {
        let rows = pool::CHUNK.div_ceil(bias.len().max(1));
        self.pool.each_chunk_of(y, rows * bias.len().max(1), |start, y| {
            let x = x.part(start, y.len());
            self.simd.run(map::RowWise { x, row: bias, y, f: |x, bias| x + bias });
        });
    }

    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        let f = |x: T| if x <= T::zero() { T::zero() } else { x };
        self.map_one(x, y, f);
    }

    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        let f = |dy: T, y: T| if y > T::zero() { dy } else { T::zero() };
        self.map_two(dy, y, dx, f);
    }

    fn sigmoid<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        self.map_one(x, y, |x| x.fast_sigmoid());
    }

    fn sigmoid_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        self.map_two(dy, y, dx, |dy, y| dy * y * (T::one() - y));
    }

    fn tanh<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        self.map_one(x, y, |x| x.fast_tanh());
    }

    fn tanh_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        self.map_two(dy, y, dx, |dy, y| dy * (T::one() - y * y));
    }

    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.map_two(a, b, y, |a, b| a + b);
    }

    fn mean<T: Real>(&self, share: T, parts: &[&[T]], y: &mut [T]) {
        self.pool.each_chunk(y, |start, y| self.simd.run(Folded { share, parts, start, y }));
    }

    fn sub<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.map_two(a, b, y, |a, b| a - b);
    }

    fn mul<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.map_two(a, b, y, |a, b| a * b);
    }

    fn div<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.map_two(a, b, y, |a, b| a / b);
    }

    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]) {
        self.map_one(x, y, |x| x * scale);
    }

    fn dropout<T: Real>(&self, mask: Mask, x: Source<'_, T>, y: &mut [T]) {
        let Mask { rate, key, step } = mask;
        let kept = T::narrow(1.0 - rate);
        let f = |i: usize, x: T| match dropout_keeps(key, step, i as u64, rate) {
            true => x / kept,
            false => T::zero(),
        };
        self.pool.each_chunk(y, |start, y| {
            self.simd.run(map::Numbered { x: x.part(start, y.len()), start, y, f });
        });
    }

    fn cast<S: Floating, D: Floating>(&self, x: &[S], y: &mut [D]) {
        self.pool.each_chunk(y, |start, y| {
            self.simd.run(map::Cast { x: &x[start..][..y.len()], y, f: cast });
        });
    }
}

impl Cpu {
    pub(super) fn map_one<T: Real>(
        &self,
        x: Source<'_, T>,
        y: &mut [T],
        f: impl Fn(T) -> T + Copy + Sync,
    ) {
        self.pool.each_chunk(y, |start, y| {
            self.simd.run(map::One { x: x.part(start, y.len()), y, f });
        });
    }

    pub(super) fn map_two<T: Real>(
        &self,
        a: Source<'_, T>,
        b: &[T],
        y: &mut [T],
        f: impl Fn(T, T) -> T + Copy + Sync,
    ) {
        self.pool.each_chunk(y, |start, y| {
            let (a, b) = (a.part(start, y.len()), &b[start..][..y.len()]);
            self.simd.run(map::Two { a, b, y, f });
        });
    }
}
