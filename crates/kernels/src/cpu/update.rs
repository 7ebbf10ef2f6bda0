//! The optimizers, in one pass over memory: the gradients of a block are folded into a buffer that
//! stays in the L1 cache, and the variable is updated from there.

use pulp::NullaryFnOnce;

use crate::launch::{Momentum, Sgd};
use crate::real::Real;

/// Elements of a block: 4 KiB of f64, a small part of an L1 cache even with every rank's gradient.
const BLOCK: usize = 512;

/// Updates `v`, which starts at element `start` of the variable.
pub(super) struct SgdChunk<'a, T> {
    pub(super) rule: Sgd<T>,
    pub(super) v: &'a mut [T],
    pub(super) gradients: &'a [&'a [T]],
    pub(super) start: usize,
}

/// Updates `v` and `u`, which start at element `start` of variable and velocity.
pub(super) struct MomentumChunk<'a, T> {
    pub(super) rule: Momentum<T>,
    pub(super) v: &'a mut [T],
    pub(super) u: &'a mut [T],
    pub(super) gradients: &'a [&'a [T]],
    pub(super) start: usize,
}

impl<T: Real> NullaryFnOnce for SgdChunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let SgdChunk { rule, v, gradients, mut start } = self;
        let mut buffer = [T::zero(); BLOCK];
        for v in v.chunks_mut(BLOCK) {
            let sum = fold(gradients, start, &mut buffer[..v.len()]);
            for (v, &sum) in v.iter_mut().zip(sum) {
                *v -= rule.rate * (sum * rule.share);
            }
            start += v.len();
        }
    }
}

impl<T: Real> NullaryFnOnce for MomentumChunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let MomentumChunk { rule, v, u, gradients, mut start } = self;
        let mut buffer = [T::zero(); BLOCK];
        for (v, u) in v.chunks_mut(BLOCK).zip(u.chunks_mut(BLOCK)) {
            let sum = fold(gradients, start, &mut buffer[..v.len()]);
            for ((v, u), &sum) in v.iter_mut().zip(u).zip(sum) {
                *u = rule.momentum * *u + sum * rule.share;
                *v -= rule.rate * *u;
            }
            start += v.len();
        }
    }
}

/// The gradients' sum from element `start` on, added in rank order.
#[inline(always)]
fn fold<'b, T: Real>(gradients: &[&'b [T]], start: usize, buffer: &'b mut [T]) -> &'b [T] {
    let block = |rank: usize| &gradients[rank][start..][..buffer.len()];
    match gradients.len() {
        1 => block(0),
        2 => {
            let (first, second) = (block(0), block(1));
            for ((sum, &a), &b) in buffer.iter_mut().zip(first).zip(second) {
                *sum = a + b;
            }
            buffer
        }
        _ => {
            buffer.copy_from_slice(block(0));
            for gradient in &gradients[1..] {
                for (sum, &g) in buffer.iter_mut().zip(&gradient[start..]) {
                    *sum += g;
                }
            }
            buffer
        }
    }
}
