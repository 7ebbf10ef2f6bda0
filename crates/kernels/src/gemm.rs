//! The product of two matrices on the calling thread, by the crates gemm-f32 and gemm-f64. Their front crate,
//! `gemm`, is left out: the complex numbers that it brings take longer to compile than both.

use gemm_common::Parallelism;

/// y: m×n, a: m×k, b: k×n with `size` = [m, n, k]; `steps` are from row to row and from column to column.
pub(crate) struct Operands<T> {
    pub(crate) size: [usize; 3],
    pub(crate) y: *mut T,
    pub(crate) y_steps: [usize; 2],
    pub(crate) a: *const T,
    pub(crate) a_steps: [usize; 2],
    pub(crate) b: *const T,
    pub(crate) b_steps: [usize; 2],
    /// y is added to; else it is not read.
    pub(crate) again: bool,
}

impl<T> Operands<T> {
    /// yᵀ = bᵀaᵀ in the same places.
    fn transposed(self) -> Operands<T> {
        let Operands { size: [m, n, k], y, y_steps, a, a_steps, b, b_steps, again } = self;
        let swapped = |[row, column]: [usize; 2]| [column, row];
        Operands {
            size: [n, m, k],
            y,
            y_steps: swapped(y_steps),
            a: b,
            a_steps: swapped(b_steps),
            b: a,
            b_steps: swapped(a_steps),
            again,
        }
    }
}

/// A type of which there are products.
pub(crate) trait Gemm: Sized {
    /// y ← ab, or y + ab where `again`.
    ///
    /// # Safety
    /// All elements of a and b must be valid for reads, those of y for writes, and for reads where `again`; no
    /// other thread may touch those of y during the call.
    unsafe fn gemm(operands: Operands<Self>);
}

macro_rules! products {
    ($type:ident, $of:ident) => {
        impl Gemm for $type {
            unsafe fn gemm(operands: Operands<$type>) {
                // its kernels write columns
                let rows_are_dense = operands.y_steps[1] < operands.y_steps[0];
                let operands = if rows_are_dense { operands.transposed() } else { operands };
                let [m, n, k] = operands.size;
                // a slice has at most isize::MAX bytes, so steps inside one fit
                let step = |step: usize| step as isize;
                // SAFETY: the caller's duty; y is read where `again`.
                unsafe {
                    $of::gemm::$type::get_gemm_fn()(
                        m,
                        n,
                        k,
                        operands.y,
                        step(operands.y_steps[1]),
                        step(operands.y_steps[0]),
                        operands.again,
                        operands.a,
                        step(operands.a_steps[1]),
                        step(operands.a_steps[0]),
                        operands.b,
                        step(operands.b_steps[1]),
                        step(operands.b_steps[0]),
                        if operands.again { 1.0 } else { 0.0 },
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
        }
    };
}

products!(f32, gemm_f32);
products!(f64, gemm_f64);
