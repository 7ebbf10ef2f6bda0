//! Models: a model is a function from a scope and a batch to a loss and metrics.

use std::sync::Arc;

use tensorwire_graph::Output;
use tensorwire_tensor::{DType, Dim, Fact};

use crate::data::{Description, Extent, Feature, LABELS, short_type_name};
use crate::error::{Error, Result};
use crate::scope::Scope;

/// A model.
///
/// ```
/// use tensorwire_nn::{Batch, Model, Outputs, Padding, Result, Scope};
///
/// /// Two convolutions and a classifier, for images of any size.
/// struct Net;
///
/// impl Model for Net {
///     fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
///         let x = batch.input("input")?;
///         let y = s.conv_relu("conv1", x, 16, 3, 1, Padding::Same)?;
///         let y = s.max_pool("pool1", y, 2, 2, Padding::Same)?;
///         let y = s.conv_relu("conv2", y, 32, 3, 1, Padding::Same)?;
///         let y = s.global_avg_pool("pool2", y)?;
///         let logits = s.linear("output", y, batch.classes()?)?;
///         Ok(Outputs::classification(logits, batch.labels()?))
///     }
/// }
/// ```
pub trait Model: Send + Sync {
    /// The name that messages use. By default the name of the type.
    fn name(&self) -> String {
        short_type_name::<Self>().to_string()
    }

    /// Adds one copy of the model to the scope's graph. Every process of a job calls this for every copy, so the result may
    /// depend only on `self`, the scope and the batch.
    ///
    /// # Errors
    /// When a layer's inputs do not fit it.
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs>;

    /// Checks whether the model can be trained on such data, before anything is built. [`Error::Mismatch`] lets a model say in
    /// its own words what is wrong; otherwise the first layer that does not fit reports it.
    ///
    /// # Errors
    /// What does not fit, and what would.
    fn check(&self, data: &Description) -> Result<()> {
        let _ = data;
        Ok(())
    }
}

impl<M: Model + ?Sized> Model for &M {
    fn name(&self) -> String {
        (**self).name()
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        (**self).forward(s, batch)
    }

    fn check(&self, data: &Description) -> Result<()> {
        (**self).check(data)
    }
}

impl<M: Model + ?Sized> Model for Arc<M> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        (**self).forward(s, batch)
    }

    fn check(&self, data: &Description) -> Result<()> {
        (**self).check(data)
    }
}

/// The input tensors of one copy of a model, as the data describe them. Tensors that the model does not read are not fed.
#[derive(Debug)]
pub struct Batch<'a> {
    description: &'a Description,
    tensors: Vec<Output>,
    size: usize,
}

impl<'a> Batch<'a> {
    /// Adds an input for each tensor that the data describe, and casts floating-point tensors to the scope's type.
    pub(crate) fn new(s: &mut Scope<'_>, description: &'a Description) -> Result<Batch<'a>> {
        let (mut tensors, mut symbols) = (Vec::new(), Vec::new());
        for Feature { name, dtype, dims, .. } in description.features() {
            let dims = dims.iter().map(|dim| dim_of(s, *dim, &mut symbols)).collect();
            let input = s.input(name, Fact { dtype: *dtype, dims })?;
            let is_number = dtype.is_floating() && *dtype != s.dtype();
            let to: DType = s.dtype();
            tensors.push(match is_number {
                true => s.cast(&format!("{name}/cast"), input, to)?,
                false => input,
            });
        }
        Ok(Batch { description, tensors, size: s.batch() })
    }

    /// Samples in the batch.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The description of the data.
    pub fn description(&self) -> &Description {
        self.description
    }

    /// The tensor of this name. Floating-point tensors have the type that the model computes with.
    ///
    /// # Errors
    /// When the data have no such tensor. The error lists those that they have.
    pub fn input(&self, name: &str) -> Result<Output> {
        let found = self.description.features().iter().position(|feature| feature.name == name);
        found.map(|at| self.tensors[at]).ok_or_else(|| self.no_such(name))
    }

    /// The description of this tensor.
    ///
    /// # Errors
    /// When the data have no such tensor. The error lists those that they have.
    pub fn feature(&self, name: &str) -> Result<&Feature> {
        self.description.get(name).ok_or_else(|| self.no_such(name))
    }

    /// The bound of a tensor's values: the number of classes or of words.
    ///
    /// # Errors
    /// When the data have no such tensor, or give no bound for it.
    pub fn bound(&self, name: &str) -> Result<usize> {
        let bound = self.feature(name)?.values.bound();
        bound.ok_or_else(|| Error::Unbounded { name: name.to_string() })
    }

    /// The tensor `labels`.
    ///
    /// # Errors
    /// When the data have no labels.
    pub fn labels(&self) -> Result<Output> {
        self.input(LABELS)
    }

    /// The number of classes in `labels`.
    ///
    /// # Errors
    /// When the data have no labels, or give no bound for them.
    pub fn classes(&self) -> Result<usize> {
        self.bound(LABELS)
    }

    fn no_such(&self, name: &str) -> Error {
        Error::NoSuchInput { name: name.to_string(), known: self.description.to_string() }
    }
}

/// A dimension of a batch; those of one number are one symbol.
fn dim_of(s: &mut Scope<'_>, dim: Extent, symbols: &mut Vec<(u32, Dim)>) -> Dim {
    match dim {
        Extent::Known(size) => Dim::Known(size),
        // more than any memory has is refused when the input is made
        Extent::Batch(each) => Dim::Known(each.saturating_mul(s.batch())),
        Extent::Varying(number) => match symbols.iter().find(|(known, _)| *known == number) {
            Some((_, dim)) => *dim,
            None => {
                let dim = Dim::Dynamic(s.graph().symbol());
                symbols.push((number, dim));
                dim
            }
        },
    }
}

/// What a model computes from a batch: a loss to minimise, and metrics to measure when it is evaluated.
///
/// ```
/// use tensorwire_nn::{Batch, Model, Outputs, Result, Scope};
///
/// /// A line through points.
/// struct Line;
///
/// impl Model for Line {
///     fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
///         let y = s.linear("line", batch.input("x")?, 1)?;
///         let error = s.squared_error("error", y, batch.input("y")?)?;
///         Ok(Outputs::loss(error).metric("mean_squared_error", error))
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Outputs {
    pub(crate) loss: Loss,
    /// In training alone, each with its weight.
    pub(crate) auxiliary: Vec<(Loss, f64)>,
    pub(crate) metrics: Vec<(String, Measure)>,
}

/// What is minimised.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// The cross-entropy of `[rows, classes]` for `i32[rows]`.
    Classes { logits: Output, labels: Output },
    /// `f[]`, or `f[batch]` whose mean it is.
    Value(Output),
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// `f[]`, or `f[batch]`.
    Mean(Output),
    /// `i64[]`.
    Count(Output),
}

impl Outputs {
    /// The outputs of a classifier, from logits: `f[rows, classes]` and labels: `i32[rows]`. The loss is the mean cross-entropy.
    /// Evaluation also measures `accuracy`, the share of rows whose largest logit is at the label. Rows with the label
    /// [`PADDING_LABEL`](crate::PADDING_LABEL) are ignored.
    pub fn classification(logits: Output, labels: Output) -> Outputs {
        Outputs::of(Loss::Classes { logits, labels })
    }

    /// Any loss: `f[]`, one number a batch, or `f[batch]`, one number a sample, of which the mean is minimised. Evaluation
    /// ignores the padding of a partly filled test batch if the loss is given by sample; otherwise it leaves out that batch.
    pub fn loss(loss: Output) -> Outputs {
        Outputs::of(Loss::Value(loss))
    }

    fn of(loss: Loss) -> Outputs {
        Outputs { loss, auxiliary: Vec::new(), metrics: Vec::new() }
    }

    /// Adds `weight` times the loss of an auxiliary classifier, in training only.
    #[must_use]
    pub fn auxiliary(mut self, logits: Output, labels: Output, weight: f64) -> Outputs {
        self.auxiliary.push((Loss::Classes { logits, labels }, weight));
        self
    }

    /// Adds `weight` times another loss, `f[]` or `f[batch]`, in training only.
    #[must_use]
    pub fn training_loss(mut self, loss: Output, weight: f64) -> Outputs {
        self.auxiliary.push((Loss::Value(loss), weight));
        self
    }

    /// Measures the mean of `value` over the test samples: `f[batch]`, one number a sample, or `f[]`, one number a batch.
    /// Partly filled batches are treated as for [`Outputs::loss`].
    #[must_use]
    pub fn metric(mut self, name: &str, value: Output) -> Outputs {
        self.metrics.push((name.to_string(), Measure::Mean(value)));
        self
    }

    /// Measures the share of test labels that are right. `right` is their number in the batch: `i64[]`, as from
    /// [`Op::CountCorrect`](crate::Op::CountCorrect).
    #[must_use]
    pub fn count(mut self, name: &str, right: Output) -> Outputs {
        self.metrics.push((name.to_string(), Measure::Count(right)));
        self
    }
}
