//! The operators over images, as the back end offers them.

use super::{Cpu, conv, norm, pooling};
use crate::launch::images::{Convolution, Convolutions, Images, Pooling, ResponseNorm};
use crate::real::Real;

impl Convolutions for Cpu {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]) {
        conv::conv2d(&self.pool, &shape, x, w, y);
    }

    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]) {
        conv::grad_input(&self.pool, &shape, dy, w, dx);
    }

    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]) {
        conv::grad_weight(&self.pool, &shape, dy, x, dw);
    }
}

impl Images for Cpu {
    fn max_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T], places: &mut [u8]) {
        pooling::max_pool(&self.pool, self.simd, &shape, x, y, places);
    }

    fn max_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], places: &[u8], dx: &mut [T]) {
        pooling::max_pool_grad(&self.pool, self.simd, &shape, dy, places, dx);
    }

    fn avg_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T]) {
        pooling::avg_pool(&self.pool, self.simd, &shape, x, y);
    }

    fn avg_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], dx: &mut [T]) {
        pooling::avg_pool_grad(&self.pool, self.simd, &shape, dy, dx);
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
        norm::statistics(&self.pool, self.simd, x, mean, variance);
        self.normalize(epsilon, x, scale, shift, mean, variance, y);
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
        let given = norm::Given { epsilon, mean, variance, scale };
        norm::batch_norm_grad(&self.pool, self.simd, given, [dy, x], dx, dscale, dshift);
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
        let given = norm::Given { epsilon, mean, variance, scale };
        norm::normalize(&self.pool, self.simd, given, x, shift, y);
    }

    fn response_norm<T: Real>(&self, norm: ResponseNorm<T>, x: &[T], y: &mut [T]) {
        norm::response_norm(&self.pool, self.simd, norm, x, y);
    }

    fn response_norm_grad<T: Real>(
        &self,
        norm: ResponseNorm<T>,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    ) {
        norm::response_norm_grad(&self.pool, self.simd, norm, [dy, x, y], dx);
    }
}
