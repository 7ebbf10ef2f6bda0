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

#[cfg(test)]
mod tests {
    use tensorwire_graph::Window;

    use super::*;

    fn shape(groups: usize, channels: usize, outputs: usize, kernel: [usize; 2]) -> Convolution {
        let window =
            Window { kernel, stride: [1; 2], dilation: [1; 2], before: [0; 2], after: [0; 2] };
        let (batch, size, windows) = (1, kernel, [1; 2]);
        Convolution { batch, size, channels, windows, outputs, groups, window }
    }

    /// Element c of output o of a weight [outputs, channels of a group, area], which is its own place.
    fn packed_and_expected(
        shape: &Convolution,
        places: &[usize],
        pack: fn(&Pool, &Convolution, &[f32], &[usize], &mut [f32]),
        at: impl Fn([usize; 4]) -> usize,
    ) {
        let (channels, outputs) = (shape.channels / shape.groups, shape.outputs / shape.groups);
        let area: usize = shape.window.kernel.iter().product();
        let w: Vec<f32> = (0..shape.outputs * channels * area).map(|at| at as f32).collect();
        let mut expected = vec![-1.0; shape.groups * places.len() * channels * outputs];
        for (g, tap) in (0..shape.groups).flat_map(|g| (0..places.len()).map(move |tap| (g, tap))) {
            for (o, c) in (0..outputs).flat_map(|o| (0..channels).map(move |c| (o, c))) {
                let from = ((g * outputs + o) * channels + c) * area + places[tap];
                expected[at([g, tap, c, o])] = w[from];
            }
        }
        for threads in [1, 3] {
            let mut packed = vec![-2.0; expected.len()];
            pack(&Pool::new(threads), shape, &w, places, &mut packed);
            assert_eq!(packed, expected, "{shape:?}, {threads} threads");
        }
    }

    #[test]
    fn each_weight_goes_where_a_product_takes_it() {
        for (groups, channels, outputs, kernel) in [
            (1, 1, 1, [1, 1]),
            (1, 3, 33, [3, 3]),
            (2, 6, 4, [2, 3]),
            (1, 130, 18, [1, 1]),
            (3, 9, 51, [1, 2]),
        ] {
            let shape = shape(groups, channels, outputs, kernel);
            let (channels, outputs) = (channels / groups, outputs / groups);
            let area = kernel[0] * kernel[1];
            // in any order; backward, some of them
            let places: Vec<usize> = (0..area).rev().collect();
            let last = |[g, tap, c, o]: [usize; 4]| ((g * area + tap) * channels + c) * outputs + o;
            packed_and_expected(&shape, &places, pack_outputs_last, last);
            let some: Vec<usize> = (0..area).step_by(2).collect();
            let taps = some.len();
            let last = |[g, tap, c, o]: [usize; 4]| ((g * taps + tap) * outputs + o) * channels + c;
            packed_and_expected(&shape, &some, pack_channels_last, last);
        }
    }
}
