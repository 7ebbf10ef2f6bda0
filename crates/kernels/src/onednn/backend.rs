//! That oneDNN computes products of f32, and the `cpu` back end the rest: other types, and what the library
//! refuses.

use super::OneDnn;
use super::images::{floats, floats_mut};
use crate::cpu::Cpu;
use crate::launch::{Backend, Product};
use crate::real::Real;

impl Backend for OneDnn {
    type Loops = Cpu;

    fn loops(&self) -> &Cpu {
        &self.cpu
    }

    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        let done = match (floats(a), floats(b), floats_mut(y)) {
            (Some(a), Some(b), Some(y)) => OneDnn::matmul(self, product, a, b, y).is_ok(),
            _ => false,
        };
        if !done {
            Backend::matmul(&self.cpu, product, a, b, y);
        }
    }
}
