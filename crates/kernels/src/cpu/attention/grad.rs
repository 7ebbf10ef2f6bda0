//! The gradient of attention: FlashAttention-2 (Dao 2023, algorithm 2). A piece of work is some blocks of the keys of one
//! head; it goes through the queries that see them in tiles, and computes their products and exponentials anew. Eight
//! keys at a time are rows, so that what becomes of a tile is multiplied as it lies: by its rows into dk and dv, by its
//! columns into dq.
//!
//! Where there are few heads, their keys are cut into parts, each of which has a dq of its own; these are added in the
//! order of the parts.

use pulp::{NullaryFnOnce, Simd, WithSimd};

use super::{
    KEYS, LANES, Mask, PARALLEL_MIN, aligned, cut, is_fused, plain_panels, turned_panels, work,
};
use crate::cpu::Cpu;
use crate::cpu::panels::{self, Part, ROWS_MAX, Sums, WIDTH_MAX};
use crate::cpu::pool::CHUNK;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Sheet;
use crate::cpu::transpose::Rows;
use crate::launch::attention::{AttentionGradients, Seen};
use crate::real::Real;

/// Queries of a tile.
const QUERIES: usize = 128;

/// Pieces of work there should be, for a few threads to share them evenly.
const PIECES: usize = 16;

/// Parts of a head's keys, at most: each is a tensor of the queries' size.
const PARTS_MAX: usize = 8;

pub(super) fn attention_grad<T: Real>(
    cpu: &Cpu,
    seen: Seen<'_, T>,
    dy: &[T],
    y: &[T],
    lse: &[T],
    out: AttentionGradients<'_, T>,
) {
    let AttentionGradients { dq, dk, dv } = out;
    let shape = seen.shape;
    let blocks = shape.keys.div_ceil(KEYS);
    let heads = shape.batch * shape.groups;
    let parts = PIECES.div_ceil(heads.max(1)).clamp(1, PARTS_MAX).min(blocks);
    if parts == 0 {
        return dq.fill(T::zero());
    }
    let size = dq.len();
    with_scratch(if parts > 1 { parts * size } else { 0 }, |partial: &mut [T]| {
        let sheets: Vec<Sheet<'_, T>> = match parts {
            1 => vec![Sheet::new(dq, shape.depth)],
            _ => {
                let parts = partial.chunks_mut(size.max(1));
                parts.map(|part| Sheet::new(part, shape.depth)).collect()
            }
        };
        let (dk, dv) = (Sheet::new(dk, shape.depth), Sheet::new(dv, shape.depth));
        let parallel = work(&seen) >= PARALLEL_MIN;
        cpu.pool.each_index(heads * parts, parallel, |at| {
            let (place, part) = (at / parts, at % parts);
            let (batch, group) = (place / shape.groups, place % shape.groups);
            let Some(&dq) = sheets.get(part) else { return };
            let head = Head { seen, dy, y, lse, batch, group, dq, dk, dv };
            head.run(cpu, [part, parts]);
        });
        drop(sheets);
        if parts > 1 {
            cpu.pool.split(dq, CHUNK, size > CHUNK, |start, dq| {
                cpu.simd.run(Together { partial, size, start, dq });
            });
        }
    });
}

/// dq ← the sum of the parts.
struct Together<'a, T> {
    partial: &'a [T],
    size: usize,
    start: usize,
    dq: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Together<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.dq.fill(T::zero());
        for part in self.partial.chunks_exact(self.size) {
            for (dq, &part) in self.dq.iter_mut().zip(&part[self.start..]) {
                *dq += part;
            }
        }
    }
}

/// A head of keys, with the queries that see it.
#[derive(Clone, Copy)]
struct Head<'a, T> {
    seen: Seen<'a, T>,
    dy: &'a [T],
    y: &'a [T],
    lse: &'a [T],
    batch: usize,
    group: usize,
    dq: Sheet<'a, T>,
    dk: Sheet<'a, T>,
    dv: Sheet<'a, T>,
}

impl<T: Real> Head<'_, T> {
    /// Computes every `parts`-th block of keys from block `part` on: with a causal mask the first have most queries.
    fn run(self, cpu: &Cpu, [part, parts]: [usize; 2]) {
        let shape = self.seen.shape;
        let width = panels::width::<T>(cpu.simd);
        let (queries, keys) = (QUERIES.min(shape.queries), KEYS.min(shape.keys));
        let (wide, depth) = (queries.next_multiple_of(width), shape.depth.next_multiple_of(width));
        let lens = [
            keys * depth,
            wide * shape.depth,
            wide * shape.depth,
            queries * depth,
            queries * depth,
            ROWS_MAX * depth,
            ROWS_MAX * wide,
            keys * wide,
            keys * depth,
            keys * depth,
            shape.heads_of_a_group() * shape.queries,
        ];
        with_scratch(lens.map(aligned).iter().sum(), |scratch: &mut [T]| {
            let mut scratch = scratch;
            let [k, q, dy, q_plain, dy_plain, row, p, ds, dk, dv, levels] =
                lens.map(|len| cut(&mut scratch, len));
            let tile = Tile { width, k, q, dy, q_plain, dy_plain, row, p, ds, dk, dv };
            cpu.simd.run_with(Blocks { head: self, part, parts, tile, levels });
        });
    }
}

/// What is packed of a tile, and what is made of it.
struct Tile<'a, T> {
    width: usize,
    /// Keys, as rows of panels.
    k: &'a mut [T],
    /// Queries and gradients, as columns of panels.
    q: &'a mut [T],
    dy: &'a mut [T],
    /// The same, as rows of panels.
    q_plain: &'a mut [T],
    dy_plain: &'a mut [T],
    /// Eight keys, scaled.
    row: &'a mut [T],
    /// Of eight keys and the tile's queries: exponentials.
    p: &'a mut [T],
    /// Of all keys and the tile's queries: gradients of the products.
    ds: &'a mut [T],
    /// Sums of the block of keys.
    dk: &'a mut [T],
    dv: &'a mut [T],
}

struct Blocks<'a, T> {
    head: Head<'a, T>,
    part: usize,
    parts: usize,
    tile: Tile<'a, T>,
    /// Σ dy∘y by head and query.
    levels: &'a mut [T],
}

impl<T: Real> WithSimd for Blocks<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let shape = self.head.seen.shape;
        let heads = shape.heads_of_a_group();
        for member in 0..heads {
            self.begin(member);
        }
        for start in (self.part * KEYS..shape.keys).step_by(self.parts * KEYS) {
            let keys = KEYS.min(shape.keys - start);
            self.tile.dk.fill(T::zero());
            self.tile.dv.fill(T::zero());
            let [first, step] = shape.key_rows(self.head.batch, self.head.group);
            let elements = &self.head.seen.k[(first + start * step) * shape.depth..];
            let (columns, stride) = (shape.depth, step * shape.depth);
            let rows = Rows { elements, rows: keys, columns, stride };
            plain_panels(rows, self.tile.width, self.tile.k);
            for member in 0..heads {
                // a query sees the keys at its place and before
                let from = match self.head.seen.mask {
                    Mask::Causal => start / QUERIES * QUERIES,
                    _ => 0,
                };
                for query in (from..shape.queries).step_by(QUERIES) {
                    let count = QUERIES.min(shape.queries - query);
                    self.tile(simd, member, [start, keys], [query, count]);
                }
            }
            let padded = self.tile.dk.len() / KEYS.min(shape.keys);
            for key in 0..keys {
                let row = first + (start + key) * step;
                // SAFETY: these keys are this piece's alone, and it asks for one row after the other.
                let (dk, dv) = unsafe {
                    (self.head.dk.part(row, 0..shape.depth), self.head.dv.part(row, 0..shape.depth))
                };
                for (dk, &sum) in dk.iter_mut().zip(&self.tile.dk[key * padded..]) {
                    *dk = sum * self.head.seen.scale;
                }
                dv.copy_from_slice(&self.tile.dv[key * padded..][..shape.depth]);
            }
        }
    }
}

impl<T: Real> Blocks<'_, T> {
    /// The first row of the queries of a head of the group, and their distance.
    #[inline(always)]
    fn query_rows(&self, member: usize) -> [usize; 2] {
        let shape = self.head.seen.shape;
        let head = self.head.group * shape.heads_of_a_group() + member;
        shape.query_rows(self.head.batch, head)
    }

    /// Σ dy∘y of each query, and a dq of zeros.
    #[inline(always)]
    fn begin(&mut self, member: usize) {
        let (queries, depth) = (self.head.seen.shape.queries, self.head.seen.shape.depth);
        let [first, step] = self.query_rows(member);
        for (query, level) in self.levels[member * queries..][..queries].iter_mut().enumerate() {
            let row = first + query * step;
            let here = row * depth..(row + 1) * depth;
            *level = inner_product(&self.head.dy[here.clone()], &self.head.y[here]);
            // SAFETY: these queries are this piece's alone in its dq, and it asks for one row after the other.
            unsafe { self.head.dq.part(row, 0..depth) }.fill(T::zero());
        }
    }

    /// Adds what a tile of queries and keys gives.
    #[inline(always)]
    fn tile<S: Simd>(
        &mut self,
        simd: S,
        member: usize,
        [start, keys]: [usize; 2],
        [query, count]: [usize; 2],
    ) {
        let depth = self.head.seen.shape.depth;
        let [first, step] = self.query_rows(member);
        let from = (first + query * step) * depth;
        let stride = step * depth;
        let rows = |elements| Rows { elements, rows: count, columns: depth, stride };
        let (q, dy) = (rows(&self.head.seen.q[from..]), rows(&self.head.dy[from..]));
        let width = self.tile.width;
        turned_panels(q, width, self.tile.q);
        turned_panels(dy, width, self.tile.dy);
        plain_panels(q, width, self.tile.q_plain);
        plain_panels(dy, width, self.tile.dy_plain);
        for key in (0..keys).step_by(ROWS_MAX) {
            let rows = ROWS_MAX.min(keys - key);
            // queries before the first of these keys do not see them
            let before = match self.head.seen.mask {
                Mask::Causal => (start + key).saturating_sub(query).min(count),
                _ => 0,
            };
            let before = before / width * width;
            let wide = self.tile.p.len() / ROWS_MAX;
            for row in self.tile.ds[key * wide..].chunks_exact_mut(wide).take(rows) {
                row[..before].fill(T::zero());
            }
            if before < count {
                self.products(simd, start, [key, rows], before..count);
                self.exponentials(simd, member, start, [key, rows], query, before..count);
                self.add_to_keys(simd, [key, rows], before..count);
            }
        }
        self.add_to_queries(simd, [first + query * step, step], query, [start, keys], count);
    }

    /// Of eight keys with the tile's queries: scaled products, and those of values and gradients.
    #[inline(always)]
    fn products<S: Simd>(
        &mut self,
        simd: S,
        start: usize,
        [key, rows]: [usize; 2],
        queries: std::ops::Range<usize>,
    ) {
        let Seen { shape, k, v, scale, .. } = self.head.seen;
        let Tile { width, q, dy, row: scaled, p, ds, .. } = &mut self.tile;
        let (width, depth, wide) = (*width, shape.depth, p.len() / ROWS_MAX);
        let [first, step] = shape.key_rows(self.head.batch, self.head.group);
        for (r, scaled) in scaled.chunks_exact_mut(depth).enumerate().take(rows) {
            let k = &k[(first + (start + key + r) * step) * depth..][..depth];
            for (scaled, &k) in scaled.iter_mut().zip(k) {
                *scaled = k * scale;
            }
        }
        let values = &v[(first + (start + key) * step) * depth..];
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        for at in queries.start / width..queries.end.div_ceil(width) {
            let panel = &q[at * depth * width..][..depth * width];
            panels::multiply(simd, rows, &[Part { x: scaled, stride: depth, panel }], &mut sums);
            keep(&sums, rows, &mut p[at * width..], wide, width);
            let panel = &dy[at * depth * width..][..depth * width];
            let part = Part { x: values, stride: step * depth, panel };
            panels::multiply(simd, rows, &[part], &mut sums);
            keep(&sums, rows, &mut ds[key * wide + at * width..], wide, width);
        }
    }

    /// Turns the products into exponentials and into gradients of the products.
    #[inline(always)]
    fn exponentials<S: Simd>(
        &mut self,
        _: S,
        member: usize,
        start: usize,
        [key, rows]: [usize; 2],
        first: usize,
        queries: std::ops::Range<usize>,
    ) {
        let Seen { shape, mask, .. } = self.head.seen;
        let head = self.head.group * shape.heads_of_a_group() + member;
        let batch = self.head.batch;
        let lse = &self.head.lse[(batch * shape.heads + head) * shape.queries + first..];
        let levels = &self.levels[member * shape.queries + first..];
        let (lse, levels) = (&lse[queries.clone()], &levels[queries.clone()]);
        let wide = self.tile.p.len() / ROWS_MAX;
        for r in 0..rows {
            let here = r * wide + queries.start..r * wide + queries.end;
            let p = &mut self.tile.p[here.clone()];
            let ds = &mut self.tile.ds[key * wide..][here];
            if let Mask::Added(..) | Mask::Shown(..) = mask {
                for (query, p) in (first + queries.start..).zip(p.iter_mut()) {
                    *p += mask.added(batch, head, query, start + key + r);
                }
            }
            slopes::<S, T>(p, ds, lse, levels);
            if let Mask::Causal = mask {
                let unseen = start + key + r;
                let unseen = unseen.saturating_sub(first + queries.start).min(p.len());
                p[..unseen].fill(T::zero());
                ds[..unseen].fill(T::zero());
            }
        }
    }

    /// Adds to the sums of eight keys.
    #[inline(always)]
    fn add_to_keys<S: Simd>(
        &mut self,
        simd: S,
        [key, rows]: [usize; 2],
        queries: std::ops::Range<usize>,
    ) {
        let Tile { width, q_plain, dy_plain, p, ds, dk, dv, .. } = &mut self.tile;
        let (width, depth) = (*width, self.head.seen.shape.depth);
        let wide = p.len() / ROWS_MAX;
        let panels = depth.div_ceil(width);
        let padded = panels * width;
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        let ds = &ds[key * wide..];
        for (x, packed, target) in [(&**p, &**dy_plain, &mut **dv), (ds, &**q_plain, &mut **dk)] {
            for (at, panel) in packed.chunks_exact(packed.len() / panels).enumerate() {
                let panel = &panel[queries.start * width..queries.end * width];
                let x = &x[queries.start..];
                panels::multiply(simd, rows, &[Part { x, stride: wide, panel }], &mut sums);
                for (r, sums) in sums.iter().enumerate().take(rows) {
                    let target = &mut target[(key + r) * padded + at * width..][..width];
                    for (target, &sum) in target.iter_mut().zip(sums) {
                        *target += sum;
                    }
                }
            }
        }
    }

    /// Adds to the gradients of the tile's queries.
    #[inline(always)]
    fn add_to_queries<S: Simd>(
        &mut self,
        simd: S,
        [first, step]: [usize; 2],
        query: usize,
        [start, keys]: [usize; 2],
        count: usize,
    ) {
        let shape = self.head.seen.shape;
        let Tile { width, k, p, ds, .. } = &self.tile;
        let (width, panels) = (*width, shape.depth.div_ceil(*width));
        let stride = p.len() / ROWS_MAX;
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        for row in (0..count).step_by(ROWS_MAX) {
            let rows = ROWS_MAX.min(count - row);
            let seen = match self.head.seen.mask {
                Mask::Causal => (query + row + rows).saturating_sub(start).min(keys),
                _ => keys,
            };
            for (at, panel) in k.chunks_exact(k.len() / panels).enumerate() {
                let here = at * width..shape.depth.min((at + 1) * width);
                let part = Part { x: &ds[row..], stride, panel: &panel[..seen * width] };
                panels::multiply_turned(simd, rows, part, &mut sums);
                for (r, sums) in sums.iter().enumerate().take(rows) {
                    // SAFETY: these queries are this piece's alone in its dq, and it asks for one part after
                    // the other.
                    let dq = unsafe { self.head.dq.part(first + (row + r) * step, here.clone()) };
                    for (dq, &sum) in dq.iter_mut().zip(sums) {
                        *dq += sum * self.head.seen.scale;
                    }
                }
            }
        }
    }
}

/// p ← e^(p − lse), ds ← p·(ds − level).
#[inline(always)]
fn slopes<S: Simd, T: Real>(p: &mut [T], ds: &mut [T], lse: &[T], levels: &[T]) {
    let whole = p.len() / LANES * LANES;
    let (p_blocks, ds_blocks) = (p.as_chunks_mut::<LANES>().0, ds.as_chunks_mut::<LANES>().0);
    let given = lse.as_chunks::<LANES>().0.iter().zip(levels.as_chunks::<LANES>().0);
    for ((p, ds), (lse, levels)) in p_blocks.iter_mut().zip(ds_blocks).zip(given) {
        // copies of its own: the compiler does not know that p and ds are apart
        let (mut exponentials, mut slopes) = (*p, *ds);
        for lane in 0..LANES {
            (exponentials[lane], slopes[lane]) =
                slope::<S, T>(exponentials[lane], slopes[lane], lse[lane], levels[lane]);
        }
        (*p, *ds) = (exponentials, slopes);
    }
    for i in whole..p.len() {
        (p[i], ds[i]) = slope::<S, T>(p[i], ds[i], lse[i], levels[i]);
    }
}

#[inline(always)]
fn slope<S: Simd, T: Real>(p: T, ds: T, lse: T, level: T) -> (T, T) {
    // a query that sees nothing
    let lse = if lse == T::neg_infinity() { T::infinity() } else { lse };
    let p = (p - lse).exp_below(is_fused::<S>());
    (p, p * (ds - level))
}

/// Added in lanes side by side, and those in order.
#[inline(always)]
fn inner_product<T: Real>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::zero(); LANES];
    let whole = a.len() / LANES * LANES;
    for (a, b) in a[..whole].chunks_exact(LANES).zip(b[..whole].chunks_exact(LANES)) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest = a[whole..].iter().zip(&b[whole..]).map(|(&a, &b)| a * b);
    lanes.into_iter().chain(rest).fold(T::zero(), |sum, x| sum + x)
}

/// Writes sums as columns of rows of `wide`.
#[inline(always)]
fn keep<T: Real>(sums: &Sums<T>, rows: usize, target: &mut [T], wide: usize, width: usize) {
    for (r, sums) in sums.iter().enumerate().take(rows) {
        target[r * wide..][..width].copy_from_slice(&sums[..width]);
    }
}
