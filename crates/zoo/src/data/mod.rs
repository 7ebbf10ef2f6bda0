//! Shipped data: a [`Source`] opens a data set by its name on the command line, and a [`SampleKind`] says what its samples
//! are. Each data set implements [`Dataset`](tensorwire_nn::Dataset) or [`BatchSource`](tensorwire_nn::BatchSource), as a
//! user's does.

mod chains;
mod cifar;
mod error;
mod grammar;
mod idx;
mod images;
mod kind;
mod mnist;
mod pairs;
mod reverse;
mod sentences;
mod sources;
mod synthetic;
mod text;
mod tokens;
mod topics;
mod vectors;

pub use error::DataError;
pub use images::{Images, Sequences, Split};
pub use kind::SampleKind;
pub use pairs::{PairSplit, Pairs};
pub use sentences::{SentenceSplit, Sentences};
pub use sources::Source;
pub use text::SENTENCE_WORDS_MAX;
pub use tokens::{MARKER, Tokens, UNKNOWN, Vocabulary};
