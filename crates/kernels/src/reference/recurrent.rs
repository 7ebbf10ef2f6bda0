//! The recurrent cells, one sequence and one hidden unit after the other.

use tensorwire_graph::Cell;

use super::Reference;
use super::element_wise::sigmoid;
use super::reductions::sum;
use crate::launch::recurrent::{Given, GradGiven, GradMade, Made, Recurrences, Steps};
use crate::real::Real;

impl Recurrences for Reference {
    fn recurrent<T: Real>(&self, steps: &Steps, given: Given<'_, T>, made: Made<'_, T>) {
        let (h, batch) = (steps.hidden, steps.batch);
        let width = steps.cell.saved() * h;
        let mut states: Vec<Vec<T>> = given.first.iter().map(|first| first.to_vec()).collect();
        for (start, active) in steps.rows() {
            for sequence in 0..active {
                let row = start + sequence;
                let old: Vec<Vec<T>> =
                    states.iter().map(|s| s[sequence * h..][..h].to_vec()).collect();
                for unit in 0..h {
                    let at = row * h + unit;
                    let x = |gate: usize| given.products[gate][at];
                    let u = |gate: usize| dot(&given.matrices[gate][unit * h..][..h], &old[0]);
                    let mut save = |what: usize, value: T| {
                        made.saved[row * width + what * h + unit] = value;
                    };
                    let new = match steps.cell {
                        Cell::Rnn => (x(0) + u(0)).tanh(),
                        Cell::Gru => {
                            let (r, z) = (sigmoid(x(0) + u(0)), sigmoid(x(1) + u(1)));
                            let un = u(2);
                            let n = (x(2) + r * un).tanh();
                            for (what, value) in [r, z, n, un].into_iter().enumerate() {
                                save(what, value);
                            }
                            (T::one() - z) * n + z * old[0][unit]
                        }
                        Cell::Lstm => {
                            let (i, f) = (sigmoid(x(0) + u(0)), sigmoid(x(1) + u(1)));
                            let (g, o) = ((x(2) + u(2)).tanh(), sigmoid(x(3) + u(3)));
                            let c = f * old[1][unit] + i * g;
                            for (what, value) in [i, f, g, o, c].into_iter().enumerate() {
                                save(what, value);
                            }
                            states[1][sequence * h + unit] = c;
                            o * c.tanh()
                        }
                    };
                    states[0][sequence * h + unit] = new;
                    made.y[at] = new;
                }
            }
        }
        for (r#final, state) in made.finals.into_iter().zip(states) {
            r#final.copy_from_slice(&state[..batch * h]);
        }
    }

    fn recurrent_grad<T: Real>(
        &self,
        steps: &Steps,
        given: GradGiven<'_, T>,
        mut made: GradMade<'_, T>,
    ) {
        let (h, batch, cell) = (steps.hidden, steps.batch, steps.cell);
        // the gradients of the states behind the step at hand
        let mut carried: Vec<Vec<T>> = (0..cell.states())
            .map(|s| given.dfinals[s].map_or(vec![T::zero(); batch * h], <[T]>::to_vec))
            .collect();
        for matrix in &mut made.matrices {
            matrix.fill(T::zero());
        }
        let steps_back: Vec<(usize, usize)> = steps.rows().collect();
        for (t, &(start, active)) in steps_back.iter().enumerate().rev() {
            let previous_row = |sequence: usize| match t {
                0 => None,
                _ => Some(steps_back[t - 1].0 + sequence),
            };
            for sequence in 0..active {
                let row = start + sequence;
                let before = previous_row(sequence);
                let old = match before {
                    None => &given.first[0][sequence * h..][..h],
                    Some(before) => &given.y[before * h..][..h],
                };
                // what reaches the recurrent product of each gate
                let mut back = vec![vec![T::zero(); h]; cell.gates()];
                for unit in 0..h {
                    let (at, kept) = (row * h + unit, sequence * h + unit);
                    let dh = carried[0][kept] + given.dy.map_or(T::zero(), |dy| dy[at]);
                    let width = cell.saved() * h;
                    let saved =
                        |row: usize, what: usize| given.saved[row * width + what * h + unit];
                    carried[0][kept] = T::zero();
                    match cell {
                        Cell::Rnn => {
                            let y = given.y[at];
                            let d = dh * (T::one() - y * y);
                            made.products[0][at] = d;
                            back[0][unit] = d;
                        }
                        Cell::Gru => {
                            let [r, z, n, un] = [0, 1, 2, 3].map(|what| saved(row, what));
                            let dn = dh * (T::one() - z) * (T::one() - n * n);
                            let dz = dh * (old[unit] - n) * z * (T::one() - z);
                            let dr = dn * un * r * (T::one() - r);
                            carried[0][kept] = dh * z;
                            for (gate, d) in [dr, dz, dn].into_iter().enumerate() {
                                made.products[gate][at] = d;
                            }
                            (back[0][unit], back[1][unit], back[2][unit]) = (dr, dz, dn * r);
                        }
                        Cell::Lstm => {
                            let [i, f, g, o, c] = [0, 1, 2, 3, 4].map(|what| saved(row, what));
                            let old_c = match before {
                                None => given.first[1][kept],
                                Some(before) => saved(before, 4),
                            };
                            let squashed = c.tanh();
                            let dc = carried[1][kept] + dh * o * (T::one() - squashed * squashed);
                            let d = [
                                dc * g * i * (T::one() - i),
                                dc * old_c * f * (T::one() - f),
                                dc * i * (T::one() - g * g),
                                dh * squashed * o * (T::one() - o),
                            ];
                            carried[1][kept] = dc * f;
                            for (gate, d) in d.into_iter().enumerate() {
                                made.products[gate][at] = d;
                                back[gate][unit] = d;
                            }
                        }
                    }
                }
                for (gate, back) in back.iter().enumerate() {
                    for (unit, &d) in back.iter().enumerate() {
                        for (k, &old) in old.iter().enumerate() {
                            made.matrices[gate][unit * h + k] += d * old;
                            carried[0][sequence * h + k] += d * given.matrices[gate][unit * h + k];
                        }
                    }
                }
            }
        }
        for (first, carried) in made.first.iter_mut().zip(carried) {
            first.copy_from_slice(&carried);
        }
    }
}

fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    sum(a.iter().zip(b).map(|(&a, &b)| a * b))
}
