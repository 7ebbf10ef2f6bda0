//! Labelled data: pixels or features with one class a sample, split into training and test data. Knows neither where they
//! came from nor in which order they are read.

use std::borrow::Cow;
use std::sync::Arc;

use tensorwire_nn::data::{elements, spec};
use tensorwire_nn::{
    BatchMemory, BatchSource, DType, Data, Dataset, Description, Filled, PADDING_LABEL, Result,
    Sample,
};

use super::error::DataError;
use super::idx::{self, LABELS_HEADER};
use super::kind::SampleKind;
use super::scaled::Scaled;
use super::synthetic::Recipe;

/// Images with their classes, split into train and test.
#[derive(Clone, Debug)]
pub struct Images {
    /// The name that messages use, such as `digits`.
    pub name: String,
    pub train: Arc<Split>,
    pub test: Arc<Split>,
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
    /// The name that messages use, such as `synthetic`.
    pub name: String,
    pub train: Arc<Split>,
    pub test: Arc<Split>,
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
    /// Nowhere: each sample is generated when it is asked for.
    Made(Recipe),
    /// Nowhere: each is an image of another size, scaled when it is asked for.
    Scaled(Scaled),
}

/// The bytes of one idx file, and how errors name it.
#[derive(Debug)]
pub(super) struct IdxFile<'a> {
    pub(super) name: String,
    pub(super) bytes: &'a [u8],
}

impl Images {
    /// Images of `dims` = `[height, width, channels]`.
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
        let (train, test) = (Arc::new(train), Arc::new(test));
        Images { name: name.to_owned(), train, test, dims, features, classes }
    }

    /// The kind of the samples.
    pub fn kind(&self) -> SampleKind {
        SampleKind::Images { dims: self.dims, classes: self.classes }
    }
}

impl Sequences {
    /// The kind of the samples.
    pub fn kind(&self) -> SampleKind {
        let Sequences { steps, features, classes, .. } = *self;
        SampleKind::Sequences { steps, features, classes }
    }
}

impl From<Images> for Data {
    fn from(images: Images) -> Data {
        let samples = |split: &Arc<Split>| ImageSamples {
            name: images.name.clone(),
            description: images.kind().describe(),
            split: Arc::clone(split),
        };
        (samples(&images.train), samples(&images.test)).into()
    }
}

impl From<Sequences> for Data {
    fn from(sequences: Sequences) -> Data {
        let samples = |split: &Arc<Split>| SequenceSamples {
            name: sequences.name.clone(),
            description: sequences.kind().describe(),
            split: Arc::clone(split),
            steps: sequences.steps,
            features: sequences.features,
        };
        Data::batches(samples(&sequences.train), samples(&sequences.test))
    }
}

/// A split of images: "input" `f32[batch, h, w, c]` in 0..=1 and "labels" `i32[batch]`.
struct ImageSamples {
    name: String,
    description: Description,
    split: Arc<Split>,
}

impl Dataset for ImageSamples {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn len(&self) -> usize {
        self.split.samples()
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let mut label = [0];
        self.split.fill([index].into_iter(), sample.values("input")?, &mut label);
        sample.set("labels", &label)
    }
}

/// A split of sequences: "input" `f32[steps·batch, features]` in 0..=1, first the first step of each sample, then the second
/// of each, …; and "labels" `i32[batch]`.
struct SequenceSamples {
    name: String,
    description: Description,
    split: Arc<Split>,
    steps: usize,
    /// Values of one step.
    features: usize,
}

impl BatchSource for SequenceSamples {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn samples(&self) -> Option<usize> {
        Some(self.split.samples())
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let rows = self.steps.saturating_mul(batch);
        let [input, labels] = memory.claim_array([
            ("input", spec("input", DType::F32, &[rows, self.features])?),
            ("labels", spec("labels", DType::I32, &[batch])?),
        ])?;
        let x = elements::<f32>("input", DType::F32, input)?;
        let labels = elements::<i32>("labels", DType::I32, labels)?;
        if entries.len() < batch {
            x.fill(0.0);
            labels.fill(PADDING_LABEL);
        }
        for (row, &sample) in entries.iter().enumerate() {
            let pixels = self.split.pixels(sample);
            for (step, values) in pixels.chunks_exact(self.features).enumerate() {
                let at = (step * batch + row) * self.features;
                to_unit(values, &mut x[at..at + self.features]);
            }
            labels[row] = self.split.labels[sample];
        }
        Ok(Filled { samples: entries.len(), labels: entries.len() })
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

    /// A split of images of another size, each scaled when it is asked for. Labels are of the first of them.
    pub(super) fn scaled(scaled: Scaled, labels: Vec<i32>) -> Split {
        Split { features: scaled.features(), pixels: Pixels::Scaled(scaled), labels }
    }

    /// A split from a file of images and the file of their labels, each in `0..classes`; with it
    /// `[rows, columns]` of an image.
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
            Pixels::Scaled(scaled) => Cow::Owned(scaled.make(sample)),
        }
    }

    /// The classes of all samples.
    pub fn labels(&self) -> &[i32] {
        &self.labels
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
    use tensorwire_nn::{HostBatch, TestBatches};

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
        let data = Data::from(Images::new("t", train, test, [1, 2, 1], 5)).test.unwrap();
        let batches = |batch| TestBatches::new(Arc::clone(&data), batch).unwrap();
        assert_eq!(batches(2).len(), 3);
        assert_eq!(batches(5).len(), 1);
        let batch = |index| {
            let fed = batches(2).batch(index).unwrap();
            let [x, labels] = fed.tensors() else { panic!("{fed:?}") };
            (x.values::<f32>().to_vec(), labels.values::<i32>().to_vec())
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
        let data = Data::from(Images::new("t", counting(1), counting(5), [1, 2, 1], 5));
        let mut fed = HostBatch::new();
        data.test.unwrap().fill(&[4], 2, &mut fed).unwrap();
        let [x, labels] = fed.tensors() else { panic!("{fed:?}") };
        assert_eq!(x.spec().dims(), [2, 1, 2, 1]);
        assert_eq!(x.values::<f32>(), [40.0 / 255.0, 251.0 / 255.0, 0.0, 0.0]);
        assert_eq!((labels.name(), labels.values::<i32>()), ("labels", &[4, PADDING_LABEL][..]));
    }

    #[test]
    fn sequences_are_fed_step_by_step() {
        // samples of two steps of one value: [10 i, 255 - i]
        let (train, test) = (Arc::new(counting(3)), Arc::new(counting(1)));
        let name = "t".to_owned();
        let data = Sequences { name, train, test, steps: 2, features: 1, classes: 3 };
        let mut fed = HostBatch::new();
        Data::from(data).train.fill(&[2, 1], 3, &mut fed).unwrap();
        let [x, labels] = fed.tensors() else { panic!("{fed:?}") };
        assert_eq!(x.spec().dims(), [6, 1]);
        let bytes =
            x.values::<f32>().iter().map(|value| (value * 255.0).round()).collect::<Vec<_>>();
        assert_eq!(bytes, [20.0, 10.0, 0.0, 253.0, 254.0, 0.0]);
        assert_eq!(labels.values::<i32>(), [2, 1, PADDING_LABEL]);
    }
}
