//! Made-up data: for models whose real data nobody ships, and for measuring. Each class has a random
//! image, each sample is the mean of its class's image and noise, so a model can learn it.

use rand_chacha::rand_core::RngCore;

use super::dataset::{Dataset, Split};
use super::error::DataError;

/// `samples` train samples and a quarter of that (at least one) to test with; the same on every
/// machine for the same arguments. Sample `i` is of class `i mod classes`.
pub(super) fn dataset(
    samples: usize,
    features: usize,
    classes: usize,
    seed: u64,
) -> Result<Dataset, DataError> {
    let refused = || DataError::NoSynthetic { samples, features, classes };
    if samples == 0 || features == 0 || classes == 0 || i32::try_from(classes).is_err() {
        return Err(refused());
    }
    let mut rng = super::random(seed, 0);
    let mut prototypes = zeroed(classes, features).ok_or_else(refused)?;
    rng.fill_bytes(&mut prototypes);
    let mut split = |samples| -> Option<Split> {
        let mut pixels = zeroed(samples, features)?;
        rng.fill_bytes(&mut pixels);
        let of_class = prototypes.chunks_exact(features).cycle();
        for (sample, prototype) in pixels.chunks_exact_mut(features).zip(of_class) {
            for (pixel, &base) in sample.iter_mut().zip(prototype) {
                *pixel = pixel.midpoint(base);
            }
        }
        // fits: checked above
        let labels = (0..classes as i32).cycle().take(samples).collect();
        Some(Split::new(features, pixels, labels))
    };
    let train = split(samples).ok_or_else(refused)?;
    let test = split((samples / 4).max(1)).ok_or_else(refused)?;
    Ok(Dataset { name: "synthetic".to_owned(), train, test, features, classes })
}

/// `rows × columns` bytes, or none where they do not fit in memory.
fn zeroed(rows: usize, columns: usize) -> Option<Vec<u8>> {
    let bytes = rows.checked_mul(columns)?;
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes).ok()?;
    zeros.resize(bytes, 0);
    Some(zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_set() {
        let make = |seed| dataset(40, 12, 7, seed).unwrap();
        assert_eq!(make(3).train, make(3).train);
        assert_eq!(make(3).test, make(3).test);
        assert_ne!(make(3).train, make(4).train);
    }

    #[test]
    fn a_sample_is_nearest_to_its_own_class() {
        let data = dataset(200, 64, 10, 1).unwrap();
        assert_eq!((data.train.samples(), data.test.samples()), (200, 50));
        let distance = |a: &[u8], b: &[u8]| -> u32 {
            a.iter().zip(b).map(|(&a, &b)| u32::from(a.abs_diff(b)).pow(2)).sum()
        };
        for i in 0..data.test.samples() {
            // the first ten train samples are one of each class, in order
            let nearest = (0..10)
                .min_by_key(|&c| distance(data.test.pixels(i), data.train.pixels(c)))
                .unwrap();
            assert_eq!(data.test.labels()[i], nearest as i32);
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for (samples, features, classes) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (usize::MAX, 2, 1)] {
            let error = dataset(samples, features, classes, 0).unwrap_err();
            assert!(matches!(error, DataError::NoSynthetic { .. }), "{error}");
        }
    }
}
