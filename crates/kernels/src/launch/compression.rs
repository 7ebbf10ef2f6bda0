//! Operators that make less of a gradient, and a gradient of that. All numbers are f32.

use tensorwire_graph::Op;

use super::operands::{Input, Operands};
use crate::error::KernelError;

/// The loops of one back end that do.
pub(crate) trait Compressions {
    /// As [`Op::Quantize`]; `scales` has one for every `block` elements, and all else is of one length.
    fn quantize(
        &self,
        block: usize,
        residual: &mut [f32],
        x: &[f32],
        q: &mut [u8],
        scales: &mut [f32],
    );
    /// As [`Op::Dequantize`]; there is a scale for all of `q`.
    fn dequantize(&self, block: usize, first: usize, q: &[u8], scales: &[f32], y: &mut [f32]);
    /// As [`Op::TopK`]; `indices` and `values` are of one length, which is at most the others'.
    fn top_k(&self, residual: &mut [f32], x: &[f32], indices: &mut [i32], values: &mut [f32]);

    /// As [`Op::ScatterElements`].
    fn scatter_elements(&self, first: usize, indices: &[i32], values: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        for (&index, &value) in indices.iter().zip(values) {
            let at = usize::try_from(index).ok().and_then(|index| index.checked_sub(first));
            // those of other rows are for others
            if let Some(y) = at.and_then(|at| y.get_mut(at)) {
                *y = value;
            }
        }
    }
}

/// The largest that a quantized element is.
pub(crate) const QUANTA: f32 = 127.0;

/// The magnitude of a number as it is compared: the larger, the later; a NaN behind all.
#[inline(always)]
pub(crate) fn magnitude(x: f32) -> u32 {
    x.to_bits() & (u32::MAX >> 1)
}

pub(super) fn launch<B: Compressions>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::Quantize { block } => {
            let ([x], [residual, q, scales]) = operands.exactly()?;
            residual.expect_dims(x.dims())?;
            q.expect_dims(x.dims())?;
            if *block == 0 {
                return Err(x.misshapen("in blocks of an element or more".to_owned()));
            }
            scales.expect_dims(&[x.spec().elements().div_ceil(*block)])?;
            let (residual, q) = (residual.elements_mut()?, q.elements_mut()?);
            backend.quantize(*block, residual, x.elements()?, q, scales.elements_mut()?);
        }
        Op::Dequantize { block, first } => {
            let ([q, scales], [y]) = operands.exactly()?;
            y.expect_dims(q.dims())?;
            expect_scales(&scales, *block, first.saturating_add(q.spec().elements()))?;
            let (q, scales) = (q.elements()?, scales.elements()?);
            backend.dequantize(*block, *first, q, scales, y.elements_mut()?);
        }
        Op::TopK { count } => {
            let ([x], [residual, indices, values]) = operands.exactly()?;
            residual.expect_dims(x.dims())?;
            indices.expect_dims(&[*count])?;
            values.expect_dims(&[*count])?;
            let elements = x.spec().elements();
            if *count > elements || i32::try_from(elements).is_err() {
                return Err(x.misshapen(format!("of {count} to 2^31 - 1 elements")));
            }
            let (indices, values) = (indices.elements_mut()?, values.elements_mut()?);
            backend.top_k(residual.elements_mut()?, x.elements()?, indices, values);
        }
        Op::ScatterElements { to, first } => {
            let ([indices, values], [y]) = operands.exactly()?;
            values.expect_dims(indices.dims())?;
            y.expect_dims(to)?;
            let (indices, values) = (indices.elements()?, values.elements()?);
            backend.scatter_elements(*first, indices, values, y.elements_mut()?);
        }
        _ => return Err(KernelError::NoKernel { op: operands.op }),
    }
    Ok(())
}

/// One for every `block` elements up to `end`, at least.
fn expect_scales(scales: &Input<'_>, block: usize, end: usize) -> Result<(), KernelError> {
    let found = scales.spec().elements();
    match block > 0 && end.div_ceil(block) <= found && scales.dims().len() == 1 {
        true => Ok(()),
        false => Err(scales.misshapen(format!("[a scale for every {block} of {end} elements]"))),
    }
}
