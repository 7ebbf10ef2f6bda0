//! Few elements of many.

use tensorwire_graph::Reduction;

use super::Reference;
use super::updates::folded;
use crate::launch::reductions::{Axis, Reductions, Target};
use crate::real::Real;

impl Reductions for Reference {
    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]) {
        let columns = y.len();
        for (column, y) in y.iter_mut().enumerate() {
            let mut sum = T::zero();
            for &x in x.iter().skip(column).step_by(columns) {
                sum += x;
            }
            *y = sum;
        }
    }

    /// The row's largest logit is subtracted first: softmax does not change, and no `exp` overflows.
    fn softmax_cross_entropy<T: Real>(
        &self,
        target: Target<T>,
        logits: &[T],
        labels: &[i32],
        dlogits: &mut [T],
    ) -> T {
        let Target { smoothing, ignored } = target;
        let counted = T::from_count(labels.iter().filter(|&&label| label != ignored).count());
        let classes = row_length(logits, labels);
        let everywhere = smoothing / T::from_count(classes.max(1));
        let mut loss = T::zero();
        for (row, &label) in labels.iter().enumerate() {
            let x = &logits[row * classes..][..classes];
            let dx = &mut dlogits[row * classes..][..classes];
            if label == ignored {
                dx.fill(T::zero());
                continue;
            }
            let label = label as usize; // a class, as was checked
            let max = x.iter().fold(T::neg_infinity(), |max, &x| if x > max { x } else { max });
            let sum: T = x.iter().map(|&x| (x - max).exp()).sum();
            loss += (T::one() - smoothing) * (sum.ln() - (x[label] - max));
            for (class, (dx, &x)) in dx.iter_mut().zip(x).enumerate() {
                let here = if class == label { T::one() - smoothing } else { T::zero() };
                if smoothing > T::zero() {
                    loss += everywhere * (sum.ln() - (x - max));
                }
                *dx = ((x - max).exp() / sum - (here + everywhere)) / counted;
            }
        }
        if counted > T::zero() { loss / counted } else { T::zero() }
    }

    fn count_within<T: Real>(&self, k: usize, logits: &[T], labels: &[i32]) -> i64 {
        let classes = row_length(logits, labels);
        let mut correct = 0;
        for (row, &label) in labels.iter().enumerate() {
            let x = &logits[row * classes..][..classes];
            if usize::try_from(label).is_ok_and(|label| is_within(x, label, k)) {
                correct += 1;
            }
        }
        correct
    }

    fn reduce_max<T: Real>(&self, x: &[T]) -> T {
        x.iter().fold(x[0], |max, &x| larger(max, x))
    }

    fn reduce<T: Real>(&self, by: Reduction, axis: Axis, x: &[T], y: &mut [T]) {
        let Axis { length, inner, .. } = axis;
        for (i, y) in y.iter_mut().enumerate() {
            let along = |l: usize| x[(i / inner * length + l) * inner + i % inner];
            let all = (0..length).map(along);
            *y = match by {
                Reduction::Sum => sum(all),
                Reduction::Mean => sum(all) / T::from_count(length),
                Reduction::Max => all.fold(T::neg_infinity(), larger),
            };
        }
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
        let Axis { length, inner, .. } = axis;
        for (i, (&dy, &y)) in dy.iter().zip(y).enumerate() {
            let place = |l: usize| (i / inner * length + l) * inner + i % inner;
            let first = (0..length).find(|&l| is_max(x[place(l)], y));
            for l in 0..length {
                dx[place(l)] = match by {
                    Reduction::Sum => dy,
                    Reduction::Mean => dy / T::from_count(length),
                    Reduction::Max if first == Some(l) => dy,
                    Reduction::Max => T::zero(),
                };
            }
        }
    }

    fn softmax<T: Real>(&self, columns: usize, x: &[T], y: &mut [T]) {
        for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
            let max = x.iter().fold(T::neg_infinity(), |max, &x| if x > max { x } else { max });
            let sum: T = x.iter().map(|&x| (x - max).exp()).sum();
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - max).exp() / sum;
            }
        }
    }

    fn square_sums<T: Real>(&self, share: T, columns: usize, gradients: &[&[T]], y: &mut [f64]) {
        for (row, y) in y.iter_mut().enumerate() {
            let g = |column| (folded(gradients, row * columns + column) * share).widen();
            *y = (0..columns).map(|column| g(column) * g(column)).sum();
        }
    }

    fn softmax_grad<T: Real>(&self, columns: usize, dy: &[T], y: &[T], dx: &mut [T]) {
        let rows = dy.chunks_exact(columns).zip(y.chunks_exact(columns));
        for ((dy, y), dx) in rows.zip(dx.chunks_exact_mut(columns)) {
            let sum = sum(dy.iter().zip(y).map(|(&dy, &y)| dy * y));
            for (dx, (&dy, &y)) in dx.iter_mut().zip(dy.iter().zip(y)) {
                *dx = y * (dy - sum);
            }
        }
    }
}

/// From 0 on, in order.
pub(super) fn sum<T: Real>(terms: impl Iterator<Item = T>) -> T {
    terms.fold(T::zero(), |sum, x| sum + x)
}

/// The larger of two, NaN where one is.
fn larger<T: Real>(max: T, x: T) -> T {
    if x > max || x.is_nan() { x } else { max }
}

/// Whether `x` is the maximum `y`: where there is NaN, a NaN is.
pub(crate) fn is_max<T: Real>(x: T, y: T) -> bool {
    x == y || x.is_nan()
}

/// Whether `x[label]` is the largest of `x` and none before it is as large. A row that holds a NaN
/// has no largest.
fn is_first_largest<T: Real>(x: &[T], label: usize) -> bool {
    let (before, from) = x.split_at(label);
    let largest = from[0];
    before.iter().all(|&x| x < largest) && from.iter().all(|&x| x <= largest)
}

/// Whether fewer than `k` of `x` are before `x[label]`, being larger, or as large and before it. A row that holds a NaN
/// has no order.
pub(crate) fn is_within<T: Real>(x: &[T], label: usize, k: usize) -> bool {
    if k == 1 {
        return is_first_largest(x, label);
    }
    let (before, from) = x.split_at(label);
    let ahead = before.iter().filter(|&&x| x >= from[0]).count()
        + from.iter().filter(|&&x| x > from[0]).count();
    ahead < k && !x.iter().any(|x| x.is_nan())
}

/// Columns of a matrix with one row per label.
pub(crate) fn row_length<T>(logits: &[T], labels: &[i32]) -> usize {
    logits.len().checked_div(labels.len()).unwrap_or(0)
}
