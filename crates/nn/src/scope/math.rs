//! Arithmetic on tensors, and how their elements lie.

use std::ops::Range;

use tensorwire_graph::{Binary, Op, Output, Reduction};
use tensorwire_tensor::{DType, Dim};

use super::Scope;
use crate::error::{Error, Result};

impl Scope<'_> {
    /// max(x, 0), by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn relu(&mut self, name: &str, x: Output) -> Result<Output> {
        self.op(&format!("{name}/relu"), Op::Relu, &[x])
    }

    /// 1/(1 + e⁻ˣ), by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn sigmoid(&mut self, name: &str, x: Output) -> Result<Output> {
        self.op(&format!("{name}/sigmoid"), Op::Sigmoid, &[x])
    }

    /// tanh x, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn tanh(&mut self, name: &str, x: Output) -> Result<Output> {
        self.op(&format!("{name}/tanh"), Op::Tanh, &[x])
    }

    /// Softmax along the last dimension, x: `f[…, n]` → `f[…, n]`. A classifier's loss takes logits instead.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn softmax(&mut self, name: &str, x: Output) -> Result<Output> {
        self.op(&format!("{name}/softmax"), Op::Softmax, &[x])
    }

    /// a + b, by elements. Dimensions are aligned from the last; one of 1, or that one of them has not, is repeated as often as
    /// the other has it (NumPy's broadcasting).
    ///
    /// # Errors
    /// When two dimensions differ otherwise, or the types.
    pub fn add(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.of_two(name, (Op::Add, Binary::Add), a, b)
    }

    /// a − b, by elements; broadcast as [`Scope::add`].
    ///
    /// # Errors
    /// As there.
    pub fn sub(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.of_two(name, (Op::Sub, Binary::Sub), a, b)
    }

    /// a·b, by elements; broadcast as [`Scope::add`].
    ///
    /// # Errors
    /// As there.
    pub fn mul(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.of_two(name, (Op::Mul, Binary::Mul), a, b)
    }

    /// a/b, by elements; broadcast as [`Scope::add`].
    ///
    /// # Errors
    /// As there.
    pub fn div(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.of_two(name, (Op::Div, Binary::Div), a, b)
    }

    /// x·by, `by` a number that never changes.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn scale(&mut self, name: &str, x: Output, by: f64) -> Result<Output> {
        self.op(name, Op::Scale { by }, &[x])
    }

    /// The product of two matrices, a: `f[m, k]`, b: `f[k, n]` → `f[m, n]`.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn matmul(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::MatMul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// All inner products of two matrices' rows, a: `f[m, k]`, b: `f[n, k]` → a·bᵀ: `f[m, n]`.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn matmul_transposed(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::MatMul { transpose_a: false, transpose_b: true }, &[a, b])
    }

    /// The products of as many matrices, a: `f[…, m, k]`, b: `f[…, k, n]` → `f[…, m, n]`.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn batch_matmul(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::BatchMatMul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// As [`Scope::batch_matmul`], b: `f[…, n, k]`, of which each matrix is transposed.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn batch_matmul_transposed(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::BatchMatMul { transpose_a: false, transpose_b: true }, &[a, b])
    }

    /// The rows that are named, table: `f[v, d]`, rows: `i32[…]` → `f[…, d]`.
    ///
    /// # Errors
    /// When the table is no matrix, or `rows` not of i32.
    pub fn gather(&mut self, name: &str, table: Output, rows: Output) -> Result<Output> {
        let (flat, dims) = self.flat(name, rows)?;
        let y = self.op(name, Op::Gather, &[table, flat])?;
        match self.fact(y)?.dims.last() {
            Some(&Dim::Known(width)) => self.unrolled(name, y, dims, Some(width)),
            // a vector of rows is as it should be; of others the width is asked for
            _ if dims.len() == 1 => Ok(y),
            _ => Err(Error::layer(name, "a table of known width is needed")),
        }
    }

    /// Tensors one behind the other along `axis`, whose sizes may be dynamic.
    ///
    /// # Errors
    /// When another dimension differs.
    pub fn concat(&mut self, name: &str, axis: usize, tensors: &[Output]) -> Result<Output> {
        let is_open = |x: &Output| {
            let fact = self.fact(*x).ok();
            matches!(fact.and_then(|fact| fact.dims.get(axis)), Some(Dim::Dynamic(_)))
        };
        let joins_open = tensors.len() > 1 && tensors.iter().any(is_open);
        let size = joins_open.then(|| self.graph().symbol());
        self.op(name, Op::Concat { axis, size }, tensors)
    }

    /// The elements of `range` along `axis`.
    ///
    /// # Errors
    /// When there are not so many. Of a dynamic size that is said in the step.
    pub fn slice(
        &mut self,
        name: &str,
        x: Output,
        axis: usize,
        range: Range<usize>,
    ) -> Result<Output> {
        let length = range.len();
        self.op(name, Op::Slice { axis, start: range.start, length }, &[x])
    }

    /// The same elements in their order, as `dims`. No byte is moved.
    ///
    /// # Errors
    /// When there are more or fewer.
    pub fn reshape(&mut self, name: &str, x: Output, dims: &[usize]) -> Result<Output> {
        let to = dims.iter().copied().map(Dim::Known).collect();
        self.op(name, Op::Reshape { to }, &[x])
    }

    /// Dimension d of the result is dimension `permutation[d]` of x.
    ///
    /// # Errors
    /// When it is no permutation of x's dimensions.
    pub fn transpose(&mut self, name: &str, x: Output, permutation: &[usize]) -> Result<Output> {
        self.op(name, Op::Transpose { permutation: permutation.to_vec() }, &[x])
    }

    /// x as another floating type, rounded to nearest.
    ///
    /// # Errors
    /// When either is none.
    pub fn cast(&mut self, name: &str, x: Output, to: DType) -> Result<Output> {
        self.op(name, Op::Cast { to }, &[x])
    }

    /// The sum along `axis`, which the result does not have.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn reduce_sum(&mut self, name: &str, x: Output, axis: usize) -> Result<Output> {
        self.op(name, Op::Reduce { by: Reduction::Sum, axis }, &[x])
    }

    /// The mean along `axis`, which the result does not have.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn reduce_mean(&mut self, name: &str, x: Output, axis: usize) -> Result<Output> {
        self.op(name, Op::Reduce { by: Reduction::Mean, axis }, &[x])
    }

    /// The largest along `axis`, which the result does not have.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn reduce_max(&mut self, name: &str, x: Output, axis: usize) -> Result<Output> {
        self.op(name, Op::Reduce { by: Reduction::Max, axis }, &[x])
    }

    /// The mean of all elements, `f[]`.
    ///
    /// # Errors
    /// When a dimension is not known.
    pub fn mean(&mut self, name: &str, x: Output) -> Result<Output> {
        let all = self.elements(name, x)?;
        let flat = self.reshape(&format!("{name}/flat"), x, &[all])?;
        self.reduce_mean(name, flat, 0)
    }

    /// Zeros of the scope's type.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn zeros(&mut self, name: &str, dims: &[usize]) -> Result<Output> {
        self.constant(name, 0.0, dims)
    }

    /// One value of the scope's type in every element.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn constant(&mut self, name: &str, value: f64, dims: &[usize]) -> Result<Output> {
        let spec = self.spec(name, dims)?;
        self.op(name, Op::Fill { value, spec }, &[])
    }

    /// How many elements a tensor of known size has.
    pub(super) fn elements(&self, name: &str, x: Output) -> Result<usize> {
        let fact = self.fact(x)?;
        match fact.spec() {
            Some(Ok(spec)) => Ok(spec.elements()),
            _ => Err(Error::layer(name, format!("x is {fact}; a tensor of known size is needed"))),
        }
    }
}
