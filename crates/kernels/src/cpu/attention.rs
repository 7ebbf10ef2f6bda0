//! Attention without its matrix: FlashAttention-2 (Dao 2023). A piece of work is some queries of one head. It goes
//! through the keys in blocks that stay in the L2 cache, packed into panels. The products of eight queries with a block
//! are in the L1 cache, where they become exponentials and are multiplied with the values at once; the largest product
//! so far and the sum of the exponentials are carried along (online softmax, Milakov and Gimelshein 2018).
//!
//! Where work is cut depends on the shape alone.

mod grad;
mod rotary;

use pulp::{Simd, WithSimd};

use super::Cpu;
use super::panels::{self, Part, ROWS_MAX, Sums, WIDTH_MAX};
use super::scratch::with_scratch;
use super::shared::Sheet;
use super::transpose::{Rows, transpose};
use crate::launch::attention::{AttentionGradients, Attentions, Mask, RotaryShape, Seen};
use crate::real::Real;

/// Queries of a piece: packing the keys for them is 2 % of the work.
const QUERIES: usize = 512;

/// Keys of a block: at a depth of 64 its panels are 128 KiB of f32.
const KEYS: usize = 256;

/// Maxima and sums side by side: two AVX-512 registers of f32.
const LANES: usize = 32;

/// Least multiplications that are worth waking threads for.
const PARALLEL_MIN: usize = 1 << 20;

impl Attentions for Cpu {
    fn attention<T: Real>(&self, seen: Seen<'_, T>, y: &mut [T], lse: &mut [T]) {
        let shape = seen.shape;
        let width = panels::width::<T>(self.simd);
        let pieces = shape.queries.div_ceil(QUERIES);
        let (y, lse) = (Sheet::new(y, shape.depth), Sheet::new(lse, shape.queries));
        let parallel = work(&seen) >= PARALLEL_MIN;
        self.pool.each_index(shape.batch * shape.heads * pieces, parallel, |at| {
            let (place, first) = (at / pieces, at % pieces * QUERIES);
            let (batch, head) = (place / shape.heads, place % shape.heads);
            let count = QUERIES.min(shape.queries - first);
            let block = aligned(KEYS.min(shape.keys));
            let depth = shape.depth.next_multiple_of(width);
            let lens = [block * shape.depth, block * depth, ROWS_MAX * block, ROWS_MAX * depth];
            let len = lens.map(aligned).iter().sum::<usize>() + 2 * aligned(count);
            with_scratch(len, |scratch: &mut [T]| {
                let mut scratch = scratch;
                let [keys, values, products, queries] = lens.map(|len| cut(&mut scratch, len));
                let (max, sum) = (cut(&mut scratch, count), cut(&mut scratch, count));
                let at = At { batch, head, first, count };
                let working = Working { width, keys, values, products, queries, max, sum };
                self.simd.run_with(Forward { seen, at, working, y, lse });
            });
        });
    }

    fn attention_grad<T: Real>(
        &self,
        seen: Seen<'_, T>,
        dy: &[T],
        y: &[T],
        lse: &[T],
        out: AttentionGradients<'_, T>,
    ) {
        grad::attention_grad(self, seen, dy, y, lse, out);
    }

    fn rotary<T: Real>(&self, shape: RotaryShape, x: &[T], y: &mut [T]) {
        rotary::rotary(&self.pool, self.simd, shape, x, y);
    }
}

/// Multiplications of the queries with the keys.
fn work<T>(seen: &Seen<'_, T>) -> usize {
    let shape = seen.shape;
    let rows = shape.batch * shape.heads * shape.queries;
    rows.saturating_mul(shape.keys).saturating_mul(shape.depth)
}

/// A length that leaves what lies behind it at a vector's start.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(WIDTH_MAX)
}

/// The first `len` elements of what is left of a scratch.
fn cut<'s, T>(scratch: &mut &'s mut [T], len: usize) -> &'s mut [T] {
    let (head, rest) = std::mem::take(scratch).split_at_mut(aligned(len));
    *scratch = rest;
    &mut head[..len]
}

/// Some queries of a head.
#[derive(Clone, Copy)]
struct At {
    batch: usize,
    head: usize,
    first: usize,
    count: usize,
}

struct Working<'a, T> {
    width: usize,
    /// A block of keys, as columns of panels.
    keys: &'a mut [T],
    /// Their values, as rows of panels.
    values: &'a mut [T],
    /// Of eight queries with the block, then their exponentials.
    products: &'a mut [T],
    /// Eight of them, scaled.
    queries: &'a mut [T],
    /// By query.
    max: &'a mut [T],
    sum: &'a mut [T],
}

struct Forward<'a, T> {
    seen: Seen<'a, T>,
    at: At,
    working: Working<'a, T>,
    y: Sheet<'a, T>,
    lse: Sheet<'a, T>,
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let At { batch, head, first, count } = self.at;
        let shape = self.seen.shape;
        self.working.max.fill(T::neg_infinity());
        self.working.sum.fill(T::zero());
        let end = match self.seen.mask {
            Mask::Causal => shape.keys.min(first + count),
            _ => shape.keys,
        };
        for start in (0..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            self.pack(start, keys);
            for row in (0..count).step_by(ROWS_MAX) {
                let rows = ROWS_MAX.min(count - row);
                let seen = match self.seen.mask {
                    Mask::Causal => (first + row + rows).saturating_sub(start).min(keys),
                    _ => keys,
                };
                if seen > 0 {
                    self.rows(simd, [row, rows], [start, seen]);
                }
            }
        }
        let [row, step] = shape.query_rows(batch, head);
        // SAFETY: these queries are this piece's alone, and of `lse` one part is asked for.
        let lse = unsafe { self.lse.part(batch * shape.heads + head, first..first + count) };
        for (i, lse) in lse.iter_mut().enumerate() {
            // SAFETY: as above, of `y`; each row is done with before the next is asked for.
            let y = unsafe { self.y.part(row + (first + i) * step, 0..shape.depth) };
            let (max, sum) = (self.working.max[i], self.working.sum[i]);
            if sum > T::zero() {
                let share = T::one() / sum;
                y.iter_mut().for_each(|y| *y *= share);
                *lse = max + sum.ln();
            } else {
                y.fill(if sum.is_nan() { sum } else { T::zero() });
                *lse = if sum.is_nan() { sum } else { T::neg_infinity() };
            }
        }
    }
}

impl<T: Real> Forward<'_, T> {
    /// Packs keys `start..` and their values.
    #[inline(always)]
    fn pack(&mut self, start: usize, keys: usize) {
        let Seen { shape, k, v, .. } = self.seen;
        let [first, step] = shape.key_rows(self.at.batch, self.at.head / shape.heads_of_a_group());
        let from = (first + start * step) * shape.depth;
        let stride = step * shape.depth;
        let rows = |elements| Rows { elements, rows: keys, columns: shape.depth, stride };
        turned_panels(rows(&k[from..]), self.working.width, self.working.keys);
        plain_panels(rows(&v[from..]), self.working.width, self.working.values);
    }

    /// Adds to `rows` queries what the first `seen` of the packed keys give them.
    #[inline(always)]
    fn rows<S: Simd>(&mut self, simd: S, [row, rows]: [usize; 2], [start, seen]: [usize; 2]) {
        let Working { width, keys, values, products, queries, max, sum } = &mut self.working;
        let (width, shape, depth) = (*width, self.seen.shape, self.seen.shape.depth);
        let stride = products.len() / ROWS_MAX;
        let [first, step] = shape.query_rows(self.at.batch, self.at.head);
        let place = |row: usize| first + (self.at.first + row) * step;
        for (r, queries) in queries.chunks_exact_mut(depth).enumerate().take(rows) {
            let q = &self.seen.q[place(row + r) * depth..][..depth];
            for (query, &q) in queries.iter_mut().zip(q) {
                *query = q * self.seen.scale;
            }
        }
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        let panels = keys.chunks_exact(depth * width).take(seen.div_ceil(width));
        for (at, panel) in panels.enumerate() {
            panels::multiply(simd, rows, &[Part { x: queries, stride: depth, panel }], &mut sums);
            for (r, sums) in sums.iter().enumerate().take(rows) {
                products[r * stride + at * width..][..width].copy_from_slice(&sums[..width]);
            }
        }
        let mut factors = [T::one(); ROWS_MAX];
        for (r, factor) in factors.iter_mut().enumerate().take(rows) {
            let query = self.at.first + row + r;
            let here = match self.seen.mask {
                Mask::Causal => seen.min((query + 1).saturating_sub(start)),
                _ => seen,
            };
            // whole lanes: what is behind the last key becomes 0
            let lanes = here.next_multiple_of(LANES);
            let (products, behind) = products[r * stride..][..stride].split_at_mut(lanes);
            products[here..].fill(T::neg_infinity());
            behind.fill(T::zero());
            if let Mask::Added(..) | Mask::Shown(..) = self.seen.mask {
                for (key, product) in products[..here].iter_mut().enumerate() {
                    let At { batch, head, .. } = self.at;
                    *product += self.seen.mask.added(batch, head, query, start + key);
                }
            }
            *factor = exponentials(simd, products, &mut max[row + r], &mut sum[row + r]);
        }
        for (at, panel) in values.chunks_exact(values.len() / depth.div_ceil(width)).enumerate() {
            let here = at * width..depth.min((at + 1) * width);
            let panel = &panel[..seen * width];
            panels::multiply(simd, rows, &[Part { x: products, stride, panel }], &mut sums);
            for (r, (sums, &factor)) in sums.iter().zip(&factors).enumerate().take(rows) {
                // SAFETY: these queries are this piece's alone, and it asks for one part after the other.
                let y = unsafe { self.y.part(place(row + r), here.clone()) };
                if start == 0 {
                    y.copy_from_slice(&sums[..y.len()]);
                } else {
                    for (y, &sum) in y.iter_mut().zip(sums) {
                        *y = *y * factor + sum;
                    }
                }
            }
        }
    }
}

/// Packs rows as columns of panels of `width`: those that are not there are 0.
#[inline(always)]
fn turned_panels<T: Real>(rows: Rows<'_, T>, width: usize, panels: &mut [T]) {
    let depth = rows.columns;
    for (at, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
        let first = at * width;
        let Some(left) = rows.rows.checked_sub(first).filter(|left| *left > 0) else { return };
        if left < width {
            panel.fill(T::zero());
        }
        let elements = &rows.elements[first * rows.stride..];
        transpose(Rows { elements, rows: left.min(width), ..rows }, panel, width);
    }
}

/// Packs rows as rows of panels of `width` of their columns: those that are not there are 0.
#[inline(always)]
fn plain_panels<T: Real>(rows: Rows<'_, T>, width: usize, panels: &mut [T]) {
    let many = rows.columns.div_ceil(width);
    for (at, panel) in panels.chunks_exact_mut(panels.len() / many).enumerate() {
        let first = at * width;
        let here = width.min(rows.columns - first);
        for (row, target) in panel.chunks_exact_mut(width).enumerate().take(rows.rows) {
            target[..here].copy_from_slice(&rows.elements[row * rows.stride + first..][..here]);
            target[here..].fill(T::zero());
        }
    }
}

/// Makes exponentials of a query's products, less the largest so far, and takes them up in the largest and the sum.
/// → by what was summed before is to be multiplied.
#[inline(always)]
fn exponentials<S: Simd, T: Real>(_: S, products: &mut [T], max: &mut T, sum: &mut T) -> T {
    let before = *max;
    *max = largest(products, before);
    if *max == T::neg_infinity() {
        // nothing is seen yet, unless a product is no number
        products.iter_mut().for_each(|p| *p = if p.is_nan() { *p } else { T::zero() });
        *sum += products.iter().fold(T::zero(), |sum, &p| sum + p);
        return T::one();
    }
    let max = *max;
    let mut lanes = [T::zero(); LANES];
    let mut blocks = products.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for (lane, p) in lanes.iter_mut().zip(block) {
            *p = (*p - max).exp_below(is_fused::<S>());
            *lane += *p;
        }
    }
    let mut total = T::zero();
    for p in blocks.into_remainder() {
        *p = (*p - max).exp_below(is_fused::<S>());
        total += *p;
    }
    let factor = (before - max).exp_below(is_fused::<S>());
    *sum = *sum * factor + lanes.iter().fold(total, |sum, &lane| sum + lane);
    factor
}

/// True if a product and a sum are one instruction: of all levels with vectors.
#[inline(always)]
const fn is_fused<S: Simd>() -> bool {
    size_of::<S::f32s>() > size_of::<f32>()
}

#[inline(always)]
fn largest<T: Real>(x: &[T], least: T) -> T {
    let mut lanes = [least; LANES];
    let mut blocks = x.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let rest = blocks.remainder().iter().chain(&lanes);
    rest.fold(least, |max, &x| if x > max { x } else { max })
}
