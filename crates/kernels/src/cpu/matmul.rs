//! The matrix product, by the `gemm` crate (Sarah Quiñones, as in faer), called for tiles of the
//! output that the shape alone decides, one thread per tile. Two things this arrangement buys:
//! the bits do not depend on the number of threads, and no packing is left to one thread, as it is
//! in gemm's own parallel mode (measured: 1.0–1.9 times as fast with two threads).
//!
//! gemm lays its vectors along the output's contiguous dimension, the columns, and for that packs
//! `b`; where `b` is stored transposed, that packing costs as much as the product itself when `a` has
//! few rows (the forward step of a layer, y = x·Wᵀ). There the transposed problem is computed, with
//! `a` turned once and the output turned tile by tile (measured at 64×2048×2048: 67 → 148 GFLOP/s).

use super::few_rows;
use super::pool::Pool;
use super::scratch::with_scratch;
use super::shared::Shared;
use super::simd::SimdProof;
use super::transpose::{Rows, transpose};
use crate::gemm::Operands;
use crate::launch::Product;
use crate::real::Real;

/// Rows or columns of a tile: within 3 % of one call for the whole output, and tiles enough for eight
/// threads in a layer of 2048.
const TILE: usize = 256;

/// Rows of `a` up to which the transposed problem is worth its scratch of m·(n + k) elements: with
/// more rows, packing `b` is a small part of the work.
const TURNED_ROWS_MAX: usize = 512;

/// Rows of the output that one piece of turning it back writes: a tile of [`transpose`].
const TURNED_BACK_ROWS: usize = 16;

/// Least multiplications that are worth waking threads for: some 30 µs of one core.
const PARALLEL_MIN: usize = 1 << 21;

/// A matrix inside a slice: element (r, c) at `r·row_step + c·column_step`.
#[derive(Clone, Copy)]
struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

/// y ← a·b. The order of the additions within a sum is gemm's, and the same every time.
pub(super) fn matmul<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    product: Product,
    a: &[T],
    b: &[T],
    y: &mut [T],
) {
    let Product { m, n, k, transpose_a, transpose_b } = product;
    if y.is_empty() {
        return;
    }
    if k == 0 {
        return y.fill(T::zero());
    }
    let left = Matrix::stored(a, m, k, transpose_a);
    let right = Matrix::stored(b, k, n, transpose_b);
    if !transpose_a && !transpose_b && few_rows::pays(m, n, k) {
        few_rows::multiply(pool, simd, few_rows::Sizes { m, n, k }, a, b, y);
    } else if transpose_b && turning_pays(m, n, k) {
        turned(pool, left, right, y);
    } else if m >= n {
        by_rows(pool, left, right, y);
    } else {
        by_columns(pool, left, right, y);
    }
}

/// Products that are worth a thread each; of fewer, each is cut over the threads.
const BATCH_MIN: usize = 8;

/// As many products as `y` has room for, of operands one behind the other.
pub(super) fn batch<T: Real>(
    pool: &Pool,
    simd: SimdProof,
    product: Product,
    a: &[T],
    b: &[T],
    y: &mut [T],
) {
    let Product { m, n, k, .. } = product;
    let one = |pool: &Pool, at: usize, y: &mut [T]| {
        matmul(pool, simd, product, &a[at * m * k..][..m * k], &b[at * k * n..][..k * n], y);
    };
    let (count, work) = (y.len() / (m * n), y.len().saturating_mul(k));
    if count < BATCH_MIN {
        y.chunks_exact_mut(m * n).enumerate().for_each(|(at, y)| one(pool, at, y));
    } else {
        // small ones several at a time; the bits of each are the same on one thread and on many
        let together = (PARALLEL_MIN / 16 / (m * n * k).max(1)).clamp(1, count.div_ceil(2));
        let callers = Pool::callers();
        pool.split(y, together * m * n, work >= PARALLEL_MIN, |start, y| {
            let first = start / (m * n);
            y.chunks_exact_mut(m * n).enumerate().for_each(|(at, y)| one(&callers, first + at, y));
        });
    }
}

/// Whether copying `a` and `y` costs less than gemm's packing of `b`: below half as many elements,
/// since packing is the cheaper copy (measured: no gain at 512×1024×1024, where they are as many).
fn turning_pays(m: usize, n: usize, k: usize) -> bool {
    m <= TURNED_ROWS_MAX && n.saturating_mul(k) / 2 >= m * (n + k)
}

/// Computes tiles of whole rows.
fn by_rows<T: Real>(pool: &Pool, a: Matrix<'_, T>, b: Matrix<'_, T>, y: &mut [T]) {
    let n = b.columns;
    pool.split(y, TILE * n, is_large(a, b), |start, y| {
        multiply(a.part_of_rows(start / n, y.len() / n), b, y, [n, 1]);
    });
}

/// Computes tiles of whole columns.
fn by_columns<T: Real>(pool: &Pool, a: Matrix<'_, T>, b: Matrix<'_, T>, y: &mut [T]) {
    let (m, n) = (a.rows, b.columns);
    assert_eq!(y.len(), m * n);
    let output = Shared(y.as_mut_ptr());
    pool.each_index(n.div_ceil(TILE), is_large(a, b), |tile| {
        let first = tile * TILE;
        let part = b.part_of_columns(first, TILE.min(n - first));
        // SAFETY: rows of n elements, of which the tile's are `first..first + part.columns` with
        // that sum at most n, for m rows: inside `y`, asserted above to hold m·n. `y` is borrowed
        // exclusively until `each_index` returns, and no other tile has these columns.
        unsafe { multiply_into(a, part, output.start().add(first), [n, 1]) };
    });
}

/// Computes yᵀ = bᵀ·aᵀ into scratch, in tiles of whole rows of yᵀ, and turns the result.
fn turned<T: Real>(pool: &Pool, a: Matrix<'_, T>, b: Matrix<'_, T>, y: &mut [T]) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let parallel = is_large(a, b);
    // `a` by columns, as gemm wants it; it may be stored so already
    let turned_len = if a.row_step == 1 { 0 } else { k * m };
    with_scratch(turned_len + n * m, |scratch: &mut [T]| {
        let (a_turned, y_turned) = scratch.split_at_mut(turned_len);
        pool.split(a_turned, TILE * m, parallel, |start, target| {
            let part = a.part_of_columns(start / m, target.len() / m);
            let source =
                Rows { elements: part.elements, rows: m, columns: part.columns, stride: k };
            transpose(source, target, m);
        });
        let a = if turned_len == 0 { a } else { Matrix::stored(a_turned, m, k, true) };
        pool.split(y_turned, TILE * m, parallel, |start, y| {
            multiply(a, b.part_of_columns(start / m, y.len() / m), y, [1, m]);
        });
        pool.split(y, TURNED_BACK_ROWS * n, parallel, |start, y| {
            let elements = &y_turned[start / n..];
            transpose(Rows { elements, rows: n, columns: y.len() / n, stride: m }, y, n);
        });
    });
}

fn is_large<T>(a: Matrix<'_, T>, b: Matrix<'_, T>) -> bool {
    a.rows.saturating_mul(a.columns).saturating_mul(b.columns) >= PARALLEL_MIN
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix of `rows`×`columns` stored row by row, or column by column where `transposed`.
    fn stored(elements: &'a [T], rows: usize, columns: usize, transposed: bool) -> Matrix<'a, T> {
        assert_eq!(elements.len(), rows * columns, "{rows}×{columns}");
        let (row_step, column_step) = if transposed { (1, rows) } else { (columns, 1) };
        Matrix { elements, rows, columns, row_step, column_step }
    }

    fn part_of_rows(self, first: usize, rows: usize) -> Matrix<'a, T> {
        assert!(first + rows <= self.rows);
        Matrix { elements: &self.elements[first * self.row_step..], rows, ..self }
    }

    fn part_of_columns(self, first: usize, columns: usize) -> Matrix<'a, T> {
        assert!(first + columns <= self.columns);
        Matrix { elements: &self.elements[first * self.column_step..], columns, ..self }
    }

    /// One past the place of the last element.
    fn end(&self) -> usize {
        (self.rows - 1) * self.row_step + (self.columns - 1) * self.column_step + 1
    }
}

/// y ← a·b on this thread; element (r, c) of y is at `r·steps[0] + c·steps[1]`, and one of the steps
/// is 1, the other at least the length of what it steps over.
fn multiply<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, y: &mut [T], steps: [usize; 2]) {
    let end = (a.rows - 1) * steps[0] + (b.columns - 1) * steps[1] + 1;
    assert!(end <= y.len());
    // SAFETY: `y` is borrowed exclusively, and the assertion puts the last element inside it.
    unsafe { multiply_into(a, b, y.as_mut_ptr(), steps) };
}

/// As [`multiply`].
///
/// # Safety
/// Each of the a.rows × b.columns elements of `y` must be valid for writes, and no other thread may
/// touch them during the call. They need not be initialised.
unsafe fn multiply_into<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, y: *mut T, steps: [usize; 2]) {
    assert_eq!(a.columns, b.rows);
    assert!(a.end() <= a.elements.len() && b.end() <= b.elements.len());
    // SAFETY: the assertion puts the m×k and k×n elements that are read inside the slices; the m×n of `y`, which are
    // written only, are the caller's duty.
    unsafe {
        T::gemm(Operands {
            size: [a.rows, b.columns, a.columns],
            y,
            y_steps: steps,
            a: a.elements.as_ptr(),
            a_steps: [a.row_step, a.column_step],
            b: b.elements.as_ptr(),
            b_steps: [b.row_step, b.column_step],
            again: false,
        });
    }
}
