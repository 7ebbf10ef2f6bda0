//! tensorwire: distributed deep learning in which a remote machine is just a device.
//!
//! A program brings a model and data, and trains them on several processes or machines:
//!
//! ```
//! use tensorwire::prelude::*;
//!
//! /// A perceptron of one hidden layer.
//! struct Net;
//!
//! impl Model for Net {
//!     fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
//!         let x = s.linear_relu("hidden", batch.input("point")?, 16)?;
//!         let logits = s.linear("output", x, batch.classes()?)?;
//!         Ok(Outputs::classification(logits, batch.labels()?))
//!     }
//! }
//!
//! /// Points of the plane, and the quadrant that each lies in.
//! struct Points(usize);
//!
//! impl Dataset for Points {
//!     fn describe(&self) -> Description {
//!         Description::new().input("point", DType::F32, &[2]).labels("labels", 4)
//!     }
//!
//!     fn len(&self) -> usize {
//!         self.0
//!     }
//!
//!     fn get(&self, index: usize, sample: &mut Sample<'_>) -> nn::Result<()> {
//!         let angle = index as f32 * 2.4;
//!         let (y, x) = angle.sin_cos();
//!         sample.set("point", &[x, y])?;
//!         sample.set_label("labels", i32::from(x < 0.0) + 2 * i32::from(y < 0.0))
//!     }
//! }
//!
//! # fn main() -> tensorwire::Result<()> {
//! tensorwire::init()?;
//! let summary = Training::new(Net, (Points(400), Points(100)))
//!     .strategy(Local { replicas: 2 }) // ParameterServers { workers: 2, servers: 2 } takes four processes
//!     .batch(20)
//!     .epochs(20)
//!     .run()?;
//! assert!(summary.test_accuracy > Some(0.9));
//! # Ok(())
//! # }
//! ```
//!
//! Below that lie the parts, each a crate that can be used alone: [`graph`] plans a data-flow graph over several tasks,
//! [`runtime`] runs a part of it, [`fabric`] moves bytes by one-sided writes, [`kvstore`] shares tensors in a store,
//! [`collectives`] reduces them in a group, [`launch`] starts the processes of a job, and [`program`] is what a program does
//! that launches jobs of its own kind.
#![forbid(unsafe_code)]

mod error;
pub mod prelude;
pub mod program;
pub mod store;
pub mod strategies;
mod training;

pub use error::{Error, Result};
pub use program::init;
pub use training::{Remedies, Training};

pub use tensorwire_base as base;
pub use tensorwire_collectives as collectives;
pub use tensorwire_fabric as fabric;
pub use tensorwire_graph as graph;
pub use tensorwire_import as import;
pub use tensorwire_kernels as kernels;
pub use tensorwire_kvstore as kvstore;
pub use tensorwire_launch as launch;
pub use tensorwire_memory as memory;
#[cfg(feature = "mpi")]
pub use tensorwire_mpi as mpi;
pub use tensorwire_nn as nn;
pub use tensorwire_runtime as runtime;
pub use tensorwire_tensor as tensor;
pub use tensorwire_train as train;
pub use tensorwire_zoo as zoo;
