//! Normalisation of each sample by itself: checks, and what a back end is asked to compute.

use tensorwire_graph::{Op, SampleNorm};

use super::operands::{Input, Operands};
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end that normalise samples. The mean and the shift are there together or not at all.
pub(crate) trait Norms {
    fn sample_norm<T: Real>(&self, norm: Samples<T>, parameters: Affine<'_, T>, out: Normed<'_, T>);
    /// Writes dx, dscale and dshift.
    fn sample_norm_grad<T: Real>(
        &self,
        norm: Samples<T>,
        dy: &[T],
        statistics: Statistics<'_, T>,
        scale: &[T],
        out: Gradients<'_, T>,
    );
}

/// x as [samples, positions, groups, size]; a mean is over the positions and the size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) positions: usize,
    pub(crate) groups: usize,
    pub(crate) size: usize,
    pub(crate) epsilon: T,
}

/// [groups·size] each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine<'a, T> {
    pub(crate) scale: &'a [T],
    pub(crate) shift: Option<&'a [T]>,
}

/// Like x, and [samples, groups].
#[derive(Debug)]
pub(crate) struct Normed<'a, T> {
    pub(crate) y: &'a mut [T],
    pub(crate) mean: Option<&'a mut [T]>,
    pub(crate) rstd: &'a mut [T],
}

/// [samples, groups] each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statistics<'a, T> {
    pub(crate) mean: Option<&'a [T]>,
    pub(crate) rstd: &'a [T],
}

#[derive(Debug)]
pub(crate) struct Gradients<'a, T> {
    pub(crate) dx: &'a mut [T],
    pub(crate) dscale: &'a mut [T],
    pub(crate) dshift: Option<&'a mut [T]>,
}

impl<T> Samples<'_, T> {
    pub(crate) fn channels(&self) -> usize {
        self.groups * self.size
    }

    /// Elements of a sample.
    pub(crate) fn len(&self) -> usize {
        self.positions * self.channels()
    }
}

pub(super) fn launch<T: Real, B: Norms>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match *op {
        Op::SampleNorm { by, epsilon } => forward::<T, B>(backend, operands, by, epsilon),
        Op::SampleNormGrad { by } => backward::<T, B>(backend, operands, by),
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn forward<T: Real, B: Norms>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    by: SampleNorm,
    epsilon: f64,
) -> Result<(), KernelError> {
    let more = usize::from(by.is_centred());
    let (inputs, outputs) = operands.counted(2 + more, 2 + more)?;
    let x = &inputs[0];
    let (norm, statistic) = samples::<T>(x, by, epsilon)?;
    for parameter in &inputs[1..] {
        parameter.expect_dims(&[norm.channels()])?;
    }
    outputs[0].expect_dims(x.dims())?;
    for output in &outputs[1..] {
        output.expect_dims(&statistic)?;
    }
    let scale = inputs[1].elements()?;
    let shift = inputs.get(2).map(Input::elements).transpose()?;
    let mut outputs = outputs.into_iter().map(|output| output.elements_mut::<T>());
    let (y, first, second) = (outputs.next(), outputs.next(), outputs.next());
    let (Some(y), Some(first)) = (y.transpose()?, first.transpose()?) else {
        unreachable!("counted above")
    };
    let (mean, rstd) = match second.transpose()? {
        Some(second) => (Some(first), second),
        None => (None, first),
    };
    if !rstd.is_empty() {
        backend.sample_norm(norm, Affine { scale, shift }, Normed { y, mean, rstd });
    }
    Ok(())
}

fn backward<T: Real, B: Norms>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    by: SampleNorm,
) -> Result<(), KernelError> {
    let more = usize::from(by.is_centred());
    let (inputs, outputs) = operands.counted(4 + more, 2 + more)?;
    let (dy, x, scale) = (&inputs[0], &inputs[1], &inputs[3 + more]);
    let (norm, statistic) = samples::<T>(x, by, 0.0)?;
    dy.expect_dims(x.dims())?;
    scale.expect_dims(&[norm.channels()])?;
    for input in &inputs[2..3 + more] {
        input.expect_dims(&statistic)?;
    }
    outputs[0].expect_dims(x.dims())?;
    for output in &outputs[1..] {
        output.expect_dims(&[norm.channels()])?;
    }
    let (dy, scale) = (dy.elements()?, scale.elements()?);
    let rstd = inputs[2 + more].elements()?;
    let mean = by.is_centred().then(|| inputs[2].elements()).transpose()?;
    let mut outputs = outputs.into_iter().map(|output| output.elements_mut::<T>());
    let (dx, dscale, dshift) = (outputs.next(), outputs.next(), outputs.next());
    let (Some(dx), Some(dscale)) = (dx.transpose()?, dscale.transpose()?) else {
        unreachable!("counted above")
    };
    let mut out = Gradients { dx, dscale, dshift: dshift.transpose()? };
    if rstd.is_empty() {
        out.dscale.fill(T::zero());
        out.dshift.iter_mut().for_each(|dshift| dshift.fill(T::zero()));
    } else {
        backend.sample_norm_grad(norm, dy, Statistics { mean, rstd }, scale, out);
    }
    Ok(())
}

/// How x is normalised, and the dimensions of its statistics. A mean is of at least one element, unless there is none.
fn samples<'i, T: Real>(
    x: &Input<'i>,
    by: SampleNorm,
    epsilon: f64,
) -> Result<(Samples<'i, T>, Vec<usize>), KernelError> {
    let (_, channels) = x.rows()?;
    let dims = x.dims();
    let last = dims.len() - 1;
    let (positions, groups, statistic) = match by {
        SampleNorm::Layer | SampleNorm::Rms => (1, 1, dims[..last].to_vec()),
        SampleNorm::Group { groups } => {
            (dims[1..last].iter().product(), groups, vec![dims[0], groups])
        }
    };
    if groups == 0 || channels == 0 || channels % groups != 0 {
        return Err(x.misshapen(format!("of which {groups} groups of channels can be made")));
    }
    if positions == 0 {
        return Err(x.no_elements());
    }
    let (size, epsilon) = (channels / groups, T::narrow(epsilon));
    Ok((Samples { x: x.elements()?, positions, groups, size, epsilon }, statistic))
}
