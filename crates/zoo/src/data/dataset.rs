//! A data set in memory, of one of the kinds that models learn from. Knows neither where it came from
//! nor in which order it is read.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fed::Fed;
use super::images::{Images, Sequences};
use super::pairs::Pairs;
use super::sentences::Sentences;

/// A data set; a clone shares it.
#[derive(Clone, Debug)]
pub enum Data {
    /// Images, one label each.
    Images(Arc<Images>),
    /// Sequences of vectors, all of one length, one label each.
    Sequences(Arc<Sequences>),
    /// Sentences of two languages.
    Pairs(Arc<Pairs>),
    /// Sentences of one language, in classes.
    Sentences(Arc<Sentences>),
}

/// What a model must know of its data to be built; also what it asks for where data are made or words
/// are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Images of `dims` = [height, width, channels].
    Images { dims: [usize; 3], classes: usize },
    /// Sequences of `steps` vectors of `features` values.
    Sequences { steps: usize, features: usize, classes: usize },
    /// Words of both vocabularies, with the two that are none ([`super::MARKER`], [`super::UNKNOWN`]).
    /// Asked for, they are bounds: a corpus may have fewer.
    Pairs { source_words: usize, target_words: usize },
    /// Words of the vocabulary and classes that are trained. Asked for, `words` is a bound.
    Sentences { words: usize, classes: usize },
}

impl Data {
    /// What people call it, such as `digits`.
    pub fn name(&self) -> &str {
        match self {
            Data::Images(data) => &data.name,
            Data::Sequences(data) => &data.name,
            Data::Pairs(data) => &data.name,
            Data::Sentences(data) => &data.name,
        }
    }

    /// What a model must know of it.
    pub fn shape(&self) -> Shape {
        match self {
            Data::Images(data) => Shape::Images { dims: data.dims, classes: data.classes },
            Data::Sequences(data) => {
                let Sequences { steps, features, classes, .. } = **data;
                Shape::Sequences { steps, features, classes }
            }
            Data::Pairs(data) => Shape::Pairs {
                source_words: data.source.words(),
                target_words: data.target.words(),
            },
            Data::Sentences(data) => {
                Shape::Sentences { words: data.vocabulary.words(), classes: data.train.classes() }
            }
        }
    }

    /// Images, sequences, pairs or sentences to learn from.
    pub fn train_samples(&self) -> usize {
        match self {
            Data::Images(data) => data.train.samples(),
            Data::Sequences(data) => data.train.samples(),
            Data::Pairs(data) => data.train.samples(),
            Data::Sentences(data) => data.train.samples(),
        }
    }

    /// Images, sequences or pairs that all test batches hold together; of sentences the pairs that are
    /// made of them.
    pub fn test_samples(&self) -> usize {
        match self {
            Data::Images(data) => data.test.samples(),
            Data::Sequences(data) => data.test.samples(),
            Data::Pairs(data) => data.test.samples(),
            Data::Sentences(data) => data.test_pairs(),
        }
    }

    /// Batches that hold every test sample once: some may be padded.
    ///
    /// # Panics
    /// If `batch` is 0.
    pub fn test_batches(&self, batch: usize) -> usize {
        match self {
            Data::Images(data) => data.test_batches(batch),
            Data::Sequences(data) => data.test.samples().div_ceil(batch),
            Data::Pairs(data) => data.test.samples().div_ceil(batch),
            Data::Sentences(data) => data.test_batches(batch),
        }
    }

    /// Test batch `index` of `batch` samples, in the set's order, as [`super::Batches::feed`] names its
    /// tensors. Rows past the last sample have labels of [`super::PADDING_LABEL`]; they are zeros, or
    /// sentences of one token.
    ///
    /// # Panics
    /// If `batch` is 0.
    pub fn test_batch(&self, index: usize, batch: usize) -> Vec<Fed> {
        assert!(batch > 0, "a batch of no samples");
        match self {
            Data::Images(data) => {
                let samples: Vec<usize> = data.test.batch(index, batch).collect();
                data.feed(&data.test, &samples, batch)
            }
            Data::Sequences(data) => {
                let samples: Vec<usize> = data.test.batch(index, batch).collect();
                data.feed(&data.test, &samples, batch)
            }
            Data::Pairs(data) => data.test.test_batch(index, batch),
            Data::Sentences(data) => data.test_batch(index, batch),
        }
    }
}

impl Shape {
    /// What a data set of this shape holds.
    pub fn kind(&self) -> &'static str {
        match self {
            Shape::Images { .. } => "images",
            Shape::Sequences { .. } => "sequences",
            Shape::Pairs { .. } => "pairs of sentences",
            Shape::Sentences { .. } => "sentences in classes",
        }
    }
}

/// One sample, for people.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Images { dims: [height, width, channels], classes } => {
                write!(f, "{height}×{width}×{channels} → {classes}")
            }
            Shape::Sequences { steps, features, classes } => {
                write!(f, "{steps} steps × {features} → {classes}")
            }
            Shape::Pairs { source_words, target_words } => {
                write!(f, "words of {source_words} → words of {target_words}")
            }
            Shape::Sentences { words, .. } => write!(f, "words of {words}"),
        }
    }
}

impl From<Images> for Data {
    fn from(data: Images) -> Data {
        Data::Images(Arc::new(data))
    }
}

impl From<Arc<Images>> for Data {
    fn from(data: Arc<Images>) -> Data {
        Data::Images(data)
    }
}

impl From<Sequences> for Data {
    fn from(data: Sequences) -> Data {
        Data::Sequences(Arc::new(data))
    }
}

impl From<Pairs> for Data {
    fn from(data: Pairs) -> Data {
        Data::Pairs(Arc::new(data))
    }
}

impl From<Sentences> for Data {
    fn from(data: Sentences) -> Data {
        Data::Sentences(Arc::new(data))
    }
}
