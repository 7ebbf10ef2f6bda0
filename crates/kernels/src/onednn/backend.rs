//! Which operators oneDNN computes, and that the rest is the `cpu` back end's: all that is not of f32, and what
//! the library refused.

use tensorwire_tensor::DType;

use super::OneDnn;
use crate::cpu::Cpu;
use crate::launch::images::{Convolution, Images, Pooling, ResponseNorm};
use crate::launch::{Backend, Product};
use crate::real::Real;

/// The elements, if they are f32.
fn floats<T: Real>(slice: &[T]) -> Option<&[f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::cast_slice(slice))
}

/// As [`floats`].
fn floats_mut<T: Real>(slice: &mut [T]) -> Option<&mut [f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::cast_slice_mut(slice))
}

impl Backend for OneDnn {
    type Loops = Cpu;

    fn loops(&self) -> &Cpu {
        &self.cpu
    }

    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        self.cpu.matmul(product, a, b, y);
    }
}

impl Images for OneDnn {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]) {
        let done = match (floats(x), floats(w), floats_mut(y)) {
            (Some(x), Some(w), Some(y)) => OneDnn::conv2d(self, shape, x, w, y).is_ok(),
            _ => false,
        };
        if !done {
            self.cpu.conv2d(shape, x, w, y);
        }
    }

    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]) {
        let done = match (floats(dy), floats(w), floats_mut(dx)) {
            (Some(dy), Some(w), Some(dx)) => {
                OneDnn::conv2d_grad_input(self, shape, dy, w, dx).is_ok()
            }
            _ => false,
        };
        if !done {
            self.cpu.conv2d_grad_input(shape, dy, w, dx);
        }
    }

    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]) {
        let done = match (floats(dy), floats(x), floats_mut(dw)) {
            (Some(dy), Some(x), Some(dw)) => {
                OneDnn::conv2d_grad_weight(self, shape, dy, x, dw).is_ok()
            }
            _ => false,
        };
        if !done {
            self.cpu.conv2d_grad_weight(shape, dy, x, dw);
        }
    }

    fn max_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T], places: &mut [u8]) {
        self.cpu.max_pool(shape, x, y, places);
    }

    fn max_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], places: &[u8], dx: &mut [T]) {
        self.cpu.max_pool_grad(shape, dy, places, dx);
    }

    fn avg_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T]) {
        self.cpu.avg_pool(shape, x, y);
    }

    fn avg_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], dx: &mut [T]) {
        self.cpu.avg_pool_grad(shape, dy, dx);
    }

    fn batch_norm<T: Real>(
        &self,
        epsilon: T,
        x: &[T],
        scale: Option<&[T]>,
        shift: &[T],
        y: &mut [T],
        mean: &mut [T],
        variance: &mut [T],
    ) {
        self.cpu.batch_norm(epsilon, x, scale, shift, y, mean, variance);
    }

    fn batch_norm_grad<T: Real>(
        &self,
        epsilon: T,
        dy: &[T],
        x: &[T],
        mean: &[T],
        variance: &[T],
        scale: Option<&[T]>,
        dx: &mut [T],
        dscale: Option<&mut [T]>,
        dshift: &mut [T],
    ) {
        self.cpu.batch_norm_grad(epsilon, dy, x, mean, variance, scale, dx, dscale, dshift);
    }

    fn normalize<T: Real>(
        &self,
        epsilon: T,
        x: &[T],
        scale: Option<&[T]>,
        shift: &[T],
        mean: &[T],
        variance: &[T],
        y: &mut [T],
    ) {
        self.cpu.normalize(epsilon, x, scale, shift, mean, variance, y);
    }

    fn response_norm<T: Real>(&self, norm: ResponseNorm<T>, x: &[T], y: &mut [T]) {
        self.cpu.response_norm(norm, x, y);
    }

    fn response_norm_grad<T: Real>(
        &self,
        norm: ResponseNorm<T>,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    ) {
        self.cpu.response_norm_grad(norm, dy, x, y, dx);
    }
}
