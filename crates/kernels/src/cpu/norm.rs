//! Normalisations: of a batch, over all rows of a channel, and of responses, over the channels of a row.
//!
//! A channel's statistics are made in one pass over memory: each piece of rows, which fits the L2 cache,
//! finds its sum and its squares around its own mean, and these are put together in the order of the
//! pieces (Chan, Golub and LeVeque 1983).

use pulp::NullaryFnOnce;

use super::pool::{CHUNK, Pool};
use super::scratch::with_scratch;
use super::simd::SimdProof;
use crate::launch::images::ResponseNorm;
use crate::real::Real;

/// Elements of one piece of rows: twice 256 KiB of f32 fit an L2 cache.
const PIECE: usize = 1 << 16;

/// Least elements that are worth waking threads for.
const PARALLEL_MIN: usize = 1 << 16;

/// What a normalisation is given for each channel.
#[derive(Clone, Copy)]
pub(super) struct Given<'a, T> {
    pub(super) epsilon: T,
    pub(super) mean: &'a [T],
    pub(super) variance: &'a [T],
    pub(super) scale: Option<&'a [T]>,
}

impl<T: Real> Given<'_, T> {
    /// 1/√(variance + epsilon).
    fn steepness(&self, channel: usize) -> T {
        T::one() / (self.variance[channel] + self.epsilon).sqrt()
    }

    fn scale(&self, channel: usize) -> T {
        self.scale.map_or(T::one(), |scale| scale[channel])
    }
}

/// Mean and biased variance of each column of `x`, of which there are `mean.len()`.
pub(super) fn statistics<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    x: &[T],
    mean: &mut [T],
    variance: &mut [T],
) {
    let channels = mean.len();
    if channels == 0 {
        return;
    }
    let rows = PIECE.div_ceil(channels);
    let pieces = x.len().div_ceil(rows * channels);
    with_scratch(pieces * 2 * channels, |sums: &mut [T]| {
        pool.split(sums, 2 * channels, x.len() >= PARALLEL_MIN, |start, sums| {
            let first = start / 2 * rows;
            let x = &x[first..x.len().min(first + rows * channels)];
            let (sum, squares) = sums.split_at_mut(channels);
            simd.run(Moments { x, sum, squares });
        });
        let count = |piece: usize| rows.min(x.len() / channels - piece * rows);
        simd.run(Together { sums, count, mean, variance });
    });
}

/// The sum of each column of `x`, and the sum of the squares around the mean of these rows.
struct Moments<'a, T> {
    x: &'a [T],
    sum: &'a mut [T],
    squares: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Moments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Moments { x, sum, squares } = self;
        let channels = sum.len();
        let share = T::one() / T::from_count(x.len() / channels);
        sum.fill(T::zero());
        let mut fours = x.chunks_exact(4 * channels);
        for rows in &mut fours {
            let [r0, r1, r2, r3] = four(rows, channels);
            for (i, sum) in sum.iter_mut().enumerate() {
                *sum += (r0[i] + r1[i]) + (r2[i] + r3[i]);
            }
        }
        for row in fours.remainder().chunks_exact(channels) {
            for (sum, &x) in sum.iter_mut().zip(row) {
                *sum += x;
            }
        }
        squares.fill(T::zero());
        let mut fours = x.chunks_exact(4 * channels);
        for rows in &mut fours {
            let [r0, r1, r2, r3] = four(rows, channels);
            for ((i, squares), &sum) in squares.iter_mut().enumerate().zip(&*sum) {
                let mean = sum * share;
                let square = |x: T| (x - mean) * (x - mean);
                *squares += (square(r0[i]) + square(r1[i])) + (square(r2[i]) + square(r3[i]));
            }
        }
        for row in fours.remainder().chunks_exact(channels) {
            for ((squares, &x), &sum) in squares.iter_mut().zip(row).zip(&*sum) {
                let mean = sum * share;
                *squares += (x - mean) * (x - mean);
            }
        }
    }
}

#[inline(always)]
fn four<T>(rows: &[T], length: usize) -> [&[T]; 4] {
    std::array::from_fn(|row| &rows[row * length..][..length])
}

/// The pieces' sums and squares put together; `count` says how many rows a piece has.
struct Together<'a, T, F> {
    sums: &'a [T],
    count: F,
    mean: &'a mut [T],
    variance: &'a mut [T],
}

impl<T: Real, F: Fn(usize) -> usize> NullaryFnOnce for Together<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Together { sums, count, mean, variance } = self;
        let channels = mean.len();
        mean.fill(T::zero());
        variance.fill(T::zero());
        let mut total = 0;
        for (piece, sums) in sums.chunks_exact(2 * channels).enumerate() {
            for (mean, &sum) in mean.iter_mut().zip(sums) {
                *mean += sum;
            }
            total += count(piece);
        }
        let total = T::from_count(total);
        for mean in mean.iter_mut() {
            *mean /= total;
        }
        for (piece, sums) in sums.chunks_exact(2 * channels).enumerate() {
            let rows = T::from_count(count(piece));
            let (sum, squares) = sums.split_at(channels);
            let channel = variance.iter_mut().zip(&*mean).zip(sum).zip(squares);
            for (((variance, &mean), &sum), &squares) in channel {
                let apart = sum / rows - mean;
                *variance += squares + rows * (apart * apart);
            }
        }
        for variance in variance.iter_mut() {
            *variance /= total;
        }
    }
}

/// y ← (x − mean)/√(variance + epsilon)·scale + shift.
pub(super) fn normalize<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    given: Given<'_, T>,
    x: &[T],
    shift: &[T],
    y: &mut [T],
) {
    let channels = shift.len();
    if y.is_empty() {
        return;
    }
    with_scratch(channels, |factor: &mut [T]| {
        for (channel, factor) in factor.iter_mut().enumerate() {
            *factor = given.steepness(channel) * given.scale(channel);
        }
        let factor = &*factor;
        let rows = CHUNK.div_ceil(channels);
        pool.each_chunk_of(y, rows * channels, |start, y| {
            let x = &x[start..][..y.len()];
            simd.run(Normalized { x, mean: given.mean, factor, shift, y });
        });
    });
}

struct Normalized<'a, T> {
    x: &'a [T],
    mean: &'a [T],
    factor: &'a [T],
    shift: &'a [T],
    y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Normalized<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Normalized { x, mean, factor, shift, y } = self;
        let channels = mean.len();
        let (factor, shift) = (&factor[..channels], &shift[..channels]);
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            for (i, (&x, y)) in x.iter().zip(y).enumerate() {
                *y = (x - mean[i]) * factor[i] + shift[i];
            }
        }
    }
}

/// dx, dscale and dshift as the reference has them, from dy and x.
pub(super) fn batch_norm_grad<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    given: Given<'_, T>,
    [dy, x]: [&[T]; 2],
    dx: &mut [T],
    dscale: Option<&mut [T]>,
    dshift: &mut [T],
) {
    let channels = dshift.len();
    if channels == 0 {
        return;
    }
    let rows = PIECE.div_ceil(channels);
    let pieces = x.len().div_ceil(rows * channels);
    with_scratch((pieces * 2 + 3) * channels, |scratch: &mut [T]| {
        let (sums, coefficients) = scratch.split_at_mut(pieces * 2 * channels);
        pool.split(sums, 2 * channels, x.len() >= PARALLEL_MIN, |start, sums| {
            let first = start / 2 * rows;
            let len = (rows * channels).min(x.len() - first);
            let (of_shift, of_scale) = sums.split_at_mut(channels);
            let (dy, x) = (&dy[first..][..len], &x[first..][..len]);
            simd.run(GradSums { dy, x, mean: given.mean, of_shift, of_scale });
        });
        // Σ dy·(x − mean), for now in the first of the coefficients
        let (of_scale, rest) = coefficients.split_at_mut(channels);
        let (factor, offset) = rest.split_at_mut(channels);
        dshift.fill(T::zero());
        of_scale.fill(T::zero());
        for sums in sums.chunks_exact(2 * channels) {
            for (sum, &part) in dshift.iter_mut().zip(sums) {
                *sum += part;
            }
            for (sum, &part) in of_scale.iter_mut().zip(&sums[channels..]) {
                *sum += part;
            }
        }
        let count = T::from_count(x.len() / channels);
        let mut dscale = dscale;
        for channel in 0..channels {
            let steepness = given.steepness(channel);
            let gradient = of_scale[channel] * steepness;
            if let Some(dscale) = &mut dscale {
                dscale[channel] = gradient;
            }
            factor[channel] = steepness * given.scale(channel);
            offset[channel] = dshift[channel] / count;
            of_scale[channel] = steepness * gradient / count;
        }
        let (slope, factor, offset) = (&*of_scale, &*factor, &*offset);
        pool.each_chunk_of(dx, CHUNK.div_ceil(channels) * channels, |start, dx| {
            let (dy, x) = (&dy[start..][..dx.len()], &x[start..][..dx.len()]);
            simd.run(GradRows { dy, x, mean: given.mean, factor, offset, slope, dx });
        });
    });
}

/// Σ dy and Σ dy·(x − mean) of each column.
struct GradSums<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    mean: &'a [T],
    of_shift: &'a mut [T],
    of_scale: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for GradSums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let GradSums { dy, x, mean, of_shift, of_scale } = self;
        let channels = mean.len();
        let (of_shift, of_scale) = (&mut of_shift[..channels], &mut of_scale[..channels]);
        of_shift.fill(T::zero());
        of_scale.fill(T::zero());
        let mut fours = dy.chunks_exact(4 * channels).zip(x.chunks_exact(4 * channels));
        for (dy, x) in &mut fours {
            let [d0, d1, d2, d3] = four(dy, channels);
            let [x0, x1, x2, x3] = four(x, channels);
            for i in 0..channels {
                let m = mean[i];
                of_shift[i] += (d0[i] + d1[i]) + (d2[i] + d3[i]);
                of_scale[i] += (d0[i] * (x0[i] - m) + d1[i] * (x1[i] - m))
                    + (d2[i] * (x2[i] - m) + d3[i] * (x3[i] - m));
            }
        }
        let rest = x.len() / (4 * channels) * 4 * channels;
        let rows = dy[rest..].chunks_exact(channels).zip(x[rest..].chunks_exact(channels));
        for (dy, x) in rows {
            for (i, (&dy, &x)) in dy.iter().zip(x).enumerate() {
                of_shift[i] += dy;
                of_scale[i] += dy * (x - mean[i]);
            }
        }
    }
}

/// dx ← factor·(dy − offset − (x − mean)·slope).
struct GradRows<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    mean: &'a [T],
    factor: &'a [T],
    offset: &'a [T],
    slope: &'a [T],
    dx: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for GradRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let GradRows { dy, x, mean, factor, offset, slope, dx } = self;
        let channels = mean.len();
        let (factor, offset) = (&factor[..channels], &offset[..channels]);
        let slope = &slope[..channels];
        let rows = dy.chunks_exact(channels).zip(x.chunks_exact(channels));
        for ((dy, x), dx) in rows.zip(dx.chunks_exact_mut(channels)) {
            for (i, ((&dy, &x), dx)) in dy.iter().zip(x).zip(dx).enumerate() {
                *dx = factor[i] * (dy - offset[i] - (x - mean[i]) * slope[i]);
            }
        }
    }
}

/// y ← x·(bias + alpha·Σ x²)^−beta.
pub(super) fn response_norm<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    norm: ResponseNorm<T>,
    x: &[T],
    y: &mut [T],
) {
    let channels = norm.channels;
    if y.is_empty() {
        return;
    }
    pool.each_chunk_of(y, CHUNK.div_ceil(channels) * channels, |start, y| {
        let x = &x[start..][..y.len()];
        with_scratch(padded(norm) + channels, |scratch: &mut [T]| {
            scratch.fill(T::zero());
            simd.run(Responses { norm, x, scratch, y });
        });
    });
}

pub(super) fn response_norm_grad<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    norm: ResponseNorm<T>,
    [dy, x, y]: [&[T]; 3],
    dx: &mut [T],
) {
    let channels = norm.channels;
    if dx.is_empty() {
        return;
    }
    pool.each_chunk_of(dx, CHUNK.div_ceil(channels) * channels, |start, dx| {
        let [dy, x, y] = [dy, x, y].map(|all| &all[start..][..dx.len()]);
        with_scratch(padded(norm) + channels, |scratch: &mut [T]| {
            scratch.fill(T::zero());
            simd.run(ResponseGrads { norm, dy, x, y, scratch, dx });
        });
    });
}

/// Channels to each side of one that its sum takes, as far as there can be such.
#[inline(always)]
fn reach<T>(norm: ResponseNorm<T>) -> usize {
    (norm.size / 2).min(norm.channels - 1)
}

/// A row with zeros to both sides.
fn padded<T>(norm: ResponseNorm<T>) -> usize {
    norm.channels + 2 * reach(norm)
}

struct Responses<'a, T> {
    norm: ResponseNorm<T>,
    x: &'a [T],
    /// A padded row and a row, zeros.
    scratch: &'a mut [T],
    y: &'a mut [T],
}

struct ResponseGrads<'a, T> {
    norm: ResponseNorm<T>,
    dy: &'a [T],
    x: &'a [T],
    y: &'a [T],
    /// A padded row and a row, zeros.
    scratch: &'a mut [T],
    dx: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Responses<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Responses { norm, x, scratch, y } = self;
        let (channels, reach) = (norm.channels, reach(norm));
        let (padded, sums) = scratch.split_at_mut(channels + 2 * reach);
        let by_roots = norm.beta == T::narrow(0.75);
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            responses(norm, reach, x, padded, sums);
            if by_roots {
                for ((y, &x), &t) in y.iter_mut().zip(x).zip(&*sums) {
                    *y = x * by_three_quarters(t);
                }
            } else {
                for ((y, &x), &t) in y.iter_mut().zip(x).zip(&*sums) {
                    *y = x * t.powf(-norm.beta);
                }
            }
        }
    }
}

impl<T: Real> NullaryFnOnce for ResponseGrads<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let ResponseGrads { norm, dy, x, y, scratch, dx } = self;
        let (channels, reach) = (norm.channels, reach(norm));
        let (padded, sums) = scratch.split_at_mut(channels + 2 * reach);
        let by_roots = norm.beta == T::narrow(0.75);
        let twice = (T::one() + T::one()) * norm.alpha * norm.beta;
        let rows = dy.chunks_exact(channels).zip(x.chunks_exact(channels));
        let rows = rows.zip(y.chunks_exact(channels)).zip(dx.chunks_exact_mut(channels));
        for (((dy, x), y), dx) in rows {
            responses(norm, reach, x, padded, sums);
            if by_roots {
                for ((dx, &dy), &t) in dx.iter_mut().zip(dy).zip(&*sums) {
                    *dx = dy * by_three_quarters(t);
                }
            } else {
                for ((dx, &dy), &t) in dx.iter_mut().zip(dy).zip(&*sums) {
                    *dx = dy * t.powf(-norm.beta);
                }
            }
            let inner = &mut padded[reach..][..channels];
            for (((into, &dy), &y), &t) in inner.iter_mut().zip(dy).zip(y).zip(&*sums) {
                *into = dy * y / t;
            }
            sum_around(padded, reach, sums);
            for ((dx, &x), &sum) in dx.iter_mut().zip(x).zip(&*sums) {
                *dx -= twice * x * sum;
            }
        }
    }
}

/// sums ← bias + alpha·Σ x² around each channel; the inner part of `padded` gets the squares.
#[inline(always)]
fn responses<T: Real>(
    norm: ResponseNorm<T>,
    reach: usize,
    x: &[T],
    padded: &mut [T],
    sums: &mut [T],
) {
    for (into, &x) in padded[reach..][..x.len()].iter_mut().zip(x) {
        *into = x * x;
    }
    sum_around(padded, reach, sums);
    for sum in sums {
        *sum = norm.bias + norm.alpha * *sum;
    }
}

/// sums[i] ← Σ padded[i..=i + 2·reach], in order.
#[inline(always)]
fn sum_around<T: Real>(padded: &[T], reach: usize, sums: &mut [T]) {
    if reach == 2 {
        // all the models' networks have 5 channels: one pass
        for (i, sum) in sums.iter_mut().enumerate() {
            let p = &padded[i..i + 5];
            *sum = (((p[0] + p[1]) + p[2]) + p[3]) + p[4];
        }
        return;
    }
    sums.fill(T::zero());
    for shift in 0..=2 * reach {
        for (sum, &x) in sums.iter_mut().zip(&padded[shift..]) {
            *sum += x;
        }
    }
}

/// t^−¾ by two roots and a division: powf takes a hundred times as long.
#[inline(always)]
fn by_three_quarters<T: Real>(t: T) -> T {
    let root = t.sqrt();
    T::one() / (root * root.sqrt())
}
