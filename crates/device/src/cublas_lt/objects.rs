//! Objects of cuBLASLt: what is to be computed, where matrices lie, and what the heuristic is to prefer.

use std::ffi::c_void;

use super::{LIBRARY_ALIGNMENT, MatrixProduct, ProductFactor, RealType};
use crate::device::Handle;
use crate::error::{Failure, Refused, text_of};
use crate::sys::cublas_lt::*;

/// An object of the library's, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) at: Handle<c_void>,
    destroy: unsafe extern "C" fn(*mut c_void) -> cublasStatus_t,
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made for this value by the function that goes with it, and given back once. Such objects are memory of
        // the host that no work on a GPU reads.
        unsafe { (self.destroy)(self.at.0) };
    }
}

/// Makes objects by the table.
pub(super) struct Maker<'a>(pub(super) &'a CublasLtFunctions);

impl Maker<'_> {
    pub(super) fn description(&self, product: &MatrixProduct) -> Result<Object, Refused> {
        let (compute, scale) = match (product.result, product.rounds_to_tf32) {
            (RealType::F64, _) => (CUBLAS_COMPUTE_64F, CUDA_R_64F),
            (_, true) => (CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F),
            (_, false) => (CUBLAS_COMPUTE_32F, CUDA_R_32F),
        };
        let functions = self.0;
        let made =
            self.object("cublasLtMatmulDescCreate", functions.cublasLtMatmulDescDestroy, |at| {
                // SAFETY: there is room for the pointer.
                unsafe { (functions.cublasLtMatmulDescCreate)(at, compute, scale) }
            })?;
        // columns of the library's are rows here: it computes yᵀ ← bᵀ·aᵀ
        for (attribute, factor) in
            [(CUBLASLT_MATMUL_DESC_TRANSA, product.b), (CUBLASLT_MATMUL_DESC_TRANSB, product.a)]
        {
            let turned = if factor.is_turned { CUBLAS_OP_T } else { CUBLAS_OP_N };
            self.set(
                "cublasLtMatmulDescSetAttribute",
                functions.cublasLtMatmulDescSetAttribute,
                &made,
                attribute,
                &turned.cast_signed(),
            )?;
        }
        Ok(made)
    }

    pub(super) fn layout(&self, of: Layout) -> Result<Object, Refused> {
        let functions = self.0;
        let made = self.object(
            "cublasLtMatrixLayoutCreate",
            functions.cublasLtMatrixLayoutDestroy,
            |at| {
                let Layout { kind, row_length, rows, row_step, .. } = of;
                // SAFETY: there is room for the pointer.
                unsafe {
                    (functions.cublasLtMatrixLayoutCreate)(at, kind, row_length, rows, row_step)
                }
            },
        )?;
        let call = "cublasLtMatrixLayoutSetAttribute";
        let set = functions.cublasLtMatrixLayoutSetAttribute;
        if of.batch > 1 {
            let count = CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            self.set(call, set, &made, count, &of.batch)?;
            let step = CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            self.set(call, set, &made, step, &of.batch_step)?;
        }
        Ok(made)
    }

    pub(super) fn preference(&self, workspace_bytes_max: usize) -> Result<Object, Refused> {
        let functions = self.0;
        let destroy = functions.cublasLtMatmulPreferenceDestroy;
        let made = self.object("cublasLtMatmulPreferenceCreate", destroy, |at| {
            // SAFETY: there is room for the pointer.
            unsafe { (functions.cublasLtMatmulPreferenceCreate)(at) }
        })?;
        let call = "cublasLtMatmulPreferenceSetAttribute";
        let set = functions.cublasLtMatmulPreferenceSetAttribute;
        // fits: a size of this machine
        let most = workspace_bytes_max as u64;
        self.set(call, set, &made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most)?;
        let apart = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        self.set(call, set, &made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &apart)?;
        for operand in [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            // fits: 16
            self.set(call, set, &made, operand, &(LIBRARY_ALIGNMENT as u32))?;
        }
        Ok(made)
    }

    /// True if what is cut along the inner dimension is not added in place. An answer that does not say so is not taken.
    pub(super) fn adds_in_order(&self, algorithm: &cublasLtMatmulAlgo_t) -> bool {
        let (mut scheme, mut written) = (u32::MAX, 0);
        // SAFETY: the algorithm lives, and there is room for a number of so many bytes and for how many were written.
        let status = unsafe {
            (self.0.cublasLtMatmulAlgoConfigGetAttribute)(
                algorithm,
                CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                (&raw mut scheme).cast(),
                size_of_val(&scheme),
                &mut written,
            )
        };
        let in_order = [CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE];
        status == CUBLAS_STATUS_SUCCESS && in_order.contains(&scheme)
    }

    /// An object that the library makes.
    fn object(
        &self,
        call: &'static str,
        destroy: unsafe extern "C" fn(*mut c_void) -> cublasStatus_t,
        make: impl FnOnce(*mut *mut c_void) -> cublasStatus_t,
    ) -> Result<Object, Refused> {
        let mut at = std::ptr::null_mut();
        checked(self.0, call, make(&mut at))?;
        Ok(Object { at: Handle(at), destroy })
    }

    /// Sets an attribute of an object to a number of the type that the manual gives it.
    fn set<T: Number>(
        &self,
        call: &'static str,
        set: SetAttribute,
        of: &Object,
        attribute: u32,
        value: &T,
    ) -> Result<(), Refused> {
        // SAFETY: the object lives and is of this function's kind; as many bytes are read as the value has.
        let status = unsafe { set(of.at.0, attribute, (&raw const *value).cast(), size_of::<T>()) };
        checked(self.0, call, status)
    }
}

/// Makes an error of what is no success.
pub(super) fn checked(
    functions: &CublasLtFunctions,
    call: &'static str,
    status: cublasStatus_t,
) -> Result<(), Refused> {
    match status {
        CUBLAS_STATUS_SUCCESS => Ok(()),
        code => Err(Refused { call, failure: failure(functions, code) }),
    }
}

type SetAttribute = unsafe extern "C" fn(*mut c_void, u32, *const c_void, usize) -> cublasStatus_t;

/// What attributes are.
trait Number {}
impl Number for u32 {}
impl Number for i32 {}
impl Number for u64 {}
impl Number for i64 {}

/// A matrix as it lies in memory; the library calls its rows columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    kind: cudaDataType_t,
    row_length: u64,
    rows: u64,
    row_step: i64,
    batch: i32,
    batch_step: i64,
}

/// The layouts of a, b and y; none, where there is nothing to compute, or more than the library counts.
pub(super) fn layouts(product: &MatrixProduct) -> Option<[Layout; 3]> {
    let MatrixProduct { rows, columns, depth, batch, a, b, result, .. } = *product;
    let y = ProductFactor {
        of: result,
        is_turned: false,
        row_step: columns,
        batch_step: rows.checked_mul(columns)?,
    };
    let all = [layout(a, [rows, depth], batch), layout(b, [depth, columns], batch)];
    let [a, b] = all;
    Some([a?, b?, layout(y, [rows, columns], batch)?])
}

fn layout(factor: ProductFactor, [rows, columns]: [usize; 2], batch: usize) -> Option<Layout> {
    let [rows, row_length] = if factor.is_turned { [columns, rows] } else { [rows, columns] };
    if rows == 0 || row_length == 0 || batch == 0 || (rows > 1 && factor.row_step < row_length) {
        return None;
    }
    Some(Layout {
        kind: match factor.of {
            RealType::F32 => CUDA_R_32F,
            RealType::F64 => CUDA_R_64F,
            RealType::Bf16 => CUDA_R_16BF,
        },
        row_length: u64::try_from(row_length).ok()?,
        rows: u64::try_from(rows).ok()?,
        // of one row nobody looks where the next is
        row_step: i64::try_from(factor.row_step.max(row_length)).ok()?,
        batch: i32::try_from(batch).ok()?,
        batch_step: i64::try_from(factor.batch_step).ok()?,
    })
}

pub(super) fn failure(functions: &CublasLtFunctions, code: cublasStatus_t) -> Box<Failure> {
    // SAFETY: the functions take any number, and what they return is text of the library's.
    let [name, text] = unsafe {
        [(functions.cublasLtGetStatusName)(code), (functions.cublasLtGetStatusString)(code)]
            .map(|text| text_of(text))
    };
    Box::new(Failure { code, name, text })
}
