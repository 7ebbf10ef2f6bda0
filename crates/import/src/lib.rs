//! Modules of PyTorch as models: what `torch.export` gives of one, undecomposed, becomes a graph of our operators, which we
//! differentiate and train as any other. Knows operators by PyTorch's names; knows no Python, no files and no processes.
//!
//! A [`Module`] is the exported module as data: its nodes with their arguments by name, and where each stands in the source.
//! [`ImportedModel`] is that as a [`Model`](tensorwire_nn::Model): whatever trains a model trains it. What a node means is a
//! row of a table (`table.rs`): a function from its arguments to tensors. What it makes is held against the dimensions that
//! PyTorch gave.
//!
//! PyTorch's views cost nothing here either: a permuted tensor is the same one with its dimensions in another order
//! (`order.rs`), so that images, which PyTorch has channels first and our kernels channels last, are turned once.
#![forbid(unsafe_code)]

mod call;
mod error;
mod model;
mod module;
mod operators;
mod order;
mod table;

pub use error::{CallSite, ImportError, Result};
pub use model::ImportedModel;
pub use module::{
    Argument, Module, ModuleNode, ModuleState, OutputShape, SourcePlace, TensorArgument,
    TensorInput,
};
pub use table::known;
