//! What is stored: keys of the user, parts of their values, and what a value is.

use serde::{Deserialize, Serialize};
use tensorwire_tensor::DType;

/// The user's name for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub u64);

/// The name of a part of a value on the wire: a number in the range of the server that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartKey(pub u64);

/// What a value or a part of one is: a matrix of rows, which for a dense value have one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueSpec {
    pub dtype: DType,
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}
