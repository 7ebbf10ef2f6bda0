//! What a model learns from: where it comes from ([`Source`]), what it is ([`Data`]), and which sample each
//! worker sees in which step ([`Batches`], as [`Fed`] tensors). Nothing here knows a graph or a clock.

mod batches;
mod cifar;
mod dataset;
mod error;
mod fed;
mod grammar;
mod idx;
mod images;
mod order;
mod pairs;
mod reverse;
mod sentences;
mod source;
mod synthetic;
mod text;
mod tokens;
mod topics;

pub use batches::Batches;
pub use dataset::{Data, Shape};
pub use error::DataError;
pub use fed::{Fed, FedValues, counted};
pub use images::{Images, PADDING_LABEL, Sequences, Split};
pub use pairs::{PairSplit, Pairs};
pub use sentences::{SentenceSplit, Sentences};
pub use source::{GRAMMAR_PAIRS, REVERSE_PAIRS, SYNTHETIC_SAMPLES, Source};
pub use text::SENTENCE_WORDS_MAX;
pub use tokens::{MARKER, Tokens, UNKNOWN, Vocabulary};

/// Random bits of `seed`: stream `stream` of ChaCha8, whose bits a published algorithm fixes, so that
/// every machine and every later version draws the same.
fn random(seed: u64, stream: u64) -> rand_chacha::ChaCha8Rng {
    use rand_chacha::rand_core::SeedableRng;
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = rand_chacha::ChaCha8Rng::from_seed(key);
    random.set_stream(stream);
    random
}
