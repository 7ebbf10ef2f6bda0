//! Sentences in classes, from which a model learns to embed: two of one class make a pair. Knows neither
//! where they came from nor in which order they are read.

use std::sync::Arc;

use tensorwire_nn::order::{random, shuffle};
use tensorwire_nn::packed::{active, inverse, longest_first, step_major};
use tensorwire_nn::{BatchMemory, BatchSource, Data, Description, Filled, PADDING_LABEL, Result};

use super::error::DataError;
use super::kind::SampleKind;
use super::tokens::{MARKER, Tokens, Vocabulary};
use super::vectors::{vectors, write};

/// Sentences in classes. Training and test data have no class in common.
#[derive(Clone, Debug)]
pub struct Sentences {
    /// The name that messages use, such as `synthetic`.
    pub name: String,
    pub vocabulary: Vocabulary,
    pub train: Arc<SentenceSplit>,
    pub test: Arc<SentenceSplit>,
}

/// One part of a set of sentences: at least two of each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentenceSplit {
    sentences: Tokens,
    /// The sentences of each class.
    of_class: Vec<Vec<usize>>,
}

/// Two sentences of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SentencePair {
    anchor: usize,
    positive: usize,
}

impl Sentences {
    /// The kind of the samples.
    pub fn kind(&self) -> SampleKind {
        let (words, classes) = (self.vocabulary.words(), self.train.classes());
        SampleKind::Sentences { words, classes }
    }
}

impl From<Sentences> for Data {
    fn from(sentences: Sentences) -> Data {
        let samples = |split: &Arc<SentenceSplit>| SentencePairs {
            name: sentences.name.clone(),
            description: sentences.kind().describe(),
            split: Arc::clone(split),
        };
        Data::batches(samples(&sentences.train), samples(&sentences.test))
    }
}

/// A split of sentences, in batches of pairs of distinct classes. An entry is a pair.
struct SentencePairs {
    name: String,
    description: Description,
    split: Arc<SentenceSplit>,
}

impl BatchSource for SentencePairs {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn samples(&self) -> Option<usize> {
        Some(self.split.samples())
    }

    fn samples_per_epoch(&self, batch: usize) -> Result<usize> {
        let classes = self.split.classes();
        if batch > classes {
            return Err(DataError::TooFewClasses { batch, classes }.into());
        }
        Ok(self.split.rounds() * (classes / batch * batch))
    }

    fn order(&self, _: usize, batch: usize, seed: u64, epoch: u64) -> Vec<usize> {
        by_class(&self.split, batch, seed, epoch).map(|pair| self.split.entry(pair)).collect()
    }

    fn test_samples(&self) -> usize {
        self.split.rounds() * self.split.classes()
    }

    /// Every class gives one pair a round; a batch is of one round, so its pairs are of distinct classes.
    fn test_order(&self, batch: usize) -> Vec<Vec<usize>> {
        let rounds = 0..self.split.rounds();
        let of_round = |round: usize| {
            let pair = |sentences: &Vec<usize>| SentencePair {
                anchor: sentences[2 * round],
                positive: sentences[2 * round + 1],
            };
            let batch_of = |classes: &[Vec<usize>]| -> Vec<usize> {
                classes.iter().map(|sentences| self.split.entry(pair(sentences))).collect()
            };
            self.split.of_class.chunks(batch.max(1)).map(batch_of).collect::<Vec<_>>()
        };
        rounds.flat_map(of_round).collect()
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let pairs: Vec<SentencePair> = entries.iter().map(|&e| self.split.pair(e)).collect();
        self.split.fill(&pairs, batch, memory)
    }
}

/// Random pairs in which no sentence is twice. They come in rounds: a round has one pair of each class,
/// classes in random order, as far as they fill batches of `batch`. So the pairs of a batch are of distinct
/// classes.
fn by_class(
    sentences: &SentenceSplit,
    batch: usize,
    seed: u64,
    epoch: u64,
) -> impl Iterator<Item = SentencePair> {
    let mut random = random(seed, epoch);
    let mut of_class = sentences.of_class().to_vec();
    of_class.iter_mut().for_each(|sentences| shuffle(sentences, &mut random));
    let mut classes: Vec<usize> = (0..of_class.len()).collect();
    let in_batches = classes.len() / batch * batch;
    (0..sentences.rounds()).flat_map(move |round| {
        shuffle(&mut classes, &mut random);
        let pair = |class: &usize| {
            let sentences = &of_class[*class];
            SentencePair { anchor: sentences[2 * round], positive: sentences[2 * round + 1] }
        };
        classes[..in_batches].iter().map(pair).collect::<Vec<_>>()
    })
}

impl SentenceSplit {
    pub(super) fn push(&mut self, class: usize, sentence: &[i32]) {
        assert!(!sentence.is_empty(), "a sentence of no words");
        if self.of_class.len() <= class {
            self.of_class.resize(class + 1, Vec::new());
        }
        self.of_class[class].push(self.sentences.len());
        self.sentences.push(sentence);
    }

    /// How many sentences there are.
    pub fn samples(&self) -> usize {
        self.sentences.len()
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.of_class.len()
    }

    pub fn sentences(&self) -> &Tokens {
        &self.sentences
    }

    /// The sentences of each class.
    pub fn of_class(&self) -> &[Vec<usize>] {
        &self.of_class
    }

    /// How many pairs every class can give with no sentence in two of them.
    pub(super) fn rounds(&self) -> usize {
        self.of_class.iter().map(|sentences| sentences.len() / 2).min().unwrap_or(0)
    }

    /// A pair as one number.
    fn entry(&self, pair: SentencePair) -> usize {
        // fits: sentences are at most a million
        pair.anchor * self.samples() + pair.positive
    }

    /// The inverse of [`SentenceSplit::entry`].
    fn pair(&self, entry: usize) -> SentencePair {
        SentencePair { anchor: entry / self.samples(), positive: entry % self.samples() }
    }

    /// Writes `pairs`, padded to `batch` pairs of one token each that do not count.
    ///
    /// - "anchor" `i32[total]`: one sentence of each pair, longest first, step by step;
    /// - "anchor_active" `i32[longest]`: how many are not over at each step;
    /// - "anchor_rows" `i32[batch]`: in which row of that order each pair's sentence is;
    /// - "positive", "positive_active", "positive_rows": so for the other sentence of each pair;
    /// - "labels" `i32[batch]`: 0, 1, …: the positive that belongs to each anchor.
    fn fill(
        &self,
        pairs: &[SentencePair],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let side = |pick: fn(&SentencePair) -> usize| -> Vec<&[i32]> {
            let sentences = pairs.iter().map(|pair| self.sentences.sentence(pick(pair)));
            let mut sentences: Vec<&[i32]> = sentences.collect();
            sentences.resize(batch, &[MARKER]);
            sentences
        };
        let packed = [side(|pair| pair.anchor), side(|pair| pair.positive)].map(|sentences| {
            let lengths: Vec<usize> = sentences.iter().map(|s| s.len()).collect();
            let order = longest_first(&lengths);
            let sentences: Vec<&[i32]> = order.iter().map(|&i| sentences[i]).collect();
            let lengths: Vec<usize> = order.iter().map(|&i| lengths[i]).collect();
            (sentences, lengths, inverse(&order))
        });
        let [anchors, positives] = packed
            .each_ref()
            .map(|(_, lengths, _)| [lengths.iter().sum(), lengths.first().copied().unwrap_or(0)]);
        let [anchor, anchor_active, anchor_rows, positive, positive_active, positive_rows, labels] =
            vectors(
                memory,
                [
                    ("anchor", anchors[0]),
                    ("anchor_active", anchors[1]),
                    ("anchor_rows", batch),
                    ("positive", positives[0]),
                    ("positive_active", positives[1]),
                    ("positive_rows", batch),
                    ("labels", batch),
                ],
            )?;
        let into =
            [[anchor, anchor_active, anchor_rows], [positive, positive_active, positive_rows]];
        for ((sentences, lengths, row_of), [total, not_over, rows]) in packed.iter().zip(into) {
            write(total, step_major(sentences));
            write(not_over, active(lengths));
            // fits: rows of one batch
            write(rows, row_of.iter().map(|&row| row as i32));
        }
        // fits: as above
        let own = 0..pairs.len() as i32;
        write(labels, own.chain(std::iter::repeat(PADDING_LABEL)).take(batch));
        Ok(Filled { samples: pairs.len(), labels: pairs.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_nn::{HostBatch, TestBatches};

    /// Three classes of four sentences; sentence `s` of class `c` is `s + 1` times the token `10 c + s`.
    fn three_classes() -> Sentences {
        let mut test = SentenceSplit::default();
        for class in 0..3 {
            for sentence in 0..4 {
                test.push(class, &vec![(10 * class + sentence) as i32; sentence + 1]);
            }
        }
        let (name, vocabulary) = ("t".to_owned(), Vocabulary::new([]));
        let test = Arc::new(test);
        Sentences { name, vocabulary, train: Arc::clone(&test), test }
    }

    #[test]
    fn a_batch_of_two_pairs() {
        let data = three_classes();
        let pairs =
            [SentencePair { anchor: 0, positive: 2 }, SentencePair { anchor: 5, positive: 4 }];
        let wanted: [(&str, &[i32]); 7] = [
            ("anchor", &[11, 0, 11]),
            ("anchor_active", &[2, 1]),
            ("anchor_rows", &[1, 0]),
            ("positive", &[2, 10, 2, 2]),
            ("positive_active", &[2, 1, 1]),
            ("positive_rows", &[0, 1]),
            ("labels", &[0, 1]),
        ];
        let mut fed = HostBatch::new();
        data.test.fill(&pairs, 2, &mut fed).unwrap();
        assert_eq!(fed.tensors().len(), wanted.len());
        for (fed, (name, values)) in fed.tensors().iter().zip(wanted) {
            assert_eq!((fed.name(), fed.values::<i32>()), (name, values));
        }
    }

    #[test]
    fn test_batches_hold_every_class_once_a_round() {
        let data = Data::from(three_classes()).test.unwrap();
        let batches = |batch| TestBatches::new(Arc::clone(&data), batch).unwrap();
        assert_eq!((data.test_samples(), batches(2).len(), batches(9).len()), (6, 4, 2));
        let counts: Vec<usize> =
            (0..5).map(|index| batches(2).batch(index).unwrap().filled.labels).collect();
        assert_eq!(counts, [2, 1, 2, 1, 0]);
        let second = batches(2).batch(1).unwrap();
        assert_eq!(second.tensors()[0].values::<i32>(), [20, MARKER]);
        assert_eq!(second.tensors()[6].values::<i32>(), [0, PADDING_LABEL]);
    }
}
