//! Made-up data: for models whose real data nobody ships, and for measuring. Each class has a random
//! image, each sample is the mean of its class's image and noise, so a model can learn it.

use std::sync::Arc;

use tensorwire_nn::order::{RngCore, random};

use super::error::DataError;
use super::images::{Images, Sequences, Split};

/// Most bytes of a set whose values are all kept in memory; of a larger set each sample is made
/// when it is asked for. No sample may be larger.
const STORED_BYTES_MAX: usize = 256 << 20;

/// Where the random streams begin that make classes and samples one by one. Streams below are those of
/// stored sets and of the epochs' orders.
const CLASS_STREAMS: u64 = 1 << 62;
const TRAIN_STREAMS: u64 = 2 << 62;
const TEST_STREAMS: u64 = 3 << 62;

/// How each sample of a split is made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recipe {
    seed: u64,
    features: usize,
    /// The random stream of sample 0.
    stream: u64,
}

impl Recipe {
    /// Values of a sample.
    pub(super) fn features(&self) -> usize {
        self.features
    }

    /// The values of a sample of class `label`.
    pub(super) fn make(&self, sample: usize, label: i32) -> Vec<u8> {
        let bytes = |stream: u64| {
            let mut bytes = vec![0; self.features];
            random(self.seed, stream).fill_bytes(&mut bytes);
            bytes
        };
        // fits: labels are not negative, and streams lie far apart
        let class = bytes(CLASS_STREAMS + label as u64);
        let mut values = bytes(self.stream + sample as u64);
        mix(&mut values, &class);
        values
    }
}

impl Images {
    /// `samples` train images of `dims` = `[height, width, channels]` and a quarter of that (at least one) to
    /// test with; the same on every machine for the same arguments. Sample `i` is of class `i mod classes`.
    ///
    /// # Errors
    /// When there are none, or more than memory has room for.
    pub fn synthetic(
        samples: usize,
        dims: [usize; 3],
        classes: usize,
        seed: u64,
    ) -> Result<Images, DataError> {
        let features = dims.iter().fold(1usize, |product, &dim| product.saturating_mul(dim));
        let (train, test) = splits(samples, features, classes, seed)?;
        Ok(Images::new("synthetic", train, test, dims, classes))
    }
}

impl Sequences {
    /// Sequences of `steps` vectors of `features` values; else as [`Images::synthetic`].
    ///
    /// # Errors
    /// As [`Images::synthetic`].
    pub fn synthetic(
        samples: usize,
        [steps, features]: [usize; 2],
        classes: usize,
        seed: u64,
    ) -> Result<Sequences, DataError> {
        let (train, test) = splits(samples, steps.saturating_mul(features), classes, seed)?;
        let (train, test) = (Arc::new(train), Arc::new(test));
        Ok(Sequences { name: "synthetic".to_owned(), train, test, steps, features, classes })
    }
}

fn splits(
    samples: usize,
    features: usize,
    classes: usize,
    seed: u64,
) -> Result<(Split, Split), DataError> {
    let refused = || DataError::NoSynthetic { samples, features, classes };
    let some = samples > 0 && features > 0 && classes > 0;
    if !some || i32::try_from(classes).is_err() || features > STORED_BYTES_MAX {
        return Err(refused());
    }
    let test_samples = (samples / 4).max(1);
    let kept = samples.saturating_add(test_samples).saturating_add(classes);
    if kept.saturating_mul(features) > STORED_BYTES_MAX {
        let made = |samples, stream| -> Option<Split> {
            Some(Split::made(Recipe { seed, features, stream }, labels(samples, classes)?))
        };
        let train = made(samples, TRAIN_STREAMS).ok_or_else(refused)?;
        return Ok((train, made(test_samples, TEST_STREAMS).ok_or_else(refused)?));
    }
    let mut rng = random(seed, 0);
    let mut prototypes = zeroed(classes, features).ok_or_else(refused)?;
    rng.fill_bytes(&mut prototypes);
    let mut split = |samples| -> Option<Split> {
        let mut pixels = zeroed(samples, features)?;
        rng.fill_bytes(&mut pixels);
        let of_class = prototypes.chunks_exact(features).cycle();
        for (sample, prototype) in pixels.chunks_exact_mut(features).zip(of_class) {
            mix(sample, prototype);
        }
        Some(Split::new(features, pixels, labels(samples, classes)?))
    };
    let train = split(samples).ok_or_else(refused)?;
    Ok((train, split(test_samples).ok_or_else(refused)?))
}

/// A sample of its noise and its class's image.
fn mix(noise: &mut [u8], prototype: &[u8]) {
    for (pixel, &base) in noise.iter_mut().zip(prototype) {
        *pixel = pixel.midpoint(base);
    }
}

/// The classes in turn, or none where they do not fit in memory.
fn labels(samples: usize, classes: usize) -> Option<Vec<i32>> {
    let mut labels = Vec::new();
    labels.try_reserve_exact(samples).ok()?;
    // fits: the caller has checked it
    labels.extend((0..classes as i32).cycle().take(samples));
    Some(labels)
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

    /// Sample `i` of the test is nearest to the train sample of its class among the first ten, which
    /// are one of each class, in order.
    fn assert_learnable(train: &Split, test: &Split, samples: usize) {
        let distance = |a: &[u8], b: &[u8]| -> u64 {
            a.iter().zip(b).map(|(&a, &b)| u64::from(a.abs_diff(b)).pow(2)).sum()
        };
        for i in 0..samples {
            let sample = test.pixels(i);
            let nearest = (0..10).min_by_key(|&c| distance(&sample, &train.pixels(c))).unwrap();
            assert_eq!(test.labels()[i], nearest as i32);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_set() {
        let make = |seed| Images::synthetic(40, [3, 2, 2], 7, seed).unwrap();
        assert_eq!(make(3).train, make(3).train);
        assert_eq!(make(3).test, make(3).test);
        assert_ne!(make(3).train, make(4).train);
    }

    #[test]
    fn a_sample_is_nearest_to_its_own_class() {
        let data = Images::synthetic(200, [8, 8, 1], 10, 1).unwrap();
        assert_eq!((data.train.samples(), data.test.samples()), (200, 50));
        assert_learnable(&data.train, &data.test, 50);
    }

    #[test]
    fn a_large_set_is_made_sample_by_sample() {
        let make = |seed| Images::synthetic(10_000, [224, 224, 3], 10, seed).unwrap();
        let data = make(1);
        assert_eq!((data.train.samples(), data.test.samples()), (10_000, 2500));
        assert!(matches!(data.train.pixels(9999), std::borrow::Cow::Owned(_)));
        assert_learnable(&data.train, &data.test, 3);
        assert_eq!(data.train.pixels(77), make(1).train.pixels(77));
        assert_ne!(data.train.pixels(77), make(2).train.pixels(77));
        // same class, other noise
        assert_ne!(data.train.pixels(7), data.train.pixels(17));
        assert_ne!(data.train.pixels(0), data.test.pixels(0));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let most = usize::MAX;
        for (samples, features, classes) in
            [(0, 1, 1), (1, 0, 1), (1, 1, 0), (most, 2, 1), (1, most, 1), (1, 1, most)]
        {
            let error = Images::synthetic(samples, [1, features, 2], classes, 0).unwrap_err();
            assert!(matches!(error, DataError::NoSynthetic { .. }), "{error}");
            let error = Sequences::synthetic(samples, [features, 3], classes, 0).unwrap_err();
            assert!(matches!(error, DataError::NoSynthetic { .. }), "{error}");
        }
    }
}
