//! Which samples each worker sees in which step: a pure function of seed, step and worker. Every process computes its own
//! rows, and nobody sends any. The position in the data is therefore one number, the step.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tensorwire_tensor::TensorSpec;

use super::description::Description;
use super::memory::{BatchMemory, Filled, HostBatch};
use super::source::BatchSource;
use crate::error::{Error, Result, said};

/// Shuffled training batches, epoch after epoch. A step takes the next `workers × batch` samples of its epoch's order, and
/// worker `r` takes rows `r × batch..(r + 1) × batch` of them. With samples of one size, two workers of batch 32 together see
/// what one worker of batch 64 sees, in the same order.
///
/// Can be sent to another thread. Holds a shared reference to the data and the order of one epoch.
#[derive(Clone)]
pub struct Batches {
    source: Arc<dyn BatchSource>,
    name: String,
    description: Description,
    workers: usize,
    batch: usize,
    seed: u64,
    /// None: the data have no end.
    steps_per_epoch: Option<u64>,
    /// The entries of an epoch, and which it is.
    order: Option<(u64, Arc<Order>)>,
    /// What clones of this have, by epoch.
    orders: Arc<Mutex<Orders>>,
}

/// Those that somebody still has, by epoch.
type Orders = Vec<(u64, Weak<Order>)>;

/// The entries of an epoch in as few bytes as all of them need.
#[derive(Debug)]
enum Order {
    Narrow(Vec<u32>),
    Wide(Vec<usize>),
}

impl Order {
    fn new(entries: Vec<usize>) -> Order {
        let mut narrow = Vec::with_capacity(entries.len());
        for entry in &entries {
            match u32::try_from(*entry) {
                Ok(entry) => narrow.push(entry),
                Err(_) => return Order::Wide(entries),
            }
        }
        Order::Narrow(narrow)
    }

    /// # Panics
    /// If there are not as many.
    fn entries(&self, range: Range<usize>) -> Vec<usize> {
        match self {
            // fits: usize is 64 bits wide
            Order::Narrow(entries) => entries[range].iter().map(|entry| *entry as usize).collect(),
            Order::Wide(entries) => entries[range].to_vec(),
        }
    }
}

impl Batches {
    /// Batches of `batch` samples for each of `workers` workers. The samples of an epoch that do not
    /// fill a whole step are left out; the next epoch's order leaves out others.
    ///
    /// # Errors
    /// The data's description makes no sense, or a step has no samples, or more than there are.
    pub fn new(
        source: Arc<dyn BatchSource>,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Batches> {
        if workers == 0 || batch == 0 {
            return Err(Error::NoBatch { workers, batch });
        }
        let (name, description) = (source.name(), source.describe());
        description.check(&name)?;
        let samples = source.samples_per_epoch(batch)?;
        // cannot overflow: two factors below 2^64
        let needed = workers as u128 * batch as u128;
        if needed > samples as u128 {
            return Err(Error::BatchTooLarge { workers, batch, needed, samples });
        }
        let endless = source.samples().is_none();
        let steps_per_epoch = (!endless).then(|| (samples / (workers * batch)) as u64);
        let mut batches = Batches {
            source,
            name,
            description,
            workers,
            batch,
            seed,
            steps_per_epoch,
            order: None,
            orders: Arc::default(),
        };
        if let Some(steps) = steps_per_epoch {
            batches.order_of(0, steps)?;
        }
        Ok(batches)
    }

    /// Steps of one epoch: at least 1, and the same for every worker. None if the data are endless.
    pub fn steps_per_epoch(&self) -> Option<u64> {
        self.steps_per_epoch
    }

    /// The data.
    pub fn source(&self) -> &Arc<dyn BatchSource> {
        &self.source
    }

    /// The entries of the batch that `worker` sees in `step`, in order: sample numbers, unless the source gives them another
    /// meaning.
    ///
    /// # Errors
    /// When the source's order panics or is too short.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn entries(&mut self, step: u64, worker: usize) -> Result<Vec<usize>> {
        assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        let Some(steps) = self.steps_per_epoch else {
            // fits: nobody takes so many steps
            let first = (step as usize * self.workers + worker) * self.batch;
            return Ok((first..first + self.batch).collect());
        };
        let order = self.order_of(step / steps, steps)?;
        // fits: below the number of samples
        let step = (step % steps) as usize;
        let first = (step * self.workers + worker) * self.batch;
        Ok(order.entries(first..first + self.batch))
    }

    /// Writes the batch that `worker` sees in `step`. Both count from 0.
    ///
    /// # Errors
    /// When a sample cannot be read or is not as described, or there is no memory for the batch.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn fill(
        &mut self,
        step: u64,
        worker: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let entries = self.entries(step, worker)?;
        let described = (self.name.as_str(), &self.description);
        fill(&*self.source, described, &entries, self.batch, memory)
    }

    /// Returns the batch that [`Batches::fill`] writes.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn batch(&mut self, step: u64, worker: usize) -> Result<HostBatch> {
        let mut batch = HostBatch::new();
        batch.filled = self.fill(step, worker, &mut batch)?;
        Ok(batch)
    }

    /// The first number that is not finite in the batch that `worker` sees in `step`, as the error that names its sample and
    /// tensor; none if there is none. It makes the batch once more, so it is for whoever has seen a loss that is not finite.
    ///
    /// # Errors
    /// As [`Batches::fill`].
    ///
    /// # Panics
    /// As there.
    pub fn not_finite(&mut self, step: u64, worker: usize) -> Result<Option<Error>> {
        let (batch, entries) = (self.batch(step, worker)?, self.entries(step, worker)?);
        let samples = self.source.samples().unwrap_or(usize::MAX).max(1);
        Ok(batch.tensors().iter().find_map(|tensor| {
            let (at, value) = tensor.not_finite()?;
            let (data, spec) = (self.name.clone(), tensor.spec());
            let (rows, each) = (spec.dims().first(), (spec.elements() / self.batch).max(1));
            // of packed samples nobody but the source knows which row is whose
            let row_each = rows.is_some_and(|rows| rows.is_multiple_of(self.batch));
            let sample = entries.get(at / each).filter(|_| row_each).map(|entry| entry % samples);
            let tensor = tensor.name().to_string();
            Some(match sample {
                Some(sample) => Error::NotFinite { data, sample, tensor, value },
                None => Error::Batch { data, reason: format!("'{tensor}' holds {value}") },
            })
        }))
    }

    /// Returns the entries of an epoch of so many steps, which whoever needs them first makes for all clones.
    fn order_of(&mut self, epoch: u64, steps: u64) -> Result<Arc<Order>> {
        if let Some((_, order)) = self.order.as_ref().filter(|(of, _)| *of == epoch) {
            return Ok(order.clone());
        }
        // not two at once, if no clone still needs it
        self.order = None;
        let orders = self.orders.clone();
        let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.retain(|(_, order)| order.strong_count() > 0);
        let made =
            orders.iter().find(|(of, _)| *of == epoch).and_then(|(_, order)| order.upgrade());
        let order = match made {
            Some(order) => order,
            None => {
                let order = Arc::new(self.make_order(epoch, steps)?);
                orders.push((epoch, Arc::downgrade(&order)));
                order
            }
        };
        self.order = Some((epoch, order.clone()));
        Ok(order)
    }

    fn make_order(&self, epoch: u64, steps: u64) -> Result<Order> {
        let Batches { source, workers, batch, seed, .. } = self;
        let order = || source.order(*workers, *batch, *seed, epoch);
        let order = guarded(&self.name, "order", order)?;
        // fits: steps of samples in memory
        let needed = steps as usize * self.workers * self.batch;
        if order.len() < needed {
            let reason = format!("order() gives {} entries, an epoch has {needed}", order.len());
            return Err(Error::Batch { data: self.name.clone(), reason });
        }
        Ok(Order::new(order))
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Batches { name, workers, batch, seed, steps_per_epoch, order, .. } = self;
        let epoch = order.as_ref().map_or(0, |(epoch, _)| *epoch);
        f.debug_struct("Batches")
            .field("data", name)
            .field("workers", workers)
            .field("batch", batch)
            .field("seed", seed)
            .field("steps_per_epoch", steps_per_epoch)
            .field("epoch", &epoch)
            .finish_non_exhaustive()
    }
}

/// Batches that together hold every test sample once, always in the same order.
#[derive(Clone)]
pub struct TestBatches {
    source: Arc<dyn BatchSource>,
    name: String,
    description: Description,
    batch: usize,
    order: Vec<Vec<usize>>,
}

impl TestBatches {
    /// Batches of at most `batch` samples. The last one may have fewer, and so may others if the source says so.
    ///
    /// # Errors
    /// The data's description makes no sense, or `batch` is 0.
    pub fn new(source: Arc<dyn BatchSource>, batch: usize) -> Result<TestBatches> {
        if batch == 0 {
            return Err(Error::NoBatch { workers: 1, batch });
        }
        let (name, description) = (source.name(), source.describe());
        description.check(&name)?;
        let order = guarded(&name, "test_order", || source.test_order(batch))?;
        Ok(TestBatches { source, name, description, batch, order })
    }

    /// The data.
    pub fn source(&self) -> &Arc<dyn BatchSource> {
        &self.source
    }

    /// How many batches there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if there is no batch.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Writes batch `index`. Beyond the last one it is all padding.
    ///
    /// # Errors
    /// When a sample cannot be read or is not as described, or there is no memory for the batch.
    pub fn fill(&self, index: usize, memory: &mut dyn BatchMemory) -> Result<Filled> {
        let entries = self.order.get(index).map_or(&[] as &[usize], Vec::as_slice);
        let described = (self.name.as_str(), &self.description);
        fill(&*self.source, described, entries, self.batch, memory)
    }

    /// Returns the batch that [`TestBatches::fill`] writes.
    ///
    /// # Errors
    /// As there.
    pub fn batch(&self, index: usize) -> Result<HostBatch> {
        let mut batch = HostBatch::new();
        batch.filled = self.fill(index, &mut batch)?;
        Ok(batch)
    }
}

impl std::fmt::Debug for TestBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TestBatches { name, batch, order, .. } = self;
        let batches = order.len();
        f.debug_struct("TestBatches")
            .field("data", name)
            .field("batch", batch)
            .field("batches", &batches)
            .finish_non_exhaustive()
    }
}

/// Has the source write a batch, and checks it against the description.
fn fill(
    source: &dyn BatchSource,
    (name, description): (&str, &Description),
    entries: &[usize],
    batch: usize,
    memory: &mut dyn BatchMemory,
) -> Result<Filled> {
    let refused = |reason: String| Error::Batch { data: name.to_string(), reason };
    let mut described = Described { description, batch, memory, claimed: false, refused: None };
    let filled = guarded(name, "fill", || source.fill(entries, batch, &mut described))?;
    if let Some(reason) = described.refused.take() {
        return Err(refused(reason));
    }
    let (filled, claimed) = (filled?, described.claimed);
    if !claimed {
        return Err(refused("fill() claimed no memory".to_string()));
    }
    if filled.samples > batch {
        return Err(refused(format!("fill() wrote {} samples of {batch}", filled.samples)));
    }
    Ok(filled)
}

/// Memory that can be claimed only as the description says.
struct Described<'a> {
    description: &'a Description,
    batch: usize,
    memory: &'a mut dyn BatchMemory,
    claimed: bool,
    /// The first claim that the description does not allow.
    refused: Option<String>,
}

impl BatchMemory for Described<'_> {
    fn claim<'a>(&'a mut self, wanted: &[(&str, TensorSpec)]) -> Result<Vec<&'a mut [u8]>> {
        match self.description.check_batch(wanted, self.batch) {
            Ok(()) => {
                self.claimed = true;
                self.memory.claim(wanted)
            }
            Err(reason) => {
                self.refused = Some(reason.clone());
                Err(Error::other(reason))
            }
        }
    }
}

/// Calls a method of a source, and turns a panic into an error.
fn guarded<T>(name: &str, method: &str, ask: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(ask)).map_err(|panic| {
        let reason = format!("{method}() panicked: {}", said(&*panic));
        Error::Batch { data: name.to_string(), reason }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tensorwire_tensor::DType;

    use super::super::order::permutation;
    use super::*;

    /// Counts how often it is asked for an order.
    #[derive(Default)]
    struct Asked(AtomicUsize);

    impl BatchSource for Asked {
        fn name(&self) -> String {
            "asked".to_string()
        }

        fn describe(&self) -> Description {
            Description::new().input("input", DType::I64, &[1])
        }

        fn samples(&self) -> Option<usize> {
            Some(8)
        }

        fn order(&self, _: usize, _: usize, seed: u64, epoch: u64) -> Vec<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            permutation(8, seed, epoch)
        }

        fn fill(&self, _: &[usize], _: usize, _: &mut dyn BatchMemory) -> Result<Filled> {
            Err(Error::other("nobody asks"))
        }
    }

    #[test]
    fn clones_share_the_order_of_an_epoch_and_it_is_made_once() {
        let source = Arc::new(Asked::default());
        let mut all = vec![Batches::new(source.clone(), 1, 2, 3).unwrap(); 4];
        for (epoch, step) in [(0, 1), (1, 5), (2, 9)] {
            let order = permutation(8, 3, epoch);
            for batches in &mut all {
                assert_eq!(batches.entries(step, 0).unwrap(), order[2..4]);
            }
            assert_eq!(source.0.load(Ordering::Relaxed), epoch as usize + 1);
            let orders: Vec<&Arc<Order>> =
                all.iter().flat_map(|one| one.order.iter().map(|(_, order)| order)).collect();
            assert!(orders.iter().all(|order| Arc::ptr_eq(order, orders[0])));
            assert_eq!(Arc::strong_count(orders[0]), all.len(), "the one before is gone");
        }
    }

    #[test]
    fn an_order_keeps_its_entries_in_as_few_bytes_as_they_need() {
        let narrow = Order::new(vec![7, u32::MAX as usize, 0]);
        assert!(matches!(&narrow, Order::Narrow(entries) if entries.len() == 3));
        assert_eq!(narrow.entries(1..3), [u32::MAX as usize, 0]);
        let entries = vec![7, u32::MAX as usize + 1, 0];
        let wide = Order::new(entries.clone());
        assert!(matches!(&wide, Order::Wide(_)));
        assert_eq!(wide.entries(0..3), entries);
    }
}
