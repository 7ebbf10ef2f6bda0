//! The digits that ship in another number and size, for models whose images are larger. Each image is scaled when it is asked
//! for.

use std::error::Error;
use std::iter::repeat_n;
use std::sync::Arc;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::error::DataError;
use super::images::{Images, Split};

/// Most values of an image.
const FEATURES_MAX: usize = 256 << 20;

/// How each sample of a split is scaled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scaled {
    /// Images of one channel.
    small: Arc<Split>,
    /// Their height and width.
    size: [usize; 2],
    /// Height, width and channels, of which all are alike.
    dims: [usize; 3],
}

impl Scaled {
    /// Values of a sample.
    pub(super) fn features(&self) -> usize {
        self.dims.iter().product()
    }

    /// The values of a sample: between the middles of two small pixels they lie on the line from one to the other.
    pub(super) fn make(&self, sample: usize) -> Vec<u8> {
        let [height, width, channels] = self.dims;
        let small = self.small.pixels(sample);
        let mut scaled = vec![U8::new(0); height * width];
        let mut scale = || -> Result<(), Box<dyn Error>> {
            // fits: an image has fewer values than 2^32
            let [from_height, from_width] = self.size.map(|side| side as u32);
            let source = TypedImageRef::<U8>::from_buffer(from_width, from_height, &small)?;
            let (to_width, to_height) = (width as u32, height as u32);
            let mut into = TypedImage::from_pixels_slice(to_width, to_height, &mut scaled)?;
            let bilinear = ResizeAlg::Convolution(FilterType::Bilinear);
            let options = ResizeOptions::new().resize_alg(bilinear);
            Ok(Resizer::new().resize_typed(&source, &mut into, &options)?)
        };
        scale().expect("both have as many pixels as their sizes say");
        scaled.iter().flat_map(|pixel| repeat_n(pixel.0, channels)).collect()
    }
}

impl Images {
    /// The first `samples` of the [digits](Images::digits) to train with, and a quarter as many (at least one) to test with; all
    /// of either where there are no more. With `dims` = `[height, width, channels]` they are scaled to that by a bilinear filter,
    /// and all channels are alike.
    ///
    /// # Errors
    /// When there are to be no samples, or an image is to have no values or more than 2²⁸.
    pub fn some_digits(samples: usize, dims: Option<[usize; 3]>) -> Result<Images, DataError> {
        let Images { name, train, test, dims: own, features, classes } = Images::digits()?;
        let dims = dims.unwrap_or(own);
        let values = dims.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim));
        if samples == 0 || !values.is_some_and(|values| (1..=FEATURES_MAX).contains(&values)) {
            return Err(DataError::NoDigits { samples, dims, most: FEATURES_MAX });
        }
        // who trains with all is tested with all
        let tests = match samples < train.samples() {
            true => (samples / 4).max(1),
            false => test.samples(),
        };
        let part = |split: Arc<Split>, samples: usize| {
            let labels: Vec<i32> = split.labels().iter().copied().take(samples).collect();
            if dims == own {
                let pixels = (0..labels.len()).flat_map(|at| split.pixels(at).into_owned());
                return Split::new(features, pixels.collect(), labels);
            }
            let [height, width, _] = own;
            Split::scaled(Scaled { small: split, size: [height, width], dims }, labels)
        };
        Ok(Images::new(&name, part(train, samples), part(test, tests), dims, classes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_digit_is_the_small_one_between_whose_pixels_others_lie() {
        let (small, large) = (Images::digits().unwrap(), Images::some_digits(8, Some([24, 40, 3])));
        let large = large.unwrap();
        assert_eq!((large.dims, large.features, large.classes), ([24, 40, 3], 2880, 10));
        assert_eq!((large.train.samples(), large.test.samples()), (8, 2));
        assert_eq!(large.train.labels(), &small.train.labels()[..8]);
        for sample in 0..8 {
            let (few, many) = (small.train.pixels(sample), large.train.pixels(sample));
            let at = |y: usize, x: usize| many[3 * (40 * y + x)];
            for (i, &pixel) in few.iter().enumerate() {
                let (y, x) = (i / 8, i % 8);
                // three rows and five columns for one pixel, of which the middle one is it
                assert_eq!(at(3 * y + 1, 5 * x + 2), pixel, "sample {sample}, {y} {x}");
                if x < 7 {
                    let (next, between) = (few[i + 1], at(3 * y + 1, 5 * x + 4));
                    let least = pixel.min(next).saturating_sub(1);
                    assert!((least..=pixel.max(next)).contains(&between), "{y} {x}");
                }
            }
            assert!(many.as_chunks::<3>().0.iter().all(|[r, g, b]| r == g && g == b));
        }
    }

    #[test]
    fn all_digits_are_there_in_their_own_size() {
        let (all, same) = (Images::digits().unwrap(), Images::some_digits(1438, None).unwrap());
        assert_eq!((same.train.samples(), same.test.samples()), (1438, 359));
        assert_eq!(same.train.labels(), all.train.labels());
        assert_eq!(same.test.pixels(358), all.test.pixels(358));
        assert_eq!(Images::some_digits(1, None).unwrap().test.samples(), 1);
    }

    #[test]
    fn no_samples_and_images_of_no_size_are_refused() {
        for (samples, dims) in
            [(4, [0, 8, 1]), (4, [1 << 20, 1 << 20, 1]), (4, [usize::MAX, 2, 2]), (0, [8, 8, 1])]
        {
            let refused = Images::some_digits(samples, Some(dims));
            assert!(matches!(refused, Err(DataError::NoDigits { .. })), "{samples} of {dims:?}");
        }
    }
}
