//! What a model learns from: where it comes from ([`Source`]), what it is ([`Dataset`]), and which
//! sample each worker sees in which step ([`Batches`]). Bytes go from the file's pixels straight into
//! the memory that the caller names; nothing here knows a graph, a tensor or a clock.

mod batches;
mod dataset;
mod error;
mod idx;
mod source;
mod synthetic;

pub use batches::Batches;
pub use dataset::{Dataset, PADDING_LABEL, Split};
pub use error::DataError;
pub use source::{SYNTHETIC_SAMPLES, Source};

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
