//! Convolutions and poolings of random shapes.

use proptest::prelude::*;
use tensorwire_graph::{Op, Window};

use super::{Real, Tensor, Values};

/// The sizes of a convolution or of a pooling, where `outputs` are `channels`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
    pub(crate) outputs: usize,
    pub(crate) groups: usize,
    pub(crate) window: Window,
}

impl Shape {
    pub(crate) fn x(&self) -> [usize; 4] {
        [self.batch, self.size[0], self.size[1], self.channels]
    }

    pub(crate) fn w(&self) -> [usize; 4] {
        let [rows, columns] = self.window.kernel;
        [self.outputs, self.channels / self.groups, rows, columns]
    }

    pub(crate) fn y(&self) -> [usize; 4] {
        let [rows, columns] = self.window.output(self.size).unwrap();
        [self.batch, rows, columns, self.outputs]
    }

    pub(crate) fn pooled(&self) -> [usize; 4] {
        Shape { outputs: self.channels, ..*self }.y()
    }

    /// Conv2d and its gradients: (operator, the operands' dimensions, the terms of a sum).
    #[allow(clippy::type_complexity)] // a table's rows
    pub(crate) fn convolutions(&self) -> [(Op, [usize; 4], [usize; 4], [usize; 4], usize); 3] {
        let Shape { window, groups, size, .. } = *self;
        let (x, w, y) = (self.x(), self.w(), self.y());
        let area = window.kernel[0] * window.kernel[1];
        [
            (Op::Conv2d { window, groups }, x, w, y, area * self.channels),
            (Op::Conv2dGradInput { window, groups, size }, y, w, x, area * self.outputs),
            (Op::Conv2dGradWeight { window, groups }, y, x, w, y[0] * y[1] * y[2]),
        ]
    }
}

/// Images with windows that fit them: uneven paddings, strides and dilations that leave rows over.
pub(crate) fn shape(channels: usize) -> impl Strategy<Value = Shape> {
    let pair = |end: usize| [1..=end, 1..=end];
    let window = (pair(4), pair(3), pair(2), [0usize..4, 0..4], [0usize..4, 0..4]);
    let sizes = (0usize..4, [1usize..10, 1..10], 1..=channels, 1..=channels, 1usize..4);
    (sizes, window).prop_filter_map("the window must fit", |(sizes, window)| {
        let (batch, size, channels, outputs, groups) = sizes;
        let (kernel, stride, dilation, before, after) = window;
        let window = Window { kernel, stride, dilation, before, after };
        window.output(size)?;
        let (channels, outputs) = (channels * groups, outputs * groups);
        Some(Shape { batch, size, channels, outputs, groups, window })
    })
}

pub(crate) fn count(dims: &[usize]) -> usize {
    dims.iter().product()
}

pub(crate) fn reals<T: Real>(values: &mut Values, dims: &[usize]) -> Tensor {
    Tensor::new(dims, &values.reals::<T>(count(dims)))
}

pub(crate) fn absolute<T: Real>(x: &Tensor, dims: &[usize]) -> Tensor {
    Tensor::new(dims, &x.to_vec::<T>().into_iter().map(|x| x.abs()).collect::<Vec<T>>())
}
