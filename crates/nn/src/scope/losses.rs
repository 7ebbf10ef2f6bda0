//! What models minimise. A loss is a number a batch, `f[]`, or better one a sample, `f[b]`: then rows that only fill a batch up
//! count for nothing when it is evaluated.

use tensorwire_graph::{Op, Output, Unary};
use tensorwire_tensor::DType;

use super::Scope;
use crate::error::{Error, Result};

/// A cross-entropy's target: 1 − smoothing + smoothing/c at the label, smoothing/c at every other class (Szegedy et al. 2015,
/// §7).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// From 0 to 1.
    pub smoothing: f64,
    /// The label of rows that count for nothing. What fills a batch up is labelled
    /// [`PADDING_LABEL`](crate::PADDING_LABEL).
    pub ignored: i32,
}

impl Default for CrossEntropy {
    /// Without smoothing; ignores [`PADDING_LABEL`](crate::PADDING_LABEL).
    fn default() -> CrossEntropy {
        CrossEntropy { smoothing: 0.0, ignored: crate::PADDING_LABEL }
    }
}

impl Scope<'_> {
    /// The mean of −Σ target·log `softmax(logits)` over the rows that count; logits: `f[…, c]`, labels: `i32[…]` → `f[]`: PyTorch's
    /// `CrossEntropyLoss`, but 0 where no row counts.
    ///
    /// # Errors
    /// When there is not one label a row.
    pub fn cross_entropy(
        &mut self,
        name: &str,
        logits: Output,
        labels: Output,
        target: CrossEntropy,
    ) -> Result<Output> {
        let (logits, labels) = self.labelled(name, logits, labels)?;
        let CrossEntropy { smoothing, ignored } = target;
        self.op(name, Op::CrossEntropy { smoothing, ignored }, &[logits, labels])
    }

    /// How many rows have their label among their `k` largest logits; logits: `f[…, c]`, labels: `i32[…]` → `i64[]`, for
    /// [`Outputs::count`](crate::Outputs::count). Rows of label [`PADDING_LABEL`](crate::PADDING_LABEL) never do.
    ///
    /// # Errors
    /// When there is not one label a row.
    pub fn count_within(
        &mut self,
        name: &str,
        logits: Output,
        labels: Output,
        k: usize,
    ) -> Result<Output> {
        let (logits, labels) = self.labelled(name, logits, labels)?;
        self.op(name, Op::CountWithin { k }, &[logits, labels])
    }

    /// Logits as a matrix, and a label for each of its rows.
    fn labelled(&mut self, name: &str, logits: Output, labels: Output) -> Result<(Output, Output)> {
        let [found, given] = [logits, labels].map(|x| self.fact(x).cloned());
        let (found, given) = (found?, given?);
        if found.dims.len() != given.dims.len() + 1 {
            let reason = format!("logits are {found} and labels {given}; one a row is needed");
            return Err(Error::layer(name, reason));
        }
        let (logits, _) = self.rows(&format!("{name}/logits"), logits)?;
        let (labels, _) = self.flat(&format!("{name}/labels"), labels)?;
        Ok((logits, labels))
    }

    /// −target·log σ(x) − (1 − target)·log (1 − σ(x)), the mean over all; x and target: `f[…]` of one known size → `f[]`:
    /// PyTorch's `BCEWithLogitsLoss`, computed as (1 − target)·x + log(1 + e⁻ˣ), which does not overflow.
    ///
    /// # Errors
    /// When they are of two shapes, or a dimension is not known.
    pub fn binary_cross_entropy_with_logits(
        &mut self,
        name: &str,
        x: Output,
        target: Output,
    ) -> Result<Output> {
        let product = self.mul(&format!("{name}/product"), x, target)?;
        let rest = self.sub(&format!("{name}/rest"), x, product)?;
        let negative = self.unary(&format!("{name}/negative"), Unary::Neg, x)?;
        let soft = self.unary(&format!("{name}/softplus"), Unary::Softplus, negative)?;
        let each = self.add(&format!("{name}/each"), rest, soft)?;
        self.mean(name, each)
    }

    /// −log `softmax(logits)[label]`, the mean over rows; logits: `f[b, c]`, labels: `i32[b]` → `f[]`. Rows of label
    /// [`PADDING_LABEL`](crate::PADDING_LABEL) count for nothing; any other label outside 0..c ends the job.
    ///
    /// A classifier returns [`Outputs::classification`](crate::Outputs::classification) instead, which has this loss and an
    /// accuracy.
    ///
    /// # Errors
    /// When the logits are no matrix of floating point, or there is not one label a row.
    pub fn softmax_cross_entropy(
        &mut self,
        name: &str,
        logits: Output,
        labels: Output,
    ) -> Result<Output> {
        self.op(name, Op::SoftmaxCrossEntropy, &[logits, labels])
    }

    /// Logits of two classes from one number a sample, x: `f[b]` or `f[b, 1]` → (0, x): `f[b, 2]`, whose softmax says "1" with
    /// probability σ(x). With [`Outputs::classification`](crate::Outputs::classification) and labels 0 and 1 that is the
    /// binary cross-entropy of σ(x), computed without overflow.
    ///
    /// # Errors
    /// When `x` is neither.
    pub fn binary_logits(&mut self, name: &str, x: Output) -> Result<Output> {
        let (rows, dtype) = (self.elements(name, x)?, self.fact(x)?.dtype);
        let column = self.reshape(&format!("{name}/column"), x, &[rows, 1])?;
        let spec = crate::data::spec(name, dtype, &[rows, 1])?;
        let zeros = self.op(&format!("{name}/zeros"), Op::Fill { value: 0.0, spec }, &[])?;
        self.concat(name, 1, &[zeros, column])
    }

    /// −log σ(x) where the label is 1, −log (1 − σ(x)) where it is 0, the mean over all; x: `f[b, …]`, labels: `i32[b, …]` → `f[]`.
    /// Labels of [`PADDING_LABEL`](crate::PADDING_LABEL) count for nothing.
    ///
    /// # Errors
    /// When there is not one label for each element.
    pub fn binary_cross_entropy(
        &mut self,
        name: &str,
        x: Output,
        labels: Output,
    ) -> Result<Output> {
        let logits = self.binary_logits(&format!("{name}/logits"), x)?;
        let count = self.elements(name, labels)?;
        let labels = self.reshape(&format!("{name}/labels"), labels, &[count])?;
        self.softmax_cross_entropy(name, logits, labels)
    }

    /// (x − target)², the mean over each sample's elements; both `f[b, …]` → `f[b]`.
    ///
    /// # Errors
    /// When they are of two shapes.
    pub fn squared_error(&mut self, name: &str, x: Output, target: Output) -> Result<Output> {
        let found = [self.fact(x)?, self.fact(target)?];
        if found[0].dims != found[1].dims || found[0].dtype != found[1].dtype {
            let [x, target] = found;
            let reason = format!("x is {x} and target is {target}; both must be of one shape");
            return Err(Error::layer(name, reason));
        }
        let rows = self.known(name, ("x", x), 0, "a tensor [batch, …] of known size is needed")?;
        let columns = self.elements(name, x)? / rows;
        let difference = self.sub(&format!("{name}/difference"), x, target)?;
        let squares = self.mul(&format!("{name}/squares"), difference, difference)?;
        let squares = self.reshape(&format!("{name}/rows"), squares, &[rows, columns])?;
        self.reduce_mean(name, squares, 1)
    }

    /// (x − target)², the mean over all elements; both `f[b, …]` → `f[]`. As a loss, [`Scope::squared_error`] is better.
    ///
    /// # Errors
    /// When they are of two shapes.
    pub fn mean_squared_error(&mut self, name: &str, x: Output, target: Output) -> Result<Output> {
        let each = self.squared_error(&format!("{name}/each"), x, target)?;
        self.mean(name, each)
    }

    /// A tensor as f32, in which losses are summed up.
    pub(crate) fn as_f32(&mut self, name: &str, x: Output) -> Result<Output> {
        self.as_type(name, x, DType::F32)
    }
}
