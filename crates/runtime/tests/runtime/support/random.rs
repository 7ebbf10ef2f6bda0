//! Choices from a seed, and a hash that tells runs apart.

pub(crate) use tensorwire_testkit::random::Random;

/// Folds a word into a hash of all words before it (FNV-1a, a word at a time).
pub(crate) fn fold(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
}
