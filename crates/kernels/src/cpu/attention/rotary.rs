//! Rotary positions: sines and cosines of every position once, then rows.

use pulp::NullaryFnOnce;

use crate::cpu::pool::{CHUNK, Pool};
use crate::cpu::scratch::with_scratch;
use crate::cpu::simd::SimdProof;
use crate::launch::attention::RotaryShape;
use crate::real::Real;

/// Positions whose sines a piece of work computes.
const POSITIONS: usize = 64;

pub(super) fn rotary<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    shape: RotaryShape,
    x: &[T],
    y: &mut [T],
) {
    let depth = shape.depth;
    with_scratch(shape.positions * depth, |turns: &mut [T]| {
        let parallel = turns.len() > POSITIONS * depth;
        pool.split(turns, POSITIONS * depth, parallel, |start, turns| {
            turn_of_each(shape, start / depth, turns);
        });
        let rows = CHUNK.div_ceil(depth);
        pool.each_chunk_of(y, rows * depth, |start, y| {
            let (x, first) = (&x[start..][..y.len()], start / depth);
            simd.run(Turn { shape, first, turns, x, y });
        });
    });
}

/// The cosines of a position, one for each element of the first half, and its sines, from position `first` on.
fn turn_of_each<T: Real>(shape: RotaryShape, first: usize, turns: &mut [T]) {
    let half = shape.depth / 2;
    for i in 0..half {
        // an angle is this times its position, as `angle` has it
        let frequency = shape.rotary.base.powf(-2.0 * i as f64 / shape.depth as f64);
        let sign = if shape.rotary.inverse { -1.0 } else { 1.0 };
        for (at, turn) in turns.chunks_exact_mut(shape.depth).enumerate() {
            let position = (first + at + shape.rotary.offset) as f64;
            let (sin, cos) = (position * frequency).sin_cos();
            (turn[i], turn[half + i]) = (T::narrow(cos), T::narrow(sign * sin));
        }
    }
}

/// Rows `first..`.
struct Turn<'a, T> {
    shape: RotaryShape,
    first: usize,
    turns: &'a [T],
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Turn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Turn { shape, first, turns, x, y } = self;
        let (depth, half) = (shape.depth, shape.depth / 2);
        for (row, (x, y)) in x.chunks_exact(depth).zip(y.chunks_exact_mut(depth)).enumerate() {
            let turn = &turns[shape.position(first + row) * depth..][..depth];
            let ((cos, sin), (x1, x2)) = (turn.split_at(half), x.split_at(half));
            let (y1, y2) = y.split_at_mut(half);
            for i in 0..half {
                y1[i] = x1[i] * cos[i] - x2[i] * sin[i];
                y2[i] = x2[i] * cos[i] + x1[i] * sin[i];
            }
        }
    }
}
