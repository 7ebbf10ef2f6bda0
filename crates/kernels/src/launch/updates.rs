//! Operators that change variables in place.

use tensorwire_graph::{Op, Rule};

use super::moves::checked_indices;
use super::operands::{Operands, Output};
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end that change variables. The mean gradient is share·Σ gradients.
pub(crate) trait Updates {
    fn apply<T: Real>(&self, step: Step<'_, T>, share: T, v: &mut [T], gradients: &[&[T]]);
    /// `v` has rows of `columns`, of which the parts name some.
    fn apply_rows<T: Real>(
        &self,
        step: Step<'_, T>,
        share: T,
        columns: usize,
        v: &mut [T],
        parts: &[RowPart<'_, T>],
    );
    /// v ← v + rate·(share·Σ values − v).
    fn apply_average<T: Real>(&self, rate: T, share: T, v: &mut [T], values: &[&[T]]);
}

/// A rule with its numbers in the variable's type and the slots, as long as the variable.
#[derive(Debug)]
pub(crate) enum Step<'a, T> {
    Sgd { rate: T },
    Momentum { rate: T, momentum: T, u: &'a mut [T] },
    AdaGrad { rate: T, epsilon: T, a: &'a mut [T] },
    Adam { numbers: Adam<T>, m: &'a mut [T], s: &'a mut [T] },
}

/// What [`Rule::Adam`] computes with in one step.
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
        Op::Apply { rule } => apply::<T, B>(backend, operands, rule),
        Op::ApplyRows { rule } => apply_rows::<T, B>(backend, operands, rule),
        Op::ApplyAverage { rate } => apply_average::<T, B>(backend, operands, rate),
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn apply<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rule: Rule,
) -> Result<(), KernelError> {
    let (gradients, state) = operands.gradients::<T>(1 + rule.slots())?;
    let share = share(gradients.len());
    with_step(rule, state, |step, v| backend.apply(step, share, v, &gradients))
}

fn apply_rows<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rule: Rule,
) -> Result<(), KernelError> {
    let op = operands.op;
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
    let share = share(parts.len());
    with_step(rule, state, |step, v| backend.apply_rows(step, share, columns, v, &parts))
}

fn apply_average<T: Real, B: Updates>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    rate: f64,
) -> Result<(), KernelError> {
    let (values, state) = operands.gradients::<T>(1)?;
    let share = share(values.len());
    for v in state {
        backend.apply_average(T::narrow(rate), share, v.elements_mut()?, &values);
    }
    Ok(())
}

/// Gives `update` the rule with its slots, and the variable: `state` in the operator's order, as many as
/// the rule has slots, and the variable first.
fn with_step<T: Real>(
    rule: Rule,
    state: Vec<Output<'_, '_>>,
    update: impl FnOnce(Step<'_, T>, &mut [T]),
) -> Result<(), KernelError> {
    let is_adam = matches!(rule, Rule::Adam { .. });
    let dims = state[0].dims();
    let like_variable = state.len() - usize::from(is_adam);
    for slot in &state[1..like_variable] {
        slot.expect_dims(dims)?;
    }
    let mut state = state.into_iter();
    let mut elements = || state.next().map(Output::elements_mut::<T>).unwrap_or(Ok(&mut []));
    let v = elements()?;
    let narrow = T::narrow;
    match rule {
        Rule::Sgd { rate } => update(Step::Sgd { rate: narrow(rate) }, v),
        Rule::Momentum { rate, momentum } => {
            let (rate, momentum) = (narrow(rate), narrow(momentum));
            update(Step::Momentum { rate, momentum, u: elements()? }, v);
        }
        Rule::AdaGrad { rate, epsilon } => {
            let (rate, epsilon) = (narrow(rate), narrow(epsilon));
            update(Step::AdaGrad { rate, epsilon, a: elements()? }, v);
        }
        Rule::Adam { rate, beta1, beta2, epsilon } => {
            let (m, s) = (elements()?, elements()?);
            let Some(count) = state.next() else { return Ok(()) };
            count.expect_dims(&[])?;
            let count = &mut count.elements_mut::<i64>()?[0];
            *count = count.saturating_add(1);
            // the powers in f64, so that 1 − βᵗ is right to the last bit of an f32
            let bias = |beta: f64| narrow(1.0 - beta.powf(*count as f64));
            let numbers = Adam {
                rate: narrow(rate),
                beta1: narrow(beta1),
                fresh1: narrow(1.0 - beta1),
                beta2: narrow(beta2),
                fresh2: narrow(1.0 - beta2),
                epsilon: narrow(epsilon),
                bias1: bias(beta1),
                bias2: bias(beta2),
            };
            update(Step::Adam { numbers, m, s }, v);
        }
    }
    Ok(())
}

/// 1/W in T: exact where W is a power of two, else one rounding.
fn share<T: Real>(world_size: usize) -> T {
    T::one() / T::from_count(world_size)
}
