//! What a batch of data consists of: named tensors with types and sizes. A model is built from this alone, so a process that
//! reads no samples needs no data.

use std::fmt;

use serde::{Deserialize, Serialize};
use tensorwire_tensor::{DType, TensorSpec};

use crate::error::{Error, Result};

/// The name of the tensor that classifiers read their classes from.
pub const LABELS: &str = "labels";
/// The name of the input that counts steps, which dropout needs.
pub(crate) const STEP: &str = "step";

/// The tensors of a batch.
///
/// ```
/// use tensorwire_nn::{Description, DType};
/// // images of 28×28 grey values, each of one of ten classes
/// let images = Description::new().input("input", DType::F32, &[28, 28, 1]).labels("labels", 10);
/// assert_eq!(images.to_string(), "input: f32[batch×28×28×1], labels: i32[batch] below 10");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    features: Vec<Feature>,
}

/// One tensor of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// The name by which models read it.
    pub name: String,
    pub dtype: DType,
    /// The dimensions in a whole batch, outermost first.
    pub dims: Vec<Extent>,
    pub values: Values,
}

/// The size of a batch's tensor along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    Known(usize),
    /// This many for each sample of the batch.
    Batch(usize),
    /// Different in every batch. Dimensions with the same number have the same size within a batch.
    Varying(u32),
}

/// The values that a tensor's elements may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    Any,
    /// Integers in `0..bound`, such as words of a vocabulary. Padding is 0.
    Below(usize),
    /// Classes: integers in `0..bound`. Padding is [`PADDING_LABEL`](crate::PADDING_LABEL).
    Labels(usize),
}

impl Values {
    /// The number of values, if there is a bound.
    pub fn bound(self) -> Option<usize> {
        match self {
            Values::Any => None,
            Values::Below(bound) | Values::Labels(bound) => Some(bound),
        }
    }
}

impl Description {
    /// A description without tensors.
    pub fn new() -> Description {
        Description::default()
    }

    /// Adds a tensor with dimensions `dims` for each sample, and `[batch, dims…]` for a batch.
    #[must_use]
    pub fn input(self, name: &str, dtype: DType, dims: &[usize]) -> Description {
        self.samplewise(name, dtype, dims, Values::Any)
    }

    /// Adds one class for each sample: `i32[batch]`, each in `0..classes`.
    #[must_use]
    pub fn labels(self, name: &str, classes: usize) -> Description {
        self.samplewise(name, DType::I32, &[], Values::Labels(classes))
    }

    /// Adds a class for each element of each sample, such as the next word of each word: `i32[batch, dims…]`, each in
    /// `0..classes`.
    #[must_use]
    pub fn label_sequences(self, name: &str, dims: &[usize], classes: usize) -> Description {
        self.samplewise(name, DType::I32, dims, Values::Labels(classes))
    }

    /// Adds words for each sample: `i32[batch, dims…]`, each in `0..words`.
    #[must_use]
    pub fn tokens(self, name: &str, dims: &[usize], words: usize) -> Description {
        self.samplewise(name, DType::I32, dims, Values::Below(words))
    }

    /// Adds any tensor.
    #[must_use]
    pub fn feature(mut self, feature: Feature) -> Description {
        self.features.push(feature);
        self
    }

    fn samplewise(self, name: &str, dtype: DType, dims: &[usize], values: Values) -> Description {
        let dims = dims.iter().copied().map(Extent::Known);
        let dims = std::iter::once(Extent::Batch(1)).chain(dims).collect();
        self.feature(Feature { name: name.to_string(), dtype, dims, values })
    }

    /// All tensors, in the order in which they were described.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.name == name)
    }

    /// True if a sample has a label for each of its own elements, such as for each word of a sentence.
    pub fn has_label_sequences(&self) -> bool {
        self.get(LABELS).is_some_and(|labels| {
            matches!(labels.dims[..], [Extent::Varying(_)] | [Extent::Batch(_), _, ..])
                && matches!(labels.values, Values::Labels(_))
        })
    }

    /// Labels of each sample, where all samples have as many: 1 where each has one class, or none.
    pub(crate) fn labels_each(&self) -> usize {
        let labels = self.get(LABELS).filter(|labels| matches!(labels.values, Values::Labels(_)));
        let dims = labels.map_or(&[] as &[Extent], |labels| &labels.dims);
        let each = dims.iter().map(|dim| match *dim {
            Extent::Known(size) | Extent::Batch(size) => size,
            Extent::Varying(_) => 1,
        });
        each.product()
    }

    /// Checks that the tensors of a batch are those described, in the same order.
    pub(crate) fn check_batch(
        &self,
        tensors: &[(&str, TensorSpec)],
        batch: usize,
    ) -> Result<(), String> {
        let wrong = |(name, spec): &(&str, TensorSpec), feature: &Feature| {
            format!("fill() has '{name}' as {spec}, and describe() says {feature}")
        };
        if tensors.len() != self.features.len() {
            let (found, wanted) = (tensors.len(), self.features.len());
            return Err(format!("fill() has {found} tensors, and describe() {wanted}: {self}"));
        }
        // sizes of varying dimensions, by their numbers
        let mut sizes: Vec<(u32, usize)> = Vec::new();
        for (tensor, feature) in tensors.iter().zip(&self.features) {
            let (name, spec) = tensor;
            let same = *name == feature.name && spec.dtype == feature.dtype;
            if !same || spec.dims().len() != feature.dims.len() {
                return Err(wrong(tensor, feature));
            }
            for (&size, dim) in spec.dims().iter().zip(&feature.dims) {
                let wanted = match *dim {
                    Extent::Known(known) => known,
                    Extent::Batch(each) => each.saturating_mul(batch),
                    Extent::Varying(number) => {
                        match sizes.iter().find(|(known, _)| *known == number) {
                            Some((_, known)) => *known,
                            None => {
                                sizes.push((number, size));
                                size
                            }
                        }
                    }
                };
                if size != wanted {
                    return Err(wrong(tensor, feature));
                }
            }
        }
        Ok(())
    }

    /// Checks that the description makes sense for any model. Errors call the data set `data`.
    ///
    /// # Errors
    /// The first tensor that makes no sense, and why.
    pub fn check(&self, data: &str) -> Result<()> {
        let refused = |reason: String| Error::Description { data: data.to_string(), reason };
        if self.features.is_empty() {
            return Err(refused("describe() names no tensor".to_string()));
        }
        for (index, feature) in self.features.iter().enumerate() {
            let Feature { name, dtype, dims, values } = feature;
            if name.is_empty() || name.contains('/') || name == STEP {
                return Err(refused(format!(
                    "'{name}' cannot be a tensor's name: it is empty, has a '/', or is '{STEP}'"
                )));
            }
            if self.features[..index].iter().any(|other| other.name == *name) {
                return Err(refused(format!("two tensors are named '{name}'")));
            }
            if dims.iter().any(|dim| matches!(dim, Extent::Known(0) | Extent::Batch(0))) {
                return Err(refused(format!("'{feature}' has no elements")));
            }
            let fits = |bound: usize| bound > 0 && i32::try_from(bound).is_ok();
            if values.bound().is_some_and(|bound| *dtype != DType::I32 || !fits(bound)) {
                let most = i32::MAX;
                return Err(refused(format!(
                    "'{feature}': classes and words are i32, and at least 1 and at most {most} of them"
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features: Vec<String> = self.features.iter().map(Feature::to_string).collect();
        f.write_str(&features.join(", "))
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(Extent::to_string).collect();
        write!(f, "{}: {}[{}]", self.name, self.dtype, dims.join("×"))?;
        match self.values.bound() {
            Some(bound) => write!(f, " below {bound}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Known(size) => write!(f, "{size}"),
            Extent::Batch(1) => f.write_str("batch"),
            Extent::Batch(each) => write!(f, "{each}·batch"),
            Extent::Varying(_) => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let said = |description: Description| description.check("mine").unwrap_err().to_string();
        let x = || Description::new().input("x", DType::F32, &[2]);
        x().labels("y", 3).check("mine").unwrap();
        assert_eq!(said(Description::new()), "data 'mine': describe() names no tensor");
        assert!(said(x().labels("x", 3)).contains("two tensors are named 'x'"));
        assert!(said(x().input("z", DType::F32, &[2, 0])).contains("'z: f32[batch×2×0]'"));
        assert!(said(x().labels("y", 0)).contains("'y: i32[batch] below 0'"));
        assert!(said(x().tokens("y", &[4], 1 << 31)).contains("at most 2147483647"));
        for name in ["", "a/b", "step"] {
            assert!(said(x().labels(name, 3)).contains(&format!("'{name}' cannot be")));
        }
    }
}
