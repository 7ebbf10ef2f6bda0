//! Which operators over images oneDNN computes. What it refuses, every f64, and what it has no operator
//! for, is the `cpu` back end's.

use tensorwire_tensor::DType;

use super::OneDnn;
use super::primitive::Refused;
use crate::launch::images::{Convolution, Images, Pooling, ResponseNorm};
use crate::real::Real;

/// The elements, if they are f32.
pub(super) fn floats<T: Real>(slice: &[T]) -> Option<&[f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::cast_slice(slice))
}

/// As [`floats`].
pub(super) fn floats_mut<T: Real>(slice: &mut [T]) -> Option<&mut [f32]> {
    (T::DTYPE == DType::F32).then(|| bytemuck::cast_slice_mut(slice))
}

/// True if the library has computed it: `body`, with f32 operands.
fn done(body: impl FnOnce() -> Option<Result<(), Refused>>) -> bool {
    body().is_some_and(|result| result.is_ok())
}

impl Images for OneDnn {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]) {
        if !done(|| Some(self.conv2d(shape, floats(x)?, floats(w)?, floats_mut(y)?))) {
            Images::conv2d(&self.cpu, shape, x, w, y);
        }
    }

    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]) {
        if !done(|| Some(self.conv2d_grad_input(shape, floats(dy)?, floats(w)?, floats_mut(dx)?))) {
            Images::conv2d_grad_input(&self.cpu, shape, dy, w, dx);
        }
    }

    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]) {
        if !done(|| Some(self.conv2d_grad_weight(shape, floats(dy)?, floats(x)?, floats_mut(dw)?)))
        {
            Images::conv2d_grad_weight(&self.cpu, shape, dy, x, dw);
        }
    }

    // The library's maximum passes over a NaN, which ours shows, its average of nothing but padding is no
    // number, and its gradient of a maximum trusts the places, which are a tensor like any. Pooling waits for
    // memory either way.

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
        let body = || {
            let (y, mean, variance) = (floats_mut(y)?, floats_mut(mean)?, floats_mut(variance)?);
            let (epsilon, scale) = (epsilon.to_f32()?, scale.and_then(floats));
            Some(self.batch_norm(epsilon, floats(x)?, scale, floats(shift)?, y, mean, variance))
        };
        if !done(body) {
            Images::batch_norm(&self.cpu, epsilon, x, scale, shift, y, mean, variance);
        }
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
        mut dscale: Option<&mut [T]>,
        dshift: &mut [T],
    ) {
        let body = || {
            let (dy, x, mean, variance) =
                (floats(dy)?, floats(x)?, floats(mean)?, floats(variance)?);
            let (scale, dscale) =
                (scale.and_then(floats), dscale.as_deref_mut().and_then(floats_mut));
            let (dx, dshift) = (floats_mut(dx)?, floats_mut(dshift)?);
            let epsilon = epsilon.to_f32()?;
            Some(self.batch_norm_grad(epsilon, dy, x, mean, variance, scale, dx, dscale, dshift))
        };
        if !done(body) {
            let cpu = &self.cpu;
            Images::batch_norm_grad(cpu, epsilon, dy, x, mean, variance, scale, dx, dscale, dshift);
        }
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
        let body = || Some(self.response_norm(norm.floats()?, floats(x)?, floats_mut(y)?));
        if !done(body) {
            Images::response_norm(&self.cpu, norm, x, y);
        }
    }

    fn response_norm_grad<T: Real>(
        &self,
        norm: ResponseNorm<T>,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    ) {
        let body = || {
            let (dy, x) = (floats(dy)?, floats(x)?);
            Some(self.response_norm_grad(norm.floats()?, dy, x, floats_mut(dx)?))
        };
        if !done(body) {
            Images::response_norm_grad(&self.cpu, norm, dy, x, y, dx);
        }
    }
}

impl<T: Real> ResponseNorm<T> {
    /// As the library computes: in f32.
    fn floats(self) -> Option<ResponseNorm<f32>> {
        let ResponseNorm { channels, size, alpha, beta, bias } = self;
        let (alpha, beta, bias) = (alpha.to_f32()?, beta.to_f32()?, bias.to_f32()?);
        Some(ResponseNorm { channels, size, alpha, beta, bias })
    }
}
