//! What a tensor is, without its bytes: element type, dimensions, sizes. Integers only, no pointers.
#![forbid(unsafe_code)]

mod dtype;
mod fact;
mod shape;

pub use dtype::{DType, Element};
pub use fact::{Dim, Fact, Symbol};
pub use shape::{RANK_MAX, Shape, ShapeError, TensorSpec};
