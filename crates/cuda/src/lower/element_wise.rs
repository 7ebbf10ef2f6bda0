//! Operators that make each output element of the input elements of the same place: one launch each.

use tensorwire_graph::{Op, Unary};
use tensorwire_kernels::KernelError;
use tensorwire_tensor::{DType, TensorSpec};

use super::elements;
use crate::builder::{Builder, arguments, computed_bytes, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

/// What `map_one` computes, as `kernels/element_wise.cu` counts it.
mod one {
    pub(super) const RELU: i64 = 0;
    pub(super) const SIGMOID: i64 = 1;
    pub(super) const TANH: i64 = 2;
    pub(super) const SCALE: i64 = 3;
    /// The first of [`tensorwire_graph::Unary`]; the others follow in its order.
    pub(super) const UNARY: i64 = 4;
}

/// What `map_two` computes.
mod two {
    pub(super) const ADD: i64 = 0;
    pub(super) const SUB: i64 = 1;
    pub(super) const MUL: i64 = 2;
    pub(super) const DIV: i64 = 3;
    pub(super) const RELU_GRAD: i64 = 16;
    pub(super) const SIGMOID_GRAD: i64 = 17;
    pub(super) const TANH_GRAD: i64 = 18;
    /// Derivatives are as far behind their functions.
    pub(super) const GRAD: i64 = 16;
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Fill { value, ref spec } => fill(builder, value, spec),
        Op::Cast { to } => cast(builder, to),
        Op::BiasAdd => bias_add(builder),
        Op::Relu => map_one(builder, one::RELU, [0.0; 2]),
        Op::Sigmoid => map_one(builder, one::SIGMOID, [0.0; 2]),
        Op::Tanh => map_one(builder, one::TANH, [0.0; 2]),
        Op::Scale { by } => map_one(builder, one::SCALE, [by, 0.0]),
        Op::ReluGrad => map_two(builder, two::RELU_GRAD, [0.0; 2]),
        Op::SigmoidGrad => map_two(builder, two::SIGMOID_GRAD, [0.0; 2]),
        Op::TanhGrad => map_two(builder, two::TANH_GRAD, [0.0; 2]),
        Op::Add => map_two(builder, two::ADD, [0.0; 2]),
        Op::Sub => map_two(builder, two::SUB, [0.0; 2]),
        Op::Mul => map_two(builder, two::MUL, [0.0; 2]),
        Op::Div => map_two(builder, two::DIV, [0.0; 2]),
        Op::Unary { by } => {
            let (code, numbers) = function(by);
            map_one(builder, code, numbers)
        }
        Op::UnaryGrad { by } => {
            let (code, numbers) = function(by);
            let numbers = match by {
                Unary::Pow { exponent } => [exponent, exponent - 1.0],
                _ => numbers,
            };
            map_two(builder, code + two::GRAD, numbers)
        }
        Op::Mean => mean(builder),
        Op::ScaleBy => scale_by(builder),
        Op::Dropout { rate, key } => dropout(builder, rate, key),
        _ => elements::lower(builder),
    }
}

/// The function's code, and its parameters.
fn function(by: Unary) -> (i64, [f64; 2]) {
    let (place, numbers) = match by {
        Unary::Gelu => (0, [0.0; 2]),
        Unary::GeluTanh => (1, [0.0; 2]),
        Unary::Silu => (2, [0.0; 2]),
        Unary::Softplus => (3, [0.0; 2]),
        Unary::Exp => (4, [0.0; 2]),
        Unary::Log => (5, [0.0; 2]),
        Unary::Sqrt => (6, [0.0; 2]),
        Unary::Rsqrt => (7, [0.0; 2]),
        Unary::Pow { exponent } => (8, [exponent, 0.0]),
        Unary::Abs => (9, [0.0; 2]),
        Unary::Neg => (10, [0.0; 2]),
        Unary::Clamp { least, most } => (11, [least, most]),
    };
    (one::UNARY + place, numbers)
}

/// How many threads do `spec`: each makes 16 bytes at a time.
fn threads(spec: &TensorSpec) -> usize {
    spec.bytes().div_ceil(16)
}

fn map_one(builder: &mut Builder<'_>, code: i64, [a, b]: [f64; 2]) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let kernel = builder.of_floats(kernels::MAP_ONE, x.dtype)?;
    let arguments = arguments![code, x.elements(), builder.input(0), builder.output(0), a, b];
    builder.spread(kernel, threads(x), arguments);
    Ok(())
}

fn map_two(builder: &mut Builder<'_>, code: i64, [a, b]: [f64; 2]) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let kernel = builder.of_floats(kernels::MAP_TWO, x.dtype)?;
    let (first, second, y) = (builder.input(0), builder.input(1), builder.output(0));
    let arguments = arguments![code, x.elements(), first, second, y, a, b];
    builder.spread(kernel, threads(x), arguments);
    Ok(())
}

fn bias_add(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (x, columns) = (&builder.inputs[0], builder.inputs[1].elements());
    let kernel = builder.of_floats(kernels::BIAS_ADD, x.dtype)?;
    let (given, bias, y) = (builder.input(0), builder.input(1), builder.output(0));
    builder.spread(kernel, threads(x), arguments![x.elements(), columns, given, bias, y]);
    Ok(())
}

fn scale_by(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let kernel = builder.of_floats(kernels::SCALE_BY, x.dtype)?;
    let (given, by, y) = (builder.input(0), builder.input(1), builder.output(0));
    builder.spread(kernel, threads(x), arguments![x.elements(), given, by, y]);
    Ok(())
}

fn dropout(builder: &mut Builder<'_>, rate: f64, key: u64) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let kernel = builder.of_floats(kernels::DROPOUT, x.dtype)?;
    // 2⁶⁴·rate, rounded down, as `dropout_keeps` has it
    let threshold = (rate * 18_446_744_073_709_551_616.0) as u64;
    let (key, threshold) = (key.cast_signed(), threshold.cast_signed());
    let (given, step, y) = (builder.input(0), builder.input(1), builder.output(0));
    let arguments = arguments![x.elements(), given, step, y, key, threshold, 1.0 - rate];
    builder.spread(kernel, threads(x), arguments);
    Ok(())
}

fn mean(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let (x, ranks) = (&builder.inputs[0], builder.inputs.len());
    let parts = parts(builder, builder.input_range(0..ranks), x)?;
    let kernel = builder.of_reals(kernels::FOLD, x.dtype)?;
    let fields = arguments![x.elements(), builder.output(0), is_narrow(x.dtype), ranks];
    builder.spread(kernel, x.elements(), [fields, parts].concat());
    Ok(())
}

/// Tensors that a kernel adds in their order.
pub(super) const PARTS_MAX: usize = 32;

/// The fields of `Parts`, of tensors like `spec`: what does not fit them is added before, into the workspace.
pub(super) fn parts(
    builder: &mut Builder<'_>,
    tensors: Vec<Address>,
    spec: &TensorSpec,
) -> Result<Vec<KernelArgument>, LowerError> {
    let kernel = builder.of_reals(kernels::FOLD, spec.dtype)?;
    let (count, narrow) = (spec.elements(), is_narrow(spec.dtype));
    let (mut rest, mut before) = (&tensors[..], None);
    while rest.len() > PARTS_MAX {
        let (now, later) = rest.split_at(PARTS_MAX);
        let sum = match before {
            Some(sum) => sum,
            None => builder.workspace(count, computed_bytes(spec.dtype))?,
        };
        let fields = arguments![count, sum, false, 1usize];
        builder.spread(kernel, count, [fields, fields_of(before, narrow, now)].concat());
        (rest, before) = (later, Some(sum));
    }
    Ok(fields_of(before, narrow, rest))
}

fn fields_of(before: Option<Address>, narrow: bool, tensors: &[Address]) -> Vec<KernelArgument> {
    let mut fields = arguments![before, narrow, tensors.len()];
    fields.extend(tensors.iter().copied().map(KernelArgument::Address));
    fields.resize(3 + PARTS_MAX, KernelArgument::Nothing);
    fields
}

fn cast(builder: &mut Builder<'_>, to: DType) -> Result<(), LowerError> {
    let x = &builder.inputs[0];
    let [f32_f64, f32_bf16, f64_f32, f64_bf16, bf16_f32, bf16_f64] = kernels::CASTS;
    let kernel = match (x.dtype, to) {
        (DType::F32, DType::F64) => f32_f64,
        (DType::F32, DType::BF16) => f32_bf16,
        (DType::F64, DType::F32) => f64_f32,
        (DType::F64, DType::BF16) => f64_bf16,
        (DType::BF16, DType::F32) => bf16_f32,
        (DType::BF16, DType::F64) => bf16_f64,
        // the same type: checked when the shapes were
        _ => {
            builder.copy(builder.input(0), builder.output(0), x.bytes());
            return Ok(());
        }
    };
    let arguments = arguments![x.elements(), builder.input(0), builder.output(0)];
    builder.spread(kernel, x.elements(), arguments);
    Ok(())
}

fn fill(builder: &mut Builder<'_>, value: f64, spec: &TensorSpec) -> Result<(), LowerError> {
    let (op, dtype) = (builder.name(), spec.dtype);
    let bits = bits(value, dtype).ok_or(KernelError::FillValue { op, value, dtype })?;
    let y = builder.output(0);
    match bits {
        0 => builder.zero(y, spec.bytes()),
        _ => {
            let arguments = arguments![spec.elements(), y, bits.cast_signed()];
            builder.spread(kernels::FILL.of(dtype), spec.elements(), arguments);
        }
    }
    Ok(())
}

/// `value` as an element of a type: floats are rounded, integers take whole numbers within their range only.
fn bits(value: f64, dtype: DType) -> Option<u64> {
    // `as` saturates, so that what does not fit differs
    match dtype {
        DType::F32 => Some((value as f32).to_bits().into()),
        DType::F64 => Some(value.to_bits()),
        DType::BF16 => Some(bf16_bits(value).into()),
        DType::I32 => (f64::from(value as i32) == value).then_some((value as i32 as u32).into()),
        DType::I64 => (value as i64 as f64 == value).then_some(value as i64 as u64),
        DType::U8 => (f64::from(value as u8) == value).then_some((value as u8).into()),
    }
}

/// Rounded to nearest even once: by way of an f32 that is rounded to odd (Boldo and Melquiond 2008).
fn bf16_bits(value: f64) -> u16 {
    let near = value as f32;
    let is_beyond = f64::from(near).abs() > value.abs();
    let bits = match f64::from(near) == value || value.is_nan() {
        true => near.to_bits(),
        false => (near.to_bits() - u32::from(is_beyond)) | 1,
    };
    match value.is_nan() {
        true => (bits >> 16) as u16 | 0x40,
        // the upper half, which fits
        false => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_bf16_as_elsewhere() {
        let odd = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, -2.5, 1e300, 1e-300];
        let ties = (0..4000).map(|i| f64::from(i) * 1e-3 - 2.0);
        // a tie, and a hair beside it
        let tie = 1.0 + 2f64.powi(-8);
        let near = [tie, tie + 2f64.powi(-50), tie - 2f64.powi(-50), 1.0 + 3.0 * 2f64.powi(-8)];
        for value in odd.into_iter().chain(ties).chain(near) {
            let found = half::bf16::from_bits(bf16_bits(value));
            let wide = found.to_f64();
            assert!(wide.is_nan() == value.is_nan());
            if value.is_finite() && value.abs() < 1e30 && value.abs() > 1e-30 {
                let next = |by: i16| half::bf16::from_bits(found.to_bits().wrapping_add_signed(by));
                let error = (wide - value).abs();
                for other in [next(1), next(-1)].map(half::bf16::to_f64) {
                    let further = (other - value).abs();
                    assert!(
                        error < further || (error == further && found.to_bits().is_multiple_of(2))
                    );
                }
            }
        }
    }
}
