//! Which operators oneDNN computes, and that the rest is the `cpu` back end's: all that is not of f32, and what
//! the library refused.

use tensorwire_tensor::DType;

use super::OneDnn;
use crate::cpu::{Cpu, Threads};
use crate::launch::Backend;
use crate::launch::images::{Convolution, Convolutions};
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

    fn threads(&self) -> Threads<'_> {
        self.cpu.threads()
    }
}

impl Convolutions for OneDnn {
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
}
