//! Rows for operators that make less of a gradient, and a gradient of that.

use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

use super::Row;
use crate::error::GraphError;

impl Row<'_> {
    pub(super) fn quantize(&self, block: usize) -> Result<Vec<Fact>, GraphError> {
        let elements = self.residual_and_gradient()?;
        if block == 0 {
            return self.mismatch("blocks of at least one element are needed");
        }
        let q = Fact { dtype: DType::U8, dims: self.inputs[1].dims.clone() };
        Ok(vec![q, Fact::known(DType::F32, &[elements.div_ceil(block)])])
    }

    pub(super) fn dequantize(&self, block: usize, first: usize) -> Result<Vec<Fact>, GraphError> {
        let [q, scales] = [0, 1].map(|at| self.known(at, [DType::U8, DType::F32][at]));
        let (Some(q), Some(scales)) = (q, scales) else {
            return self.mismatch("bytes u8[…] and scales f32[…] of known size are needed");
        };
        let end = first.checked_add(q.elements());
        let covers = |end: usize| block > 0 && end.div_ceil(block) <= scales.elements();
        match end.is_some_and(covers) && scales.dims().len() == 1 {
            true => self.one(DType::F32, &self.inputs[0].dims),
            false => self.mismatch("a scale for every block of elements is needed"),
        }
    }

    pub(super) fn top_k(&self, count: usize) -> Result<Vec<Fact>, GraphError> {
        let elements = self.residual_and_gradient()?;
        if count > elements || i32::try_from(elements).is_err() {
            return self.mismatch("as many elements as are chosen, and less than 2^31, are needed");
        }
        Ok([DType::I32, DType::F32].map(|dtype| Fact::known(dtype, &[count])).into())
    }

    pub(super) fn scatter_elements(&self, to: &[usize]) -> Result<Vec<Fact>, GraphError> {
        let [indices, values] = [0, 1].map(|at| self.known(at, [DType::I32, DType::F32][at]));
        let is_list = |of: &TensorSpec| of.dims().len() == 1;
        match (indices, values) {
            (Some(indices), Some(values))
                if is_list(&indices) && indices.dims() == values.dims() =>
            {
                self.one(DType::F32, &to.iter().copied().map(Dim::Known).collect::<Vec<Dim>>())
            }
            _ => self.mismatch("indices i32[k] and values f32[k] of known size are needed"),
        }
    }

    /// The elements of a gradient and of what an earlier one left.
    fn residual_and_gradient(&self) -> Result<usize, GraphError> {
        match [0, 1].map(|at| self.known(at, DType::F32)) {
            [Some(residual), Some(x)] if residual.dims() == x.dims() => Ok(x.elements()),
            _ => self.mismatch("a residual and a gradient, f32[…] of one known shape, are needed"),
        }
    }

    fn known(&self, at: usize, dtype: DType) -> Option<TensorSpec> {
        let fact = &self.inputs[at];
        fact.spec().and_then(Result::ok).filter(|_| fact.dtype == dtype)
    }
}
