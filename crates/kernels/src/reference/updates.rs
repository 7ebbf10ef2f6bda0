//! Variables that change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
            // each part by itself first
            let mut own: BTreeMap<usize, Vec<T>> = BTreeMap::new();
            for (i, &index) in part.indices.iter().enumerate() {
                add_row(&mut own, index as usize, &part.rows[i * columns..][..columns]);
            }
            own.iter().for_each(|(row, sum)| add_row(&mut sums, *row, sum));
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

fn add_row<T: Real>(sums: &mut BTreeMap<usize, Vec<T>>, index: usize, row: &[T]) {
    match sums.entry(index) {
        Entry::Vacant(entry) => drop(entry.insert(row.to_vec())),
        Entry::Occupied(mut entry) => {
            entry.get_mut().iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
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
