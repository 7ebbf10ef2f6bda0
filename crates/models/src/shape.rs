//! What a model is trained on: the kinds of samples, and their sizes. Agreed between data and models.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What one sample looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleShape {
    /// An image of height × width × channels, and its class.
    Image { dims: [usize; 3], classes: usize },
    /// `steps` vectors of `features` numbers, and one class.
    Sequence { steps: usize, features: usize, classes: usize },
    /// A sentence and its translation: words of two vocabularies, any number of them.
    Pair { source_words: usize, target_words: usize },
    /// Two sentences of one class: words of a vocabulary, any number of them.
    Sentence { words: usize },
}

impl SampleShape {
    /// What kind of sample it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            SampleShape::Image { .. } => "images",
            SampleShape::Sequence { .. } => "sequences of vectors",
            SampleShape::Pair { .. } => "pairs of sentences",
            SampleShape::Sentence { .. } => "sentences",
        }
    }
}

impl fmt::Display for SampleShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SampleShape::Image { dims: [height, width, channels], classes } => {
                write!(f, "{height}×{width}×{channels} → {classes}")
            }
            SampleShape::Sequence { steps, features, classes } => {
                write!(f, "{steps} steps × {features} → {classes}")
            }
            SampleShape::Pair { source_words, target_words } => {
                write!(f, "any of {source_words} words → any of {target_words}")
            }
            SampleShape::Sentence { words } => write!(f, "any of {words} words"),
        }
    }
}
