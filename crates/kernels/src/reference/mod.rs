//! The oracle: each operator as its formula is written, one element after the other on the caller's
//! thread. Sums are added one by one in the order of their index, in the element's own precision
//! (f32 sums are f32 sums), starting from 0. One file a family, as in `launch`.

mod attention;
mod compression;
mod element_wise;
mod elements;
mod images;
mod moves;
mod norms;
mod recurrent;
mod reductions;
mod updates;

use crate::cpu::Threads;
use crate::launch::{Backend, Product, Products};
use crate::real::Real;

pub(crate) use elements::{GELU_CUBE, GELU_SLOPE, binary, clamp, holds, sign};
pub(crate) use reductions::{is_max, is_within, row_length};

/// The plain loops. Holds nothing.
#[derive(Debug)]
pub(crate) struct Reference;

impl Backend for Reference {
    type Loops = Reference;

    fn loops(&self) -> &Reference {
        self
    }

    fn threads(&self) -> Threads<'_> {
        Threads::callers()
    }
}

impl Products for Reference {
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

    fn batch_matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        let Product { m, n, k, .. } = product;
        for ((a, b), y) in a.chunks(m * k).zip(b.chunks(k * n)).zip(y.chunks_mut(m * n)) {
            self.matmul(product, a, b, y);
        }
    }
}
