//! Optimizers by their usual parameters, and what each keeps beside a variable. The arithmetic is [`Rule`]'s.

use tensorwire_tensor::{DType, ShapeError, TensorSpec};

use crate::op::Rule;

/// What PyTorch takes.
const MOMENTUM: f64 = 0.9;
const ADAGRAD_EPSILON: f64 = 1e-10;
/// Kingma and Ba 2015, algorithm 1.
const ADAM_BETAS: (f64, f64) = (0.9, 0.999);
const ADAM_EPSILON: f64 = 1e-8;

/// Adam's count of steps: a number, whatever the variable is.
const STEPS: &str = "steps";

impl Rule {
    /// Stochastic gradient descent.
    pub fn sgd(rate: f64) -> Rule {
        Rule::Sgd { rate }
    }

    /// With a momentum of 0.9.
    pub fn momentum(rate: f64) -> Rule {
        Rule::Momentum { rate, momentum: MOMENTUM }
    }

    /// With PyTorch's epsilon, 1e-10.
    pub fn adagrad(rate: f64) -> Rule {
        Rule::AdaGrad { rate, epsilon: ADAGRAD_EPSILON }
    }

    /// With the paper's parameters: 0.9, 0.999 and 1e-8.
    pub fn adam(rate: f64) -> Rule {
        let (beta1, beta2) = ADAM_BETAS;
        Rule::Adam { rate, beta1, beta2, epsilon: ADAM_EPSILON }
    }

    /// As users spell it: `sgd`, `momentum`, `adagrad` or `adam`.
    pub fn kind(self) -> &'static str {
        match self {
            Rule::Sgd { .. } => "sgd",
            Rule::Momentum { .. } => "momentum",
            Rule::AdaGrad { .. } => "adagrad",
            Rule::Adam { .. } => "adam",
        }
    }

    /// The learning rate.
    pub fn rate(self) -> f64 {
        match self {
            Rule::Sgd { rate }
            | Rule::Momentum { rate, .. }
            | Rule::AdaGrad { rate, .. }
            | Rule::Adam { rate, .. } => rate,
        }
    }

    /// The tensors that it keeps beside a variable of this spec, by name; all start as zeros.
    ///
    /// # Errors
    /// Never for the spec of a tensor that is in memory: a bf16's slots are twice as large.
    pub fn slots_of(
        self,
        variable: &TensorSpec,
    ) -> Result<Vec<(&'static str, TensorSpec)>, ShapeError> {
        let names: &[&str] = match self {
            Rule::Sgd { .. } => &[],
            Rule::Momentum { .. } => &["velocity"],
            Rule::AdaGrad { .. } => &["accumulator"],
            Rule::Adam { .. } => &["first_moment", "second_moment", STEPS],
        };
        let spec = |name: &'static str| match name {
            STEPS => TensorSpec::new(DType::I64, &[]),
            // where a variable is bf16, what is summed up over steps is not: a small change would be lost
            _ if variable.dtype == DType::BF16 => TensorSpec::new(DType::F32, variable.dims()),
            _ => Ok(variable.clone()),
        };
        names.iter().map(|name| Ok((*name, spec(name)?))).collect()
    }

    /// Checks that its parameters are within their ranges.
    ///
    /// # Errors
    /// The first that is not: its name, its range and its value.
    pub fn check(self) -> Result<(), (&'static str, &'static str, f64)> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let share = |value: f64| (0.0..1.0).contains(&value);
        let (share_range, positive_range) = ("from 0 to below 1", "a positive number");
        let check = |name, value, is_fine: bool, range| match is_fine {
            true => Ok(()),
            false => Err((name, range, value)),
        };
        let rate = self.rate();
        check("rate", rate, positive(rate), positive_range)?;
        match self {
            Rule::Sgd { .. } => Ok(()),
            Rule::Momentum { momentum, .. } => {
                check("momentum", momentum, share(momentum), share_range)
            }
            Rule::AdaGrad { epsilon, .. } => {
                check("epsilon", epsilon, positive(epsilon), positive_range)
            }
            Rule::Adam { beta1, beta2, epsilon, .. } => {
                check("beta1", beta1, share(beta1), share_range)?;
                check("beta2", beta2, share(beta2), share_range)?;
                check("epsilon", epsilon, positive(epsilon), positive_range)
            }
        }
    }
}

impl Default for Rule {
    /// Momentum with a rate of 0.05.
    fn default() -> Rule {
        Rule::momentum(0.05)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [fn(f64) -> Rule; 4] = [Rule::sgd, Rule::momentum, Rule::adagrad, Rule::adam];

    #[test]
    fn slots_are_as_many_as_the_kernels_take() {
        let spec = TensorSpec::new(DType::BF16, &[2, 3]).unwrap();
        for rule in ALL.map(|make| make(0.1)) {
            let slots = rule.slots_of(&spec).unwrap();
            assert_eq!(slots.len(), rule.slots(), "{}", rule.kind());
            for (name, slot) in slots {
                let wanted = if name == STEPS { (DType::I64, 1) } else { (DType::F32, 6) };
                assert_eq!((slot.dtype, slot.elements()), wanted, "{name}");
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        for make in ALL {
            assert_eq!(make(0.1).check(), Ok(()));
            for rate in [0.0, -1.0, f64::INFINITY] {
                assert_eq!(make(rate).check(), Err(("rate", "a positive number", rate)));
            }
        }
        let refused = Rule::Momentum { rate: 0.1, momentum: 1.0 }.check();
        assert_eq!(refused, Err(("momentum", "from 0 to below 1", 1.0)));
        let refused = Rule::Adam { rate: 0.1, beta1: 0.9, beta2: -0.5, epsilon: 1.0 }.check();
        assert_eq!(refused, Err(("beta2", "from 0 to below 1", -0.5)));
        let refused = Rule::AdaGrad { rate: 0.1, epsilon: 0.0 }.check();
        assert_eq!(refused, Err(("epsilon", "a positive number", 0.0)));
    }
}
