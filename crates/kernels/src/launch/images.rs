//! Operators over images, [n,h,w,c]: convolution, pooling, normalisation. Their checks, and what a back
//! end is asked to compute.

use tensorwire_graph::{Op, Window};

use super::Backend;
use super::operands::{Input, Operands};
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

/// The convolutions of one back end.
pub(crate) trait Convolutions {
    fn conv2d<T: Real>(&self, shape: Convolution, x: &[T], w: &[T], y: &mut [T]);
    fn conv2d_grad_input<T: Real>(&self, shape: Convolution, dy: &[T], w: &[T], dx: &mut [T]);
    fn conv2d_grad_weight<T: Real>(&self, shape: Convolution, dy: &[T], x: &[T], dw: &mut [T]);
}

/// The other loops over images.
pub(crate) trait Images {
    fn max_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T], places: &mut [u8]);
    /// Places may be any number: one outside its window is nobody's.
    fn max_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], places: &[u8], dx: &mut [T]);
    fn avg_pool<T: Real>(&self, shape: Pooling, x: &[T], y: &mut [T]);
    fn avg_pool_grad<T: Real>(&self, shape: Pooling, dy: &[T], dx: &mut [T]);
    /// `x` has at least one row. The statistics are written as well.
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

/// Checks the operands of an operator over images and has `backend` compute it.
pub(super) fn run<T: Real, B: Backend>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let loops = backend.loops();
    match *op {
        Op::Conv2d { window, groups } => conv2d::<T, B>(backend, operands, window, groups),
        Op::Conv2dGradInput { window, groups, size } => {
            conv2d_grad_input::<T, B>(backend, operands, window, groups, size)
        }
        Op::Conv2dGradWeight { window, groups } => {
            conv2d_grad_weight::<T, B>(backend, operands, window, groups)
        }
        Op::MaxPool { window } => {
            let ([x], [y, places]) = operands.exactly()?;
            let shape = Pooling::over(&x, x.dims(), window)?;
            shape.check_places(&x)?;
            y.expect_dims(&shape.y_dims())?;
            places.expect_dims(&shape.y_dims())?;
            loops.max_pool::<T>(shape, x.elements()?, y.elements_mut()?, places.elements_mut()?);
            Ok(())
        }
        Op::MaxPoolGrad { window, size } => {
            let ([dy, places], [dx]) = operands.exactly()?;
            let shape = Pooling::under(&dy, window, size)?;
            shape.check_places(&dy)?;
            places.expect_dims(&shape.y_dims())?;
            dx.expect_dims(&shape.x_dims())?;
            loops.max_pool_grad::<T>(shape, dy.elements()?, places.elements()?, dx.elements_mut()?);
            Ok(())
        }
        Op::AvgPool { window } => {
            let ([x], [y]) = operands.exactly()?;
            let shape = Pooling::over(&x, x.dims(), window)?;
            y.expect_dims(&shape.y_dims())?;
            loops.avg_pool::<T>(shape, x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::AvgPoolGrad { window, size } => {
            let ([dy], [dx]) = operands.exactly()?;
            let shape = Pooling::under(&dy, window, size)?;
            dx.expect_dims(&shape.x_dims())?;
            loops.avg_pool_grad::<T>(shape, dy.elements()?, dx.elements_mut()?);
            Ok(())
        }
        Op::BatchNorm { epsilon, scaled } => batch_norm::<T, _>(loops, operands, epsilon, scaled),
        Op::BatchNormGrad { epsilon, scaled } => {
            batch_norm_grad::<T, _>(loops, operands, epsilon, scaled)
        }
        Op::Normalize { epsilon, scaled } => normalize::<T, _>(loops, operands, epsilon, scaled),
        Op::LocalResponseNorm { size, alpha, beta, bias } => {
            let ([x], [y]) = operands.exactly()?;
            let norm = ResponseNorm::over(&x, size, [alpha, beta, bias])?;
            y.expect_dims(x.dims())?;
            loops.response_norm::<T>(norm, x.elements()?, y.elements_mut()?);
            Ok(())
        }
        Op::LocalResponseNormGrad { size, alpha, beta, bias } => {
            let ([dy, x, y], [dx]) = operands.exactly()?;
            let norm = ResponseNorm::over(&x, size, [alpha, beta, bias])?;
            dy.expect_dims(x.dims())?;
            y.expect_dims(x.dims())?;
            dx.expect_dims(x.dims())?;
            loops.response_norm_grad::<T>(
                norm,
                dy.elements()?,
                x.elements()?,
                y.elements()?,
                dx.elements_mut()?,
            );
            Ok(())
        }
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn conv2d<T: Real, B: Convolutions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    window: Window,
    groups: usize,
) -> Result<(), KernelError> {
    let ([x, w], [y]) = operands.exactly()?;
    let [batch, height, width, channels] = images(&x, x.dims())?;
    let [outputs, ..] = weight(&w)?;
    let size = [height, width];
    let windows = windows(&x, window, size)?;
    let shape = Convolution { batch, size, channels, windows, outputs, groups, window };
    shape.check_groups(&x)?;
    w.expect_dims(&shape.w_dims())?;
    y.expect_dims(&shape.y_dims())?;
    backend.conv2d::<T>(shape, x.elements()?, w.elements()?, y.elements_mut()?);
    Ok(())
}

fn conv2d_grad_input<T: Real, B: Convolutions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    window: Window,
    groups: usize,
    size: [usize; 2],
) -> Result<(), KernelError> {
    let ([dy, w], [dx]) = operands.exactly()?;
    let [batch, _, _, outputs] = images(&dy, dy.dims())?;
    let [_, group, ..] = weight(&w)?;
    let windows = windows(&dy, window, size)?;
    // more than fits is more than dx has
    let channels = group.saturating_mul(groups);
    let shape = Convolution { batch, size, channels, windows, outputs, groups, window };
    shape.check_groups(&dy)?;
    dy.expect_dims(&shape.y_dims())?;
    w.expect_dims(&shape.w_dims())?;
    dx.expect_dims(&shape.x_dims())?;
    backend.conv2d_grad_input::<T>(shape, dy.elements()?, w.elements()?, dx.elements_mut()?);
    Ok(())
}

fn conv2d_grad_weight<T: Real, B: Convolutions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    window: Window,
    groups: usize,
) -> Result<(), KernelError> {
    let ([dy, x], [dw]) = operands.exactly()?;
    let [_, _, _, outputs] = images(&dy, dy.dims())?;
    let [batch, height, width, channels] = images(&x, x.dims())?;
    let size = [height, width];
    let windows = windows(&x, window, size)?;
    let shape = Convolution { batch, size, channels, windows, outputs, groups, window };
    shape.check_groups(&x)?;
    dy.expect_dims(&shape.y_dims())?;
    dw.expect_dims(&shape.w_dims())?;
    backend.conv2d_grad_weight::<T>(shape, dy.elements()?, x.elements()?, dw.elements_mut()?);
    Ok(())
}

fn batch_norm<T: Real, L: Images>(
    loops: &L,
    operands: &mut Operands<'_, '_, '_>,
    epsilon: f64,
    scaled: bool,
) -> Result<(), KernelError> {
    let (x, scale, shift, [y, mean, variance]) = if scaled {
        let ([x, scale, shift], outputs) = operands.exactly()?;
        (x, Some(scale), shift, outputs)
    } else {
        let ([x, shift], outputs) = operands.exactly()?;
        (x, None, shift, outputs)
    };
    let (rows, channels) = rows(&x)?;
    if rows == 0 {
        return Err(x.no_elements());
    }
    let scale = scale.map(|scale| vector::<T>(&scale, channels)).transpose()?;
    let shift = vector(&shift, channels)?;
    y.expect_dims(x.dims())?;
    mean.expect_dims(&[channels])?;
    variance.expect_dims(&[channels])?;
    loops.batch_norm::<T>(
        T::narrow(epsilon),
        x.elements()?,
        scale,
        shift,
        y.elements_mut()?,
        mean.elements_mut()?,
        variance.elements_mut()?,
    );
    Ok(())
}

fn batch_norm_grad<T: Real, L: Images>(
    loops: &L,
    operands: &mut Operands<'_, '_, '_>,
    epsilon: f64,
    scaled: bool,
) -> Result<(), KernelError> {
    let (dy, x, mean, variance, scale, dx, dscale, dshift);
    if scaled {
        let (inputs, outputs) = operands.exactly()?;
        let last;
        [dy, x, mean, variance, last] = inputs;
        scale = Some(last);
        let middle;
        [dx, middle, dshift] = outputs;
        dscale = Some(middle);
    } else {
        let (inputs, outputs) = operands.exactly()?;
        [dy, x, mean, variance] = inputs;
        [dx, dshift] = outputs;
        (scale, dscale) = (None, None);
    }
    let (_, channels) = rows(&x)?;
    dy.expect_dims(x.dims())?;
    let mean = vector(&mean, channels)?;
    let variance = vector(&variance, channels)?;
    let scale = scale.map(|scale| vector::<T>(&scale, channels)).transpose()?;
    dx.expect_dims(x.dims())?;
    if let Some(dscale) = &dscale {
        dscale.expect_dims(&[channels])?;
    }
    dshift.expect_dims(&[channels])?;
    loops.batch_norm_grad::<T>(
        T::narrow(epsilon),
        dy.elements()?,
        x.elements()?,
        mean,
        variance,
        scale,
        dx.elements_mut()?,
        dscale.map(|dscale| dscale.elements_mut()).transpose()?,
        dshift.elements_mut()?,
    );
    Ok(())
}

fn normalize<T: Real, L: Images>(
    loops: &L,
    operands: &mut Operands<'_, '_, '_>,
    epsilon: f64,
    scaled: bool,
) -> Result<(), KernelError> {
    let (x, scale, shift, mean, variance, [y]) = if scaled {
        let ([x, scale, shift, mean, variance], output) = operands.exactly()?;
        (x, Some(scale), shift, mean, variance, output)
    } else {
        let ([x, shift, mean, variance], output) = operands.exactly()?;
        (x, None, shift, mean, variance, output)
    };
    let (_, channels) = rows(&x)?;
    let scale = scale.map(|scale| vector::<T>(&scale, channels)).transpose()?;
    let shift = vector(&shift, channels)?;
    let mean = vector(&mean, channels)?;
    let variance = vector(&variance, channels)?;
    y.expect_dims(x.dims())?;
    let epsilon = T::narrow(epsilon);
    loops.normalize::<T>(epsilon, x.elements()?, scale, shift, mean, variance, y.elements_mut()?);
    Ok(())
}

impl Convolution {
    fn x_dims(&self) -> [usize; 4] {
        [self.batch, self.size[0], self.size[1], self.channels]
    }

    fn w_dims(&self) -> [usize; 4] {
        let [rows, columns] = self.window.kernel;
        [self.outputs, self.channels / self.groups, rows, columns]
    }

    fn y_dims(&self) -> [usize; 4] {
        [self.batch, self.windows[0], self.windows[1], self.outputs]
    }

    fn check_groups(&self, images: &Input<'_>) -> Result<(), KernelError> {
        let Convolution { channels, outputs, groups, .. } = *self;
        if groups == 0 || channels % groups != 0 || outputs % groups != 0 {
            let expected =
                format!("channels in {groups} groups, not {channels} in and {outputs} out");
            return Err(images.misshapen(expected));
        }
        Ok(())
    }
}

impl Pooling {
    /// The pooling of `x`, whose dimensions are `dims`.
    fn over(x: &Input<'_>, dims: &[usize], window: Window) -> Result<Pooling, KernelError> {
        let [batch, height, width, channels] = images(x, dims)?;
        let size = [height, width];
        let windows = windows(x, window, size)?;
        Ok(Pooling { batch, size, channels, windows, window })
    }

    /// The pooling over images of `size` that `dy` is the gradient of.
    fn under(dy: &Input<'_>, window: Window, size: [usize; 2]) -> Result<Pooling, KernelError> {
        let [batch, _, _, channels] = images(dy, dy.dims())?;
        let windows = windows(dy, window, size)?;
        let shape = Pooling { batch, size, channels, windows, window };
        dy.expect_dims(&shape.y_dims())?;
        Ok(shape)
    }

    fn x_dims(&self) -> [usize; 4] {
        [self.batch, self.size[0], self.size[1], self.channels]
    }

    fn y_dims(&self) -> [usize; 4] {
        [self.batch, self.windows[0], self.windows[1], self.channels]
    }

    /// A place in the window is one byte.
    fn check_places(&self, images: &Input<'_>) -> Result<(), KernelError> {
        let [rows, columns] = self.window.kernel;
        if rows.saturating_mul(columns) > 256 {
            let expected = format!("for windows of at most 256 elements, not {rows}×{columns}");
            return Err(images.misshapen(expected));
        }
        Ok(())
    }
}

impl<T: Real> ResponseNorm<T> {
    fn over(x: &Input<'_>, size: usize, numbers: [f64; 3]) -> Result<Self, KernelError> {
        let (_, channels) = rows(x)?;
        if size.is_multiple_of(2) {
            return Err(x.misshapen(format!("for an odd number of channels to sum, not {size}")));
        }
        let [alpha, beta, bias] = numbers.map(T::narrow);
        Ok(ResponseNorm { channels, size, alpha, beta, bias })
    }
}

/// Batch, height, width and channels.
fn images(input: &Input<'_>, dims: &[usize]) -> Result<[usize; 4], KernelError> {
    dims.try_into().map_err(|_| input.misshapen("[n×h×w×c]".to_owned()))
}

/// Output channels, a group's input channels, the kernel's rows and columns.
fn weight(w: &Input<'_>) -> Result<[usize; 4], KernelError> {
    w.dims().try_into().map_err(|_| w.misshapen("[o×c×kh×kw]".to_owned()))
}

/// How many rows a tensor has along all dimensions but the last, and how long they are.
fn rows(x: &Input<'_>) -> Result<(usize, usize), KernelError> {
    match x.dims() {
        // with a dimension of 0 the product of the others need not fit
        [rows @ .., channels] if rows.contains(&0) => Ok((0, *channels)),
        [rows @ .., channels] => {
            let rows = rows.iter().fold(1usize, |product, &size| product.saturating_mul(size));
            Ok((rows, *channels))
        }
        [] => Err(x.misshapen("[…×c]".to_owned())),
    }
}

fn vector<'i, T: Real>(input: &Input<'i>, channels: usize) -> Result<&'i [T], KernelError> {
    input.expect_dims(&[channels])?;
    input.elements()
}

/// How many windows lie over images of `size`, with places that also fit a signed number.
fn windows(
    images: &Input<'_>,
    window: Window,
    size: [usize; 2],
) -> Result<[usize; 2], KernelError> {
    let fits = |s: usize| {
        let room = size[s].checked_add(window.before[s])?.checked_add(window.after[s])?;
        isize::try_from(room).ok()
    };
    let found = fits(0).and(fits(1)).and_then(|_| window.output(size));
    found.ok_or_else(|| images.misshapen(format!("for {window:?} over {}×{}", size[0], size[1])))
}
