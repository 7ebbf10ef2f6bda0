//! The oracle: each operator as its formula is written, one element after the other on the caller's
//! thread. Sums are added one by one in the order of their index, in the element's own precision
//! (f32 sums are f32 sums), starting from 0.

mod images;

use tensorwire_tensor::Element;

use crate::launch::{Backend, Momentum, Product, Sgd, Source};
use crate::real::Real;

/// The plain loops. Holds nothing.
#[derive(Debug)]
pub(crate) struct Reference;

impl Backend for Reference {
    fn fill<T: Element>(&self, value: T, y: &mut [T]) {
        for y in y {
            *y = value;
        }
    }

    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        let Product { m, n, k, transpose_a, transpose_b } = product;
        for row in 0..m {
            for column in 0..n {
                let mut sum = T::zero();
                for inner in 0..k {
                    let a = if transpose_a { a[inner * m + row] } else { a[row * k + inner] };
                    let b = if transpose_b { b[column * k + inner] } else { b[inner * n + column] };
                    sum += a * b;
                }
                y[row * n + column] = sum;
            }
        }
    }

    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]) {
        each(x, y, |i, x| x + bias[i % bias.len()]);
    }

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

    /// A NaN stays a NaN: a run that has diverged should show it.
    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        each(x, y, |_, x| if x <= T::zero() { T::zero() } else { x });
    }

    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        each(dy, dx, |i, dy| if y[i] > T::zero() { dy } else { T::zero() });
    }

    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        each(a, y, |i, a| a + b[i]);
    }

    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]) {
        each(x, y, |_, x| x * scale);
    }

    /// The row's largest logit is subtracted first: softmax does not change, and no `exp` overflows.
    fn softmax_cross_entropy<T: Real>(&self, logits: &[T], labels: &[i32], dlogits: &mut [T]) -> T {
        let counted = T::from_count(labels.iter().filter(|&&label| label >= 0).count());
        let classes = row_length(logits, labels);
        let mut loss = T::zero();
        for (row, &label) in labels.iter().enumerate() {
            let x = &logits[row * classes..][..classes];
            let dx = &mut dlogits[row * classes..][..classes];
            let Ok(label) = usize::try_from(label) else {
                dx.fill(T::zero()); // padding
                continue;
            };
            let max = x.iter().fold(T::neg_infinity(), |max, &x| if x > max { x } else { max });
            let sum: T = x.iter().map(|&x| (x - max).exp()).sum();
            loss += sum.ln() - (x[label] - max);
            for (class, (dx, &x)) in dx.iter_mut().zip(x).enumerate() {
                let target = if class == label { T::one() } else { T::zero() };
                *dx = ((x - max).exp() / sum - target) / counted;
            }
        }
        if counted > T::zero() { loss / counted } else { T::zero() }
    }

    fn count_correct<T: Real>(&self, logits: &[T], labels: &[i32]) -> i64 {
        let classes = row_length(logits, labels);
        let mut correct = 0;
        for (row, &label) in labels.iter().enumerate() {
            let x = &logits[row * classes..][..classes];
            if usize::try_from(label).is_ok_and(|label| is_first_largest(x, label)) {
                correct += 1;
            }
        }
        correct
    }

    fn reduce_max<T: Real>(&self, x: &[T]) -> T {
        let mut max = x[0];
        for &x in x {
            if x > max || x.is_nan() {
                max = x;
            }
        }
        max
    }

    fn apply_sgd<T: Real>(&self, rule: Sgd<T>, v: &mut [T], gradients: &[&[T]]) {
        for (i, v) in v.iter_mut().enumerate() {
            *v -= rule.rate * (folded(gradients, i) * rule.share);
        }
    }

    fn apply_momentum<T: Real>(
        &self,
        rule: Momentum<T>,
        v: &mut [T],
        u: &mut [T],
        gradients: &[&[T]],
    ) {
        for (i, (v, u)) in v.iter_mut().zip(u).enumerate() {
            *u = rule.momentum * *u + folded(gradients, i) * rule.share;
            *v -= rule.rate * *u;
        }
    }
}

/// y[i] ← f(i, x[i]) for every i.
fn each<T: Real>(x: Source<'_, T>, y: &mut [T], f: impl Fn(usize, T) -> T) {
    for (i, y) in y.iter_mut().enumerate() {
        let x = match x {
            Source::Apart(x) => x[i],
            Source::InPlace => *y,
        };
        *y = f(i, x);
    }
}

/// Whether `x[label]` is the largest of `x` and none before it is as large. A row that holds a NaN
/// has no largest.
pub(crate) fn is_first_largest<T: Real>(x: &[T], label: usize) -> bool {
    let (before, from) = x.split_at(label);
    let largest = from[0];
    before.iter().all(|&x| x < largest) && from.iter().all(|&x| x <= largest)
}

/// Columns of a matrix with one row per label.
pub(crate) fn row_length<T>(logits: &[T], labels: &[i32]) -> usize {
    logits.len().checked_div(labels.len()).unwrap_or(0)
}

/// Element `i` of the gradients' sum, added in rank order.
fn folded<T: Real>(gradients: &[&[T]], i: usize) -> T {
    let mut sum = gradients[0][i];
    for gradient in &gradients[1..] {
        sum += gradient[i];
    }
    sum
}
