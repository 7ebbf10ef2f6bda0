//! Optimizers by their usual parameters, and what each keeps beside a variable. The arithmetic is [`Method`]'s.

use tensorwire_tensor::{DType, ShapeError, TensorSpec};

use crate::op::{Method, Rule};

/// What PyTorch takes.
const MOMENTUM: f64 = 0.9;
const ADAGRAD_EPSILON: f64 = 1e-10;
const RMSPROP: Method = Method::RmsProp { alpha: 0.99, epsilon: 1e-8 };
const ADAMW_DECAY: f64 = 0.01;
/// Kingma and Ba 2015, algorithm 1.
const ADAM: (f64, f64, f64) = (0.9, 0.999, 1e-8);
/// You et al. 2020, as its authors' code has it.
const LAMB_EPSILON: f64 = 1e-6;

/// A count of steps: a number, whatever the variable is.
const STEPS: &str = "steps";
const MOMENTS: &[&str] = &["first_moment", "second_moment", STEPS];

impl Rule {
    /// Stochastic gradient descent.
    pub const fn sgd(rate: f64) -> Rule {
        Method::Sgd.at(rate)
    }

    /// With a momentum of 0.9.
    pub const fn momentum(rate: f64) -> Rule {
        Method::Momentum { momentum: MOMENTUM }.at(rate)
    }

    /// With Nesterov's momentum of 0.9.
    pub const fn nesterov(rate: f64) -> Rule {
        Method::Nesterov { momentum: MOMENTUM }.at(rate)
    }

    /// With PyTorch's epsilon, 1e-10.
    pub const fn adagrad(rate: f64) -> Rule {
        Method::AdaGrad { epsilon: ADAGRAD_EPSILON }.at(rate)
    }

    /// With PyTorch's parameters: 0.99 and 1e-8.
    pub const fn rmsprop(rate: f64) -> Rule {
        RMSPROP.at(rate)
    }

    /// With the paper's parameters: 0.9, 0.999 and 1e-8.
    pub const fn adam(rate: f64) -> Rule {
        let (beta1, beta2, epsilon) = ADAM;
        Method::Adam { beta1, beta2, epsilon }.at(rate)
    }

    /// With Adam's parameters and PyTorch's decay, 0.01.
    pub const fn adamw(rate: f64) -> Rule {
        let (beta1, beta2, epsilon) = ADAM;
        Method::AdamW { beta1, beta2, epsilon }.at(rate).decaying(ADAMW_DECAY)
    }

    /// With Adam's betas, an epsilon of 1e-6 and a decay of 0.01.
    pub const fn lamb(rate: f64) -> Rule {
        let (beta1, beta2, _) = ADAM;
        Method::Lamb { beta1, beta2, epsilon: LAMB_EPSILON }.at(rate).decaying(ADAMW_DECAY)
    }

    /// It with another weight decay. Only variables of two dimensions or more decay: no biases and no scales of a norm.
    pub const fn decaying(self, decay: f64) -> Rule {
        Rule { decay, ..self }
    }

    /// It for a variable of this spec: what has fewer than two dimensions does not decay.
    pub fn of(self, variable: &TensorSpec) -> Rule {
        match variable.dims().len() {
            0 | 1 => self.decaying(0.0),
            _ => self,
        }
    }

    /// It at `factor` times its rate.
    pub fn times(self, factor: f64) -> Rule {
        Rule { rate: self.rate * factor, ..self }
    }

    /// As users spell it.
    pub fn kind(self) -> &'static str {
        match self.method {
            Method::Sgd => "sgd",
            Method::Momentum { .. } => "momentum",
            Method::Nesterov { .. } => "nesterov",
            Method::AdaGrad { .. } => "adagrad",
            Method::RmsProp { .. } => "rmsprop",
            Method::Adam { .. } => "adam",
            Method::AdamW { .. } => "adamw",
            Method::Lamb { .. } => "lamb",
        }
    }

    /// The optimizer that users spell so, with its usual parameters; none if there is no such.
    pub fn named(kind: &str, rate: f64) -> Option<Rule> {
        let all: [fn(f64) -> Rule; 8] = [
            Rule::sgd,
            Rule::momentum,
            Rule::nesterov,
            Rule::adagrad,
            Rule::rmsprop,
            Rule::adam,
            Rule::adamw,
            Rule::lamb,
        ];
        all.iter().map(|of| of(rate)).find(|rule| rule.kind() == kind)
    }

    /// Returns how many tensors it keeps for a variable besides.
    pub fn slots(self) -> usize {
        self.method.slots()
    }

    /// The tensors that it keeps beside a variable of this spec, by name; all start as zeros.
    ///
    /// # Errors
    /// Never for the spec of a tensor that is in memory: a bf16's slots are twice as large.
    pub fn slots_of(
        self,
        variable: &TensorSpec,
    ) -> Result<Vec<(&'static str, TensorSpec)>, ShapeError> {
        let names: &[&str] = match self.method {
            Method::Sgd => &[],
            Method::Momentum { .. } | Method::Nesterov { .. } => &["velocity"],
            Method::AdaGrad { .. } => &["accumulator"],
            Method::RmsProp { .. } => &["square_average"],
            Method::Adam { .. } | Method::AdamW { .. } | Method::Lamb { .. } => MOMENTS,
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
        let is_epsilon = |value| check("epsilon", value, positive(value), positive_range);
        let Rule { method, rate, decay } = self;
        check("rate", rate, positive(rate), positive_range)?;
        check("decay", decay, decay.is_finite() && decay >= 0.0, "0 or a positive number")?;
        match method {
            Method::Sgd => Ok(()),
            Method::Momentum { momentum } | Method::Nesterov { momentum } => {
                check("momentum", momentum, share(momentum), share_range)
            }
            Method::AdaGrad { epsilon } => is_epsilon(epsilon),
            Method::RmsProp { alpha, epsilon } => {
                check("alpha", alpha, share(alpha), share_range)?;
                is_epsilon(epsilon)
            }
            Method::Adam { beta1, beta2, epsilon }
            | Method::AdamW { beta1, beta2, epsilon }
            | Method::Lamb { beta1, beta2, epsilon } => {
                check("beta1", beta1, share(beta1), share_range)?;
                check("beta2", beta2, share(beta2), share_range)?;
                is_epsilon(epsilon)
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

    const ALL: [fn(f64) -> Rule; 8] = [
        Rule::sgd,
        Rule::momentum,
        Rule::nesterov,
        Rule::adagrad,
        Rule::rmsprop,
        Rule::adam,
        Rule::adamw,
        Rule::lamb,
    ];

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
            let refused = make(0.1).decaying(-0.5).check();
            assert_eq!(refused, Err(("decay", "0 or a positive number", -0.5)));
        }
        let refused = Method::Momentum { momentum: 1.0 }.at(0.1).check();
        assert_eq!(refused, Err(("momentum", "from 0 to below 1", 1.0)));
        let refused = Method::Adam { beta1: 0.9, beta2: -0.5, epsilon: 1.0 }.at(0.1).check();
        assert_eq!(refused, Err(("beta2", "from 0 to below 1", -0.5)));
        let refused = Method::AdaGrad { epsilon: 0.0 }.at(0.1).check();
        assert_eq!(refused, Err(("epsilon", "a positive number", 0.0)));
    }

    #[test]
    fn only_what_multiplies_decays() {
        let spec = |dims: &[usize]| TensorSpec::new(DType::F32, dims).unwrap();
        let decays = [&[][..], &[3], &[3, 2], &[1, 1, 3, 2]]
            .map(|dims| Rule::adamw(0.1).of(&spec(dims)).decay);
        assert_eq!(decays, [0.0, 0.0, 0.01, 0.01]);
    }
}
