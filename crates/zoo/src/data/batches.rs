//! Which sample each worker sees in which step. A pure function of seed, step and worker: every
//! process computes its own rows and nobody sends any. Knows no files and no network.

use super::dataset::Data;
use super::error::DataError;
use super::fed::Fed;
use super::order::{by_class, by_length, permutation};
use super::sentences::SentencePair;

/// Shuffled train batches without end. A step takes the next `workers × batch` samples of its
/// epoch's order, worker `r` the rows `r × batch..(r + 1) × batch` of them: with images and sequences two
/// workers of batch 32 see together what one of batch 64 sees, in the same order.
///
/// May be sent to another thread, and holds but a share of the data and the order of one epoch.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Data,
    workers: usize,
    batch: usize,
    seed: u64,
    steps_per_epoch: u64,
    /// The epoch whose samples `order` has.
    epoch: u64,
    order: Order,
}

/// The samples of an epoch, step by step, worker by worker.
#[derive(Clone, Debug)]
enum Order {
    Samples(Vec<usize>),
    Pairs(Vec<SentencePair>),
}

impl Batches {
    /// Batches of `batch` samples for each of `workers` workers. The samples of an epoch that do not
    /// fill a whole step are left out; the next epoch's order leaves out others.
    ///
    /// # Errors
    /// A step has no samples, more than there are, or more pairs of sentences than there are classes.
    pub fn new(
        data: impl Into<Data>,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Batches, DataError> {
        let data = data.into();
        if workers == 0 || batch == 0 {
            return Err(DataError::NoBatch { workers, batch });
        }
        // what an epoch can give
        let samples = match &data {
            Data::Sentences(data) => {
                let classes = data.train.classes();
                if batch > classes {
                    return Err(DataError::TooFewClasses { batch, classes });
                }
                data.train.rounds() * (classes / batch * batch)
            }
            _ => data.train_samples(),
        };
        // cannot overflow: two factors below 2^64
        let needed = workers as u128 * batch as u128;
        if needed > samples as u128 {
            return Err(DataError::BatchTooLarge { workers, batch, needed, samples });
        }
        let steps_per_epoch = (samples / (workers * batch)) as u64;
        let order = order(&data, [workers, batch], seed, 0);
        Ok(Batches { data, workers, batch, seed, steps_per_epoch, epoch: 0, order })
    }

    /// Steps that one pass over the data takes, the same for every worker; at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// What is read.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The train samples that `worker` sees in `step`, in order: of sentences those that stand first in
    /// their pairs.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn samples(&mut self, step: u64, worker: usize) -> Vec<usize> {
        let rows = self.rows(step, worker);
        match &self.order {
            Order::Samples(samples) => samples[rows].to_vec(),
            Order::Pairs(pairs) => pairs[rows].iter().map(|pair| pair.anchor).collect(),
        }
    }

    /// What `worker` sees in `step`, as tensors:
    ///
    /// - images: "input" f32[batch, h, w, c] in 0..=1, "labels" i32[batch];
    /// - sequences: "input" f32[steps·batch, features] in 0..=1, first the first step of each, then the
    ///   second of each, …; "labels" i32[batch];
    /// - pairs, packed as `Op::Recurrent` takes them, longest first: "source" i32[total] and
    ///   "source_active" i32[longest source]; "order" i32[batch], the source row that each target row
    ///   means; "target" i32[total], [`super::MARKER`] and the words, "target_active" i32[longest target + 1],
    ///   "labels" i32[total], the words and [`super::MARKER`];
    /// - sentences, packed in the same way: "anchor" i32[total], "anchor_active" i32[longest],
    ///   "anchor_rows" i32[batch], the row of each pair's sentence; "positive", "positive_active" and
    ///   "positive_rows"; "labels" i32[batch], 0, 1, …. All pairs are of distinct classes.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn feed(&mut self, step: u64, worker: usize) -> Vec<Fed> {
        let rows = self.rows(step, worker);
        let batch = self.batch;
        match (&self.data, &self.order) {
            (Data::Images(data), Order::Samples(order)) => {
                data.feed(&data.train, &order[rows], batch)
            }
            (Data::Sequences(data), Order::Samples(order)) => {
                data.feed(&data.train, &order[rows], batch)
            }
            (Data::Pairs(data), Order::Samples(order)) => data.train.feed(&order[rows], batch),
            (Data::Sentences(data), Order::Pairs(order)) => data.train.feed(&order[rows], batch),
            _ => unreachable!("`order` makes pairs of sentences and nothing else"),
        }
    }

    /// Where the rows of `worker` in `step` stand in the order of its epoch, which is made.
    fn rows(&mut self, step: u64, worker: usize) -> std::ops::Range<usize> {
        assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        let epoch = step / self.steps_per_epoch;
        if epoch != self.epoch {
            self.order = order(&self.data, [self.workers, self.batch], self.seed, epoch);
            self.epoch = epoch;
        }
        // fits: below the number of samples
        let step = (step % self.steps_per_epoch) as usize;
        let first = (step * self.workers + worker) * self.batch;
        first..first + self.batch
    }
}

fn order(data: &Data, [workers, batch]: [usize; 2], seed: u64, epoch: u64) -> Order {
    match data {
        Data::Images(_) | Data::Sequences(_) => {
            Order::Samples(permutation(data.train_samples(), seed, epoch))
        }
        Data::Pairs(data) => {
            let train = &data.train;
            let lengths = |sample| train.lengths(sample);
            Order::Samples(by_length(train.samples(), [workers, batch], seed, epoch, lengths))
        }
        Data::Sentences(data) => Order::Pairs(by_class(&data.train, batch, seed, epoch)),
    }
}
