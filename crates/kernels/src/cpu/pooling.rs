//! Poolings, a row of the output at a time, all channels of a place side by side. What a gradient's element
//! gets, it gets in the order of the windows, whichever rows are computed beside it.

use std::ops::Range;

use pulp::NullaryFnOnce;

use super::pool::{CHUNK, Pool};
use super::simd::SimdProof;
use crate::launch::images::Pooling;
use crate::real::Real;

/// Channels whose largest is looked for at a time: with their places they stay in registers.
const BLOCK: usize = 64;

/// Least elements looked at that are worth waking threads for.
const PARALLEL_MIN: usize = 2 * CHUNK;

pub(super) fn max_pool<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    shape: &Pooling,
    x: &[T],
    y: &mut [T],
    places: &mut [u8],
) {
    let row = shape.windows[1] * shape.channels;
    if y.is_empty() {
        return;
    }
    let rows = rows_at_once(x.len(), y.len(), row);
    pool.split_pair(y, places, [rows * row; 2], x.len() >= PARALLEL_MIN, |piece, y, places| {
        let outputs = y.chunks_exact_mut(row).zip(places.chunks_exact_mut(row));
        for (at, (y, places)) in (piece * rows..).zip(outputs) {
            simd.run(MaxRow { shape, x, at, y, places });
        }
    });
}

pub(super) fn avg_pool<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    shape: &Pooling,
    x: &[T],
    y: &mut [T],
) {
    let row = shape.windows[1] * shape.channels;
    if y.is_empty() {
        return;
    }
    let rows = rows_at_once(x.len(), y.len(), row);
    pool.split(y, rows * row, x.len() >= PARALLEL_MIN, |start, y| {
        for (at, y) in (start / row..).zip(y.chunks_exact_mut(row)) {
            simd.run(AvgRow { shape, x, at, y });
        }
    });
}

pub(super) fn max_pool_grad<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    shape: &Pooling,
    dy: &[T],
    places: &[u8],
    dx: &mut [T],
) {
    let row = shape.size[1] * shape.channels;
    if dx.is_empty() {
        return;
    }
    let rows = CHUNK.div_ceil(row);
    pool.split(dx, rows * row, dx.len() >= PARALLEL_MIN, |start, dx| {
        for (at, dx) in (start / row..).zip(dx.chunks_exact_mut(row)) {
            simd.run(MaxGradRow { shape, dy, places, at, dx });
        }
    });
}

pub(super) fn avg_pool_grad<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    shape: &Pooling,
    dy: &[T],
    dx: &mut [T],
) {
    let row = shape.size[1] * shape.channels;
    if dx.is_empty() {
        return;
    }
    let rows = CHUNK.div_ceil(row);
    pool.split(dx, rows * row, dx.len() >= PARALLEL_MIN, |start, dx| {
        for (at, dx) in (start / row..).zip(dx.chunks_exact_mut(row)) {
            simd.run(AvgGradRow { shape, dy, at, dx });
        }
    });
}

/// Output rows of a piece that looks at about a chunk of x.
fn rows_at_once(x_len: usize, y_len: usize, row: usize) -> usize {
    let seen = (x_len / (y_len / row)).max(1);
    CHUNK.div_ceil(seen)
}

/// Output row `at`, counted over all images.
struct MaxRow<'a, T> {
    shape: &'a Pooling,
    x: &'a [T],
    at: usize,
    y: &'a mut [T],
    places: &'a mut [u8],
}

struct AvgRow<'a, T> {
    shape: &'a Pooling,
    x: &'a [T],
    at: usize,
    y: &'a mut [T],
}

/// Row `at` of x's gradient, counted over all images.
struct MaxGradRow<'a, T> {
    shape: &'a Pooling,
    dy: &'a [T],
    places: &'a [u8],
    at: usize,
    dx: &'a mut [T],
}

struct AvgGradRow<'a, T> {
    shape: &'a Pooling,
    dy: &'a [T],
    at: usize,
    dx: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for MaxRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let MaxRow { shape, x, at, y, places } = self;
        let channels = shape.channels;
        let (image, row) = (at / shape.windows[0], at % shape.windows[0]);
        let tap_rows = taps(shape, 0, row);
        let outputs = y.chunks_exact_mut(channels).zip(places.chunks_exact_mut(channels));
        for (column, (y, places)) in outputs.enumerate() {
            let tap_columns = taps(shape, 1, column);
            for first in (0..channels).step_by(BLOCK) {
                let len = BLOCK.min(channels - first);
                let mut max = [T::neg_infinity(); BLOCK];
                let mut place = [0u32; BLOCK];
                let mut is_first = true;
                for tap_row in tap_rows.clone() {
                    let r = place_of(shape, 0, row, tap_row);
                    for tap_column in tap_columns.clone() {
                        let c = place_of(shape, 1, column, tap_column);
                        let from = ((image * shape.size[0] + r) * shape.size[1] + c) * channels;
                        let x = &x[from + first..][..len];
                        let here = (tap_row * shape.window.kernel[1] + tap_column) as u32;
                        if is_first {
                            max[..len].copy_from_slice(x);
                            place[..len].fill(here);
                            is_first = false;
                        } else if len == BLOCK {
                            // a length known to the compiler
                            larger(x, &mut max, &mut place, here);
                        } else {
                            larger(x, &mut max[..len], &mut place[..len], here);
                        }
                    }
                }
                y[first..][..len].copy_from_slice(&max[..len]);
                for (into, &place) in places[first..][..len].iter_mut().zip(&place) {
                    *into = place as u8;
                }
            }
        }
    }
}

/// Takes those of `x` that are larger than the largest so far, or the first NaN.
#[inline(always)]
fn larger<T: Real>(x: &[T], max: &mut [T], place: &mut [u32], here: u32) {
    for ((&x, max), place) in x.iter().zip(max).zip(place) {
        let take = (x > *max) | (x.is_nan() & !max.is_nan());
        *max = if take { x } else { *max };
        *place = if take { here } else { *place };
    }
}

impl<T: Real> NullaryFnOnce for AvgRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let AvgRow { shape, x, at, y } = self;
        let channels = shape.channels;
        let (image, row) = (at / shape.windows[0], at % shape.windows[0]);
        let tap_rows = taps(shape, 0, row);
        for (column, y) in y.chunks_exact_mut(channels).enumerate() {
            let tap_columns = taps(shape, 1, column);
            y.fill(T::zero());
            for tap_row in tap_rows.clone() {
                let r = place_of(shape, 0, row, tap_row);
                for tap_column in tap_columns.clone() {
                    let c = place_of(shape, 1, column, tap_column);
                    let from = ((image * shape.size[0] + r) * shape.size[1] + c) * channels;
                    for (y, &x) in y.iter_mut().zip(&x[from..][..channels]) {
                        *y += x;
                    }
                }
            }
            let count = T::from_count((tap_rows.len() * tap_columns.len()).max(1));
            for y in y {
                *y /= count;
            }
        }
    }
}

impl<T: Real> NullaryFnOnce for MaxGradRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let MaxGradRow { shape, dy, places, at, dx } = self;
        let channels = shape.channels;
        let [_, kernel_columns] = shape.window.kernel;
        dx.fill(T::zero());
        each_window_over(shape, at, |window, tap_row, column| {
            let (dy, places) = (&dy[window..][..channels], &places[window..][..channels]);
            for tap_column in taps(shape, 1, column) {
                let c = place_of(shape, 1, column, tap_column);
                // places are one byte; those of a checked window fit
                let here = (tap_row * kernel_columns + tap_column) as u8;
                let dx = &mut dx[c * channels..][..channels];
                for ((dx, &dy), &place) in dx.iter_mut().zip(dy).zip(places) {
                    *dx += if place == here { dy } else { T::zero() };
                }
            }
        });
    }
}

impl<T: Real> NullaryFnOnce for AvgGradRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let AvgGradRow { shape, dy, at, dx } = self;
        let channels = shape.channels;
        dx.fill(T::zero());
        each_window_over(shape, at, |window, _, column| {
            let row = window / channels / shape.windows[1] % shape.windows[0];
            let tap_columns = taps(shape, 1, column);
            let count = T::from_count(taps(shape, 0, row).len() * tap_columns.len());
            for first in (0..channels).step_by(BLOCK) {
                let len = BLOCK.min(channels - first);
                let mut share = [T::zero(); BLOCK];
                for (share, &dy) in share.iter_mut().zip(&dy[window + first..][..len]) {
                    *share = dy / count;
                }
                for tap_column in tap_columns.clone() {
                    let c = place_of(shape, 1, column, tap_column);
                    let dx = &mut dx[c * channels + first..][..len];
                    for (dx, &share) in dx.iter_mut().zip(&share) {
                        *dx += share;
                    }
                }
            }
        });
    }
}

/// Calls `body` for every window that lies over row `at` of x, in order: where its elements start, which of
/// its rows lies there, and its column.
#[inline(always)]
fn each_window_over(shape: &Pooling, at: usize, mut body: impl FnMut(usize, usize, usize)) {
    let (image, row) = (at / shape.size[0], at % shape.size[0]);
    let window = &shape.window;
    // the later the tap, the earlier the window
    for tap in (0..window.kernel[0]).rev() {
        let Some(above) = (row + window.before[0]).checked_sub(tap * window.dilation[0]) else {
            continue;
        };
        let output = above / window.stride[0];
        if above % window.stride[0] != 0 || output >= shape.windows[0] {
            continue;
        }
        let first = (image * shape.windows[0] + output) * shape.windows[1];
        for column in 0..shape.windows[1] {
            body((first + column) * shape.channels, tap, column);
        }
    }
}

/// The taps of window `output` that look into the image and not at padding.
#[inline(always)]
fn taps(shape: &Pooling, side: usize, output: usize) -> Range<usize> {
    let window = &shape.window;
    let (start, dilation) = (output * window.stride[side], window.dilation[side]);
    let (before, size) = (window.before[side], shape.size[side]);
    let first = before.saturating_sub(start).div_ceil(dilation);
    let end = (size + before).saturating_sub(start).div_ceil(dilation).min(window.kernel[side]);
    first.min(end)..end
}

/// The place under tap `tap` of window `output`, which is not padding.
#[inline(always)]
fn place_of(shape: &Pooling, side: usize, output: usize, tap: usize) -> usize {
    let window = &shape.window;
    output * window.stride[side] + tap * window.dilation[side] - window.before[side]
}
