//! Data: what users implement, batches as named tensors, and which sample each worker sees in which step. Nothing here knows
//! a graph, a file or a clock.

mod batches;
mod dataset;
mod description;
mod memory;
pub mod order;
pub mod packed;
mod source;

pub use batches::{Batches, TestBatches};
pub use dataset::{Dataset, Sample, Stream};
pub use description::{Description, Extent, Feature, LABELS, Values};
pub use memory::{BatchMemory, Filled, HostBatch, HostTensor, elements, spec};
pub use source::{BatchSource, Data};

pub(crate) use dataset::short_type_name;
pub(crate) use description::STEP;
