//! Which sample each worker sees in which step. A pure function of seed, step and worker: every
//! process computes its own rows and nobody sends any. Knows no files and no network.

use std::sync::Arc;

use rand_chacha::rand_core::RngCore;

use super::dataset::Dataset;
use super::error::DataError;

/// Shuffled train batches without end. A step takes the next `workers × batch` samples of its
/// epoch's permutation, worker `r` the rows `r × batch..(r + 1) × batch` of them: two workers of batch
/// 32 see together what one of batch 64 sees, in the same order.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Arc<Dataset>,
    workers: usize,
    batch: usize,
    seed: u64,
    steps_per_epoch: u64,
    /// The epoch whose permutation `order` is.
    epoch: u64,
    order: Vec<usize>,
}

impl Batches {
    /// Batches of `batch` samples for each of `workers` workers. The samples of an epoch that do not
    /// fill a whole step are left out; the next epoch's permutation leaves out others.
    pub fn new(
        data: Arc<Dataset>,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Batches, DataError> {
        if workers == 0 || batch == 0 {
            return Err(DataError::NoBatch { workers, batch });
        }
        let samples = data.train.samples();
        // cannot overflow: two factors below 2^64
        let needed = workers as u128 * batch as u128;
        if needed > samples as u128 {
            return Err(DataError::BatchTooLarge { workers, batch, needed, samples });
        }
        let steps_per_epoch = (samples / (workers * batch)) as u64;
        let order = permutation(samples, seed, 0);
        Ok(Batches { data, workers, batch, seed, steps_per_epoch, epoch: 0, order })
    }

    /// Steps that one pass over the data takes, the same for every worker; at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// The train samples that `worker` sees in `step`, in order.
    pub fn samples(&mut self, step: u64, worker: usize) -> &[usize] {
        assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        let epoch = step / self.steps_per_epoch;
        if epoch != self.epoch {
            self.order = permutation(self.data.train.samples(), self.seed, epoch);
            self.epoch = epoch;
        }
        // fits: below the number of samples
        let step = (step % self.steps_per_epoch) as usize;
        let first = (step * self.workers + worker) * self.batch;
        &self.order[first..first + self.batch]
    }

    /// Writes what `worker` sees in `step`: `x` is `[batch, features]` in 0..=1, `labels` is `[batch]`.
    ///
    /// # Panics
    /// If `x` or `labels` have another length, or there is no such worker.
    pub fn fill(&mut self, step: u64, worker: usize, x: &mut [f32], labels: &mut [i32]) {
        let data = Arc::clone(&self.data);
        let samples = self.samples(step, worker);
        data.train.fill(samples.iter().copied(), x, labels);
    }
}

/// A random order of `0..samples` (Fisher–Yates). Each epoch has a random stream of its own, so none
/// needs those before it.
fn permutation(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut rng = super::random(seed, epoch);
    let mut order: Vec<usize> = (0..samples).collect();
    for last in (1..samples).rev() {
        // maps 64 random bits to 0..=last; its bias of at most last / 2^64 cannot be seen
        let other = ((u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64) as usize;
        order.swap(last, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_pinned() {
        // by a second implementation of ChaCha8, in Python; pinned because equal seeds must go on
        // to mean equal results
        assert_eq!(permutation(8, 1, 0), [6, 1, 0, 7, 5, 4, 2, 3]);
        assert_eq!(permutation(8, 1, 1), [7, 6, 2, 4, 1, 3, 5, 0]);
    }

    #[test]
    fn every_place_is_as_likely() {
        let mut seen = [[0u32; 4]; 4];
        for epoch in 0..4000 {
            for (place, &sample) in permutation(4, 9, epoch).iter().enumerate() {
                seen[place][sample] += 1;
            }
        }
        // 1000 expected; five standard deviations of a binomial are 137
        assert!(seen.iter().flatten().all(|count| count.abs_diff(1000) < 137), "{seen:?}");
    }
}
