//! Known models, and the data that they learn from. Uses [`tensorwire_nn`] as anybody does; knows no sessions, no fabric
//! and no threads. Reads only the files that it is given.
//!
//! [`MODELS`] are the models, each a type that implements [`Model`](tensorwire_nn::Model); [`data`] has the data sets, by the
//! names that the command line has for them:
//!
//! ```
//! use tensorwire_nn::{Batches, DType, Model, Optimizer, Program, ProgramSpec, Sharing};
//! use tensorwire_zoo::data::{SampleKind, Source};
//!
//! let model = tensorwire_zoo::model("cifar")?;
//! // 8×8 images of digits that come with this crate
//! let data = "digits".parse::<Source>()?.open(model.samples(), 1)?;
//! let described = data.train.describe();
//! model.check(&described)?;
//!
//! let spec = ProgramSpec {
//!     batch: 32,
//!     ..ProgramSpec::default()
//! };
//! let program = Program::new(&model, &described, &spec)?;
//! assert!(program.convolves());
//!
//! let mut batches = Batches::new(data.train, 1, 32, 1)?;
//! let first = batches.batch(0, 0)?;
//! assert_eq!(first.get("input").map(|x| x.spec().dims()), Some(&[32, 8, 8, 1][..]));
//! # Ok::<(), tensorwire_nn::Error>(())
//! ```
//!
//! Every one of them may be used beside a model or data of your own: `Training::new(tensorwire_zoo::Mlp, my_data)`.
#![forbid(unsafe_code)]

pub mod data;
mod models;

pub use models::*;
