//! Variables that change.

use std::collections::BTreeMap;

use super::Reference;
use crate::launch::updates::{Adam, RowPart, Step, Updates};
use crate::real::Real;

impl Updates for Reference {
    fn apply<T: Real>(&self, mut step: Step<'_, T>, share: T, v: &mut [T], gradients: &[&[T]]) {
        for (i, v) in v.iter_mut().enumerate() {
            move_one(&mut step, i, v, folded(gradients, i) * share);
        }
    }

    fn apply_rows<T: Real>(
        &self,
        mut step: Step<'_, T>,
        share: T,
        columns: usize,
        v: &mut [T],
        parts: &[RowPart<'_, T>],
    ) {
        let mut sums: BTreeMap<usize, Vec<T>> = BTreeMap::new();
        for part in parts {
            for (i, &index) in part.indices.iter().enumerate() {
                let row = &part.rows[i * columns..][..columns];
                match sums.entry(index as usize) {
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        entry.insert(row.to_vec());
                    }
                    std::collections::btree_map::Entry::Occupied(mut entry) => {
                        for (sum, &x) in entry.get_mut().iter_mut().zip(row) {
                            *sum += x;
                        }
                    }
                }
            }
        }
        for (row, sum) in sums {
            for (column, sum) in sum.into_iter().enumerate() {
                let i = row * columns + column;
                move_one(&mut step, i, &mut v[i], sum * share);
            }
        }
    }

    fn apply_average<T: Real>(&self, rate: T, share: T, v: &mut [T], values: &[&[T]]) {
        for (i, v) in v.iter_mut().enumerate() {
            *v += rate * (folded(values, i) * share - *v);
        }
    }
}

/// Moves element `i` of the variable along gradient `g`.
fn move_one<T: Real>(step: &mut Step<'_, T>, i: usize, v: &mut T, g: T) {
    match step {
        Step::Sgd { rate } => *v -= *rate * g,
        Step::Momentum { rate, momentum, u } => {
            u[i] = *momentum * u[i] + g;
            *v -= *rate * u[i];
        }
        Step::AdaGrad { rate, epsilon, a } => {
            a[i] += g * g;
            *v -= *rate * g / (a[i].sqrt() + *epsilon);
        }
        Step::Adam { numbers, m, s } => {
            let Adam { rate, beta1, fresh1, beta2, fresh2, epsilon, bias1, bias2 } = *numbers;
            m[i] = beta1 * m[i] + fresh1 * g;
            s[i] = beta2 * s[i] + fresh2 * (g * g);
            *v -= rate * (m[i] / bias1) / ((s[i] / bias2).sqrt() + epsilon);
        }
    }
}

/// Element `i` of the gradients' sum, added in rank order.
fn folded<T: Real>(gradients: &[&[T]], i: usize) -> T {
    let mut sum = gradients[0][i];
    for gradient in &gradients[1..] {
        sum += gradient[i];
    }
    sum
}
