//! Neural networks as data-flow graphs: layers in a [`Scope`], a [`Model`] that is made of them, data to learn from, and the
//! [`Program`] that trains it. Builds graphs and runs none; knows no sessions, no fabric, no threads and no files.
//!
//! A model is a function from a batch to what is minimised:
//!
//! ```
//! use tensorwire_nn::{
//!     Batch, Description, DType, Model, Optimizer, Outputs, Program, ProgramSpec, Result, Scope,
//!     Sharing,
//! };
//!
//! /// A perceptron of one hidden layer.
//! struct Net;
//!
//! impl Model for Net {
//!     fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
//!         let x = s.flatten("input", batch.input("input")?)?;
//!         let y = s.linear_relu("hidden", x, 32)?;
//!         let logits = s.linear("output", y, batch.classes()?)?;
//!         Ok(Outputs::classification(logits, batch.labels()?))
//!     }
//! }
//!
//! // what its data look like: a Dataset says this of itself
//! let images = Description::new().input("input", DType::F32, &[8, 8, 1]).labels("labels", 10);
//! let spec = ProgramSpec {
//!     batch: 16,
//!     replicas: 2,
//!     optimizer: Optimizer::momentum(0.05),
//!     ..ProgramSpec::default()
//! };
//! let program = Program::new(&Net, &images, &spec)?;
//! let parameters: usize = program.variables.iter().map(|v| v.spec.elements()).sum();
//! assert_eq!(parameters, 64 * 32 + 32 + 32 * 10 + 10);
//! # Ok::<(), tensorwire_nn::Error>(())
//! ```
//!
//! [`Dataset`] is what brings data of your own: samples of one size, by number. [`Batches`] makes each worker's share of
//! them, in an order that seed and epoch decide. Errors name the layer, or the sample and the tensor.
#![forbid(unsafe_code)]

pub mod data;
mod error;
mod init;
mod model;
mod program;
mod schedule;
mod scope;

pub use data::{
    BatchMemory, BatchSource, Batches, Data, Dataset, Description, Extent, Feature, Filled,
    HostBatch, HostTensor, Sample, Stream, TestBatches, Values, order, packed,
};
pub use error::{Error, Result};
pub use init::initialise;
pub use model::{Batch, Model, Outputs};
pub use program::{
    Compression, Mean, Metric, ModelCopy, Program, ProgramSpec, Sharing, Tally, Variable,
    average_of, is_named, is_residual, rule_of,
};
pub use schedule::{RateCurve, Schedule, ScheduleError};
pub use scope::{
    Averages, CrossEntropy, LocalNorm, Mask, Mode, Norm, Padding, Recurrent, Scope, Sequence,
};
pub use tensorwire_graph::{
    Cell, Comparison, HeadOrder, Init, Method, Op, Output, Reduction, Rule as Optimizer, Task,
    Unary, Window,
};
pub use tensorwire_tensor::{DType, Dim, Element, Fact, TensorSpec};

/// The label of a row that counts for nothing: neither in a loss nor in an accuracy. What fills a batch up has it.
pub const PADDING_LABEL: i32 = -1;
