//! Labelled data: pixels or features with one class a sample, a part to learn from and a part to be
//! tested with. Knows neither where it came from nor in which order it is read.

use std::borrow::Cow;

use super::error::DataError;
use super::fed::{Fed, FedValues};
use super::idx::{self, LABELS_HEADER};
use super::synthetic::Recipe;

/// The label of a padding row in the last test batch; such a row counts neither right nor wrong.
pub const PADDING_LABEL: i32 = -1;

/// Images with their classes, split into train and test.
#[derive(Clone, Debug)]
pub struct Images {
    /// What people call it, such as `digits`.
    pub name: String,
    pub train: Split,
    pub test: Split,
    /// Height, width and channels of an image; its values lie in this order.
    pub dims: [usize; 3],
    /// Values of an image, the product of `dims`: the width of a row that [`Split::fill`] writes.
    pub features: usize,
    /// Labels are in `0..classes`.
    pub classes: usize,
}

/// Sequences of `steps` vectors of `features` values, all of one length, with one class each.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// What people call it, such as `synthetic`.
    pub name: String,
    pub train: Split,
    pub test: Split,
    pub steps: usize,
    /// Values of one step.
    pub features: usize,
    /// Labels are in `0..classes`.
    pub classes: usize,
}

/// One part of a labelled data set: `samples × features` values of one byte and one label a sample, all
/// checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    features: usize,
    pixels: Pixels,
    labels: Vec<i32>,
}

/// Where a split's values are.
#[derive(Clone, Debug, PartialEq)]
enum Pixels {
    /// In memory, sample by sample.
    Stored(Vec<u8>),
    /// Nowhere: each sample is made when it is asked for.
    Made(Recipe),
}

/// The bytes of one idx file, and how errors name it.
#[derive(Debug)]
pub(super) struct IdxFile<'a> {
    pub(super) name: String,
    pub(super) bytes: &'a [u8],
}

impl Images {
    /// Images of `dims` = [height, width, channels].
    ///
    /// # Panics
    /// If a split's samples are not of `dims`.
    pub(super) fn new(
        name: &str,
        train: Split,
        test: Split,
        dims: [usize; 3],
        classes: usize,
    ) -> Images {
        let features = dims.iter().product();
        assert_eq!([train.features, test.features], [features; 2], "images of {dims:?}");
        Images { name: name.to_owned(), train, test, dims, features, classes }
    }

    /// Batches that hold every test sample once: the last may be padded.
    pub fn test_batches(&self, batch: usize) -> usize {
        self.test.samples().div_ceil(batch)
    }

    /// `samples` of `split` as tensors: "input" f32[batch, h, w, c] in 0..=1 and "labels" i32[batch].
    /// Rows past the last sample are padding.
    pub(super) fn feed(&self, split: &Split, samples: &[usize], batch: usize) -> Vec<Fed> {
        let (mut x, mut labels) = (vec![0.0; batch * self.features], vec![PADDING_LABEL; batch]);
        let filled = samples.len() * self.features;
        let rows = samples.iter().copied();
        split.fill(rows, &mut x[..filled], &mut labels[..samples.len()]);
        let [height, width, channels] = self.dims;
        let dims = vec![batch, height, width, channels];
        let input = Fed { name: "input", dims, values: FedValues::F32(x) };
        vec![input, Fed::vector("labels", labels)]
    }
}

impl Sequences {
    /// `samples` of `split` as tensors: "input" f32[steps·batch, features] in 0..=1, first the first
    /// step of each sample, then the second of each, …; and "labels" i32[batch]. Rows past the last
    /// sample are padding.
    pub(super) fn feed(&self, split: &Split, samples: &[usize], batch: usize) -> Vec<Fed> {
        let mut x = vec![0.0; self.steps * batch * self.features];
        let mut labels = vec![PADDING_LABEL; batch];
        for (row, &sample) in samples.iter().enumerate() {
            let pixels = split.pixels(sample);
            for (step, values) in pixels.chunks_exact(self.features).enumerate() {
                let at = (step * batch + row) * self.features;
                to_unit(values, &mut x[at..at + self.features]);
            }
            labels[row] = split.labels[sample];
        }
        let dims = vec![self.steps * batch, self.features];
        let input = Fed { name: "input", dims, values: FedValues::F32(x) };
        vec![input, Fed::vector("labels", labels)]
    }
}

impl Split {
    /// A split of `pixels`, `features` to a sample, each with its label.
    ///
    /// # Panics
    /// If there is not exactly one label for every `features` pixels.
    pub(super) fn new(features: usize, pixels: Vec<u8>, labels: Vec<i32>) -> Split {
        assert_eq!(pixels.len(), features * labels.len(), "one label for {features} pixels");
        Split { features, pixels: Pixels::Stored(pixels), labels }
    }

    /// A split whose samples are made by `recipe` when they are asked for.
    pub(super) fn made(recipe: Recipe, labels: Vec<i32>) -> Split {
        Split { features: recipe.features(), pixels: Pixels::Made(recipe), labels }
    }

    /// A split from a file of images and the file of their labels, each in `0..classes`; with it
    /// [rows, columns] of an image.
    pub(super) fn from_idx(
        images: &IdxFile<'_>,
        labels: &IdxFile<'_>,
        classes: usize,
    ) -> Result<(Split, [usize; 2]), DataError> {
        let read = idx::images(&images.name, images.bytes)?;
        let found = idx::labels(&labels.name, labels.bytes)?;
        if read.samples != found.len() {
            return Err(DataError::CountMismatch {
                images: images.name.clone(),
                image_count: read.samples,
                labels: labels.name.clone(),
                label_count: found.len(),
            });
        }
        if let Some(sample) = found.iter().position(|&label| usize::from(label) >= classes) {
            return Err(DataError::Label {
                file: labels.name.clone(),
                sample,
                offset: LABELS_HEADER + sample,
                label: found[sample],
                classes,
            });
        }
        let labels = found.iter().copied().map(i32::from).collect();
        Ok((Split::new(read.features(), read.pixels.to_vec(), labels), read.size))
    }

    pub fn samples(&self) -> usize {
        self.labels.len()
    }

    /// Pixels of a sample.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The pixels of one sample, 0 to 255.
    pub fn pixels(&self, sample: usize) -> Cow<'_, [u8]> {
        match &self.pixels {
            Pixels::Stored(all) => Cow::Borrowed(&all[sample * self.features..][..self.features]),
            Pixels::Made(recipe) => Cow::Owned(recipe.make(sample, self.labels[sample])),
        }
    }

    /// The classes of all samples.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// The samples of batch `index` when all are taken in order, `batch` at a time; the last may be
    /// fewer, and there are none behind it.
    pub(super) fn batch(&self, index: usize, batch: usize) -> std::ops::Range<usize> {
        let first = index.saturating_mul(batch).min(self.samples());
        first..first + (self.samples() - first).min(batch)
    }

    /// Writes `samples`, one a row, into `x`: `[samples, features]` in 0..=1, and `labels`:
    /// `[samples]`. What is stored is read once and written once.
    ///
    /// # Panics
    /// If `x` or `labels` have another length, or a sample does not exist.
    pub fn fill(
        &self,
        samples: impl ExactSizeIterator<Item = usize>,
        x: &mut [f32],
        labels: &mut [i32],
    ) {
        assert_eq!(labels.len(), samples.len(), "one label a sample");
        assert_eq!(x.len(), samples.len() * self.features, "x is [samples, features]");
        let rows = x.chunks_exact_mut(self.features).zip(labels);
        for (sample, (row, label)) in samples.zip(rows) {
            to_unit(&self.pixels(sample), row);
            *label = self.labels[sample];
        }
    }
}

/// Each byte as a number in 0..=1.
fn to_unit(bytes: &[u8], values: &mut [f32]) {
    for (value, &byte) in values.iter_mut().zip(bytes) {
        // a true division: a product with 1/255 rounds twice
        *value = f32::from(byte) / 255.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of two pixels: sample `i` is `[10 i, 255 - i]` with label `i`.
    fn counting(samples: u8) -> Split {
        let pixels = (0..samples).flat_map(|i| [10 * i, 255 - i]).collect();
        Split::new(2, pixels, (0..samples).map(i32::from).collect())
    }

    #[test]
    fn fill_scales_pixels_to_one() {
        let (mut x, mut labels) = ([9.0; 4], [9; 2]);
        counting(3).fill([2, 0].into_iter(), &mut x, &mut labels);
        assert_eq!(x, [20.0 / 255.0, 253.0 / 255.0, 0.0, 1.0]);
        assert_eq!(labels, [2, 0]);
    }

    #[test]
    fn the_last_test_batch_is_padded() {
        let (train, test) = (counting(1), counting(5));
        let data = Images::new("t", train, test, [1, 2, 1], 5);
        assert_eq!(data.test_batches(2), 3);
        assert_eq!(data.test_batches(5), 1);
        let batch = |index| {
            let samples: Vec<usize> = data.test.batch(index, 2).collect();
            let fed = data.feed(&data.test, &samples, 2);
            (fed[0].f32s().to_vec(), fed[1].i32s().to_vec())
        };
        assert_eq!(batch(1).1, [2, 3]);
        let half = vec![40.0 / 255.0, 251.0 / 255.0, 0.0, 0.0];
        assert_eq!(batch(2), (half, vec![4, PADDING_LABEL]));
        assert_eq!(batch(3), (vec![0.0; 4], vec![PADDING_LABEL; 2]));
    }

    #[test]
    #[should_panic(expected = "x is [samples, features]")]
    fn a_short_x_is_our_own_mistake() {
        counting(3).fill(0..2, &mut [0.0; 3], &mut [0; 2]);
    }

    #[test]
    fn images_are_fed_with_their_dims() {
        let data = Images::new("t", counting(1), counting(5), [1, 2, 1], 5);
        let fed = data.feed(&data.test, &[4], 2);
        assert_eq!(fed[0].dims, [2, 1, 2, 1]);
        assert_eq!(fed[0].f32s(), [40.0 / 255.0, 251.0 / 255.0, 0.0, 0.0]);
        assert_eq!((fed[1].name, fed[1].i32s()), ("labels", &[4, PADDING_LABEL][..]));
    }

    #[test]
    fn sequences_are_fed_step_by_step() {
        // samples of two steps of one value: [10 i, 255 - i]
        let (train, test) = (counting(3), counting(1));
        let name = "t".to_owned();
        let data = Sequences { name, train, test, steps: 2, features: 1, classes: 3 };
        let fed = data.feed(&data.train, &[2, 1], 3);
        assert_eq!(fed[0].dims, [6, 1]);
        let bytes = fed[0].f32s().iter().map(|value| (value * 255.0).round()).collect::<Vec<_>>();
        assert_eq!(bytes, [20.0, 10.0, 0.0, 253.0, 254.0, 0.0]);
        assert_eq!(fed[1].i32s(), [2, 1, PADDING_LABEL]);
    }
}
