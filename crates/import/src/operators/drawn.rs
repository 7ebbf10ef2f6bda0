//! Noise: numbers that are drawn anew in each step. It is computed on the host.

use tensorwire_graph::{CustomOperator, Op, Refusal, random_bits};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_tensor::{DType, Fact, TensorSpec};

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// From 0 to below 1, all as likely.
    Uniform,
    /// Of mean 0 and variance 1: Box and Muller 1958.
    Normal,
}

/// (step: `i64[]`) → a tensor of `spec`. Each element depends on `key`, the step and its place alone.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    draw: Draw,
    key: u64,
    spec: TensorSpec,
}

impl Drawn {
    pub(crate) fn op(draw: Draw, key: u64, spec: TensorSpec) -> Op {
        custom(Drawn { draw, key, spec })
    }

    fn element(&self, step: u64, element: u64) -> f64 {
        let uniform = |place: u64| {
            // 53 bits are exact in f64
            (random_bits(self.key, step, place) >> 11) as f64 / (1u64 << 53) as f64
        };
        match self.draw {
            Draw::Uniform => uniform(element),
            Draw::Normal => {
                let (radius, turn) = (uniform(2 * element), uniform(2 * element + 1));
                // 1 − radius is never 0
                (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
            }
        }
    }
}

impl CustomOperator for Drawn {
    fn name(&self) -> &'static str {
        match self.draw {
            Draw::Uniform => "DrawnUniform",
            Draw::Normal => "DrawnNormal",
        }
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [step] if step.dtype == DType::I64 && step.dims.is_empty() => {
                Ok(vec![Fact::from(&self.spec)])
            }
            _ => Err("the number of the step is needed".into()),
        }
    }
}

impl CustomKernel for Drawn {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([step], [y]) = call.operands()?;
        // steps count from 0
        let step = step.elements::<i64>()?[0] as u64;
        match y.dtype() {
            DType::F64 => {
                for (place, y) in y.elements::<f64>()?.iter_mut().enumerate() {
                    *y = self.element(step, place as u64);
                }
            }
            _ => {
                for (place, y) in y.elements::<f32>()?.iter_mut().enumerate() {
                    let drawn = self.element(step, place as u64) as f32;
                    // what rounds up to 1 is not below it
                    let is_over = self.draw == Draw::Uniform && drawn >= 1.0;
                    *y = if is_over { 1.0 - f32::EPSILON } else { drawn };
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means of x, x², x³ and x⁴.
    fn moments(draw: Draw, step: u64) -> [f64; 4] {
        let drawn = Drawn { draw, key: 7, spec: TensorSpec::new(DType::F64, &[1]).unwrap() };
        let count = 100_000;
        let mut sums = [0.0; 4];
        for place in 0..count {
            let x = drawn.element(step, place);
            sums.iter_mut().zip(1..).for_each(|(sum, power)| *sum += x.powi(power));
        }
        sums.map(|sum| sum / count as f64)
    }

    #[test]
    fn what_is_drawn_has_the_moments_of_its_distribution() {
        for step in 0..3 {
            let near = |found: [f64; 4], wanted: [f64; 4], within: [f64; 4]| {
                for ((found, wanted), within) in found.into_iter().zip(wanted).zip(within) {
                    assert!((found - wanted).abs() < within, "{found}, not {wanted}");
                }
            };
            // five standard deviations of means of 100 000
            near(
                moments(Draw::Uniform, step),
                [1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0, 1.0 / 5.0],
                [0.005; 4],
            );
            near(moments(Draw::Normal, step), [0.0, 1.0, 0.0, 3.0], [0.016, 0.023, 0.062, 0.16]);
        }
    }

    #[test]
    fn steps_and_keys_draw_anew() {
        let of = |key, step| {
            let spec = TensorSpec::new(DType::F32, &[1]).unwrap();
            Drawn { draw: Draw::Uniform, key, spec }.element(step, 5)
        };
        assert_eq!(of(1, 2), of(1, 2));
        assert_ne!(of(1, 2), of(1, 3));
        assert_ne!(of(1, 2), of(2, 2));
    }
}
