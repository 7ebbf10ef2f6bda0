//! The weight of a convolution, put in the order in which a product takes it.

use std::ops::Range;

use super::{PARALLEL_MIN, part};
use crate::cpu::pool::Pool;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;
use crate::cpu::transpose::{Rows, transpose};
use crate::launch::images::Convolution;
use crate::real::Real;

/// Elements of an output's weight that one piece of turning the weight reads at a time.
const TURNED_AT_ONCE: usize = 128;

/// Width and height of the tiles in which a weight is turned.
const TURN: usize = 16;

/// packed[g][tap, c, o] ← w[g·o + o][c][place of the tap].
pub(super) fn pack_outputs_last<T: Real>(
    pool: &Pool,
    shape: &Convolution,
    w: &[T],
    places: &[usize],
    packed: &mut [T],
) {
    let (channels, outputs) = (shape.channels / shape.groups, shape.outputs / shape.groups);
    let area = places.len();
    let row = channels * area;
    if w.is_empty() {
        return;
    }
    assert_eq!(packed.len(), w.len());
    // where the kernel's places go: forward, all are there
    let mut taps = vec![0; area];
    for (tap, &place) in places.iter().enumerate() {
        taps[place] = tap;
    }
    let target = Shared(packed.as_mut_ptr());
    // A line of `packed` is far from the next that is written, and each would be waited for: a piece turns
    // what fits the L2 cache, and copies that in long runs.
    let width = TURN.max(TURNED_AT_ONCE.div_ceil(area));
    let pieces = channels.div_ceil(width);
    pool.each_index(shape.groups * pieces, w.len() >= PARALLEL_MIN / 16, |piece| {
        let (group, piece) = (piece / pieces, piece % pieces);
        let some = part(piece, width, channels);
        if some.is_empty() {
            return;
        }
        with_scratch(some.len() * area * outputs, |turned: &mut [T]| {
            let w = &w[group * outputs * row..][..outputs * row];
            turn(w, row, some.start * area..some.end * area, turned);
            for (place, &tap) in taps.iter().enumerate() {
                let first = (group * row + tap * channels + some.start) * outputs;
                // SAFETY: these channels' rows of `packed`, which has groups × row of `outputs` elements; no
                // other piece has them. `packed` is borrowed exclusively.
                let into = unsafe {
                    let start = target.start().add(first);
                    std::slice::from_raw_parts_mut(start, some.len() * outputs)
                };
                let rows = turned.chunks_exact(outputs).skip(place).step_by(area);
                for (into, turned) in into.chunks_exact_mut(outputs).zip(rows) {
                    into.copy_from_slice(turned);
                }
            }
        });
    });
}

/// turned[c, r] ← matrix[r, columns.start + c] for a matrix with rows of `row` elements.
fn turn<T: Real>(matrix: &[T], row: usize, columns: Range<usize>, turned: &mut [T]) {
    let rows = Rows {
        elements: &matrix[columns.start..],
        rows: matrix.len() / row,
        columns: columns.len(),
        stride: row,
    };
    transpose(rows, turned, matrix.len() / row);
}

/// packed[g][tap, o, c] ← w[g·o + o][c][place of the tap].
pub(super) fn pack_channels_last<T: Real>(
    pool: &Pool,
    shape: &Convolution,
    w: &[T],
    places: &[usize],
    packed: &mut [T],
) {
    let (channels, outputs) = (shape.channels / shape.groups, shape.outputs / shape.groups);
    let area = shape.window.kernel[0] * shape.window.kernel[1];
    if packed.is_empty() {
        return;
    }
    assert_eq!(packed.len(), places.len() * shape.outputs * channels);
    let target = Shared(packed.as_mut_ptr());
    let blocks = shape.outputs.div_ceil(TURN);
    pool.each_index(blocks, packed.len() >= PARALLEL_MIN / 16, |block| {
        for output in part(block, TURN, shape.outputs) {
            let w = &w[output * channels * area..][..channels * area];
            let (group, output) = (output / outputs, output % outputs);
            for (tap, &place) in places.iter().enumerate() {
                let first = ((group * places.len() + tap) * outputs + output) * channels;
                // SAFETY: `channels` elements inside `packed`, as asserted, which only this output of this
                // group has. `packed` is borrowed exclusively.
                let into =
                    unsafe { std::slice::from_raw_parts_mut(target.start().add(first), channels) };
                for (into, &w) in into.iter_mut().zip(w[place..].iter().step_by(area)) {
                    *into = w;
                }
            }
        }
    });
}
