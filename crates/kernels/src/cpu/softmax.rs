//! Softmax and what is counted of it. Rows are independent; their losses are added in blocks of a
//! fixed number of rows, and the blocks in order, so that the bits do not depend on the threads.

use pulp::NullaryFnOnce;

use super::pool::Pool;
use super::simd::SimdProof;
use crate::real::Real;
use crate::reference::{is_first_largest, row_length};

/// Elements of a block of rows; exponentials are slow, so this is a lot of work.
const BLOCK: usize = 1 << 12;

/// → the mean loss; writes its gradient.
pub(super) fn softmax_cross_entropy<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    logits: &[T],
    labels: &[i32],
    dlogits: &mut [T],
) -> T {
    let counted = labels.iter().filter(|&&label| label >= 0).count();
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
        simd.run(Rows { logits, labels, classes, share, dlogits })
    });
    losses.into_iter().fold(T::zero(), |sum, loss| sum + loss) * share
}

/// → how many rows have their largest logit, the first of equals, at their label.
pub(super) fn count_correct<T: Real>(
    pool: &Pool,
    simd: SimdProof,
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
        simd.run(Correct { logits, labels, classes })
    });
    counts.into_iter().sum()
}

fn rows_per_block(classes: usize) -> usize {
    BLOCK.div_ceil(classes.max(1))
}

/// → the sum of the rows' losses; writes their gradients, times `share`.
struct Rows<'a, T> {
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
            match usize::try_from(label) {
                Ok(label) => losses += row(x, label, self.share, dx),
                Err(_) => dx.fill(T::zero()), // padding
            }
        }
        losses
    }
}

/// → the loss of one row; writes its gradient, times `share`.
#[inline(always)]
fn row<T: Real>(x: &[T], label: usize, share: T, dx: &mut [T]) -> T {
    let max = x.iter().fold(T::neg_infinity(), |max, &x| if x > max { x } else { max });
    let mut sum = T::zero();
    for (dx, &x) in dx.iter_mut().zip(x) {
        let exp = (x - max).exp();
        *dx = exp;
        sum += exp;
    }
    let scale = share / sum;
    for dx in dx.iter_mut() {
        *dx *= scale;
    }
    dx[label] -= share;
    sum.ln() - (x[label] - max)
}

struct Correct<'a, T> {
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
            correct += i64::from(usize::try_from(label).is_ok_and(|l| is_first_largest(x, l)));
        }
        correct
    }
}
