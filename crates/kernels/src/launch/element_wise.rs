//! Operators that make each output element of the input elements of the same place.

use half::bf16;
use tensorwire_graph::Op;
use tensorwire_tensor::{DType, Element, TensorSpec};

use super::elements::{self, Elements};
use super::operands::Operands;
use crate::error::{KernelError, Operand};
use crate::real::{Floating, Real};

/// The loops of one back end that are element by element.
pub(crate) trait ElementWise {
    fn fill<T: Element>(&self, value: T, y: &mut [T]);
    /// `y` and `x` have rows of `bias.len()`.
    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]);
    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]);
    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]);
    fn sigmoid<T: Real>(&self, x: Source<'_, T>, y: &mut [T]);
    fn sigmoid_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]);
    fn tanh<T: Real>(&self, x: Source<'_, T>, y: &mut [T]);
    fn tanh_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]);
    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]);
    fn sub<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]);
    fn mul<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]);
    fn div<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]);
    /// y ← share·Σ parts, added in their order.
    fn mean<T: Real>(&self, share: T, parts: &[&[T]], y: &mut [T]);
    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]);
    fn dropout<T: Real>(&self, mask: Mask, x: Source<'_, T>, y: &mut [T]);
    fn cast<S: Floating, D: Floating>(&self, x: &[S], y: &mut [D]);
}

/// Where an element-wise operator's first input lies; it has as many elements as the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a, T> {
    Apart(&'a [T]),
    /// In the output's elements, each of which is read before it is written.
    InPlace,
}

/// What [`tensorwire_graph::dropout_keeps`] is asked, but for the element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    pub(crate) rate: f64,
    pub(crate) key: u64,
    pub(crate) step: u64,
}

pub(super) fn launch<T: Real, B: ElementWise + Elements>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::BiasAdd => {
            let (x, [bias], y) = operands.element_wise()?;
            let (_, n) = x.rows()?;
            bias.expect_dims(&[n])?;
            backend.bias_add::<T>(x.source()?, bias.elements()?, y.elements_mut()?);
        }
        Op::Relu => one::<T>(operands, |x, y| backend.relu(x, y))?,
        Op::Sigmoid => one::<T>(operands, |x, y| backend.sigmoid(x, y))?,
        Op::Tanh => one::<T>(operands, |x, y| backend.tanh(x, y))?,
        Op::Scale { by } => {
            one::<T>(operands, |x, y| backend.scale_by(x, T::narrow(*by), y))?;
        }
        Op::ReluGrad => two::<T>(operands, |dy, y, dx| backend.relu_grad(dy, y, dx))?,
        Op::SigmoidGrad => two::<T>(operands, |dy, y, dx| backend.sigmoid_grad(dy, y, dx))?,
        Op::TanhGrad => two::<T>(operands, |dy, y, dx| backend.tanh_grad(dy, y, dx))?,
        Op::Add => two::<T>(operands, |a, b, y| backend.add(a, b, y))?,
        Op::Sub => two::<T>(operands, |a, b, y| backend.sub(a, b, y))?,
        Op::Mul => two::<T>(operands, |a, b, y| backend.mul(a, b, y))?,
        Op::Div => two::<T>(operands, |a, b, y| backend.div(a, b, y))?,
        Op::Mean => {
            let (inputs, [y]) = operands.any()?;
            if inputs.is_empty() {
                return Err(KernelError::InputCount { op: operands.op, expected: 1, found: 0 });
            }
            let mut parts = Vec::with_capacity(inputs.len());
            for input in &inputs {
                input.expect_dims(y.dims())?;
                parts.push(input.elements::<T>()?);
            }
            backend.mean(T::one() / T::from_count(parts.len()), &parts, y.elements_mut()?);
        }
        Op::ScaleBy => {
            let (x, [scale], y) = operands.element_wise()?;
            scale.expect_dims(&[])?;
            backend.scale_by::<T>(x.source()?, scale.elements()?[0], y.elements_mut()?);
        }
        Op::Dropout { rate, key } => {
            let (x, [step], y) = operands.element_wise()?;
            step.expect_dims(&[])?;
            let step = step.elements::<i64>()?[0].cast_unsigned();
            let mask = Mask { rate: *rate, key: *key, step };
            backend.dropout::<T>(mask, x.source()?, y.elements_mut()?);
        }
        _ => return elements::launch::<T, B>(backend, op, operands),
    }
    Ok(())
}

fn one<T: Real>(
    operands: &mut Operands<'_, '_, '_>,
    compute: impl FnOnce(Source<'_, T>, &mut [T]),
) -> Result<(), KernelError> {
    let (x, [], y) = operands.element_wise()?;
    compute(x.source()?, y.elements_mut()?);
    Ok(())
}

fn two<T: Real>(
    operands: &mut Operands<'_, '_, '_>,
    compute: impl FnOnce(Source<'_, T>, &[T], &mut [T]),
) -> Result<(), KernelError> {
    let (a, [b], y) = operands.element_wise()?;
    b.expect_dims(a.dims())?;
    compute(a.source()?, b.elements()?, y.elements_mut()?);
    Ok(())
}

pub(super) fn cast<B: ElementWise>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    to: DType,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([x], [y]) = operands.exactly()?;
    y.expect_dims(x.dims())?;
    let refused = |operand, found| {
        let expected = "f32, f64 or bf16".to_owned();
        KernelError::DType { op, operand, expected, found }
    };
    macro_rules! from {
        ($source:ty) => {
            match to {
                DType::F32 => backend.cast::<$source, f32>(x.elements()?, y.elements_mut()?),
                DType::F64 => backend.cast::<$source, f64>(x.elements()?, y.elements_mut()?),
                DType::BF16 => backend.cast::<$source, bf16>(x.elements()?, y.elements_mut()?),
                found => return Err(refused(Operand::Output(0), found)),
            }
        };
    }
    match x.dtype() {
        DType::F32 => from!(f32),
        DType::F64 => from!(f64),
        DType::BF16 => from!(bf16),
        found => return Err(refused(Operand::Input(0), found)),
    }
    Ok(())
}

pub(super) fn fill<B: ElementWise>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    value: f64,
    spec: &TensorSpec,
) -> Result<(), KernelError> {
    let op = operands.op;
    let ([], [y]) = operands.exactly()?;
    y.expect_dims(spec.dims())?;
    let refused = || KernelError::FillValue { op, value, dtype: spec.dtype };
    match spec.dtype {
        DType::F32 => backend.fill(f32::narrow(value), y.elements_mut()?),
        DType::F64 => backend.fill(value, y.elements_mut()?),
        // integers take whole numbers within their range only; `as` saturates, so others differ
        DType::I32 => backend.fill(
            exactly(value as i32, value, |v| v.into()).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
        DType::I64 => backend.fill(
            exactly(value as i64, value, |v| v as f64).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
        DType::BF16 => backend.fill(<bf16 as Floating>::from_f64(value), y.elements_mut()?),
        DType::U8 => backend.fill(
            exactly(value as u8, value, |v| v.into()).ok_or_else(refused)?,
            y.elements_mut()?,
        ),
    }
    Ok(())
}

/// `cast`, if turning it back gives `value` again.
fn exactly<T: Copy>(cast: T, value: f64, widen: impl Fn(T) -> f64) -> Option<T> {
    (widen(cast) == value).then_some(cast)
}
