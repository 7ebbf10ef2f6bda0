//! Elements that move.

use tensorwire_tensor::Element;

use super::Reference;
use crate::launch::Source;
use crate::launch::moves::Moves;
use crate::launch::reductions::Axis;
use crate::real::Real;

impl Moves for Reference {
    fn concat<T: Element>(&self, rows: usize, parts: &[&[T]], y: &mut [T]) {
        let mut at = 0;
        for row in 0..rows {
            for part in parts {
                let length = part.len() / rows;
                for i in 0..length {
                    y[at] = part[row * length + i];
                    at += 1;
                }
            }
        }
    }

    fn slice<T: Element>(&self, axis: Axis, start: usize, length: usize, x: &[T], y: &mut [T]) {
        for outer in 0..axis.outer {
            for l in 0..length {
                for inner in 0..axis.inner {
                    y[(outer * length + l) * axis.inner + inner] =
                        x[(outer * axis.length + start + l) * axis.inner + inner];
                }
            }
        }
    }

    fn pad<T: Element>(&self, axis: Axis, before: usize, after: usize, x: &[T], y: &mut [T]) {
        y.fill(T::zeroed());
        let length = before + axis.length + after;
        for outer in 0..axis.outer {
            for l in 0..axis.length {
                for inner in 0..axis.inner {
                    y[(outer * length + before + l) * axis.inner + inner] =
                        x[(outer * axis.length + l) * axis.inner + inner];
                }
            }
        }
    }

    fn transpose<T: Element>(&self, dims: &[usize], permutation: &[usize], x: &[T], y: &mut [T]) {
        for (i, y) in y.iter_mut().enumerate() {
            // i's places along y's dimensions, from the last, are places along x's
            let (mut rest, mut places) = (i, vec![0; dims.len()]);
            for &dim in permutation.iter().rev() {
                places[dim] = rest % dims[dim];
                rest /= dims[dim];
            }
            let place = places.iter().zip(dims).fold(0, |place, (&at, &size)| place * size + at);
            *y = x[place];
        }
    }

    fn gather<T: Element>(&self, columns: usize, table: &[T], indices: &[i32], y: &mut [T]) {
        for (i, &index) in indices.iter().enumerate() {
            for column in 0..columns {
                y[i * columns + column] = table[index as usize * columns + column];
            }
        }
    }

    fn scatter_rows<T: Real>(&self, columns: usize, rows: &[T], indices: &[i32], y: &mut [T]) {
        y.fill(T::zero());
        for (i, &index) in indices.iter().enumerate() {
            for column in 0..columns {
                y[index as usize * columns + column] += rows[i * columns + column];
            }
        }
    }

    fn add_rows<T: Real>(
        &self,
        columns: usize,
        x: Source<'_, T>,
        rows: &[T],
        indices: &[i32],
        y: &mut [T],
    ) {
        if let Source::Apart(x) = x {
            y.copy_from_slice(x);
        }
        for (i, &index) in indices.iter().enumerate() {
            for column in 0..columns {
                y[index as usize * columns + column] += rows[i * columns + column];
            }
        }
    }
}
