//! The recurrent cells, and their gradients, over sequences of many lengths.

use tensorwire_graph::{Cell, Op};

use super::operands::{Input, Operands, Output};
use crate::error::KernelError;
use crate::real::Real;

/// The recurrent loops of one back end.
pub(crate) trait Recurrences {
    fn recurrent<T: Real>(&self, steps: &Steps, given: Given<'_, T>, made: Made<'_, T>);
    fn recurrent_grad<T: Real>(
        &self,
        steps: &Steps,
        given: GradGiven<'_, T>,
        made: GradMade<'_, T>,
    );
}

/// The sizes of a call. Row order is step 0's sequences, then step 1's, …
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    pub(crate) cell: Cell,
    pub(crate) hidden: usize,
    /// Sequences; those from `active[t]` on are over before step t.
    pub(crate) batch: usize,
    /// Never rises, and is 1..=`batch`.
    pub(crate) active: Vec<usize>,
    /// The sum of `active`: rows.
    pub(crate) total: usize,
}

/// What [`Recurrences::recurrent`] reads: one of each a gate, or a state.
#[derive(Debug)]
pub(crate) struct Given<'a, T> {
    /// [total, h] each.
    pub(crate) products: Vec<&'a [T]>,
    /// [h, h] each.
    pub(crate) matrices: Vec<&'a [T]>,
    /// [batch, h] each.
    pub(crate) first: Vec<&'a [T]>,
}

/// What [`Recurrences::recurrent`] writes.
#[derive(Debug)]
pub(crate) struct Made<'a, T> {
    /// [total, h].
    pub(crate) y: &'a mut [T],
    /// [batch, h] each.
    pub(crate) finals: Vec<&'a mut [T]>,
    /// [total, cell.saved()·h].
    pub(crate) saved: &'a mut [T],
}

/// What [`Recurrences::recurrent_grad`] reads.
#[derive(Debug)]
pub(crate) struct GradGiven<'a, T> {
    pub(crate) dy: Option<&'a [T]>,
    pub(crate) dfinals: [Option<&'a [T]>; 2],
    pub(crate) matrices: Vec<&'a [T]>,
    pub(crate) first: Vec<&'a [T]>,
    pub(crate) y: &'a [T],
    pub(crate) saved: &'a [T],
}

/// What [`Recurrences::recurrent_grad`] writes.
#[derive(Debug)]
pub(crate) struct GradMade<'a, T> {
    pub(crate) products: Vec<&'a mut [T]>,
    pub(crate) matrices: Vec<&'a mut [T]>,
    pub(crate) first: Vec<&'a mut [T]>,
}

impl Steps {
    /// The steps in their order: their first row and how many rows they have.
    pub(crate) fn rows(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        let mut start = 0;
        let all: Vec<(usize, usize)> = self
            .active
            .iter()
            .map(|&active| {
                let rows = (start, active);
                start += active;
                rows
            })
            .collect();
        all.into_iter()
    }
}

pub(super) fn launch<T: Real, B: Recurrences>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match *op {
        Op::Recurrent { cell } => forward::<T, B>(backend, operands, cell),
        Op::RecurrentGrad { cell, sequence, finals } => {
            backward::<T, B>(backend, operands, cell, sequence, finals)
        }
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn forward<T: Real, B: Recurrences>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    cell: Cell,
) -> Result<(), KernelError> {
    let op = operands.op;
    let (gates, states) = (cell.gates(), cell.states());
    let (inputs, outputs) = operands.counted(2 * gates + states + 1, states + 2)?;
    let (products, rest) = inputs.split_at(gates);
    let (matrices, rest) = rest.split_at(gates);
    let (first, active) = rest.split_at(states);
    let (total, hidden) = products[0].matrix()?;
    let (batch, _) = first[0].matrix()?;
    let steps = Steps::checked(op, cell, [total, hidden, batch], &active[0])?;
    let mut outputs = outputs.into_iter();
    let mut output = |dims: [usize; 2]| next::<T>(&mut outputs, dims);
    let y = output([total, hidden])?;
    let finals = (0..states).map(|_| output([batch, hidden])).collect::<Result<_, _>>()?;
    let saved = output([total, cell.saved().saturating_mul(hidden)])?;
    let given = Given {
        products: all::<T>(products, [total, hidden])?,
        matrices: all(matrices, [hidden, hidden])?,
        first: all(first, [batch, hidden])?,
    };
    backend.recurrent(&steps, given, Made { y, finals, saved });
    Ok(())
}

fn backward<T: Real, B: Recurrences>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    cell: Cell,
    sequence: bool,
    finals: [bool; 2],
) -> Result<(), KernelError> {
    let op = operands.op;
    let (gates, states) = (cell.gates(), cell.states());
    let finals = [finals[0], finals[1] && states > 1];
    let flowing = [sequence, finals[0], finals[1]].map(usize::from);
    let count = flowing.iter().sum::<usize>() + gates + states + 3;
    let (inputs, outputs) = operands.counted(count, 2 * gates + states)?;
    let (dy, rest) = inputs.split_at(flowing[0]);
    let (dfinals, rest) = rest.split_at(flowing[1] + flowing[2]);
    let (matrices, rest) = rest.split_at(gates);
    let (first, rest) = rest.split_at(states);
    let (active, y, saved) = (&rest[0], &rest[1], &rest[2]);
    let (total, hidden) = y.matrix()?;
    let (batch, _) = first[0].matrix()?;
    let steps = Steps::checked(op, cell, [total, hidden, batch], active)?;
    let mut dfinals = all::<T>(dfinals, [batch, hidden])?.into_iter();
    let given = GradGiven {
        dy: all::<T>(dy, [total, hidden])?.pop(),
        dfinals: finals.map(|flows| if flows { dfinals.next() } else { None }),
        matrices: all(matrices, [hidden, hidden])?,
        first: all(first, [batch, hidden])?,
        y: y.elements()?,
        saved: all(std::slice::from_ref(saved), [total, cell.saved().saturating_mul(hidden)])?[0],
    };
    let mut outputs = outputs.into_iter();
    let mut several = |count: usize, dims: [usize; 2]| {
        (0..count).map(|_| next::<T>(&mut outputs, dims)).collect::<Result<Vec<_>, _>>()
    };
    let made = GradMade {
        products: several(gates, [total, hidden])?,
        matrices: several(gates, [hidden, hidden])?,
        first: several(states, [batch, hidden])?,
    };
    backend.recurrent_grad(&steps, given, made);
    Ok(())
}

impl Steps {
    /// The sizes, if `active` tells of `total` rows of sequences that are sorted, longest first.
    fn checked(
        op: &'static str,
        cell: Cell,
        [total, hidden, batch]: [usize; 3],
        active: &Input<'_>,
    ) -> Result<Steps, KernelError> {
        active.expect_dims(&[active.dims().iter().product()])?;
        let given = active.elements::<i32>()?;
        let (mut active, mut most, mut sum) = (Vec::with_capacity(given.len()), batch, 0usize);
        for (step, &found) in given.iter().enumerate() {
            match usize::try_from(found) {
                Ok(rows) if (1..=most).contains(&rows) => {
                    active.push(rows);
                    most = rows;
                    sum = sum.saturating_add(rows);
                }
                _ => return Err(KernelError::Active { op, step, found, most }),
            }
        }
        if sum != total {
            return Err(KernelError::Total { op, active: sum, total });
        }
        Ok(Steps { cell, hidden, batch, active, total })
    }
}

/// The elements of all of `inputs`, which have `dims`.
fn all<'i, T: Real>(inputs: &[Input<'i>], dims: [usize; 2]) -> Result<Vec<&'i [T]>, KernelError> {
    let mut elements = Vec::with_capacity(inputs.len());
    for input in inputs {
        input.expect_dims(&dims)?;
        elements.push(input.elements()?);
    }
    Ok(elements)
}

/// The elements of the next of `outputs`, which were counted.
fn next<'c, 'o: 'c, T: Real>(
    outputs: &mut impl Iterator<Item = Output<'c, 'o>>,
    dims: [usize; 2],
) -> Result<&'c mut [T], KernelError> {
    match outputs.next() {
        Some(output) => {
            output.expect_dims(&dims)?;
            output.elements_mut()
        }
        None => Ok(&mut []),
    }
}
