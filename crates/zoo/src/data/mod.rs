//! What the shipped models learn from: where it comes from ([`Source`]), and of what kind it is ([`SampleKind`]). Each data
//! set is a [`Dataset`](tensorwire_nn::Dataset) or a [`BatchSource`](tensorwire_nn::BatchSource), as anybody's.

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
