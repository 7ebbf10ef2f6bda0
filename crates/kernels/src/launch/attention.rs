//! Attention and rotary positions: checks, and what a back end is asked to compute.

use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Op, Rotary};
use tensorwire_tensor::DType;

use super::operands::{Input, Operands};
use crate::error::KernelError;
use crate::real::Real;

/// The loops of one back end over queries and keys.
pub(crate) trait Attentions {
    /// `y` is as `q`, `lse` [batch, heads, queries].
    fn attention<T: Real>(&self, seen: Seen<'_, T>, y: &mut [T], lse: &mut [T]);
    /// `y` and `lse` are what [`Attentions::attention`] wrote.
    fn attention_grad<T: Real>(
        &self,
        seen: Seen<'_, T>,
        dy: &[T],
        y: &[T],
        lse: &[T],
        out: AttentionGradients<'_, T>,
    );
    fn rotary<T: Real>(&self, shape: RotaryShape, x: &[T], y: &mut [T]);
}

/// Queries, keys and values, and who sees whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a, T> {
    pub(crate) shape: AttentionShape,
    pub(crate) scale: T,
    pub(crate) q: &'a [T],
    pub(crate) k: &'a [T],
    pub(crate) v: &'a [T],
    pub(crate) mask: Mask<'a, T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    pub(crate) batch: usize,
    /// Of queries, a multiple of those of keys.
    pub(crate) heads: usize,
    /// Heads of keys.
    pub(crate) groups: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Elements of a query, at least one.
    pub(crate) depth: usize,
    pub(crate) order: HeadOrder,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask<'a, T> {
    None,
    Causal,
    /// What is added to a product, by batch, head, query and key.
    Added(&'a [T], [usize; 4]),
    /// Not 0 where a key is seen.
    Shown(&'a [u8], [usize; 4]),
}

#[derive(Debug)]
pub(crate) struct AttentionGradients<'a, T> {
    pub(crate) dq: &'a mut [T],
    pub(crate) dk: &'a mut [T],
    pub(crate) dv: &'a mut [T],
}

/// Rows of `depth` elements, of which each has a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RotaryShape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) positions: usize,
    /// Even.
    pub(crate) depth: usize,
    pub(crate) rotary: Rotary,
}

impl AttentionShape {
    /// The row of `queries` that head `head` of sample `batch` begins with, and how many rows lie between two of its
    /// positions.
    pub(crate) fn query_rows(&self, batch: usize, head: usize) -> [usize; 2] {
        rows(self.order, self.heads, self.queries, batch, head)
    }

    /// As [`AttentionShape::query_rows`], of keys and values, by their head.
    pub(crate) fn key_rows(&self, batch: usize, group: usize) -> [usize; 2] {
        rows(self.order, self.groups, self.keys, batch, group)
    }

    /// Heads of queries that share one of keys.
    pub(crate) fn heads_of_a_group(&self) -> usize {
        self.heads / self.groups
    }
}

impl RotaryShape {
    /// The position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        match self.rotary.heads {
            HeadOrder::Outer => row % self.positions,
            HeadOrder::Inner => row / self.heads % self.positions,
        }
    }

    /// By how much element `i` of the first half turns at a position, in radians.
    pub(crate) fn angle(&self, position: usize, i: usize) -> f64 {
        let frequency = self.rotary.base.powf(-2.0 * i as f64 / self.depth as f64);
        let angle = (position + self.rotary.offset) as f64 * frequency;
        if self.rotary.inverse { -angle } else { angle }
    }
}

fn rows(order: HeadOrder, heads: usize, positions: usize, batch: usize, head: usize) -> [usize; 2] {
    match order {
        HeadOrder::Outer => [(batch * heads + head) * positions, 1],
        HeadOrder::Inner => [batch * positions * heads + head, heads],
    }
}

impl<T: Real> Mask<'_, T> {
    /// What is added to the product of a query and a key: −∞ where it is not seen.
    #[inline(always)]
    pub(crate) fn added(&self, batch: usize, head: usize, query: usize, key: usize) -> T {
        let place = |steps: &[usize; 4]| {
            batch * steps[0] + head * steps[1] + query * steps[2] + key * steps[3]
        };
        let is_seen = match self {
            Mask::None => true,
            Mask::Causal => key <= query,
            Mask::Added(mask, steps) => return mask[place(steps)],
            Mask::Shown(mask, steps) => mask[place(steps)] != 0,
        };
        if is_seen { T::zero() } else { T::neg_infinity() }
    }
}

pub(super) fn launch<T: Real, B: Attentions>(
    backend: &B,
    op: &Op,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    match op {
        Op::Attention(by) => {
            let (inputs, outputs) = operands.counted(3 + by.mask.operands(), 2)?;
            let seen = seen::<T>(by, &inputs, 0)?;
            let shape = seen.shape;
            outputs[0].expect_dims(inputs[0].dims())?;
            outputs[1].expect_dims(&[shape.batch, shape.heads, shape.queries])?;
            let mut outputs = outputs.into_iter().map(|output| output.elements_mut::<T>());
            let (y, lse) = (outputs.next().transpose()?, outputs.next().transpose()?);
            if let (Some(y), Some(lse)) = (y, lse) {
                backend.attention(seen, y, lse);
            }
            Ok(())
        }
        Op::AttentionGrad(by) => attention_grad::<T, B>(backend, operands, by),
        Op::Rotary(rotary) => {
            let ([x], [y]) = operands.exactly()?;
            let &[batch, _, _, depth] = x.dims() else {
                return Err(x.misshapen("[b×h×t×d]".to_owned()));
            };
            if depth % 2 != 0 {
                return Err(x.misshapen("[b×h×t×d] with d even".to_owned()));
            }
            y.expect_dims(x.dims())?;
            let [heads, positions] = rotary.heads.axes().map(|axis| x.dims()[axis]);
            let shape = RotaryShape { batch, heads, positions, depth, rotary: *rotary };
            let (x, y) = (x.elements::<T>()?, y.elements_mut()?);
            if !y.is_empty() {
                backend.rotary(shape, x, y);
            }
            Ok(())
        }
        _ => Err(KernelError::NoKernel { op: operands.op }),
    }
}

fn attention_grad<T: Real, B: Attentions>(
    backend: &B,
    operands: &mut Operands<'_, '_, '_>,
    by: &Attention,
) -> Result<(), KernelError> {
    let (inputs, outputs) = operands.counted(6 + by.mask.operands(), 3)?;
    // q, k, v and the mask, as the forward operator has them
    let seen = seen::<T>(by, &inputs, 1)?;
    let shape = seen.shape;
    let (dy, y, lse) = (&inputs[0], &inputs[4], &inputs[5]);
    dy.expect_dims(inputs[1].dims())?;
    y.expect_dims(inputs[1].dims())?;
    lse.expect_dims(&[shape.batch, shape.heads, shape.queries])?;
    for (output, like) in outputs.iter().zip(&inputs[1..]) {
        output.expect_dims(like.dims())?;
    }
    let (dy, y, lse) = (dy.elements()?, y.elements()?, lse.elements()?);
    let mut outputs = outputs.into_iter().map(|output| output.elements_mut::<T>());
    let [dq, dk, dv] = [outputs.next(), outputs.next(), outputs.next()];
    if let (Some(dq), Some(dk), Some(dv)) = (dq.transpose()?, dk.transpose()?, dv.transpose()?) {
        backend.attention_grad(seen, dy, y, lse, AttentionGradients { dq, dk, dv });
    }
    Ok(())
}

/// q, k and v, which start at input `first`, and the mask, which is last.
fn seen<'i, T: Real>(
    by: &Attention,
    inputs: &[Input<'i>],
    first: usize,
) -> Result<Seen<'i, T>, KernelError> {
    let (q, k, v) = (&inputs[first], &inputs[first + 1], &inputs[first + 2]);
    let (&[batch, _, _, depth], &[..]) = (q.dims(), k.dims()) else {
        return Err(q.misshapen("[b×h×t×d]".to_owned()));
    };
    let [heads, queries] = by.heads.axes().map(|axis| q.dims()[axis]);
    if k.dims().len() != 4 {
        return Err(k.misshapen("[b×g×s×d]".to_owned()));
    }
    let [groups, keys] = by.heads.axes().map(|axis| k.dims()[axis]);
    if depth == 0 || groups == 0 || heads % groups != 0 {
        return Err(k.misshapen(format!("of {heads} heads or of a divisor of that")));
    }
    if by.mask == AttentionMask::Causal && keys != queries {
        return Err(k.misshapen(format!("of {queries} keys, as many as queries")));
    }
    k.expect_dims(&match by.heads {
        HeadOrder::Outer => [batch, groups, keys, depth],
        HeadOrder::Inner => [batch, keys, groups, depth],
    })?;
    v.expect_dims(k.dims())?;
    let mask = match by.mask {
        AttentionMask::None => Mask::None,
        AttentionMask::Causal => Mask::Causal,
        AttentionMask::Given => mask(&inputs[inputs.len() - 1], [batch, heads, queries, keys])?,
    };
    let shape = AttentionShape { batch, heads, groups, queries, keys, depth, order: by.heads };
    let (q, k, v) = (q.elements()?, k.elements()?, v.elements()?);
    Ok(Seen { shape, scale: T::narrow(by.scale), q, k, v, mask })
}

fn mask<'i, T: Real>(mask: &Input<'i>, full: [usize; 4]) -> Result<Mask<'i, T>, KernelError> {
    let dims = mask.dims();
    let fits = |(&dim, full): (&usize, usize)| dim == full || dim == 1;
    if dims.len() != 4 || !dims.iter().zip(full).all(fits) {
        return Err(mask.misshapen(format!("that can be broadcast to {full:?}")));
    }
    let step = |axis: usize| match dims[axis] {
        1 => 0,
        _ => dims[axis + 1..].iter().product(),
    };
    let steps = std::array::from_fn(step);
    match mask.dtype() {
        DType::U8 => Ok(Mask::Shown(mask.elements()?, steps)),
        _ => Ok(Mask::Added(mask.elements()?, steps)),
    }
}
