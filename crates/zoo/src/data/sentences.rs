//! Sentences in classes, from which a model learns to embed: two of one class make a pair. Knows neither
//! where they came from nor in which order they are read.

use super::fed::{Fed, active, as_i32s, inverse, longest_first, step_major};
use super::images::PADDING_LABEL;
use super::tokens::{MARKER, Tokens, Vocabulary};

/// Sentences in classes. No class of the test is one of the training's.
#[derive(Clone, Debug)]
pub struct Sentences {
    /// What people call it, such as `synthetic`.
    pub name: String,
    pub vocabulary: Vocabulary,
    pub train: SentenceSplit,
    pub test: SentenceSplit,
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
pub(super) struct SentencePair {
    pub(super) anchor: usize,
    pub(super) positive: usize,
}

impl Sentences {
    /// How many pairs the test batches hold together.
    pub(super) fn test_pairs(&self) -> usize {
        self.test.rounds() * self.test.classes()
    }

    /// Every class of the test gives one pair a round; a batch is of one round, so its pairs are of
    /// distinct classes.
    pub(super) fn test_batches(&self, batch: usize) -> usize {
        self.test.rounds() * self.test.classes().div_ceil(batch)
    }

    /// Test batch `index`; filled up where its round has no more classes, or there is none.
    pub(super) fn test_batch(&self, index: usize, batch: usize) -> Vec<Fed> {
        let (classes, per_round) = (self.test.classes(), self.test.classes().div_ceil(batch));
        let round = index / per_round;
        let first = index % per_round * batch;
        let in_batch = first..(first + batch).min(classes);
        let pairs = in_batch.filter(|_| round < self.test.rounds()).map(|class| {
            let sentences = &self.test.of_class[class];
            SentencePair { anchor: sentences[2 * round], positive: sentences[2 * round + 1] }
        });
        self.test.feed(&pairs.collect::<Vec<_>>(), batch)
    }
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

    /// Pairs that every class can give, no sentence being in two.
    pub(super) fn rounds(&self) -> usize {
        self.of_class.iter().map(|sentences| sentences.len() / 2).min().unwrap_or(0)
    }

    /// `pairs` as tensors, filled up to `batch` pairs of one token each that do not count.
    ///
    /// - "anchor" i32[total]: one sentence of each pair, longest first, step by step;
    /// - "anchor_active" i32[longest]: how many are not over at each step;
    /// - "anchor_rows" i32[batch]: in which row of that order each pair's sentence is;
    /// - "positive", "positive_active", "positive_rows": so for the other sentence of each pair;
    /// - "labels" i32[batch]: 0, 1, …: the positive that belongs to each anchor.
    pub(super) fn feed(&self, pairs: &[SentencePair], batch: usize) -> Vec<Fed> {
        let packed = |names: [&'static str; 3], pick: fn(&SentencePair) -> usize| {
            let sentences = pairs.iter().map(|pair| self.sentences.sentence(pick(pair)));
            let mut sentences: Vec<&[i32]> = sentences.collect();
            sentences.resize(batch, &[MARKER]);
            let lengths: Vec<usize> = sentences.iter().map(|s| s.len()).collect();
            let order = longest_first(&lengths);
            let sentences: Vec<&[i32]> = order.iter().map(|&i| sentences[i]).collect();
            let lengths: Vec<usize> = order.iter().map(|&i| lengths[i]).collect();
            let [values, not_over, rows] = names;
            [
                Fed::vector(values, step_major(&sentences)),
                Fed::vector(not_over, active(&lengths)),
                Fed::vector(rows, as_i32s(inverse(&order))),
            ]
        };
        let mut fed = Vec::with_capacity(7);
        fed.extend(packed(["anchor", "anchor_active", "anchor_rows"], |pair| pair.anchor));
        fed.extend(packed(["positive", "positive_active", "positive_rows"], |pair| pair.positive));
        let mut labels = as_i32s(0..pairs.len());
        labels.resize(batch, PADDING_LABEL);
        fed.push(Fed::vector("labels", labels));
        fed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three classes of four sentences; sentence `s` of class `c` is `s + 1` times the token `10 c + s`.
    fn three_classes() -> Sentences {
        let mut test = SentenceSplit::default();
        for class in 0..3 {
            for sentence in 0..4 {
                test.push(class, &vec![(10 * class + sentence) as i32; sentence + 1]);
            }
        }
        let (name, vocabulary) = ("t".to_owned(), Vocabulary::new([]));
        Sentences { name, vocabulary, train: test.clone(), test }
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
        let fed = data.test.feed(&pairs, 2);
        assert_eq!(fed.len(), wanted.len());
        for (fed, (name, values)) in fed.iter().zip(wanted) {
            assert_eq!((fed.name, fed.i32s()), (name, values));
        }
    }

    #[test]
    fn test_batches_hold_every_class_once_a_round() {
        let data = three_classes();
        assert_eq!((data.test_pairs(), data.test_batches(2), data.test_batches(9)), (6, 4, 2));
        let counts: Vec<usize> =
            (0..5).map(|index| super::super::counted(&data.test_batch(index, 2))).collect();
        assert_eq!(counts, [2, 1, 2, 1, 0]);
        let second = data.test_batch(1, 2);
        assert_eq!(second[0].i32s(), [20, MARKER]);
        assert_eq!(second[6].i32s(), [0, PADDING_LABEL]);
    }
}
