//! The kinds of samples that the shipped models learn from, and their descriptions.

use std::fmt;

use tensorwire_nn::{DType, Description, Extent, Feature, Values};

/// A kind of samples with its sizes: what a data set has, or what a model asks for where data are generated or a vocabulary
/// is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Images of `dims` = `[height, width, channels]`, one label each.
    Images { dims: [usize; 3], classes: usize },
    /// Sequences of `steps` vectors of `features` values, one label each.
    Sequences { steps: usize, features: usize, classes: usize },
    /// Sentences and their translations, with the sizes of both vocabularies, including [`super::MARKER`] and
    /// [`super::UNKNOWN`]. As a request the sizes are bounds: a corpus may have fewer words.
    Pairs { source_words: usize, target_words: usize },
    /// Pairs of sentences of one class, with the size of the vocabulary and the number of training classes. As a request
    /// `words` is a bound.
    Sentences { words: usize, classes: usize },
    /// Windows of `length` tokens of running text, and the token that follows each.
    Tokens { vocabulary: usize, length: usize },
    /// Windows of `length` tokens of which some are to be guessed. The last of the vocabulary hides them, and is no label.
    Masked { vocabulary: usize, length: usize },
}

impl SampleKind {
    /// The kind of data with this description. None if it is not one of these.
    pub fn of(data: &Description) -> Option<SampleKind> {
        let dims = |name: &str| data.get(name).map(|feature| feature.dims.as_slice());
        let bound = |name: &str| data.get(name)?.values.bound();
        match dims("input") {
            Some(
                &[
                    Extent::Batch(1),
                    Extent::Known(height),
                    Extent::Known(width),
                    Extent::Known(channels),
                ],
            ) => {
                let dims = [height, width, channels];
                Some(SampleKind::Images { dims, classes: bound("labels")? })
            }
            Some(&[Extent::Batch(1), Extent::Known(length)]) if bound("input").is_some() => {
                match (bound("input")?, bound("labels")?) {
                    (vocabulary, labels) if vocabulary == labels + 1 => {
                        Some(SampleKind::Masked { vocabulary, length })
                    }
                    (vocabulary, _) => Some(SampleKind::Tokens { vocabulary, length }),
                }
            }
            Some(&[Extent::Batch(steps), Extent::Known(features)]) => {
                Some(SampleKind::Sequences { steps, features, classes: bound("labels")? })
            }
            Some(_) => None,
            None => match (bound("source"), bound("target"), bound("anchor")) {
                (Some(source_words), Some(target_words), _) => {
                    Some(SampleKind::Pairs { source_words, target_words })
                }
                (_, _, Some(words)) => {
                    Some(SampleKind::Sentences { words, classes: bound("labels")? })
                }
                _ => None,
            },
        }
    }

    /// The tensors of a batch:
    ///
    /// - images: "input" `f32[batch, h, w, c]`, in 0..=1 but for photographs and tables, "labels" `i32[batch]`;
    /// - sequences: "input" `f32[steps·batch, features]` in 0..=1, first the first step of each, then the
    ///   second of each, …; "labels" `i32[batch]`;
    /// - pairs, packed as [`Op::Recurrent`](tensorwire_nn::Op::Recurrent) takes them, longest first: "source" `i32[total]` and
    ///   "source_active" `i32[longest source]`; "order" `i32[batch]`, the source row that each target row
    ///   means; "target" `i32[total]`, [`super::MARKER`] and the words, "target_active" `i32[longest target + 1]`,
    ///   "labels" `i32[total]`, the words and [`super::MARKER`];
    /// - sentences, packed in the same way: "anchor" `i32[total]`, "anchor_active" `i32[longest]`,
    ///   "anchor_rows" `i32[batch]`, the row of each pair's sentence; "positive", "positive_active" and
    ///   "positive_rows"; "labels" `i32[batch]`, 0, 1, …. All pairs are of distinct classes;
    /// - tokens: "input" `i32[batch, length]`, "labels" `i32[batch, length]`, the token after each;
    /// - masked tokens: the same, labels being the hidden tokens, and
    ///   [`PADDING_LABEL`](tensorwire_nn::PADDING_LABEL) where none is to be guessed.
    pub fn describe(&self) -> Description {
        match *self {
            SampleKind::Images { dims, classes } => {
                Description::new().input("input", DType::F32, &dims).labels("labels", classes)
            }
            SampleKind::Sequences { steps, features, classes } => {
                let (name, dtype) = ("input".to_string(), DType::F32);
                let dims = vec![Extent::Batch(steps), Extent::Known(features)];
                let input = Feature { name, dtype, dims, values: Values::Any };
                Description::new().feature(input).labels("labels", classes)
            }
            SampleKind::Pairs { source_words, target_words } => Description::new()
                .feature(vector("source", Extent::Varying(0), Values::Below(source_words)))
                .feature(vector("source_active", Extent::Varying(1), Values::Any))
                .feature(vector("order", Extent::Batch(1), Values::Any))
                .feature(vector("target", Extent::Varying(2), Values::Below(target_words)))
                .feature(vector("target_active", Extent::Varying(3), Values::Any))
                .feature(vector("labels", Extent::Varying(2), Values::Labels(target_words))),
            SampleKind::Sentences { words, classes } => {
                let mut description = Description::new();
                for (side, total, longest) in [("anchor", 0, 1), ("positive", 2, 3)] {
                    let named = |what: &str| format!("{side}{what}");
                    description = description
                        .feature(vector(side, Extent::Varying(total), Values::Below(words)))
                        .feature(vector(&named("_active"), Extent::Varying(longest), Values::Any))
                        .feature(vector(&named("_rows"), Extent::Batch(1), Values::Any));
                }
                description.labels("labels", classes)
            }
            SampleKind::Tokens { vocabulary, length } => Description::new()
                .tokens("input", &[length], vocabulary)
                .label_sequences("labels", &[length], vocabulary),
            SampleKind::Masked { vocabulary, length } => {
                windows(length, vocabulary, vocabulary.saturating_sub(1))
            }
        }
    }

    /// The same in windows of `length` tokens. None of what has no windows.
    pub fn of_length(self, length: usize) -> Option<SampleKind> {
        match self {
            SampleKind::Tokens { vocabulary, .. } => {
                Some(SampleKind::Tokens { vocabulary, length })
            }
            SampleKind::Masked { vocabulary, .. } => {
                Some(SampleKind::Masked { vocabulary, length })
            }
            _ => None,
        }
    }

    /// What such data hold, such as "images".
    pub fn name(&self) -> &'static str {
        match self {
            SampleKind::Images { .. } => "images",
            SampleKind::Sequences { .. } => "sequences",
            SampleKind::Pairs { .. } => "pairs of sentences",
            SampleKind::Sentences { .. } => "sentences in classes",
            SampleKind::Tokens { .. } => "running text",
            SampleKind::Masked { .. } => "masked text",
        }
    }
}

/// `i32[dim]`.
fn vector(name: &str, dim: Extent, values: Values) -> Feature {
    Feature { name: name.to_string(), dtype: DType::I32, dims: vec![dim], values }
}

/// `i32[batch, length]` twice.
fn windows(length: usize, words: usize, classes: usize) -> Description {
    let dims = vec![Extent::Batch(1), Extent::Known(length)];
    let (name, dtype, values) = ("labels".to_string(), DType::I32, Values::Labels(classes));
    let labels = Feature { name, dtype, dims, values };
    Description::new().tokens("input", &[length], words).feature(labels)
}

/// Shows one sample, such as "28×28×1 → 10".
impl fmt::Display for SampleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SampleKind::Images { dims: [height, width, channels], classes } => {
                write!(f, "{height}×{width}×{channels} → {classes}")
            }
            SampleKind::Sequences { steps, features, classes } => {
                write!(f, "{steps} steps × {features} → {classes}")
            }
            SampleKind::Pairs { source_words, target_words } => {
                write!(f, "words of {source_words} → words of {target_words}")
            }
            SampleKind::Sentences { words, .. } => write!(f, "words of {words}"),
            SampleKind::Tokens { vocabulary, length } => {
                write!(f, "{length} tokens of {vocabulary}")
            }
            SampleKind::Masked { vocabulary, length } => {
                write!(f, "{length} tokens of {vocabulary}, some masked")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_description() {
        for kind in [
            SampleKind::Images { dims: [4, 3, 2], classes: 5 },
            SampleKind::Sequences { steps: 80, features: 7, classes: 5 },
            SampleKind::Pairs { source_words: 100, target_words: 90 },
            SampleKind::Sentences { words: 1000, classes: 4 },
            SampleKind::Tokens { vocabulary: 62, length: 64 },
            SampleKind::Masked { vocabulary: 62, length: 64 },
        ] {
            let described = kind.describe();
            described.check(kind.name()).unwrap();
            assert_eq!(SampleKind::of(&described), Some(kind));
        }
        let others = Description::new().input("x", DType::F32, &[3]).labels("labels", 2);
        assert_eq!(SampleKind::of(&others), None);
    }
}
