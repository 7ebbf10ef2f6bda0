//! Operators that change variables in place.

use tensorwire_graph::{Method, Op, Rule};

use super::moves::checked_indices;
use super::operands::{Operands, Output};
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end that change variables. The mean gradient is share·Σ gradients.
pub(crate) trait Updates {
    fn apply<T: Real>(&self, step: Step<'_, T>, mean: Mean<T>, v: &mut [T], gradients: &[&[T]]);
    /// `v` has rows of `columns`, of which the parts name some. The step is none that needs the whole.
    fn apply_rows<T: Real>(
        &self,
        step: Step<'_, T>,
        mean: Mean<T>,
        columns: usize,
        v: &mut [T],
        parts: &[RowPart<'_, T>],
    );
    /// v ← v + rate·(share·Σ values − v).
    fn apply_average<T: Real>(&self, rate: T, share: T, v: &mut [T], values: &[&[T]]);
}

/// What the sum of the gradients becomes before a step takes it, and the variable with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean<T> {
    /// g = share·Σ gradients, which is their mean, …
    pub(crate) share: T,
    /// … times what it is clipped by …
    pub(crate) scale: T,
    /// … + pull·v.
    pub(crate) pull: T,
    /// Then v ← keep·v.
    pub(crate) keep: T,
}

/// A method with its numbers in the variable's type and the slots, as long as the variable.
#[derive(Debug)]
pub(crate) enum Step<'a, T> {
    Sgd { rate: T },
    Momentum { rate: T, momentum: T, u: &'a mut [T] },
    Nesterov { rate: T, momentum: T, u: &'a mut [T] },
    AdaGrad { rate: T, epsilon: T, a: &'a mut [T] },
    RmsProp { rate: T, alpha: T, fresh: T, epsilon: T, a: &'a mut [T] },
    Adam { numbers: Adam<T>, m: &'a mut [T], s: &'a mut [T] },
    Lamb { numbers: Adam<T>, decay: T, m: &'a mut [T], s: &'a mut [T] },
}

/// What [`Method::Adam`] computes with in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adam<T> {
    pub(crate) rate: T,
    pub(crate) beta1: T,
    /// 1 − β₁.
    pub(crate) fresh1: T,
    pub(crate) beta2: T,
    /// 1 − β₂.
    pub(crate) fresh2: T,
    pub(crate) epsilon: T,
    /// 1 − β₁ᵗ.
    pub(crate) bias1: T,
    /// 1 − β₂ᵗ.
    pub(crate) bias2: T,
}

impl<T: Real> Adam<T> {
    /// Takes gradient g into the moments.
    #[inline(always)]
    pub(crate) fn take(&self, g: T, m: &mut T, s: &mut T) {
        *m = self.beta1 * *m + self.fresh1 * g;
        *s = self.beta2 * *s + self.fresh2 * (g * g);
    }

    /// m̂/(√ŝ + epsilon), of which m̂ is multiplied by `rate`.
    #[inline(always)]
    pub(crate) fn direction(&self, rate: T, m: T, s: T) -> T {
        rate * (m / self.bias1) / ((s / self.bias2).sqrt() + self.epsilon)
    }

    /// What LAMB moves v along: the direction, and the decay.
    #[inline(always)]
    pub(crate) fn with_decay(&self, decay: T, v: T, m: T, s: T) -> T {
        self.direction(T::one(), m, s) + decay * v
    }

    /// The rate of LAMB, given Σv² and Σr² of what v moves along: that by the norms' ratio, where both are above 0.
    pub(crate) fn trusted(&self, [of_v, of_r]: [f64; 2]) -> T {
        match of_v > 0.0 && of_r > 0.0 {
            true => self.rate * T::narrow((of_v / of_r).sqrt()),
            false => self.rate,
        }
    }
}

/// One rank's gradient of some rows: row i belongs to row `indices[i]` of the variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPart<'a, T> {
    pub(crate) indices: &'a [i32],
    pub(crate) rows: &'a [T],
}

pub(super) fn launch<T: Real, B: Updates>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match *op {
        Op::Apply { rule, clipped } => apply::<T, B>(backend, operands, rule, clipped),
        Op::ApplyRows { rule } => apply_rows::<T, B>(backend, operands, rule),
        Op::ApplyAverage { rate } => apply_average::<T, B>(backend, operands, rate),
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn apply<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rule: Rule,
    clipped: bool,
) -> Result<(), KernelError> {
    let (scale, gradients, state) = operands.gradients::<T>(1 + rule.slots(), clipped)?;
    // rounded one after the other, so that whoever is given the mean alone makes the same of it
    let shares = (share(gradients.len()), scale.map_or(T::one(), T::narrow));
    with_step(rule, shares, state, |step, mean, v| backend.apply(step, mean, v, &gradients))
}

fn apply_rows<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rule: Rule,
) -> Result<(), KernelError> {
    let op = operands.op;
    if rule.method.needs_whole() {
        return Err(KernelError::NoKernel { op });
    }
    let (inputs, state) = operands.parts(1 + rule.slots())?;
    let (rows, columns) = state[0].matrix()?;
    let (pairs, []) = inputs.as_chunks::<2>() else {
        let found = inputs.len();
        return Err(KernelError::InputCount { op, expected: found + 1, found });
    };
    if pairs.is_empty() {
        return Err(KernelError::NoGradients { op });
    }
    let mut parts = Vec::with_capacity(pairs.len());
    for [indices, gradient] in pairs {
        let indices = checked_indices(indices, rows)?;
        gradient.expect_dims(&[indices.len(), columns])?;
        parts.push(RowPart { indices, rows: gradient.elements::<T>()? });
    }
    with_step(rule, (share(parts.len()), T::one()), state, |step, mean, v| {
        backend.apply_rows(step, mean, columns, v, &parts);
    })
}

fn apply_average<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rate: f64,
) -> Result<(), KernelError> {
    let (_, values, state) = operands.gradients::<T>(1, false)?;
    let share = share(values.len());
    for v in state {
        backend.apply_average(T::narrow(rate), share, v.elements_mut()?, &values);
    }
    Ok(())
}

/// Gives `update` the rule with its slots, and the variable: `state` in the operator's order, as many as
/// the rule has slots, and the variable first. The mean is `share` of the gradients' sum, and what is taken of it `scale`.
fn with_step<T: Real>(
    rule: Rule,
    (share, scale): (T, T),
    state: Vec<Output<'_, '_>>,
    update: impl FnOnce(Step<'_, T>, Mean<T>, &mut [T]),
) -> Result<(), KernelError> {
    let Rule { method, rate, decay } = rule;
    let dims = state[0].dims();
    let like_variable = state.len() - usize::from(method.counts_steps());
    for slot in &state[1..like_variable] {
        slot.expect_dims(dims)?;
    }
    let mut state = state.into_iter();
    let mut elements = || state.next().map(Output::elements_mut::<T>).unwrap_or(Ok(&mut []));
    let narrow = T::narrow;
    let (pull, keep) = match method {
        Method::AdamW { .. } => (0.0, 1.0 - rate * decay),
        Method::Lamb { .. } => (0.0, 1.0),
        _ => (decay, 1.0),
    };
    let mean = Mean { share, scale, pull: narrow(pull), keep: narrow(keep) };
    let decay = narrow(decay);
    let v = elements()?;
    let in_t = narrow(rate);
    let step = match method {
        Method::Sgd => Step::Sgd { rate: in_t },
        Method::Momentum { momentum } => {
            Step::Momentum { rate: in_t, momentum: narrow(momentum), u: elements()? }
        }
        Method::Nesterov { momentum } => {
            Step::Nesterov { rate: in_t, momentum: narrow(momentum), u: elements()? }
        }
        Method::AdaGrad { epsilon } => {
            Step::AdaGrad { rate: in_t, epsilon: narrow(epsilon), a: elements()? }
        }
        Method::RmsProp { alpha, epsilon } => {
            let (fresh, epsilon) = (narrow(1.0 - alpha), narrow(epsilon));
            Step::RmsProp { rate: in_t, alpha: narrow(alpha), fresh, epsilon, a: elements()? }
        }
        Method::Adam { beta1, beta2, epsilon }
        | Method::AdamW { beta1, beta2, epsilon }
        | Method::Lamb { beta1, beta2, epsilon } => {
            let (m, s) = (elements()?, elements()?);
            let Some(count) = state.next() else { return Ok(()) };
            count.expect_dims(&[])?;
            let count = &mut count.elements_mut::<i64>()?[0];
            *count = count.saturating_add(1);
            // the powers in f64, so that 1 − βᵗ is right to the last bit of an f32
            let bias = |beta: f64| narrow(1.0 - beta.powf(*count as f64));
            let numbers = Adam {
                rate: in_t,
                beta1: narrow(beta1),
                fresh1: narrow(1.0 - beta1),
                beta2: narrow(beta2),
                fresh2: narrow(1.0 - beta2),
                epsilon: narrow(epsilon),
                bias1: bias(beta1),
                bias2: bias(beta2),
            };
            match method.needs_whole() {
                true => Step::Lamb { numbers, decay, m, s },
                false => Step::Adam { numbers, m, s },
            }
        }
    };
    update(step, mean, v);
    Ok(())
}

/// 1/W in T: exact where W is a power of two, else one rounding.
pub(super) fn share<T: Real>(world_size: usize) -> T {
    T::one() / T::from_count(world_size)
}
