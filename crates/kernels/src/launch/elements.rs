//! Functions of one and of two elements, where dimensions may be repeated, and choices between elements.

use half::bf16;
use tensorwire_graph::{Binary, Comparison, Op, Unary};
use tensorwire_tensor::{DType, Dim, Element};

use super::Source;
use super::operands::Operands;
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end over such.
pub(crate) trait Elements {
    fn unary<T: Real>(&self, by: Unary, x: Source<'_, T>, y: &mut [T]);
    /// `of` is what [`Unary::derives_from_value`] says.
    fn unary_grad<T: Real>(&self, by: Unary, dy: Source<'_, T>, of: &[T], dx: &mut [T]);
    fn binary<T: Real>(&self, by: Binary, sides: &Sides<2>, a: &[T], b: &[T], y: &mut [T]);
    fn compare<T: Element + PartialOrd>(
        &self,
        by: Comparison,
        sides: &Sides<2>,
        a: &[T],
        b: &[T],
        y: &mut [u8],
    );
    fn select<T: Real>(&self, a: Source<'_, T>, b: &[T], condition: &[u8], y: &mut [T]);
    fn select_grad<T: Real>(&self, holds: bool, dy: Source<'_, T>, condition: &[u8], dx: &mut [T]);
    /// `y` has the elements that the sides say, of `x`.
    fn expand<T: Element>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]);
    /// `x` has the elements that the sides say, each of which is added to one of `y`.
    fn sum_to<T: Real>(&self, sides: &Sides<1>, x: &[T], y: &mut [T]);
}

/// The dimensions of a large tensor, outermost first, and how far apart their elements lie in each of N operands,
/// where a step of 0 repeats. Dimensions of 1 are left out, and those that lie alike in all operands are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sides<const N: usize>(pub(crate) Vec<Side<N>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side<const N: usize> {
    pub(crate) size: usize,
    pub(crate) steps: [usize; N],
}

impl<const N: usize> Sides<N> {
    /// Of operands whose dimensions, from the last, are those of `full` or 1.
    pub(super) fn of(full: &[usize], operands: [&[usize]; N]) -> Sides<N> {
        let mut sides: Vec<Side<N>> = Vec::with_capacity(full.len());
        for (axis, &size) in full.iter().enumerate().filter(|(_, size)| **size != 1) {
            let behind = full.len() - axis;
            let steps = operands.map(|dims| match dims.len().checked_sub(behind) {
                Some(at) if dims[at] != 1 => dims[at + 1..].iter().product(),
                _ => 0,
            });
            let side = Side { size, steps };
            match sides.last_mut() {
                Some(last) if last.steps == steps.map(|step| step * size) => {
                    *last = Side { size: last.size * size, steps };
                }
                _ => sides.push(side),
            }
        }
        Sides(sides)
    }
}

pub(super) fn launch<T: Real, B: Elements>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match *op {
        Op::Unary { by } => {
            let (x, [], y) = operands.element_wise()?;
            backend.unary::<T>(by, x.source()?, y.elements_mut()?);
        }
        Op::UnaryGrad { by } => {
            let (dy, [of], dx) = operands.element_wise()?;
            of.expect_dims(dy.dims())?;
            backend.unary_grad::<T>(by, dy.source()?, of.elements()?, dx.elements_mut()?);
        }
        Op::Binary { by } => {
            let ([a, b], [y]) = operands.exactly()?;
            let Some(dims) = broadcast(a.dims(), b.dims()) else {
                return Err(b.misshapen(format!("that {:?} can be broadcast with", a.dims())));
            };
            y.expect_dims(&dims)?;
            let sides = Sides::of(&dims, [a.dims(), b.dims()]);
            backend.binary::<T>(by, &sides, a.elements()?, b.elements()?, y.elements_mut()?);
        }
        Op::Select => {
            let (a, [b, condition], y) = operands.element_wise()?;
            b.expect_dims(a.dims())?;
            condition.expect_dims(a.dims())?;
            let (b, condition) = (b.elements()?, condition.elements()?);
            backend.select::<T>(a.source()?, b, condition, y.elements_mut()?);
        }
        Op::SelectGrad { holds } => {
            let (dy, [condition], dx) = operands.element_wise()?;
            condition.expect_dims(dy.dims())?;
            let condition = condition.elements()?;
            backend.select_grad::<T>(holds, dy.source()?, condition, dx.elements_mut()?);
        }
        _ => return Err(KernelError::NoKernel { op: operands.op }),
    }
    Ok(())
}

pub(super) fn compare<B: Elements>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    by: Comparison,
) -> Result<(), KernelError> {
    let ([a, b], [y]) = operands.exactly()?;
    let Some(dims) = broadcast(a.dims(), b.dims()) else {
        return Err(b.misshapen(format!("that {:?} can be broadcast with", a.dims())));
    };
    y.expect_dims(&dims)?;
    let sides = Sides::of(&dims, [a.dims(), b.dims()]);
    let y = y.elements_mut()?;
    macro_rules! of {
        ($type:ty) => {
            backend.compare::<$type>(by, &sides, a.elements()?, b.elements()?, y)
        };
    }
    match a.dtype() {
        DType::F32 => of!(f32),
        DType::F64 => of!(f64),
        DType::BF16 => of!(bf16),
        DType::I32 => of!(i32),
        DType::I64 => of!(i64),
        DType::U8 => of!(u8),
    }
    Ok(())
}

pub(super) fn expand<T: Element, B: Elements>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    to: &[Dim],
) -> Result<(), KernelError> {
    let ([x], [y]) = operands.exactly()?;
    let fits = resolved(to, x.dims()).filter(|to| repeats(x.dims(), to));
    let Some(dims) = fits else {
        return Err(x.misshapen(format!("that can be repeated to {to:?}")));
    };
    y.expect_dims(&dims)?;
    let sides = Sides::of(&dims, [x.dims()]);
    backend.expand::<T>(&sides, x.elements()?, y.elements_mut()?);
    Ok(())
}

pub(super) fn sum_to<T: Real, B: Elements>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    to: &[Dim],
) -> Result<(), KernelError> {
    let ([x], [y]) = operands.exactly()?;
    let fits = resolved(to, x.dims()).filter(|to| repeats(to, x.dims()));
    let Some(dims) = fits else {
        return Err(x.misshapen(format!("that can be summed to {to:?}")));
    };
    y.expect_dims(&dims)?;
    let sides = Sides::of(x.dims(), [&dims]);
    backend.sum_to::<T>(&sides, x.elements()?, y.elements_mut()?);
    Ok(())
}

/// What tensors of dimensions `a` and `b` are both repeated to.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut dims = long.to_vec();
    for (dim, &also) in dims[long.len() - short.len()..].iter_mut().zip(short) {
        *dim = match (*dim, also) {
            (1, other) | (other, 1) => other,
            (one, other) if one == other => one,
            _ => return None,
        };
    }
    Some(dims)
}

/// `to` with those dimensions of `x`, from the last, that it leaves open.
fn resolved(to: &[Dim], x: &[usize]) -> Option<Vec<usize>> {
    let place = |(axis, dim): (usize, &Dim)| match *dim {
        Dim::Known(size) => Some(size),
        Dim::Dynamic(_) => x.len().checked_sub(to.len() - axis).map(|at| x[at]),
    };
    to.iter().enumerate().map(place).collect()
}

/// True if the dimensions of `x`, from the last, are those of `to` or 1.
fn repeats(x: &[usize], to: &[usize]) -> bool {
    let Some(before) = to.len().checked_sub(x.len()) else { return false };
    x.iter().zip(&to[before..]).all(|(&x, &to)| x == to || x == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_alike_is_one_side() {
        let side = |size, steps| Side { size, steps };
        let sides = Sides::of(&[2, 3, 4], [&[2, 3, 4], &[4]]);
        assert_eq!(sides.0, [side(6, [4, 0]), side(4, [1, 1])]);
        let sides = Sides::of(&[2, 3, 4], [&[2, 3, 4], &[2, 3, 4]]);
        assert_eq!(sides.0, [side(24, [1, 1])]);
        let sides = Sides::of(&[2, 3, 4], [&[2, 3, 4], &[]]);
        assert_eq!(sides.0, [side(24, [1, 0])]);
        let sides = Sides::of(&[2, 3, 4], [&[3, 1], &[2, 1, 4]]);
        assert_eq!(sides.0, [side(2, [0, 4]), side(3, [1, 0]), side(4, [0, 1])]);
    }
}
