//! Which operators oneDNN computes, and that the rest is the `cpu` back end's.

use tensorwire_tensor::Element;

use super::OneDnn;
use super::images::{floats, floats_mut};
use crate::launch::{Backend, Momentum, Product, Sgd, Source};
use crate::real::Real;

impl OneDnn {
    /// True if the library has computed it.
    fn product<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) -> bool {
        match (floats(a), floats(b), floats_mut(y)) {
            (Some(a), Some(b), Some(y)) => self.matmul(product, a, b, y).is_ok(),
            _ => false,
        }
    }
}

impl Backend for OneDnn {
    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        if !self.product(product, a, b, y) {
            Backend::matmul(&self.cpu, product, a, b, y);
        }
    }

    fn fill<T: Element>(&self, value: T, y: &mut [T]) {
        self.cpu.fill(value, y);
    }

    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]) {
        self.cpu.bias_add(x, bias, y);
    }

    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]) {
        self.cpu.sum_rows(x, y);
    }

    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        self.cpu.relu(x, y);
    }

    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        self.cpu.relu_grad(dy, y, dx);
    }

    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.cpu.add(a, b, y);
    }

    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]) {
        self.cpu.scale_by(x, scale, y);
    }

    fn softmax_cross_entropy<T: Real>(&self, logits: &[T], labels: &[i32], dlogits: &mut [T]) -> T {
        self.cpu.softmax_cross_entropy(logits, labels, dlogits)
    }

    fn count_correct<T: Real>(&self, logits: &[T], labels: &[i32]) -> i64 {
        self.cpu.count_correct(logits, labels)
    }

    fn reduce_max<T: Real>(&self, x: &[T]) -> T {
        self.cpu.reduce_max(x)
    }

    fn apply_sgd<T: Real>(&self, rule: Sgd<T>, v: &mut [T], gradients: &[&[T]]) {
        self.cpu.apply_sgd(rule, v, gradients);
    }

    fn apply_momentum<T: Real>(
        &self,
        rule: Momentum<T>,
        v: &mut [T],
        u: &mut [T],
        gradients: &[&[T]],
    ) {
        self.cpu.apply_momentum(rule, v, u, gradients);
    }
}
