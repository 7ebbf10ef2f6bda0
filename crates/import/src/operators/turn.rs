//! Sine and cosine: positions and times as waves. Computed on the host.

use tensorwire_graph::{Backward, CustomOperator, Gradient, Op, Refusal, Unary};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_tensor::{DType, Fact};

/// (x) → sin x or cos x, of radians.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Sine,
    Cosine,
}

impl Turn {
    pub(crate) fn op(self) -> Op {
        custom(self)
    }
}

impl CustomOperator for Turn {
    fn name(&self) -> &'static str {
        match self {
            Turn::Sine => "Sine",
            Turn::Cosine => "Cosine",
        }
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x] if x.dtype.is_floating() => Ok(vec![x.clone()]),
            _ => Err("a floating tensor is needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (dy, x) = (backward.flowing()[0].ok_or("nothing flows")?, backward.inputs()[0]);
        let slope = match self {
            Turn::Sine => backward.add(Turn::Cosine.op(), &[x])?,
            Turn::Cosine => {
                let sine = backward.add(Turn::Sine.op(), &[x])?;
                backward.add(Op::Unary { by: Unary::Neg }, &[sine])?
            }
        };
        let dx = backward.add(Op::Mul, &[dy, slope])?;
        Ok(vec![Some(dx.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for Turn {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match (self, call.dtype()) {
            (Turn::Sine, Some(DType::F64)) => call.by_elements(|x: f64, []| x.sin())?,
            (Turn::Cosine, Some(DType::F64)) => call.by_elements(|x: f64, []| x.cos())?,
            (Turn::Sine, _) => call.by_elements(|x: f32, []| x.sin())?,
            (Turn::Cosine, _) => call.by_elements(|x: f32, []| x.cos())?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_kernels::check::{self, Tensor, Tolerance};

    use super::*;

    #[test]
    fn waves_and_their_slopes() {
        let angles = [0.0, 0.5, -1.5, 40.0f64];
        for (of, wanted) in [(Turn::Sine, f64::sin as fn(f64) -> f64), (Turn::Cosine, f64::cos)] {
            let x = Tensor::new(&[4], &angles);
            let expected = Tensor::new(&[4], &angles.map(wanted));
            let all = check::backends();
            check::agreement(
                &all,
                &of.op(),
                std::slice::from_ref(&x),
                &[expected],
                Tolerance::Bits,
            )
            .unwrap();
            check::gradient(&of.op(), &[x]).unwrap();
        }
    }
}
