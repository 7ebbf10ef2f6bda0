//! Errors of models, layers and data. An error names the layer, or the sample and the tensor.

use tensorwire_graph::GraphError;
use tensorwire_tensor::ShapeError;

/// The result type of models and data sets.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a program or a batch cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer's input does not fit it.
    #[error("layer '{layer}': {reason}")]
    Layer { layer: String, reason: String },
    /// The model reads a tensor that the data do not have.
    #[error(
        "the model reads '{name}', and the data have {known}; read one of these, or give other data"
    )]
    NoSuchInput { name: String, known: String },
    /// The model asks for the number of classes or words of a tensor without a bound.
    #[error(
        "'{name}' of the data has no bound; describe it by labels() or tokens(), which say how many there are"
    )]
    Unbounded { name: String },
    /// The model panicked while it was built.
    #[error("model '{model}': {method}() panicked: {reason}")]
    Panicked { model: String, method: &'static str, reason: String },
    /// The model cannot be trained on these data.
    #[error("{0}")]
    Mismatch(String),
    /// What the model returns cannot be a loss or a metric.
    #[error("{what} '{name}': {reason}")]
    Output { what: &'static str, name: String, reason: String },
    /// The loss does not depend on a parameter.
    #[error(
        "parameter '{name}' has no part in the loss; use it in what forward returns, or leave it out"
    )]
    UnusedParameter { name: String },
    /// The model has no parameters.
    #[error("{model} has no parameters; add a layer that has some, such as linear")]
    NoParameters { model: String },
    /// The data's description makes no sense.
    #[error("data '{data}': {reason}")]
    Description { data: String, reason: String },
    /// A sample cannot be read, or is not as described.
    #[error("data '{data}', sample {sample}: {reason}")]
    Sample {
        data: String,
        sample: usize,
        reason: String,
        /// What the data set said, if it did.
        #[source]
        cause: Option<Box<Error>>,
    },
    /// A sample holds what is no number to compute with.
    #[error(
        "data '{data}', sample {sample}: '{tensor}' holds {value}; leave the sample out, or give it a finite number"
    )]
    NotFinite { data: String, sample: usize, tensor: String, value: f64 },
    /// A batch could not be made.
    #[error("data '{data}': {reason}")]
    Batch { data: String, reason: String },
    #[error(
        "batch larger than data set: {workers} workers of batch {batch} need {needed} samples a step, \
         there are {samples}; lower the batch or the workers"
    )]
    BatchTooLarge { workers: usize, batch: usize, needed: u128, samples: usize },
    #[error("{workers} workers of batch {batch} are no samples a step; both must be at least 1")]
    NoBatch { workers: usize, batch: usize },
    /// A tensor's size overflows.
    #[error("'{name}': {source}")]
    Shape { name: String, source: ShapeError },
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An error of a model or a data set; see [`Error::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps any error, or a text.
    ///
    /// ```
    /// # use tensorwire_nn::{Error, Result};
    /// fn first_line(path: &str) -> Result<String> {
    ///     let text = std::fs::read_to_string(path).map_err(Error::other)?;
    ///     text.lines().next().map(str::to_string).ok_or_else(|| Error::other("the file is empty"))
    /// }
    /// # assert!(first_line("/no/such/file").is_err());
    /// ```
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(error.into())
    }

    /// An error of a layer.
    pub fn layer(layer: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Layer { layer: layer.into(), reason: reason.into() }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::other(error)
    }
}

/// What somebody said who panicked.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
