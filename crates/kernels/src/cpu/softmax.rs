//! Softmax and what is counted of it. Rows are independent; their losses are added in blocks of a
//! fixed number of rows, and the blocks in order, so that the bits do not depend on the threads.

use pulp::NullaryFnOnce;

use super::pool::{CHUNK, Pool};
use super::simd::SimdProof;
use crate::launch::reductions::Target;
use crate::real::Real;
use crate::reference::{is_within, row_length};

/// Elements of a block of rows; exponentials are slow, so this is a lot of work.
const BLOCK: usize = 1 << 12;

/// Sums side by side: two AVX-512 registers of f32.
const LANES: usize = 32;

/// → the mean loss; writes its gradient.
pub(super) fn softmax_cross_entropy<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    target: Target<T>,
    logits: &[T],
    labels: &[i32],
    dlogits: &mut [T],
) -> T {
    let counted = labels.iter().filter(|&&label| label != target.ignored).count();
    let classes = row_length(logits, labels);
    if counted == 0 {
        dlogits.fill(T::zero());
        return T::zero();
    }
    let share = T::one() / T::from_count(counted);
    let rows = rows_per_block(classes);
    // a row that counts has a class, so there is at least one column here
    let losses = pool.map_chunks(dlogits, rows * classes, |start, dlogits| {
        let first_row = start / classes;
        let labels = &labels[first_row..][..dlogits.len() / classes];
        let logits = &logits[start..][..dlogits.len()];
        simd.run(Rows { target, logits, labels, classes, share, dlogits })
    });
    losses.into_iter().fold(T::zero(), |sum, loss| sum + loss) * share
}

/// → how many rows have their label among their `k` largest logits, the first of equals.
pub(super) fn count_within<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    k: usize,
    logits: &[T],
    labels: &[i32],
) -> i64 {
    let classes = row_length(logits, labels);
    let rows = rows_per_block(classes);
    let blocks = labels.len().div_ceil(rows);
    let counts = pool.map_indices(blocks, logits.len() > 16 * BLOCK, |block| {
        let first = block * rows;
        let labels = &labels[first..labels.len().min(first + rows)];
        let logits = &logits[first * classes..][..labels.len() * classes];
        simd.run(Correct { k, logits, labels, classes })
    });
    counts.into_iter().sum()
}

fn rows_per_block(classes: usize) -> usize {
    BLOCK.div_ceil(classes.max(1))
}

/// y ← softmax of each row.
pub(super) fn softmax<T: Real>(pool: &Pool, simd: SimdProof, columns: usize, x: &[T], y: &mut [T]) {
    let rows = rows_per_block(columns);
    pool.split(y, rows * columns, x.len() > BLOCK, |start, y| {
        simd.run(Softmax { columns, x: &x[start..][..y.len()], y });
    });
}

/// dx ← y∘(dy − Σ dy∘y), row by row.
pub(super) fn softmax_grad<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    columns: usize,
    dy: &[T],
    y: &[T],
    dx: &mut [T],
) {
    let rows = CHUNK.div_ceil(columns);
    pool.each_chunk_of(dx, rows * columns, |start, dx| {
        let (dy, y) = (&dy[start..][..dx.len()], &y[start..][..dx.len()]);
        simd.run(SoftmaxGrad { columns, dy, y, dx });
    });
}

struct Softmax<'a, T> {
    columns: usize,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Softmax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Softmax { columns, x, y } = self;
        for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
            let scale = T::one() / exponentials(x, y).1;
            for y in y.iter_mut() {
                *y *= scale;
            }
        }
    }
}

struct SoftmaxGrad<'a, T> {
    columns: usize,
    dy: &'a [T],
    y: &'a [T],
    dx: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for SoftmaxGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let SoftmaxGrad { columns, dy, y, dx } = self;
        let rows = dy.chunks_exact(columns).zip(y.chunks_exact(columns));
        for ((dy, y), dx) in rows.zip(dx.chunks_exact_mut(columns)) {
            for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
                *dx = dy * y;
            }
            let sum = sum(dx);
            for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
                *dx = y * (dy - sum);
            }
        }
    }
}

/// e to the elements less the largest; → the largest, and the sum.
#[inline(always)]
fn exponentials<T: Real>(x: &[T], y: &mut [T]) -> (T, T) {
    let max = x.iter().fold(T::neg_infinity(), |max, &x| if x > max { x } else { max });
    for (y, &x) in y.iter_mut().zip(x) {
        *y = (x - max).fast_exp();
    }
    (max, sum(y))
}

/// The sum, in lanes side by side and those in order.
#[inline(always)]
fn sum<T: Real>(x: &[T]) -> T {
    let mut lanes = [T::zero(); LANES];
    let mut blocks = x.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += x;
        }
    }
    let rest = blocks.remainder().iter().copied();
    lanes.into_iter().chain(rest).sum()
}

/// → the sum of the rows' losses; writes their gradients, times `share`.
struct Rows<'a, T> {
    target: Target<T>,
    logits: &'a [T],
    labels: &'a [i32],
    classes: usize,
    share: T,
    dlogits: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Rows<'_, T> {
    type Output = T;

    #[inline(always)]
    fn call(self) -> T {
        let rows = self.logits.chunks_exact(self.classes);
        let drows = self.dlogits.chunks_exact_mut(self.classes);
        let mut losses = T::zero();
        for ((x, dx), &label) in rows.zip(drows).zip(self.labels) {
            if label == self.target.ignored {
                dx.fill(T::zero());
                continue;
            }
            let label = label as usize; // a class, as was checked
            losses += match self.target.smoothing > T::zero() {
                false => row(x, label, self.share, dx),
                true => smoothed_row(x, label, self.target.smoothing, self.share, dx),
            };
        }
        losses
    }
}

/// → the loss of one row; writes its gradient, times `share`.
#[inline(always)]
fn row<T: Real>(x: &[T], label: usize, share: T, dx: &mut [T]) -> T {
    let (max, sum) = exponentials(x, dx);
    let scale = share / sum;
    for dx in dx.iter_mut() {
        *dx *= scale;
    }
    dx[label] -= share;
    sum.ln() - (x[label] - max)
}

/// As [`row`], with a part of the target at every class.
#[inline(always)]
fn smoothed_row<T: Real>(x: &[T], label: usize, smoothing: T, share: T, dx: &mut [T]) -> T {
    let everywhere = smoothing / T::from_count(x.len());
    let at_label = T::one() - smoothing;
    for (dx, &logit) in dx.iter_mut().zip(x) {
        *dx = logit - x[label];
    }
    let above = sum(dx);
    let (max, total) = exponentials(x, dx);
    let (scale, less) = (share / total, share * everywhere);
    for dx in dx.iter_mut() {
        *dx = *dx * scale - less;
    }
    dx[label] -= share * at_label;
    // −log p of the label, and what the others lie above it
    (total.ln() - (x[label] - max)) - everywhere * above
}

struct Correct<'a, T> {
    k: usize,
    logits: &'a [T],
    labels: &'a [i32],
    classes: usize,
}

impl<T: Real> NullaryFnOnce for Correct<'_, T> {
    type Output = i64;

    #[inline(always)]
    fn call(self) -> i64 {
        let mut correct = 0;
        for (row, &label) in self.labels.iter().enumerate() {
            let x = &self.logits[row * self.classes..][..self.classes];
            correct += i64::from(usize::try_from(label).is_ok_and(|l| is_within(x, l, self.k)));
        }
        correct
    }
}
