//! Shipped data: a [`Source`] opens a data set by its name on the command line, and a [`SampleKind`] says what its samples
//! are. Each data set implements [`Dataset`](tensorwire_nn::Dataset) or [`BatchSource`](tensorwire_nn::BatchSource), as a
//! user's does.

mod arrays;
mod chains;
mod characters;
mod cifar;
mod crop;
mod decode;
mod error;
mod folder;
#[doc(hidden)]
pub mod fuzz;
mod grammar;
mod idx;
mod images;
mod kind;
mod mnist;
mod npy;
mod npy_files;
mod pairs;
mod photos;
mod reverse;
mod scaled;
mod sentences;
mod sheets;
mod sources;
mod subwords;
mod synthetic;
mod table;
mod text;
mod token_files;
mod tokens;
mod topics;
mod vectors;
mod verses;
mod windows;
mod zipped;

pub use arrays::Arrays;
pub use characters::Characters;
pub use error::DataError;
pub use images::{Images, Sequences, Split};
pub use kind::SampleKind;
pub use pairs::{PairSplit, Pairs};
pub use photos::{ImageFolder, Photos};
pub use sentences::{SentenceSplit, Sentences};
pub use sources::Source;
pub use text::SENTENCE_WORDS_MAX;
pub use tokens::{MARKER, Tokens, UNKNOWN, Vocabulary};
