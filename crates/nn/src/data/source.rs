//! Data that make whole batches, such as sentences packed without padding or pairs of distinct classes. [`Dataset`] is the
//! simple way; [`BatchSource`] is for what it cannot express.

use std::fmt;
use std::sync::Arc;

use super::dataset::{Dataset, Samples, Stream, StreamSamples};
use super::description::Description;
use super::memory::{BatchMemory, Filled};
use super::order::permutation;
use crate::error::Result;

/// Data that make whole batches, of any sizes.
///
/// An *entry* is a number that stands for one row of a batch, such as the number of a sample. Only the source knows what it
/// means.
pub trait BatchSource: Send + Sync {
    /// The name that messages use.
    fn name(&self) -> String;

    /// The tensors of a batch. Must always return the same.
    fn describe(&self) -> Description;

    /// How many samples there are. None: they are endless, and entries are 0, 1, 2, ….
    fn samples(&self) -> Option<usize>;

    /// A remark for users, shown once when training starts.
    fn note(&self) -> Option<String> {
        None
    }

    /// The names of the classes, by their numbers. They are saved beside the weights, which refuse data that number them otherwise.
    /// None by default: classes have numbers alone.
    fn class_names(&self) -> Option<&[String]> {
        None
    }

    /// True if making a batch takes much time, such as decoding images. Batches of several steps are then made at the same
    /// time, each on a thread of its own. False by default.
    fn is_costly(&self) -> bool {
        false
    }

    /// How many samples an epoch of batches of `batch` uses at most.
    ///
    /// # Errors
    /// When such batches are impossible.
    fn samples_per_epoch(&self, batch: usize) -> Result<usize> {
        let _ = batch;
        Ok(self.samples().unwrap_or(usize::MAX))
    }

    /// The entries of an epoch: for each step in turn, for each worker in turn, `batch` of them. Must depend on the arguments
    /// alone, since every process computes it for itself. Entries beyond the last full step are ignored.
    fn order(&self, workers: usize, batch: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let _ = (workers, batch);
        permutation(self.samples().unwrap_or(0), seed, epoch)
    }

    /// How many samples the test batches hold together.
    fn test_samples(&self) -> usize {
        self.samples().unwrap_or(0)
    }

    /// Batches of at most `batch` entries that together hold every test sample once. Must always return the same.
    fn test_order(&self, batch: usize) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.test_samples()).collect();
        all.chunks(batch.max(1)).map(<[usize]>::to_vec).collect()
    }

    /// Writes the batch of these entries, of which there are at most `batch`, and pads it to `batch` rows. Padding has the
    /// label [`PADDING_LABEL`](crate::PADDING_LABEL).
    ///
    /// # Errors
    /// When the batch cannot be made. An error or a panic ends the job.
    fn fill(&self, entries: &[usize], batch: usize, memory: &mut dyn BatchMemory)
    -> Result<Filled>;
}

/// Training data, and optionally test data. A clone shares both.
///
/// ```
/// # use tensorwire_nn::{Data, Dataset, Description, DType, Result, Sample};
/// # struct Mine;
/// # impl Dataset for Mine {
/// #     fn describe(&self) -> Description { Description::new().labels("labels", 2) }
/// #     fn len(&self) -> usize { 3 }
/// #     fn get(&self, _: usize, sample: &mut Sample<'_>) -> Result<()> { sample.set_label("labels", 1) }
/// # }
/// let without_test = Data::from(Mine);
/// let with_test = Data::from((Mine, Mine));
/// assert!(without_test.test.is_none() && with_test.test.is_some());
/// ```
#[derive(Clone)]
pub struct Data {
    pub train: Arc<dyn BatchSource>,
    /// None: the model is not evaluated.
    pub test: Option<Arc<dyn BatchSource>>,
}

impl Data {
    /// Endless training data, and optionally test data.
    pub fn stream(train: impl Stream + 'static, test: Option<impl Dataset + 'static>) -> Data {
        let test = test.map(|test| Arc::new(Samples::new(test)) as Arc<dyn BatchSource>);
        Data { train: Arc::new(StreamSamples::new(train)), test }
    }

    /// Training and test data that make whole batches.
    pub fn batches(train: impl BatchSource + 'static, test: impl BatchSource + 'static) -> Data {
        Data { train: Arc::new(train), test: Some(Arc::new(test)) }
    }
}

impl<D: Dataset + 'static> From<D> for Data {
    /// Training data alone.
    fn from(train: D) -> Data {
        Data { train: Arc::new(Samples::new(train)), test: None }
    }
}

impl<D: Dataset + 'static, T: Dataset + 'static> From<(D, T)> for Data {
    /// Training data and test data.
    fn from((train, test): (D, T)) -> Data {
        Data { train: Arc::new(Samples::new(train)), test: Some(Arc::new(Samples::new(test))) }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |source: &Arc<dyn BatchSource>| source.name();
        let (train, test) = (name(&self.train), self.test.as_ref().map(name));
        f.debug_struct("Data").field("train", &train).field("test", &test).finish()
    }
}
