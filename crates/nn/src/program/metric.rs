//! Metrics: what evaluation measures, and how the results of batches are combined.

use crate::data::Filled;

/// The metrics that need not be named.
pub(super) const LOSS: &str = "loss";
pub(super) const ACCURACY: &str = "accuracy";

/// A metric that evaluation measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The model's name for it. Every program has `loss`, and a classifier's has `accuracy`.
    pub name: String,
    /// The node whose output 0 is the result for a batch.
    pub node: String,
    pub tally: Tally,
}

/// How the results of batches are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tally {
    /// `i64[]`, the number of right labels. The metric is their share of all labels.
    Right,
    /// `f32[]`, a mean over labels. The metric is the mean over all labels.
    Labels,
    /// `f32[batch]`, one number a sample. The metric is their mean.
    Samples,
    /// `f32[]`, a mean over all rows, padding included. The metric is the mean over full batches.
    FullBatches,
}

/// A metric over several batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    sum: f64,
    of: f64,
}

impl Mean {
    /// The metric. None if no batch has counted.
    pub fn value(&self) -> Option<f64> {
        (self.of > 0.0).then(|| self.sum / self.of)
    }
}

impl Metric {
    /// Adds the result for a batch of `batch` rows: `given` are the bytes of the metric's node.
    pub fn add(&self, mean: &mut Mean, given: &[u8], filled: Filled, batch: usize) {
        let numbers = || given.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        let first = || numbers().next().map_or(f64::NAN, f64::from);
        // fits: counts of samples and labels, exact in f64
        let (samples, labels) = (filled.samples as f64, filled.labels as f64);
        match self.tally {
            Tally::Right => {
                let right = given.first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes));
                // fits: as above
                mean.sum += right as f64;
                mean.of += labels;
            }
            Tally::Labels => {
                mean.sum += first() * labels;
                mean.of += labels;
            }
            Tally::Samples => {
                mean.sum += numbers().take(filled.samples).map(f64::from).sum::<f64>();
                mean.of += samples;
            }
            Tally::FullBatches if filled.samples == batch => {
                mean.sum += first() * samples;
                mean.of += samples;
            }
            Tally::FullBatches => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(tally: Tally, batches: &[(&[u8], Filled)]) -> Option<f64> {
        let metric = Metric { name: "m".to_string(), node: "n".to_string(), tally };
        let mut mean = Mean::default();
        for (given, filled) in batches {
            metric.add(&mut mean, given, *filled, 2);
        }
        mean.value()
    }

    #[test]
    fn what_fills_a_batch_up_counts_for_nothing() {
        let (full, half) = (Filled { samples: 2, labels: 5 }, Filled { samples: 1, labels: 3 });
        let bytes = |numbers: &[f32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let right = [4i64, 2].map(i64::to_ne_bytes);
        let found = over(Tally::Right, &[(&right[0], full), (&right[1], half)]);
        assert_eq!(found, Some(6.0 / 8.0));
        let (one, two) = (bytes(&[1.0]), bytes(&[2.0]));
        let found = |tally| over(tally, &[(&one, full), (&two, half)]);
        assert_eq!(found(Tally::Labels), Some((5.0 + 6.0) / 8.0));
        assert_eq!(found(Tally::FullBatches), Some(1.0));
        let (each, padded) = (bytes(&[1.0, 2.0]), bytes(&[6.0, 1e30]));
        assert_eq!(over(Tally::Samples, &[(&each, full), (&padded, half)]), Some(3.0));
        assert_eq!(over(Tally::FullBatches, &[(&one, half)]), None);
    }
}
