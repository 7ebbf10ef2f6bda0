//! Data that make batches by themselves: sentences packed without padding, pairs of distinct classes. [`Dataset`] is the
//! simple way; whatever it cannot say implements [`BatchSource`].

use std::fmt;
use std::sync::Arc;

use super::dataset::{Dataset, Samples, Stream, StreamSamples};
use super::description::Description;
use super::memory::{BatchMemory, Filled};
use super::order::permutation;
use crate::error::Result;

/// Batches of whatever sizes.
///
/// An *entry* is a number that names what a row of a batch is made of, such as the number of a sample; what it means the
/// source alone knows.
pub trait BatchSource: Send + Sync {
    /// What people call it.
    fn name(&self) -> String;

    /// The tensors of a batch, always the same.
    fn describe(&self) -> Description;

    /// How many samples there are; none: they have no end, and entries are 0, 1, 2, ….
    fn samples(&self) -> Option<usize>;

    /// What a user should know of it, if anything; shown once.
    fn note(&self) -> Option<String> {
        None
    }

    /// Samples that an epoch of batches of `batch` can show.
    ///
    /// # Errors
    /// When there can be no such batch.
    fn samples_per_epoch(&self, batch: usize) -> Result<usize> {
        let _ = batch;
        Ok(self.samples().unwrap_or(usize::MAX))
    }

    /// The entries of an epoch: for each step in turn, for each of `workers` in turn, `batch` of them. A function of
    /// these arguments alone: every process computes it, and nobody sends it. What fills no step may be left out or not.
    fn order(&self, workers: usize, batch: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let _ = (workers, batch);
        permutation(self.samples().unwrap_or(0), seed, epoch)
    }

    /// How many samples the test batches hold together.
    fn test_samples(&self) -> usize {
        self.samples().unwrap_or(0)
    }

    /// Batches of at most `batch` entries that together hold every sample once, in an order that never changes.
    fn test_order(&self, batch: usize) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.test_samples()).collect();
        all.chunks(batch.max(1)).map(<[usize]>::to_vec).collect()
    }

    /// Writes the batch of these entries, at most `batch`, and fills it up to `batch` rows: what fills up has labels of
    /// [`PADDING_LABEL`](crate::PADDING_LABEL).
    ///
    /// # Errors
    /// When the batch cannot be made. The job ends. So it does after a panic.
    fn fill(&self, entries: &[usize], batch: usize, memory: &mut dyn BatchMemory)
    -> Result<Filled>;
}

/// What a job learns from, and what it is tested with. A clone shares both.
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
    /// None: nothing is tested.
    pub test: Option<Arc<dyn BatchSource>>,
}

impl Data {
    /// Data without end, and what is tested with.
    pub fn stream(train: impl Stream + 'static, test: Option<impl Dataset + 'static>) -> Data {
        let test = test.map(|test| Arc::new(Samples::new(test)) as Arc<dyn BatchSource>);
        Data { train: Arc::new(StreamSamples::new(train)), test }
    }

    /// Data that make their batches by themselves.
    pub fn batches(train: impl BatchSource + 'static, test: impl BatchSource + 'static) -> Data {
        Data { train: Arc::new(train), test: Some(Arc::new(test)) }
    }
}

impl<D: Dataset + 'static> From<D> for Data {
    /// To learn from alone.
    fn from(train: D) -> Data {
        Data { train: Arc::new(Samples::new(train)), test: None }
    }
}

impl<D: Dataset + 'static, T: Dataset + 'static> From<(D, T)> for Data {
    /// To learn from, and to be tested with.
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
