//! A data set in memory: pixels and labels, a part to learn from and a part to be tested with.
//! Knows neither where it came from nor in which order it is read.

use super::error::DataError;
use super::idx::{self, LABELS_HEADER};

/// The label of a padding row in the last test batch; such a row counts neither right nor wrong.
pub const PADDING_LABEL: i32 = -1;

/// Samples with their classes, split into train and test.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// What people call it, such as `digits`.
    pub name: String,
    pub train: Split,
    pub test: Split,
    /// Pixels of a sample: the width of a row that [`Split::fill`] writes.
    pub features: usize,
    /// Labels are in `0..classes`.
    pub classes: usize,
}

/// One part of a data set: `samples × features` pixels and one label a sample, all checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    features: usize,
    pixels: Vec<u8>,
    labels: Vec<i32>,
}

/// The bytes of one idx file, and how errors name it.
#[derive(Debug)]
pub(super) struct IdxFile<'a> {
    pub(super) name: String,
    pub(super) bytes: &'a [u8],
}

impl Dataset {
    /// Batches that hold every test sample once: the last may be padded.
    pub fn test_batches(&self, batch: usize) -> usize {
        self.test.samples().div_ceil(batch)
    }

    /// Writes test batch `batch_index` of `batch` samples, in the file's order: `x` is
    /// `[batch, features]` in 0..=1, `labels` is `[batch]`. Rows past the last sample are zeros with
    /// [`PADDING_LABEL`].
    ///
    /// # Panics
    /// If `x` or `labels` have another length.
    pub fn fill_test(&self, batch_index: usize, batch: usize, x: &mut [f32], labels: &mut [i32]) {
        assert_eq!(labels.len(), batch, "one label a sample");
        let first = batch_index.saturating_mul(batch).min(self.test.samples());
        let rows = (self.test.samples() - first).min(batch);
        let filled = rows * self.features;
        assert_eq!(x.len(), batch * self.features, "x is [batch, features]");
        self.test.fill(first..first + rows, &mut x[..filled], &mut labels[..rows]);
        x[filled..].fill(0.0);
        labels[rows..].fill(PADDING_LABEL);
    }
}

impl Split {
    /// A split of `pixels`, `features` to a sample, each with its label.
    ///
    /// # Panics
    /// If there is not exactly one label for every `features` pixels.
    pub(super) fn new(features: usize, pixels: Vec<u8>, labels: Vec<i32>) -> Split {
        assert_eq!(pixels.len(), features * labels.len(), "one label for {features} pixels");
        Split { features, pixels, labels }
    }

    /// A split from a file of images and the file of their labels, each in `0..classes`.
    pub(super) fn from_idx(
        images: &IdxFile<'_>,
        labels: &IdxFile<'_>,
        classes: usize,
    ) -> Result<Split, DataError> {
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
        Ok(Split::new(read.features, read.pixels.to_vec(), labels))
    }

    pub fn samples(&self) -> usize {
        self.labels.len()
    }

    /// Pixels of a sample.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The pixels of one sample, 0 to 255.
    pub fn pixels(&self, sample: usize) -> &[u8] {
        &self.pixels[sample * self.features..][..self.features]
    }

    /// The classes of all samples.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// Writes `samples`, one a row, into `x`: `[samples, features]` in 0..=1, and `labels`:
    /// `[samples]`. Nothing lies in between: each pixel is read once and written once.
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
            for (value, &pixel) in row.iter_mut().zip(self.pixels(sample)) {
                // a true division: a product with 1/255 rounds twice
                *value = f32::from(pixel) / 255.0;
            }
            *label = self.labels[sample];
        }
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
        let data = Dataset { name: "t".to_owned(), train, test, features: 2, classes: 5 };
        assert_eq!(data.test_batches(2), 3);
        assert_eq!(data.test_batches(5), 1);
        let (mut x, mut labels) = ([9.0; 4], [9; 2]);
        data.fill_test(1, 2, &mut x, &mut labels);
        assert_eq!(labels, [2, 3]);
        data.fill_test(2, 2, &mut x, &mut labels);
        assert_eq!(x, [40.0 / 255.0, 251.0 / 255.0, 0.0, 0.0]);
        assert_eq!(labels, [4, PADDING_LABEL]);
        data.fill_test(3, 2, &mut x, &mut labels);
        assert_eq!((x, labels), ([0.0; 4], [PADDING_LABEL; 2]));
    }

    #[test]
    #[should_panic(expected = "x is [samples, features]")]
    fn a_short_x_is_our_own_mistake() {
        counting(3).fill(0..2, &mut [0.0; 3], &mut [0; 2]);
    }
}
