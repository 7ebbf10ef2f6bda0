//! Sentences of two languages, and how a batch of them is packed. Knows neither where they came from nor
//! in which order they are read.

use std::sync::Arc;

use tensorwire_nn::packed::{active, inverse, longest_first, step_major};
use tensorwire_nn::{
    BatchMemory, BatchSource, Data, Description, Filled, PADDING_LABEL, Result, order,
};

use super::kind::SampleKind;
use super::tokens::{MARKER, Tokens, Vocabulary};
use super::vectors::{vectors, write};

/// Sentences and their translations.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The name that messages use, such as `grammar`.
    pub name: String,
    /// The words of the language that is translated.
    pub source: Vocabulary,
    /// The words of the language that it is translated to.
    pub target: Vocabulary,
    pub train: Arc<PairSplit>,
    pub test: Arc<PairSplit>,
    /// How many pairs were left out because a sentence had no words or too many.
    pub left_out: usize,
}

impl Pairs {
    /// The kind of the samples.
    pub fn kind(&self) -> SampleKind {
        let [source_words, target_words] = [self.source.words(), self.target.words()];
        SampleKind::Pairs { source_words, target_words }
    }
}

impl From<Pairs> for Data {
    fn from(pairs: Pairs) -> Data {
        let left_out = (pairs.left_out > 0).then(|| {
            let (left_out, most) = (pairs.left_out, super::SENTENCE_WORDS_MAX);
            format!("{left_out} pairs left out: a sentence of no words, or more than {most}")
        });
        let samples = |split: &Arc<PairSplit>, note| PairSamples {
            name: pairs.name.clone(),
            description: pairs.kind().describe(),
            split: Arc::clone(split),
            note,
        };
        Data::batches(samples(&pairs.train, left_out), samples(&pairs.test, None))
    }
}

/// A split of pairs, in batches of similar length.
struct PairSamples {
    name: String,
    description: Description,
    split: Arc<PairSplit>,
    note: Option<String>,
}

impl BatchSource for PairSamples {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn samples(&self) -> Option<usize> {
        Some(self.split.samples())
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn order(&self, workers: usize, batch: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let lengths = |sample| self.split.lengths(sample);
        order::by_length(self.split.samples(), [workers, batch], seed, epoch, lengths)
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        self.split.fill(entries, batch, memory)
    }
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

    /// The cost of a pair: the steps of its source, and of its target with the end marker.
    fn lengths(&self, sample: usize) -> [usize; 2] {
        [self.sources.sentence(sample).len(), self.targets.sentence(sample).len() + 1]
    }

    /// Writes `samples`, padded to `batch` pairs of one token each that do not count.
    ///
    /// - "source" `i32[total]`: the sources, longest first, step by step;
    /// - "source_active" `i32[longest source]`: how many are not over at each step;
    /// - "order" `i32[batch]`: the row of the source order that each row of the target order means;
    /// - "target" `i32[total]`: [`MARKER`] and the target's words, longest first, step by step;
    /// - "target_active" `i32[longest target + 1]`;
    /// - "labels" `i32[total]`: the words and [`MARKER`], where "target" has what stands before them.
    fn fill(
        &self,
        samples: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let mut sources: Vec<&[i32]> = samples.iter().map(|&s| self.sources.sentence(s)).collect();
        let mut inputs: Vec<Vec<i32>> = Vec::with_capacity(batch);
        let mut labels: Vec<Vec<i32>> = Vec::with_capacity(batch);
        for &sample in samples {
            let target = self.targets.sentence(sample);
            inputs.push([&[MARKER], target].concat());
            labels.push([target, &[MARKER]].concat());
        }
        let counted = labels.iter().map(Vec::len).sum();
        sources.resize(batch, &[MARKER]);
        inputs.resize(batch, vec![MARKER]);
        labels.resize(batch, vec![PADDING_LABEL]);

        let (source_order, source_lengths) = sorted(&sources);
        let (target_order, target_lengths) = sorted(&inputs);
        let row_of = inverse(&source_order);
        let [source_total, target_total] =
            [&source_lengths, &target_lengths].map(|lengths| lengths.iter().sum());
        let longest = |lengths: &[usize]| lengths.first().copied().unwrap_or(0);
        let [source, source_active, order, target, target_active, label] = vectors(
            memory,
            [
                ("source", source_total),
                ("source_active", longest(&source_lengths)),
                ("order", batch),
                ("target", target_total),
                ("target_active", longest(&target_lengths)),
                ("labels", target_total),
            ],
        )?;
        let sources: Vec<&[i32]> = source_order.iter().map(|&i| sources[i]).collect();
        write(source, step_major(&sources));
        write(source_active, active(&source_lengths));
        // fits: rows of one batch
        write(order, target_order.iter().map(|&i| row_of[i] as i32));
        write(target, step_major(&in_order(&target_order, &inputs)));
        write(target_active, active(&target_lengths));
        write(label, step_major(&in_order(&target_order, &labels)));
        Ok(Filled { samples: samples.len(), labels: counted })
    }
}

/// Sentences in another order.
fn in_order<'a>(order: &[usize], of: &'a [Vec<i32>]) -> Vec<&'a [i32]> {
    order.iter().map(|&i| of[i].as_slice()).collect()
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
    use tensorwire_nn::{HostBatch, TestBatches};

    /// A short source with a long target, and the other way round.
    fn two() -> PairSplit {
        let mut pairs = PairSplit::default();
        pairs.push(&[2], &[12, 13]);
        pairs.push(&[3, 4, 5], &[14]);
        pairs
    }

    #[test]
    fn a_batch_of_two_pairs() {
        let mut fed = HostBatch::new();
        let filled = two().fill(&[0, 1], 2, &mut fed).unwrap();
        let wanted: [(&str, &[i32]); 6] = [
            ("source", &[3, 2, 4, 5]),
            ("source_active", &[2, 1, 1]),
            // the first target row is sample 0's, whose source is in row 1
            ("order", &[1, 0]),
            ("target", &[0, 0, 12, 14, 13]),
            ("target_active", &[2, 2, 1]),
            ("labels", &[12, 14, 13, 0, 0]),
        ];
        for (fed, (name, values)) in fed.tensors().iter().zip(wanted) {
            let found = (fed.name(), fed.values::<i32>(), fed.spec().dims());
            assert_eq!(found, (name, values, &[values.len()][..]));
        }
        assert_eq!((fed.tensors().len(), filled.labels), (6, 5));
    }

    #[test]
    fn the_last_test_batch_is_filled_up() {
        let vocabulary = || Vocabulary::new(["w"; 13].map(str::to_owned));
        let [train, test] = [Arc::new(PairSplit::default()), Arc::new(two())];
        let (name, source, target) = ("t".to_owned(), vocabulary(), vocabulary());
        let data = Data::from(Pairs { name, source, target, train, test, left_out: 0 });
        let batches = |batch| TestBatches::new(data.test.clone().unwrap(), batch).unwrap();
        let fed = batches(3).batch(0).unwrap();
        let values = |name| fed.get(name).unwrap().values::<i32>();
        assert_eq!(values("source"), [3, 2, 0, 4, 5]);
        assert_eq!(values("order"), [1, 0, 2]);
        assert_eq!(values("target"), [0, 0, 0, 12, 14, 13]);
        assert_eq!(values("labels"), [12, 14, PADDING_LABEL, 13, 0, 0]);
        let behind = batches(2).batch(9).unwrap();
        assert_eq!(behind.filled, Filled { samples: 0, labels: 0 });
    }
}
