//! Convolutions as products by the `gemm` crate. Both the forward step and the gradient of the input are
//! (what windows see) × (the weight, put in that order): see [`super::windows`]. A tile of the output's rows
//! is one piece of work, and its windows are copied into a scratch that stays in a core's L2 cache, a part
//! of the taps at a time. The gradient of the weight is dyᵀ × (what windows see).
//!
//! All cuts come from the shape. A sum over taps is added within a piece; a sum over images, in the gradient
//! of the weight, either within a piece too, which then owns some outputs and channels, or, where the weight is
//! small, in the order of a fixed number of pieces.

mod pack;

use std::ops::Range;

use super::pool::Pool;
use super::scratch::with_scratch;
use super::shared::Shared;
use super::windows::{Side, Windows, kernel_places};
use crate::gemm::Operands;
use crate::launch::images::Convolution;
use crate::real::Real;
use pack::{pack_channels_last, pack_outputs_last};

/// Rows of a tile: gemm packs the weight once for each, which costs as much as some 15 rows.
const ROWS: usize = 512;

/// Bytes of windows that are copied at a time: half of the L2 cache of the smaller servers.
const SEEN_BYTES: usize = 1 << 19;

/// Pieces of work there should be, for a few threads to share it evenly.
const PIECES: usize = 4;

/// Least columns of a tile: the windows are copied anew for each tile beside.
const COLUMNS_MIN: usize = 64;

/// Elements of a group's weight up to which its gradient is summed in pieces of the images.
const SMALL_WEIGHT: usize = 1 << 17;

/// Those pieces, at most: 4 MiB of f32 a group.
const SUMS: usize = 8;

/// Elements of the gradient of a weight that a piece holds, 1 MiB of f32.
const OWNED: usize = 1 << 18;

/// Least multiplications that are worth waking threads for: some 30 µs of one core.
const PARALLEL_MIN: usize = if cfg!(miri) { 1 << 9 } else { 1 << 21 };

/// Elements (r, c) at `r·steps[0] + c·steps[1]` of a slice.
#[derive(Clone, Copy)]
struct Factor<'a, T> {
    elements: &'a [T],
    steps: [usize; 2],
}

/// The tensor whose elements a product's rows are, a row for each target of its windows.
struct Target<T> {
    start: Shared<T>,
    /// Height and width.
    size: [usize; 2],
    channels: usize,
}

pub(super) fn conv2d<T: Real>(pool: &Pool, shape: &Convolution, x: &[T], w: &[T], y: &mut [T]) {
    assert_eq!(y.len(), shape.batch * shape.windows[0] * shape.windows[1] * shape.outputs);
    let sides = [0, 1].map(|side| Side::forward(shape, side));
    let sides = sides.each_ref();
    let windows = Windows { source: x, channels: shape.channels, sides };
    let target =
        Target { start: Shared(y.as_mut_ptr()), size: shape.windows, channels: shape.outputs };
    with_scratch(w.len(), |packed: &mut [T]| {
        let places = kernel_places(sides, shape.window.kernel[1]);
        pack_outputs_last(pool, shape, w, &places, packed);
        // SAFETY: y is borrowed exclusively, has the size that `target` says, asserted above, and the
        // forward sides' targets are its rows and columns.
        unsafe { product(pool, shape, windows, packed, target) };
    });
}

pub(super) fn grad_input<T: Real>(
    pool: &Pool,
    shape: &Convolution,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) {
    assert_eq!(dx.len(), shape.batch * shape.size[0] * shape.size[1] * shape.channels);
    let [vertical, horizontal] = [0, 1].map(|side| Side::phases(shape, side));
    let start = dx.as_mut_ptr();
    for row_phase in &vertical {
        for column_phase in &horizontal {
            let sides = [row_phase, column_phase];
            let windows = Windows { source: dy, channels: shape.outputs, sides };
            let places = kernel_places(sides, shape.window.kernel[1]);
            let target =
                Target { start: Shared(start), size: shape.size, channels: shape.channels };
            let group = shape.channels / shape.groups;
            with_scratch(places.len() * shape.outputs * group, |packed: &mut [T]| {
                pack_channels_last(pool, shape, w, &places, packed);
                // SAFETY: dx is borrowed exclusively, has the size that `target` says, asserted above, and
                // the phases' targets are its rows and columns.
                unsafe { product(pool, shape, windows, packed, target) };
            });
        }
    }
}

/// target ← (what `windows` see) × `packed`, group by group: [taps·channels, target channels] each.
///
/// # Safety
/// `target` must be valid for writes of batch × size × channels elements that nobody else touches during
/// the call, and the targets of `windows` must lie within its size.
unsafe fn product<T: Real>(
    pool: &Pool,
    shape: &Convolution,
    windows: Windows<'_, T>,
    packed: &[T],
    target: Target<T>,
) {
    let rows = windows.targets(shape.batch);
    let columns = target.channels / shape.groups;
    let channels = windows.channels / shape.groups;
    if rows == 0 || columns == 0 {
        return;
    }
    let depth = windows.taps() * channels;
    assert_eq!(packed.len(), shape.groups * depth * columns);
    // whole taps at a time, as many as make a product deep enough
    let taps_at_once = (512 / channels.max(1)).clamp(1, windows.taps().max(1));
    let rows_max = match windows.is_source() {
        true => ROWS,
        false => (SEEN_BYTES / size_of::<T>() / (taps_at_once * channels).max(1)).clamp(64, ROWS),
    };
    let row_tiles = tiles(rows, rows_max);
    let column_tiles = PIECES.div_ceil(row_tiles).min(columns.div_ceil(COLUMNS_MIN));
    let (height, width) = (rows.div_ceil(row_tiles), columns.div_ceil(column_tiles));
    let parallel = rows.saturating_mul(columns).saturating_mul(depth) >= PARALLEL_MIN;
    // neighbouring pieces see the same
    pool.each_index(shape.groups * row_tiles * column_tiles, parallel, |piece| {
        let (piece, column_tile) = (piece / column_tiles, piece % column_tiles);
        let (group, row_tile) = (piece / row_tiles, piece % row_tiles);
        let tile = Tile {
            rows: part(row_tile, height, rows),
            columns: part(column_tile, width, columns),
            group,
            channels,
            weight: Factor {
                elements: &packed[group * depth * columns..][..depth * columns],
                steps: [columns, 1],
            },
            taps_at_once,
        };
        if !tile.rows.is_empty() && !tile.columns.is_empty() {
            // SAFETY: the caller's duty; no other tile has these rows and columns of this group.
            unsafe { tile.compute(windows, &target) };
        }
    });
}

/// A piece of a product: some columns, counted in one group, of the targets in `rows`.
struct Tile<'a, T> {
    rows: Range<usize>,
    columns: Range<usize>,
    group: usize,
    /// The source's channels in a group.
    channels: usize,
    weight: Factor<'a, T>,
    taps_at_once: usize,
}

impl<T: Real> Tile<'_, T> {
    /// # Safety
    /// The tile's elements of `target` must be valid for writes, and nobody else's during the call.
    unsafe fn compute(&self, windows: Windows<'_, T>, target: &Target<T>) {
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let contiguous = windows.sides.iter().all(|side| side.jump == 1);
        let seen_len = match windows.is_source() {
            true => 0,
            false => rows * self.taps_at_once * self.channels,
        };
        let apart_len = if contiguous { 0 } else { rows * columns };
        with_scratch(seen_len + apart_len, |scratch: &mut [T]| {
            let (seen, apart) = scratch.split_at_mut(seen_len);
            if contiguous {
                let first = self.rows.start * target.channels + self.first_column(target);
                // SAFETY: the targets are the target's places, one behind the other, so this is the first of
                // the tile's elements, and its rows are `channels` apart.
                unsafe {
                    let into = target.start.start().add(first);
                    self.multiply_into(windows, seen, into, target.channels);
                }
            } else {
                // SAFETY: `apart` has rows × columns elements.
                unsafe { self.multiply_into(windows, seen, apart.as_mut_ptr(), columns) };
                // SAFETY: the caller's duty.
                unsafe { self.spread(windows, apart, target) };
            }
        });
    }

    fn first_column(&self, target: &Target<T>) -> usize {
        // a group of the target has as many channels as the weight has columns
        let first = self.group * self.weight.steps[0] + self.columns.start;
        // what is written to rests on it
        assert!(first + self.columns.len() <= target.channels, "a tile wider than its target");
        first
    }

    /// # Safety
    /// The tile's rows, `step` elements apart from `into` on, must be valid for writes and nobody else's.
    unsafe fn multiply_into(
        &self,
        windows: Windows<'_, T>,
        seen: &mut [T],
        into: *mut T,
        step: usize,
    ) {
        let (rows, columns, taps) = (self.rows.len(), self.columns.len(), windows.taps());
        let weight = |tap: usize| {
            let from = tap * self.channels * self.weight.steps[0] + self.columns.start;
            Factor { elements: &self.weight.elements[from..], ..self.weight }
        };
        if taps * self.channels == 0 {
            for row in 0..rows {
                // SAFETY: a row of the tile; zeros are a number.
                unsafe { into.add(row * step).write_bytes(0, columns) };
            }
        } else if windows.is_source() {
            let first = self.rows.start * windows.channels + self.group * self.channels;
            let steps = [windows.channels, 1];
            let source = Factor { elements: &windows.source[first..], steps };
            let size = [rows, columns, self.channels];
            // SAFETY: the caller's duty.
            unsafe { multiply(size, source, weight(0), into, step, false) };
        } else {
            for tap in (0..taps).step_by(self.taps_at_once) {
                let some = tap..taps.min(tap + self.taps_at_once);
                let depth = some.len() * self.channels;
                let channels = self.group * self.channels..(self.group + 1) * self.channels;
                let seen = &mut seen[..rows * depth];
                windows.gather(self.rows.clone(), some, channels, seen);
                let seen = Factor { elements: seen, steps: [depth, 1] };
                // SAFETY: the caller's duty; with the first taps, nothing is read.
                unsafe { multiply([rows, columns, depth], seen, weight(tap), into, step, tap > 0) };
            }
        }
    }

    /// Copies the tile's rows to the places of its targets.
    ///
    /// # Safety
    /// As for `compute`.
    unsafe fn spread(&self, windows: Windows<'_, T>, rows: &[T], target: &Target<T>) {
        let [vertical, horizontal] = windows.sides;
        let (height, width) = (vertical.count, horizontal.count);
        let first = self.first_column(target);
        for (row, at) in rows.chunks_exact(self.columns.len()).zip(self.rows.clone()) {
            let r = vertical.first + at / width % height * vertical.jump;
            let c = horizontal.first + at % width * horizontal.jump;
            assert!(r < target.size[0] && c < target.size[1]);
            let place = (at / width / height * target.size[0] + r) * target.size[1] + c;
            // SAFETY: the place is inside the image, as asserted, and the image one of the batch's.
            unsafe {
                let into = target.start.start().add(place * target.channels + first);
                into.copy_from_nonoverlapping(row.as_ptr(), row.len());
            }
        }
    }
}

/// How many tiles of at most `rows_max` rows: one, two, or a multiple of the pieces wanted.
fn tiles(rows: usize, rows_max: usize) -> usize {
    match rows.div_ceil(rows_max) {
        tiles @ 0..=2 => tiles.max(1),
        tiles => tiles.next_multiple_of(PIECES),
    }
}

fn part(index: usize, size: usize, end: usize) -> Range<usize> {
    (index * size).min(end)..((index + 1) * size).min(end)
}

/// dw ← dyᵀ × (what the windows see).
pub(super) fn grad_weight<T: Real>(
    pool: &Pool,
    shape: &Convolution,
    dy: &[T],
    x: &[T],
    dw: &mut [T],
) {
    let sides = [0, 1].map(|side| Side::forward(shape, side));
    let windows = Windows { source: x, channels: shape.channels, sides: sides.each_ref() };
    let rows = windows.targets(shape.batch);
    if rows == 0 || dw.is_empty() {
        return dw.fill(T::zero());
    }
    let gradient = Gradient {
        dy,
        outputs: shape.outputs,
        group_outputs: shape.outputs / shape.groups,
        channels: shape.channels / shape.groups,
        windows,
        rows,
    };
    assert_eq!(dw.len(), shape.outputs * gradient.channels * windows.taps());
    let parallel = rows.saturating_mul(dw.len()) >= PARALLEL_MIN;
    if dw.len() / shape.groups <= SMALL_WEIGHT {
        gradient.in_sums(pool, parallel, dw);
    } else {
        gradient.in_parts(pool, parallel, dw);
    }
}

/// The gradient of a weight, as a matrix [group_outputs, taps·channels] for each group.
#[derive(Clone, Copy)]
struct Gradient<'a, T> {
    dy: &'a [T],
    outputs: usize,
    group_outputs: usize,
    channels: usize,
    windows: Windows<'a, T>,
    /// Windows in all images.
    rows: usize,
}

impl<T: Real> Gradient<'_, T> {
    /// Cuts the images' windows into pieces, each with its own sum.
    fn in_sums(&self, pool: &Pool, parallel: bool, dw: &mut [T]) {
        let (channels, taps) = (self.channels, self.windows.taps());
        let sums = self.rows.div_ceil(ROWS).min(SUMS);
        let height = self.rows.div_ceil(sums);
        let depth = taps * channels;
        let len = self.group_outputs * depth;
        let groups = dw.len() / len;
        with_scratch(sums * dw.len(), |all: &mut [T]| {
            pool.split(all, len, parallel, |start, sum| {
                let (group, piece) = (start / len % groups, start / len / groups);
                let rows = part(piece, height, self.rows);
                if rows.is_empty() {
                    return sum.fill(T::zero());
                }
                let of = Piece { group, outputs: 0..self.group_outputs, channels: 0..channels };
                // SAFETY: `sum` has rows of `depth` elements.
                unsafe { self.add_up(of, rows, sum.as_mut_ptr(), depth) };
            });
            let all = &*all;
            let total = dw.len();
            pool.split(dw, depth, parallel, |start, dw| {
                for tap in 0..taps {
                    for channel in 0..channels {
                        let at = start + tap * channels + channel;
                        let sums = all[at..].iter().step_by(total);
                        dw[channel * taps + tap] = sums.fold(T::zero(), |sum, &part| sum + part);
                    }
                }
            });
        });
    }

    /// Cuts outputs and channels into pieces, each of which adds up all images.
    fn in_parts(&self, pool: &Pool, parallel: bool, dw: &mut [T]) {
        let (all_channels, taps) = (self.channels, self.windows.taps());
        let len = self.group_outputs * all_channels * taps;
        let [high, wide] = self.parts(len.div_ceil(OWNED).next_multiple_of(PIECES));
        let height = self.group_outputs.div_ceil(high);
        let width = all_channels.div_ceil(wide);
        let groups = dw.len() / len;
        let target = Shared(dw.as_mut_ptr());
        pool.each_index(groups * high * wide, parallel, |piece| {
            let (piece, column) = (piece / wide, piece % wide);
            let (group, row) = (piece / high, piece % high);
            let outputs = part(row, height, self.group_outputs);
            let channels = part(column, width, all_channels);
            if outputs.is_empty() || channels.is_empty() {
                return;
            }
            let place = |output: usize| {
                group * len + ((outputs.start + output) * all_channels + channels.start) * taps
            };
            let of = Piece { group, outputs: outputs.clone(), channels: channels.clone() };
            if self.windows.is_source() {
                // SAFETY: with one tap, the rows of dw are `all_channels` long, and these channels' elements
                // of these outputs' rows are this piece's alone; dw is borrowed exclusively.
                unsafe {
                    let into = target.start().add(place(0));
                    self.add_up(of, 0..self.rows, into, all_channels);
                }
                return;
            }
            let depth = taps * channels.len();
            with_scratch(outputs.len() * depth, |sum: &mut [T]| {
                // SAFETY: `sum` has rows of `depth` elements.
                unsafe { self.add_up(of, 0..self.rows, sum.as_mut_ptr(), depth) };
                for (output, sum) in sum.chunks_exact(depth).enumerate() {
                    // SAFETY: the elements of these channels in this row of dw, which are this piece's
                    // alone; dw is borrowed exclusively.
                    let dw = unsafe {
                        let first = target.start().add(place(output));
                        std::slice::from_raw_parts_mut(first, depth)
                    };
                    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
                        for (tap, dw) in dw.iter_mut().enumerate() {
                            *dw = sum[tap * channels.len() + channel];
                        }
                    }
                }
            });
        });
    }

    /// How often outputs and channels are cut for at least `pieces`, as far as there can be so many: what is
    /// longer is cut, since each piece packs its outputs of dy and copies its channels of x.
    fn parts(&self, pieces: usize) -> [usize; 2] {
        let [mut high, mut wide] = [1, 1];
        while high * wide < pieces {
            let (height, depth) =
                (self.group_outputs / high, self.channels * self.windows.taps() / wide);
            if height > depth && high < self.group_outputs {
                high += 1;
            } else if wide < self.channels {
                wide += 1;
            } else {
                break;
            }
        }
        [high, wide]
    }

    /// into ← dyᵀ × (what the windows in `rows`, at least one, see) of one piece.
    ///
    /// # Safety
    /// `into` must be valid for writes of a row of taps × channels for each output, `step` elements apart, and
    /// nobody else's.
    unsafe fn add_up(&self, piece: Piece, rows: Range<usize>, into: *mut T, step: usize) {
        let Piece { group, outputs, channels } = piece;
        let depth = self.windows.taps() * channels.len();
        let first_output = group * self.group_outputs + outputs.start;
        let dy_of = |row: usize| Factor {
            elements: &self.dy[row * self.outputs + first_output..],
            steps: [1, self.outputs],
        };
        let first_channel = group * self.channels + channels.start;
        let channels = first_channel..first_channel + channels.len();
        if self.windows.is_source() {
            let of_channels = &self.windows.source[rows.start * self.windows.channels..];
            let seen = Factor {
                elements: &of_channels[channels.start..],
                steps: [self.windows.channels, 1],
            };
            let size = [outputs.len(), depth, rows.len()];
            // SAFETY: the caller's duty.
            return unsafe { multiply(size, dy_of(rows.start), seen, into, step, false) };
        }
        let at_once = (SEEN_BYTES / size_of::<T>() / depth).clamp(64, ROWS).min(rows.len());
        with_scratch(at_once * depth, |seen: &mut [T]| {
            for first in rows.clone().step_by(at_once) {
                let some = first..rows.end.min(first + at_once);
                let count = some.len();
                let seen = &mut seen[..count * depth];
                self.windows.gather(some, 0..self.windows.taps(), channels.clone(), seen);
                let seen = Factor { elements: seen, steps: [depth, 1] };
                let size = [outputs.len(), depth, count];
                let again = first > rows.start;
                // SAFETY: the caller's duty; the first time, nothing is read.
                unsafe { multiply(size, dy_of(first), seen, into, step, again) };
            }
        });
    }
}

/// Some outputs and some channels of a group, counted in it.
struct Piece {
    group: usize,
    outputs: Range<usize>,
    channels: Range<usize>,
}

/// y ← a·b, or y + a·b where `again`, for a: [m,k], b: [k,n] with rows of y `step` elements apart.
///
/// # Safety
/// Each of the m rows of n elements of `y` must be valid for writes, for reads where `again`, and nobody
/// else's during the call.
unsafe fn multiply<T: Real>(
    [m, n, k]: [usize; 3],
    a: Factor<'_, T>,
    b: Factor<'_, T>,
    y: *mut T,
    step: usize,
    again: bool,
) {
    assert!(m > 0 && n > 0 && k > 0);
    assert!((m - 1) * a.steps[0] + (k - 1) * a.steps[1] < a.elements.len());
    assert!((k - 1) * b.steps[0] + (n - 1) * b.steps[1] < b.elements.len());
    // SAFETY: the assertions put the m×k and k×n elements that are read inside the slices; the m×n of `y` are the
    // caller's duty.
    unsafe {
        T::gemm(Operands {
            size: [m, n, k],
            y,
            y_steps: [step, 1],
            a: a.elements.as_ptr(),
            a_steps: a.steps,
            b: b.elements.as_ptr(),
            b_steps: b.steps,
            again,
        });
    }
}
