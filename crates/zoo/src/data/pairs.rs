//! Sentences of two languages, and how a batch of them is packed. Knows neither where they came from nor
//! in which order they are read.

use super::fed::{Fed, active, as_i32s, inverse, longest_first, step_major};
use super::images::PADDING_LABEL;
use super::tokens::{MARKER, Tokens, Vocabulary};

/// Sentences and their translations.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// What people call it, such as `grammar`.
    pub name: String,
    /// The words of the language that is translated.
    pub source: Vocabulary,
    /// The words of the language that it is translated to.
    pub target: Vocabulary,
    pub train: PairSplit,
    pub test: PairSplit,
    /// Pairs that were left out, a sentence of theirs having no words or too many.
    pub left_out: usize,
}

/// One part of a set of pairs: sentence `i` of `sources` means sentence `i` of `targets`. Sentences have
/// at least one token, none of them [`MARKER`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairSplit {
    pub(super) sources: Tokens,
    pub(super) targets: Tokens,
}

impl PairSplit {
    pub(super) fn push(&mut self, source: &[i32], target: &[i32]) {
        assert!(!source.is_empty() && !target.is_empty(), "a sentence of no words");
        self.sources.push(source);
        self.targets.push(target);
    }

    /// How many pairs there are.
    pub fn samples(&self) -> usize {
        self.sources.len()
    }

    /// The sentences that are translated.
    pub fn sources(&self) -> &Tokens {
        &self.sources
    }

    /// Their translations.
    pub fn targets(&self) -> &Tokens {
        &self.targets
    }

    /// What one pair costs: the steps of its source, and of its target with its end.
    pub(super) fn lengths(&self, sample: usize) -> [usize; 2] {
        [self.sources.sentence(sample).len(), self.targets.sentence(sample).len() + 1]
    }

    /// `samples` as tensors, filled up to `batch` pairs of one token each that do not count.
    ///
    /// - "source" i32[total]: the sources, longest first, step by step;
    /// - "source_active" i32[longest source]: how many are not over at each step;
    /// - "order" i32[batch]: the row of the source order that each row of the target order means;
    /// - "target" i32[total]: [`MARKER`] and the target's words, longest first, step by step;
    /// - "target_active" i32[longest target + 1];
    /// - "labels" i32[total]: the words and [`MARKER`], where "target" has what stands before them.
    pub(super) fn feed(&self, samples: &[usize], batch: usize) -> Vec<Fed> {
        let mut sources: Vec<&[i32]> = samples.iter().map(|&s| self.sources.sentence(s)).collect();
        let mut inputs: Vec<Vec<i32>> = Vec::with_capacity(batch);
        let mut labels: Vec<Vec<i32>> = Vec::with_capacity(batch);
        for &sample in samples {
            let target = self.targets.sentence(sample);
            inputs.push([&[MARKER], target].concat());
            labels.push([target, &[MARKER]].concat());
        }
        sources.resize(batch, &[MARKER]);
        inputs.resize(batch, vec![MARKER]);
        labels.resize(batch, vec![PADDING_LABEL]);

        let (source_order, source_lengths) = sorted(&sources);
        let (target_order, target_lengths) = sorted(&inputs);
        let row_of = inverse(&source_order);
        let in_order = |order: &[usize], of: &[Vec<i32>]| -> Vec<i32> {
            step_major(&order.iter().map(|&i| &of[i]).collect::<Vec<_>>())
        };
        let sources: Vec<&[i32]> = source_order.iter().map(|&i| sources[i]).collect();
        vec![
            Fed::vector("source", step_major(&sources)),
            Fed::vector("source_active", active(&source_lengths)),
            Fed::vector("order", as_i32s(target_order.iter().map(|&i| row_of[i]))),
            Fed::vector("target", in_order(&target_order, &inputs)),
            Fed::vector("target_active", active(&target_lengths)),
            Fed::vector("labels", in_order(&target_order, &labels)),
        ]
    }

    /// The pairs `index × batch..`, in order; filled up where there are fewer.
    pub(super) fn test_batch(&self, index: usize, batch: usize) -> Vec<Fed> {
        let first = index.saturating_mul(batch).min(self.samples());
        let last = first + (self.samples() - first).min(batch);
        self.feed(&(first..last).collect::<Vec<_>>(), batch)
    }
}

/// The order that sorts sentences longest first, and their lengths in it.
fn sorted(sentences: &[impl AsRef<[i32]>]) -> (Vec<usize>, Vec<usize>) {
    let lengths: Vec<usize> = sentences.iter().map(|s| s.as_ref().len()).collect();
    let order = longest_first(&lengths);
    let sorted = order.iter().map(|&i| lengths[i]).collect();
    (order, sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short source with a long target, and the other way round.
    fn two() -> PairSplit {
        let mut pairs = PairSplit::default();
        pairs.push(&[2], &[12, 13]);
        pairs.push(&[3, 4, 5], &[14]);
        pairs
    }

    #[test]
    fn a_batch_of_two_pairs() {
        let fed = two().feed(&[0, 1], 2);
        let wanted: [(&str, &[i32]); 6] = [
            ("source", &[3, 2, 4, 5]),
            ("source_active", &[2, 1, 1]),
            // the first target row is sample 0's, whose source is in row 1
            ("order", &[1, 0]),
            ("target", &[0, 0, 12, 14, 13]),
            ("target_active", &[2, 2, 1]),
            ("labels", &[12, 14, 13, 0, 0]),
        ];
        for (fed, (name, values)) in fed.iter().zip(wanted) {
            assert_eq!((fed.name, fed.i32s(), &fed.dims[..]), (name, values, &[values.len()][..]));
        }
        assert_eq!((fed.len(), super::super::counted(&fed)), (6, 5));
    }

    #[test]
    fn the_last_test_batch_is_filled_up() {
        let fed = two().test_batch(0, 3);
        let values = |name| fed.iter().find(|f| f.name == name).unwrap().i32s();
        assert_eq!(values("source"), [3, 2, 0, 4, 5]);
        assert_eq!(values("order"), [1, 0, 2]);
        assert_eq!(values("target"), [0, 0, 0, 12, 14, 13]);
        assert_eq!(values("labels"), [12, 14, PADDING_LABEL, 13, 0, 0]);
        let behind = two().test_batch(9, 2);
        assert_eq!(super::super::counted(&behind), 0);
    }
}
