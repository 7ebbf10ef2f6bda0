//! Variables that change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::Reference;
use crate::launch::updates::{Mean, RowPart, Step, Updates};
use crate::real::Real;

impl Updates for Reference {
    fn apply<T: Real>(
        &self,
        mut step: Step<'_, T>,
        mean: Mean<T>,
        v: &mut [T],
        gradients: &[&[T]],
    ) {
        if let Step::Lamb { numbers, decay, m, s } = step {
            let mut squares = [0.0; 2];
            for (i, &v) in v.iter().enumerate() {
                numbers.take(folded(gradients, i) * mean.share * mean.scale, &mut m[i], &mut s[i]);
                let along = numbers.with_decay(decay, v, m[i], s[i]);
                squares[0] += v.widen() * v.widen();
                squares[1] += along.widen() * along.widen();
            }
            let rate = numbers.trusted(squares);
            for (i, v) in v.iter_mut().enumerate() {
                *v -= rate * numbers.with_decay(decay, *v, m[i], s[i]);
            }
            return;
        }
        for (i, v) in v.iter_mut().enumerate() {
            move_one(&mut step, mean, i, v, folded(gradients, i));
        }
    }

    fn apply_rows<T: Real>(
        &self,
        mut step: Step<'_, T>,
        mean: Mean<T>,
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
                move_one(&mut step, mean, i, &mut v[i], sum);
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

/// Moves element `i` of the variable along the mean of the gradients whose sum is given.
fn move_one<T: Real>(step: &mut Step<'_, T>, mean: Mean<T>, i: usize, v: &mut T, sum: T) {
    *v *= mean.keep;
    let g = match mean.pull == T::zero() {
        true => sum * mean.share * mean.scale,
        false => sum * mean.share * mean.scale + mean.pull * *v,
    };
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
        Step::Nesterov { rate, momentum, u } => {
            u[i] = *momentum * u[i] + g;
            *v -= *rate * (g + *momentum * u[i]);
        }
        Step::RmsProp { rate, alpha, fresh, epsilon, a } => {
            a[i] = *alpha * a[i] + *fresh * (g * g);
            *v -= *rate * g / (a[i].sqrt() + *epsilon);
        }
        Step::Adam { numbers, m, s } => {
            numbers.take(g, &mut m[i], &mut s[i]);
            *v -= numbers.direction(numbers.rate, m[i], s[i]);
        }
        // over the whole variable, above
        Step::Lamb { .. } => {}
    }
}

/// Element `i` of the gradients' sum, added in rank order.
pub(super) fn folded<T: Real>(gradients: &[&[T]], i: usize) -> T {
    let mut sum = gradients[0][i];
    for gradient in &gradients[1..] {
        sum += gradient[i];
    }
    sum
}
