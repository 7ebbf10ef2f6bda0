//! The oracle over images: a sum over each window, element by element, in the order of the window's rows,
//! columns and channels; a gradient's terms in the order of the windows.

use super::Reference;
use crate::launch::images::{Convolution, Convolutions, Images, Pooling, ResponseNorm};
use crate::real::Real;
use tensorwire_graph::Window;

impl Convolutions for Reference {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]) {
        y.fill(T::zero());
        each_product(shape, |x_at, w_at, y_at| y[y_at] += x[x_at] * w[w_at]);
    }

    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]) {
        dx.fill(T::zero());
        each_product(shape, |x_at, w_at, y_at| dx[x_at] += dy[y_at] * w[w_at]);
    }

    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]) {
        dw.fill(T::zero());
        each_product(shape, |x_at, w_at, y_at| dw[w_at] += dy[y_at] * x[x_at]);
    }
}

impl Images for Reference {
    /// A NaN is larger than any number: a run that has diverged should show it. The largest of a window that
    /// is all padding, which dilation can make, is −∞.
    fn max_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T], places: &mut [u8]) {
        y.fill(T::neg_infinity());
        places.fill(0);
        let mut seen = vec![false; y.len()];
        each_pooled(shape, |x_at, y_at, place| {
            let (x, max) = (x[x_at], y[y_at]);
            if !seen[y_at] || x > max || (x.is_nan() && !max.is_nan()) {
                (y[y_at], places[y_at], seen[y_at]) = (x, place as u8, true);
            }
        });
    }

    fn max_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], places: &[u8], dx: &mut [T]) {
        dx.fill(T::zero());
        each_pooled(shape, |x_at, y_at, place| {
            if usize::from(places[y_at]) == place {
                dx[x_at] += dy[y_at];
            }
        });
    }

    /// The mean of a window that is all padding, which dilation can make, is 0.
    fn avg_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T]) {
        let counts = counts(shape, y.len());
        y.fill(T::zero());
        each_pooled(shape, |x_at, y_at, _| y[y_at] += x[x_at]);
        for (y, &count) in y.iter_mut().zip(&counts) {
            *y /= T::from_count(count.max(1));
        }
    }

    fn avg_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], dx: &mut [T]) {
        let counts = counts(shape, dy.len());
        dx.fill(T::zero());
        each_pooled(shape, |x_at, y_at, _| dx[x_at] += dy[y_at] / T::from_count(counts[y_at]));
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
        let channels = shift.len();
        for channel in 0..channels {
            let column = || x.iter().skip(channel).step_by(channels);
            let count = T::from_count(column().count());
            mean[channel] = column().copied().sum::<T>() / count;
            let square = |&x: &T| (x - mean[channel]) * (x - mean[channel]);
            variance[channel] = column().map(square).sum::<T>() / count;
        }
        self.normalize(epsilon, x, scale, shift, mean, variance, y);
    }

    /// With x̂ = (x − mean)/√(variance + epsilon) over n rows: dshift = Σ dy, dscale = Σ dy·x̂ and
    /// dx = scale/√(variance + epsilon)·(dy − dshift/n − x̂·dscale/n), Ioffe and Szegedy 2015, §3.
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
        let channels = mean.len();
        for channel in 0..channels {
            let deviation = (variance[channel] + epsilon).sqrt();
            let normal = |x: T| (x - mean[channel]) / deviation;
            let (mut of_scale, mut of_shift) = (T::zero(), T::zero());
            for at in (channel..x.len()).step_by(channels) {
                of_scale += dy[at] * normal(x[at]);
                of_shift += dy[at];
            }
            dshift[channel] = of_shift;
            if let Some(dscale) = &mut dscale {
                dscale[channel] = of_scale;
            }
            let count = T::from_count(x.len() / channels);
            let factor = scale.map_or(T::one(), |scale| scale[channel]) / deviation;
            for at in (channel..x.len()).step_by(channels) {
                let rest = of_shift / count + normal(x[at]) * of_scale / count;
                dx[at] = factor * (dy[at] - rest);
            }
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
        for (at, (y, &x)) in y.iter_mut().zip(x).enumerate() {
            let channel = at % shift.len();
            let normal = (x - mean[channel]) / (variance[channel] + epsilon).sqrt();
            *y = normal * scale.map_or(T::one(), |scale| scale[channel]) + shift[channel];
        }
    }

    fn response_norm<T: Real>(&self, norm: ResponseNorm<T>, x: &[T], y: &mut [T]) {
        for (at, y) in y.iter_mut().enumerate() {
            *y = x[at] * response(norm, x, at).powf(-norm.beta);
        }
    }

    /// With t = bias + alpha·Σ x²: dxᵢ = dyᵢ·tᵢ^−beta − 2·alpha·beta·xᵢ·Σ dyⱼ·yⱼ/tⱼ, over those j in whose
    /// sum i is: the channels around i.
    fn response_norm_grad<T: Real>(
        &self,
        norm: ResponseNorm<T>,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    ) {
        let two = T::one() + T::one();
        for (at, dx) in dx.iter_mut().enumerate() {
            let around = around(norm, at);
            let sum: T = around.map(|j| dy[j] * y[j] / response(norm, x, j)).sum();
            let own = dy[at] * response(norm, x, at).powf(-norm.beta);
            *dx = own - two * norm.alpha * norm.beta * x[at] * sum;
        }
    }
}

/// Calls `body` with the places of x, w and y of every product of a convolution.
fn each_product(shape: Convolution, mut body: impl FnMut(usize, usize, usize)) {
    let Convolution { batch, size, channels, windows, outputs, groups, window } = shape;
    let (group_channels, group_outputs) = (channels / groups, outputs / groups);
    let [kernel_rows, kernel_columns] = window.kernel;
    for (image, row, column) in triples([batch, windows[0], windows[1]]) {
        for output in 0..outputs {
            let y_at = ((image * windows[0] + row) * windows[1] + column) * outputs + output;
            let first_channel = output / group_outputs * group_channels;
            for (tap_row, tap_column, channel) in
                triples([kernel_rows, kernel_columns, group_channels])
            {
                let Some([r, c]) = seen(&window, size, [row, column], [tap_row, tap_column]) else {
                    continue;
                };
                let x_at =
                    ((image * size[0] + r) * size[1] + c) * channels + first_channel + channel;
                let w_at = ((output * group_channels + channel) * kernel_rows + tap_row)
                    * kernel_columns
                    + tap_column;
                body(x_at, w_at, y_at);
            }
        }
    }
}

/// Calls `body` with the places of x and y of every element of every window, and its place in the window.
fn each_pooled(shape: Pooling, mut body: impl FnMut(usize, usize, usize)) {
    let Pooling { batch, size, channels, windows, window } = shape;
    let [kernel_rows, kernel_columns] = window.kernel;
    for (image, row, column) in triples([batch, windows[0], windows[1]]) {
        let y_at = ((image * windows[0] + row) * windows[1] + column) * channels;
        for (tap_row, tap_column, channel) in triples([kernel_rows, kernel_columns, channels]) {
            let seen = seen(&window, size, [row, column], [tap_row, tap_column]);
            if let Some([r, c]) = seen {
                let x_at = ((image * size[0] + r) * size[1] + c) * channels + channel;
                body(x_at, y_at + channel, tap_row * kernel_columns + tap_column);
            }
        }
    }
}

/// How many elements each window has that are no padding.
fn counts(shape: Pooling, len: usize) -> Vec<usize> {
    let mut counts = vec![0; len];
    each_pooled(shape, |_, y_at, _| counts[y_at] += 1);
    counts
}

/// The place that an output's tap looks at, unless it is padding.
fn seen(
    window: &Window,
    size: [usize; 2],
    output: [usize; 2],
    tap: [usize; 2],
) -> Option<[usize; 2]> {
    let side = |s: usize| {
        let place = output[s] * window.stride[s] + tap[s] * window.dilation[s];
        place.checked_sub(window.before[s]).filter(|&place| place < size[s])
    };
    Some([side(0)?, side(1)?])
}

/// All (a, b, c) below `ends`, the last the fastest.
fn triples(ends: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    let [a, b, c] = ends.map(|end| 0..end);
    a.flat_map(move |i| {
        let c = c.clone();
        b.clone().flat_map(move |j| c.clone().map(move |k| (i, j, k)))
    })
}

/// bias + alpha·Σ x² over the channels around element `at`.
fn response<T: Real>(norm: ResponseNorm<T>, x: &[T], at: usize) -> T {
    let sum: T = around(norm, at).map(|j| x[j] * x[j]).sum();
    norm.bias + norm.alpha * sum
}

/// The `size` channels around element `at`, as far as there are such.
fn around<T>(norm: ResponseNorm<T>, at: usize) -> std::ops::Range<usize> {
    let (channel, reach) = (at % norm.channels, norm.size / 2);
    let before = channel.min(reach);
    let behind = (norm.channels - 1 - channel).min(reach);
    at - before..at + behind + 1
}
