//! Products of few rows by a matrix that is used many times: the matrix is packed once into panels, [k]
//! rows of two vectors, and each is multiplied with up to eight rows whose sums stay in registers. What
//! the gemm crate cannot do: it packs the matrix in every call, which with few rows is most of the work.

use pulp::Simd;

use super::simd::SimdProof;
use super::transpose::{Rows, transpose};
use crate::lanes::Lanes;
use crate::real::Real;

/// Vectors in a panel's row.
const VECTORS: usize = 2;

/// Most rows at a time: with two vectors each, half of AVX-512's registers.
pub(super) const ROWS_MAX: usize = 8;

/// Most elements of a panel's row: two AVX-512 vectors of f32.
pub(super) const WIDTH_MAX: usize = 32;

/// How far ahead of its use a panel is asked for: some hundred cycles of one row.
const AHEAD: usize = 2048;

/// The sums of up to [`ROWS_MAX`] rows by one panel.
pub(super) type Sums<T> = [[T; WIDTH_MAX]; ROWS_MAX];

/// Columns of a panel.
pub(super) fn width<T>(simd: SimdProof) -> usize {
    VECTORS * simd.lanes::<T>()
}

/// Packs rows `first..` of a matrix with rows of `k` as columns of a panel of `width`: what is multiplied
/// is the transposed matrix. Columns that are not there are 0.
pub(super) fn pack_rows<T: Real>(
    matrix: &[T],
    k: usize,
    first: usize,
    width: usize,
    panel: &mut [T],
) {
    let elements = &matrix[first * k..];
    let rows = (elements.len() / k.max(1)).min(width);
    if rows < width {
        panel.fill(T::zero());
    }
    transpose(Rows { elements, rows, columns: k, stride: k }, panel, width);
}

/// Packs columns `first..` of a matrix with rows of `n` into a panel of `width`.
pub(super) fn pack_columns<T: Real>(
    matrix: &[T],
    n: usize,
    first: usize,
    width: usize,
    panel: &mut [T],
) {
    let columns = width.min(n - first);
    for (row, target) in matrix.chunks_exact(n).zip(panel.chunks_exact_mut(width)) {
        target[..columns].copy_from_slice(&row[first..][..columns]);
        target[columns..].fill(T::zero());
    }
}

/// What is multiplied: row r of x starts at `r·stride` and has as many elements as the panel rows.
#[derive(Clone, Copy)]
pub(super) struct Part<'a, T> {
    pub(super) x: &'a [T],
    pub(super) stride: usize,
    pub(super) panel: &'a [T],
}

/// sums[r] ← Σ over the parts of x's row r times the panel.
#[inline(always)]
pub(super) fn multiply<S: Simd, T: Real>(
    simd: S,
    rows: usize,
    parts: &[Part<'_, T>],
    sums: &mut Sums<T>,
) {
    let mut first = 0;
    while first < rows {
        let sums = &mut sums[first..];
        first += match rows - first {
            // as many as there are registers for
            8.. if S::REGISTER_COUNT >= 32 => some::<S, T, 8>(simd, first, parts, sums),
            4.. => some::<S, T, 4>(simd, first, parts, sums),
            2.. => some::<S, T, 2>(simd, first, parts, sums),
            _ => some::<S, T, 1>(simd, first, parts, sums),
        };
    }
}

/// As [`multiply`], for rows `first..first + R`. → R.
#[inline(always)]
fn some<S: Simd, T: Real, const R: usize>(
    simd: S,
    first: usize,
    parts: &[Part<'_, T>],
    sums: &mut [[T; WIDTH_MAX]],
) -> usize {
    let mut registers = [[<T as Lanes>::splat(simd, T::zero()); VECTORS]; R];
    for &Part { x, stride, panel } in parts {
        let panel = T::vectors::<S>(panel);
        let k = panel.len() / VECTORS;
        let x = &x[first * stride..];
        assert!((R - 1) * stride + k <= x.len());
        for i in 0..k {
            // SAFETY: `i` is below `k`, and the panel has k rows of vectors.
            let panel = unsafe { panel.get_unchecked(i * VECTORS..(i + 1) * VECTORS) };
            prefetch(panel);
            let of_row = |r: usize| {
                // SAFETY: the assertion puts element `i` of each of R rows inside of `x`.
                unsafe { *x.get_unchecked(r * stride + i) }
            };
            add_products::<S, T, R>(simd, of_row, panel, &mut registers);
        }
    }
    for (row, sums) in registers.iter().zip(sums) {
        T::vectors_mut::<S>(sums)[..VECTORS].copy_from_slice(row);
    }
    R
}

/// Adds the products of R elements with a row of a panel. Loops of known lengths over arrays, which the compiler keeps in
/// registers.
#[inline(always)]
#[expect(clippy::needless_range_loop)] // iterators over arrays leave sums on the stack
fn add_products<S: Simd, T: Real, const R: usize>(
    simd: S,
    x: impl Fn(usize) -> T,
    panel: &[T::Vector<S>],
    sums: &mut [[T::Vector<S>; VECTORS]; R],
) {
    // loaded once, where the compiler would for each row
    let panel: [T::Vector<S>; VECTORS] = [panel[0], panel[1]];
    for r in 0..R {
        let x = T::splat(simd, x(r));
        for v in 0..VECTORS {
            sums[r][v] = T::multiply_add(simd, x, panel[v], sums[r][v]);
        }
    }
}

/// As [`multiply`] of one part, whose rows are the columns of a matrix: element i of row r is at `i·stride + r`.
#[inline(always)]
pub(super) fn multiply_turned<S: Simd, T: Real>(
    simd: S,
    rows: usize,
    part: Part<'_, T>,
    sums: &mut Sums<T>,
) {
    let mut first = 0;
    while first < rows {
        let sums = &mut sums[first..];
        first += match rows - first {
            8.. if S::REGISTER_COUNT >= 32 => some_turned::<S, T, 8>(simd, first, part, sums),
            4.. => some_turned::<S, T, 4>(simd, first, part, sums),
            2.. => some_turned::<S, T, 2>(simd, first, part, sums),
            _ => some_turned::<S, T, 1>(simd, first, part, sums),
        };
    }
}

/// As [`multiply_turned`], for rows `first..first + R`. → R.
#[inline(always)]
fn some_turned<S: Simd, T: Real, const R: usize>(
    simd: S,
    first: usize,
    Part { x, stride, panel }: Part<'_, T>,
    sums: &mut [[T; WIDTH_MAX]],
) -> usize {
    let mut registers = [[<T as Lanes>::splat(simd, T::zero()); VECTORS]; R];
    let panel = T::vectors::<S>(panel);
    // of the last, less than a stride may be there
    let columns = x[first..].chunks(stride);
    for (panel, x) in panel.chunks_exact(VECTORS).zip(columns) {
        prefetch(panel);
        let x = &x[..R];
        add_products::<S, T, R>(simd, |r| x[r], panel, &mut registers);
    }
    for (row, sums) in registers.iter().zip(sums) {
        T::vectors_mut::<S>(sums)[..VECTORS].copy_from_slice(row);
    }
    R
}

/// Asks for what lies [`AHEAD`] bytes behind `vectors`: a panel comes from a cache that all cores share, and
/// with few rows the loop is as fast as it comes.
#[inline(always)]
fn prefetch<V>(vectors: &[V]) {
    #[cfg(target_arch = "x86_64")]
    for vector in vectors {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let ahead = std::ptr::from_ref(vector).wrapping_byte_add(AHEAD);
        // SAFETY: every x86-64 has the instruction, which reads nothing that the program sees and faults at
        // no address.
        unsafe { _mm_prefetch(ahead.cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = vectors;
}
