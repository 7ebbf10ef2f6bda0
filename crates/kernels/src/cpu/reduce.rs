//! Loops that make few elements of many.

use pulp::NullaryFnOnce;

use tensorwire_graph::Reduction;

use super::pool::{CHUNK, Pool};
use super::simd::SimdProof;
use super::update::SquareSums;
use super::{Cpu, softmax};
use crate::launch::reductions::{Axis, Reductions, Target};
use crate::real::Real;
use crate::reference::is_max;

/// Columns that one piece of [`sum_rows`] adds up: its sums stay in the L1 cache, and a row's part is
/// a page for the prefetcher. Half as many columns are a third slower, twice as many leave the
/// widest layer of the paper's MLP to one thread.
const COLUMNS: usize = 1024;

/// Elements that one piece of [`reduce_max`] looks at.
const MAX_CHUNK: usize = 1 << 18;

/// Least elements that are worth waking threads for: some 12 µs of one core.
const PARALLEL_MIN: usize = 1 << 18;

/// Running maxima side by side: eight AVX-512 registers of f32. With four, the compiler makes code of
/// a quarter of the speed (30 against 130 GB/s from the L2 cache).
const LANES: usize = 128;

impl Reductions for Cpu {
    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]) {
        sum_rows(&self.pool, self.simd, x, y);
    }

    fn softmax_cross_entropy<T: Real>(
        &self,
        target: Target<T>,
        logits: &[T],
        labels: &[i32],
        dlogits: &mut [T],
    ) -> T {
        softmax::softmax_cross_entropy(&self.pool, self.simd, target, logits, labels, dlogits)
    }

    fn count_within<T: Real>(&self, k: usize, logits: &[T], labels: &[i32]) -> i64 {
        softmax::count_within(&self.pool, self.simd, k, logits, labels)
    }

    fn reduce_max<T: Real>(&self, x: &[T]) -> T {
        reduce_max(&self.pool, self.simd, x)
    }

    fn reduce<T: Real>(&self, by: Reduction, axis: Axis, x: &[T], y: &mut [T]) {
        // pieces of as much of x as others have, and whole vectors of y where these lie side by side
        let chunk = (CHUNK / axis.length.max(1)).max(if axis.inner > 1 { 64 } else { 1 });
        self.pool.split(y, chunk, x.len() >= PARALLEL_MIN, |first, y| {
            self.simd.run(Reduce { by, axis, x, first, y });
        });
    }

    fn reduce_grad<T: Real>(
        &self,
        by: Reduction,
        axis: Axis,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    ) {
        let block = axis.length * axis.inner;
        if block == 0 {
            return;
        }
        let blocks = CHUNK.div_ceil(block);
        self.pool.each_chunk_of(dx, blocks * block, |start, dx| {
            let reduced = start / block * axis.inner..(start + dx.len()) / block * axis.inner;
            let (dy, y, x) = (&dy[reduced.clone()], &y[reduced], &x[start..][..dx.len()]);
            self.simd.run(ReduceGrad { by, axis, dy, x, y, dx });
        });
    }

    fn softmax<T: Real>(&self, columns: usize, x: &[T], y: &mut [T]) {
        softmax::softmax(&self.pool, self.simd, columns, x, y);
    }

    fn square_sums<T: Real>(&self, share: T, columns: usize, gradients: &[&[T]], y: &mut [f64]) {
        let rows = CHUNK.div_ceil(columns);
        self.pool.split(y, rows, y.len() > rows, |first, y| {
            self.simd.run(SquareSums { share, columns, gradients, first, y });
        });
    }

    fn softmax_grad<T: Real>(&self, columns: usize, dy: &[T], y: &[T], dx: &mut [T]) {
        softmax::softmax_grad(&self.pool, self.simd, columns, dy, y, dx);
    }
}

/// y ← the sum of the rows of `x`, each column added in row order from 0.
pub(super) fn sum_rows<T: Real>(pool: &Pool, simd: SimdProof, x: &[T], y: &mut [T]) {
    let columns = y.len();
    pool.split(y, COLUMNS, x.len() >= PARALLEL_MIN, |first, y| {
        simd.run(SumRows { x, columns, first, y });
    });
}

/// The largest element, NaN where one is NaN. Of +0 and −0 either may come.
pub(super) fn reduce_max<T: Real>(pool: &Pool, simd: SimdProof, x: &[T]) -> T {
    let pieces = x.len().div_ceil(MAX_CHUNK);
    let maxima = pool.map_indices(pieces, x.len() >= PARALLEL_MIN, |i| {
        let start = i * MAX_CHUNK;
        simd.run(Max { x: &x[start..x.len().min(start + MAX_CHUNK)] })
    });
    maxima.into_iter().fold(T::neg_infinity(), larger)
}

/// The larger of two, NaN where one is.
#[inline(always)]
fn larger<T: Real>(max: T, x: T) -> T {
    if x > max || x.is_nan() { x } else { max }
}

/// Sums columns `first..first + y.len()` of a matrix with rows of `columns`.
struct SumRows<'a, T> {
    x: &'a [T],
    columns: usize,
    first: usize,
    y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for SumRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let SumRows { x, columns, first, y } = self;
        y.fill(T::zero());
        if y.is_empty() {
            return;
        }
        // four rows at a time: the sums are loaded and stored a quarter as often, the order stays
        let mut fours = x.chunks_exact(4 * columns);
        for rows in &mut fours {
            let row = |r: usize| &rows[r * columns + first..][..y.len()];
            let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
            for (i, y) in y.iter_mut().enumerate() {
                *y = (((*y + r0[i]) + r1[i]) + r2[i]) + r3[i];
            }
        }
        for row in fours.remainder().chunks_exact(columns) {
            for (y, &x) in y.iter_mut().zip(&row[first..]) {
                *y += x;
            }
        }
    }
}

/// The largest element of `x`, −∞ where it is empty.
struct Max<'a, T> {
    x: &'a [T],
}

impl<T: Real> NullaryFnOnce for Max<'_, T> {
    type Output = T;

    #[inline(always)]
    fn call(self) -> T {
        // NaN is looked for apart, which leaves the maximum one instruction
        let mut lanes = [T::neg_infinity(); LANES];
        let mut nan = false;
        let mut blocks = self.x.chunks_exact(LANES);
        for block in &mut blocks {
            for (max, &x) in lanes.iter_mut().zip(block) {
                *max = if x > *max { x } else { *max };
                nan |= x.is_nan();
            }
        }
        if nan {
            return T::nan();
        }
        let rest = blocks.remainder().iter().copied();
        lanes.into_iter().chain(rest).fold(T::neg_infinity(), larger)
    }
}

/// Elements `first..` of the result, as many as `y` has; each is reduced in the order of the dimension.
struct Reduce<'a, T> {
    by: Reduction,
    axis: Axis,
    x: &'a [T],
    first: usize,
    y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Reduce<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Reduce { by, axis: Axis { length, inner, .. }, x, first, y } = self;
        if inner == 1 {
            for (y, x) in y.iter_mut().zip(x[first * length..].chunks_exact(length.max(1))) {
                *y = match by {
                    Reduction::Sum | Reduction::Mean => x.iter().fold(T::zero(), |sum, &x| sum + x),
                    Reduction::Max => x.iter().copied().fold(T::neg_infinity(), larger),
                };
            }
            if length == 0 {
                y.fill(T::zero());
            }
        } else {
            runs(y, first, inner, |outer, column, y| {
                let len = y.len();
                let row = |l: usize| &x[(outer * length + l) * inner + column..][..len];
                let rows = (0..length).map(row);
                match by {
                    Reduction::Sum | Reduction::Mean => {
                        sum_into(rows, y);
                    }
                    Reduction::Max => max_into(rows, y),
                }
            });
        }
        if by == Reduction::Mean {
            let count = T::from_count(length);
            for y in y.iter_mut() {
                *y /= count;
            }
        }
    }
}

#[inline(always)]
fn sum_into<'a, T: Real>(rows: impl Iterator<Item = &'a [T]>, y: &mut [T]) {
    y.fill(T::zero());
    for row in rows {
        for (y, &x) in y.iter_mut().zip(row) {
            *y += x;
        }
    }
}

#[inline(always)]
fn max_into<'a, T: Real>(rows: impl Iterator<Item = &'a [T]>, y: &mut [T]) {
    y.fill(T::neg_infinity());
    for row in rows {
        for (y, &x) in y.iter_mut().zip(row) {
            *y = larger(*y, x);
        }
    }
}

/// Cuts `y`, which starts at element `first` of a matrix with rows of `inner`, at the ends of the rows, and
/// gives `body` each part with its row and first column.
#[inline(always)]
fn runs<T>(y: &mut [T], first: usize, inner: usize, mut body: impl FnMut(usize, usize, &mut [T])) {
    let (mut at, mut rest) = (first, y);
    while !rest.is_empty() {
        let column = at % inner;
        let len = rest.len().min(inner - column);
        let (run, behind) = rest.split_at_mut(len);
        body(at / inner, column, run);
        (at, rest) = (at + len, behind);
    }
}

/// Elements side by side of which the first largest are looked for at a time.
const GRAD_LANES: usize = 64;

/// The gradient of whole blocks of [length, inner].
struct ReduceGrad<'a, T> {
    by: Reduction,
    axis: Axis,
    dy: &'a [T],
    x: &'a [T],
    y: &'a [T],
    dx: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for ReduceGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let ReduceGrad { by, axis: Axis { length, inner, .. }, dy, x, y, dx } = self;
        let blocks = dx.chunks_exact_mut(length * inner).zip(x.chunks_exact(length * inner));
        let reduced = dy.chunks_exact(inner).zip(y.chunks_exact(inner));
        for ((dx, x), (dy, y)) in blocks.zip(reduced) {
            match by {
                Reduction::Sum => {
                    for dx in dx.chunks_exact_mut(inner) {
                        dx.copy_from_slice(dy);
                    }
                }
                Reduction::Mean => {
                    let count = T::from_count(length);
                    for dx in dx.chunks_exact_mut(inner) {
                        for (dx, &dy) in dx.iter_mut().zip(dy) {
                            *dx = dy / count;
                        }
                    }
                }
                Reduction::Max => {
                    for column in (0..inner).step_by(GRAD_LANES) {
                        let lanes = column..inner.min(column + GRAD_LANES);
                        let mut open = [true; GRAD_LANES];
                        let rows = dx.chunks_exact_mut(inner).zip(x.chunks_exact(inner));
                        for (dx, x) in rows {
                            let (dx, x) = (&mut dx[lanes.clone()], &x[lanes.clone()]);
                            let (dy, y) = (&dy[lanes.clone()], &y[lanes.clone()]);
                            for (i, dx) in dx.iter_mut().enumerate() {
                                let here = open[i] & is_max(x[i], y[i]);
                                open[i] &= !here;
                                *dx = if here { dy[i] } else { T::zero() };
                            }
                        }
                    }
                }
            }
        }
    }
}
