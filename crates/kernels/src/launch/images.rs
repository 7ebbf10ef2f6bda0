//! Operators over images, [n,h,w,c]: convolution, pooling, normalisation. Their checks, and what a back
//! end is asked to compute.

use tensorwire_graph::{Op, Window};

use super::operands::Operands;
use crate::error::KernelError;
use crate::real::Real;

/// The sizes of a convolution: x[n,h,w,c] and w[o,c/groups,kh,kw] → y[n,oh,ow,o]. Checked: every product of
/// them that is a tensor's size fits, the window is [`Window::output`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    pub(crate) batch: usize,
    /// h, w.
    pub(crate) size: [usize; 2],
    /// c.
    pub(crate) channels: usize,
    /// oh, ow.
    pub(crate) windows: [usize; 2],
    /// o.
    pub(crate) outputs: usize,
    pub(crate) groups: usize,
    pub(crate) window: Window,
}

/// The sizes of a pooling: x[n,h,w,c] → y[n,oh,ow,c].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pooling {
    pub(crate) batch: usize,
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
    pub(crate) windows: [usize; 2],
    pub(crate) window: Window,
}

/// A normalisation's numbers; x has rows of as many channels as there are means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ResponseNorm<T> {
    pub(crate) channels: usize,
    pub(crate) size: usize,
    pub(crate) alpha: T,
    pub(crate) beta: T,
    pub(crate) bias: T,
}

/// The loops of one back end over images.
pub(crate) trait Images {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]);
    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]);
    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]);
    fn max_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T], places: &mut [u8]);
    /// Places may be any number: one outside its window is nobody's.
    fn max_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], places: &[u8], dx: &mut [T]);
    fn avg_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T]);
    fn avg_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], dx: &mut [T]);
    /// `x` has at least one row.
    #[allow(clippy::too_many_arguments)] // the operator's operands, in their order
    fn batch_norm<T: Real>(
        &self,
        epsilon: T,
        x: &[T],
        scale: Option<&[T]>,
        shift: &[T],
        y: &mut [T],
        mean: &mut [T],
        variance: &mut [T],
    );
    #[allow(clippy::too_many_arguments)] // the operator's operands, in their order
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
    );
    #[allow(clippy::too_many_arguments)] // the operator's operands, in their order
    fn normalize<T: Real>(
        &self,
        epsilon: T,
        x: &[T],
        scale: Option<&[T]>,
        shift: &[T],
        mean: &[T],
        variance: &[T],
        y: &mut [T],
    );
    fn response_norm<T: Real>(&self, norm: ResponseNorm<T>, x: &[T], y: &mut [T]);
    fn response_norm_grad<T: Real>(
        &self,
        norm: ResponseNorm<T>,
        dy: &[T],
        x: &[T],
        y: &[T],
        dx: &mut [T],
    );
}
