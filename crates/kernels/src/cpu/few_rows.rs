//! y = a·b with few rows of a, where b is read from memory and used little: a layer's dX = dY·W of a small
//! batch. Tiles of b are read in the order in which they lie, packed into panels that stay in the L2 cache,
//! and multiplied there (measured at 32×4096×4096 on one core: gemm 23 GFLOP/s, since its packing reads
//! column by column).

use pulp::{Simd, WithSimd};

use super::panels::{self, Part, ROWS_MAX, Sums, WIDTH_MAX};
use super::pool::Pool;
use super::scratch::with_scratch;
use super::shared::Sheet;
use super::simd::SimdProof;
use crate::real::Real;

/// Columns of a tile: what one thread reads of a row at a time, half a page of f32.
const COLUMNS: usize = 512;

/// Rows of a tile: with its columns 512 KiB of f32, a part of the L2 cache.
const DEPTH: usize = 256;

/// Most rows of `a`: with more, gemm's packing is a small part of the work.
const ROWS_FEW: usize = 64;

/// Least multiplications that are worth waking threads for.
const PARALLEL_MIN: usize = 1 << 20;

/// y[m,n] = a[m,k]·b[k,n].
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Whether this is the faster way. One row is not: gemm packs nothing for it.
pub(super) fn pays(m: usize, n: usize, k: usize) -> bool {
    (2..=ROWS_FEW).contains(&m) && n >= 64 && k >= 64
}

/// y ← a·b.
pub(super) fn multiply<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    sizes: Sizes,
    a: &[T],
    b: &[T],
    y: &mut [T],
) {
    let Sizes { m, n, k } = sizes;
    let parallel = m.saturating_mul(n).saturating_mul(k) >= PARALLEL_MIN;
    let y = Sheet::new(y, n);
    pool.each_index(n.div_ceil(COLUMNS), parallel, |tile| {
        let first = tile * COLUMNS;
        let columns = COLUMNS.min(n - first);
        let width = panels::width::<T>(simd);
        let padded = columns.next_multiple_of(width);
        with_scratch(DEPTH.min(k) * padded, |packed: &mut [T]| {
            for above in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - above);
                let packed = &mut packed[..depth * padded];
                pack(&b[above * n + first..], n, columns, width, depth, packed);
                let part = Tile { sizes, a, above, depth, first, columns, width, packed, y };
                simd.run_with(part);
            }
        });
    });
}

/// Packs `depth` rows of `columns`, each `stride` behind the other, into panels of `width`.
fn pack<T: Real>(
    rows: &[T],
    stride: usize,
    columns: usize,
    width: usize,
    depth: usize,
    packed: &mut [T],
) {
    for (d, row) in rows.chunks(stride).take(depth).enumerate() {
        let row = &row[..columns];
        for (panel, run) in packed.chunks_exact_mut(depth * width).zip(row.chunks(width)) {
            let target = &mut panel[d * width..][..width];
            target[..run.len()].copy_from_slice(run);
            target[run.len()..].fill(T::zero());
        }
    }
}

/// Columns `first..` of y, of which the rows `above..` of b are added.
struct Tile<'a, T> {
    sizes: Sizes,
    a: &'a [T],
    above: usize,
    depth: usize,
    first: usize,
    columns: usize,
    width: usize,
    packed: &'a [T],
    y: Sheet<'a, T>,
}

impl<T: Real> WithSimd for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Tile { sizes: Sizes { m, k, .. }, a, above, depth, first, columns, width, .. } = self;
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        for (at, panel) in self.packed.chunks_exact(depth * width).enumerate() {
            let start = at * width;
            let here = first + start..first + columns.min(start + width);
            for row in (0..m).step_by(ROWS_MAX) {
                let rows = ROWS_MAX.min(m - row);
                let part = Part { x: &a[row * k + above..], stride: k, panel };
                panels::multiply(simd, rows, &[part], &mut sums);
                for (r, sums) in sums.iter().enumerate().take(rows) {
                    // SAFETY: the threads have columns of their own, and a thread asks for one part after
                    // the other.
                    let y = unsafe { self.y.part(row + r, here.clone()) };
                    if above == 0 {
                        y.copy_from_slice(&sums[..y.len()]);
                    } else {
                        for (y, &sum) in y.iter_mut().zip(sums) {
                            *y += sum;
                        }
                    }
                }
            }
        }
    }
}
