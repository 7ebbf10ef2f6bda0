//! A product of matrices whose objects fit each other, and its arithmetic.

use std::ffi::c_void;

use tensorwire_device::sys::cublas_lt::*;

use super::{Layout, MARK, OBJECTS, known, wrong};
use crate::numbers::{Kind, to_tf32};

/// A product whose objects fit each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) a: Layout,
    pub(super) b: Layout,
    pub(super) d: Layout,
    is_turned: [bool; 2],
    pub(super) depth: u64,
    rounds: bool,
}

impl Product {
    /// # Errors
    /// What the real one says of objects that do not fit, and where it has no kernel of these types.
    pub(super) fn of(
        description: *const c_void,
        [a, b, c, d]: [*const c_void; 4],
    ) -> Result<Product, cublasStatus_t> {
        let description = known(&OBJECTS.descriptions, description)?;
        let description = description.lock();
        let layout = |handle| Ok::<Layout, u32>(*known(&OBJECTS.layouts, handle)?.lock());
        let [a, b, c, d] = [layout(a)?, layout(b)?, layout(c)?, layout(d)?];
        let is_turned = description.is_turned;
        let shape = |of: &Layout, turned| match turned {
            true => [of.columns, of.rows],
            false => [of.rows, of.columns],
        };
        let ([rows, depth], [other, columns]) = (shape(&a, is_turned[0]), shape(&b, is_turned[1]));
        if depth != other || [d.rows, d.columns] != [rows, columns] || c != d {
            return wrong("the matrices' sizes do not fit each other");
        }
        let is_whole = |of: &Layout| {
            of.rows > 0
                && of.columns > 0
                && u64::try_from(of.step).is_ok_and(|step| step >= of.rows)
                && of.batch == d.batch
                && of.batch > 0
        };
        if ![a, b, d].iter().all(is_whole) {
            return wrong("a matrix is empty, or its columns overlap, or it has another batch");
        }
        let kinds = [a.kind, b.kind, d.kind];
        use Kind::{Bf16, F32, F64};
        let is_known = match (description.compute, description.scale) {
            (CUBLAS_COMPUTE_32F, CUDA_R_32F) => {
                [[F32; 3], [Bf16; 3], [Bf16, Bf16, F32]].contains(&kinds)
            }
            (CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F) => kinds == [F32; 3],
            (CUBLAS_COMPUTE_64F, CUDA_R_64F) => kinds == [F64; 3],
            _ => false,
        };
        if !is_known {
            return Err(CUBLAS_STATUS_NOT_SUPPORTED);
        }
        let rounds = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
        Ok(Product { a, b, d, is_turned, depth, rounds })
    }

    /// A number that another product has not, but by chance.
    pub(super) fn mark(&self) -> u64 {
        let Product { a, b, d, is_turned, .. } = self;
        let turned = u64::from(is_turned[0]) << 1 | u64::from(is_turned[1]);
        let words = [a, b, d].into_iter().flat_map(|of| {
            let Layout { kind, rows, columns, step, batch, batch_step } = *of;
            let kind = kind.bytes() as u64;
            [kind, rows, columns, step.cast_unsigned(), batch as u64, batch_step.cast_unsigned()]
        });
        words.chain([turned]).fold(MARK, |mark, word| {
            (mark ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        })
    }

    pub(super) fn cut_bytes(&self) -> u64 {
        2 * self.d.rows * self.d.columns * self.d.batch as u64 * 4
    }
}

/// D ← A·B.
///
/// # Safety
/// The places are those of A, B, D and the workspace, if there is one, with as many bytes as the layouts have.
pub(super) unsafe fn compute(product: &Product, is_cut: bool, places: &[*mut u8]) {
    let Product { a, b, d, is_turned, depth, rounds } = product;
    // SAFETY: as the caller promises.
    unsafe {
        if let (true, Some(workspace)) = (is_cut, places.get(3)) {
            workspace.write_bytes(0xff, product.cut_bytes() as usize);
        }
        let at = |of: &Layout, batch: u64, row: u64, column: u64| {
            let before = batch * of.batch_step.unsigned_abs();
            // fits: within what was asked for
            (before + column * of.step.unsigned_abs() + row) as usize
        };
        let round = |x: f64| if *rounds { f64::from(to_tf32(x as f32)) } else { x };
        for batch in 0..d.batch as u64 {
            for column in 0..d.columns {
                for row in 0..d.rows {
                    let part = |range: std::ops::Range<u64>| {
                        let (mut sum, mut sum_of_doubles) = (0f32, 0f64);
                        for k in range {
                            let [ar, ac] = if is_turned[0] { [k, row] } else { [row, k] };
                            let [br, bc] = if is_turned[1] { [column, k] } else { [k, column] };
                            let x = round(a.kind.read(places[0], at(a, batch, ar, ac)));
                            let y = round(b.kind.read(places[1], at(b, batch, br, bc)));
                            match d.kind {
                                Kind::F64 => sum_of_doubles = x.mul_add(y, sum_of_doubles),
                                _ => sum += x as f32 * y as f32,
                            }
                        }
                        if d.kind == Kind::F64 { sum_of_doubles } else { f64::from(sum) }
                    };
                    let middle = if is_cut { depth / 2 } else { 0 };
                    let sum = match middle {
                        0 => part(0..*depth),
                        // both were rounded to f32
                        middle => f64::from(part(0..middle) as f32 + part(middle..*depth) as f32),
                    };
                    d.kind.write(places[2], at(d, batch, row, column), sum);
                }
            }
        }
    }
}
