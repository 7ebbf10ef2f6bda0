//! Operators that only imported modules have: a tensor of given values, and one that lets no gradient through. In files of their
//! own: integers, noise, and waves.

mod drawn;
mod integers;
mod turn;

use std::sync::Arc;

use tensorwire_graph::{Backward, CustomOperator, Gradient, Op, Refusal};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_tensor::{DType, Fact, TensorSpec};

pub(crate) use drawn::{Draw, Drawn};
pub(crate) use integers::{Integers, Two};
pub(crate) use turn::Turn;

/// () → a tensor of these values.
pub(crate) struct Constant {
    spec: TensorSpec,
    bytes: Arc<[u8]>,
    /// Of the bytes: what tells it from others, since a graph's operators are compared by what they print.
    hash: u64,
}

impl Constant {
    /// A constant with these bytes, as many as `spec` says.
    pub(crate) fn op(spec: TensorSpec, bytes: Arc<[u8]>) -> Op {
        // FNV-1a
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        custom(Constant { spec, bytes, hash })
    }
}

impl std::fmt::Debug for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Constant({}, {:x})", self.spec, self.hash)
    }
}

impl CustomOperator for Constant {
    fn name(&self) -> &'static str {
        "Constant"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [] => Ok(vec![Fact::from(&self.spec)]),
            _ => Err("no input is needed".into()),
        }
    }
}

impl CustomKernel for Constant {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([], [y]) = call.operands()?;
        let (words, _) = self.bytes.as_chunks::<4>();
        match y.dtype() {
            DType::F32 => fill(y.elements()?, words, f32::from_le_bytes),
            DType::I32 => fill(y.elements()?, words, i32::from_le_bytes),
            DType::F64 => fill(y.elements()?, self.bytes.as_chunks().0, f64::from_le_bytes),
            DType::U8 => fill(y.elements()?, self.bytes.as_chunks().0, u8::from_le_bytes),
            other => return Err(format!("a constant of {other} is not read").into()),
        }
        Ok(())
    }
}

fn fill<T, const N: usize>(into: &mut [T], from: &[[u8; N]], read: fn([u8; N]) -> T) {
    into.iter_mut().zip(from).for_each(|(value, bytes)| *value = read(*bytes));
}

/// (x, open: `u8` of x's shape) → x. The gradient flows where `open` is not 0, and is 0 elsewhere.
#[derive(Debug)]
pub(crate) struct Gate;

impl Gate {
    pub(crate) fn op() -> Op {
        custom(Gate)
    }
}

impl CustomOperator for Gate {
    fn name(&self) -> &'static str {
        "Gate"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x, open]
                if x.dtype.is_floating() && open.dtype == DType::U8 && x.dims == open.dims =>
            {
                Ok(vec![x.clone()])
            }
            _ => Err("a floating tensor and one of u8 of its shape are needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (dy, open) = (backward.flowing()[0].ok_or("nothing flows")?, backward.inputs()[1]);
        let dx = backward.add(Op::SelectGrad { holds: true }, &[dy, open])?;
        Ok(vec![Some(dx.into()), None])
    }
}

impl CustomKernel for Gate {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([x, _], [y]) = call.operands()?;
        match y.dtype() {
            DType::F64 => y.elements::<f64>()?.copy_from_slice(x.elements()?),
            _ => y.elements::<f32>()?.copy_from_slice(x.elements()?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_kernels::check::{self, Tensor, Tolerance};

    use super::*;

    fn same(op: &Op, inputs: &[Tensor], expected: Tensor) {
        check::agreement(&check::backends(), op, inputs, &[expected], Tolerance::Bits).unwrap();
    }

    #[test]
    fn a_constant_is_known_by_its_values() {
        let spec = TensorSpec::new(DType::F32, &[2]).unwrap();
        let of = |values: [f32; 2]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Constant::op(spec.clone(), bytes.into())
        };
        assert_eq!(of([1.0, 2.0]), of([1.0, 2.0]));
        assert_ne!(of([1.0, 2.0]), of([1.0, 3.0]));
        let wanted = Tensor::new(&[2], &[1.0f32, 2.0]);
        same(&of([1.0, 2.0]), &[], wanted);
    }

    #[test]
    fn a_gate_passes_its_input_on() {
        let x = Tensor::new(&[3], &[1.0f32, -2.0, 3.0]);
        let open = Tensor::new(&[3], &[1u8, 0, 1]);
        same(&Gate::op(), &[x.clone(), open], x);
    }
}
