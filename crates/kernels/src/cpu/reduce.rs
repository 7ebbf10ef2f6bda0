//! Loops that make few elements of many.

use pulp::NullaryFnOnce;

use super::pool::Pool;
use super::simd::SimdProof;
use crate::real::Real;

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
