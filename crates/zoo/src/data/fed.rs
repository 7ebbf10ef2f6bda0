//! One batch as named tensors, and how sentences of different lengths are packed into them. Knows no
//! graph: whoever feeds finds the inputs by these names.

use super::images::PADDING_LABEL;

/// A tensor that a replica is fed with.
#[derive(Clone, Debug, PartialEq)]
pub struct Fed {
    pub name: &'static str,
    pub dims: Vec<usize>,
    /// In row-major order; as many as the product of `dims`.
    pub values: FedValues,
}

/// A tensor's elements.
#[derive(Clone, Debug, PartialEq)]
pub enum FedValues {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Fed {
    /// i32[values].
    pub(super) fn vector(name: &'static str, values: Vec<i32>) -> Fed {
        Fed { name, dims: vec![values.len()], values: FedValues::I32(values) }
    }

    /// The values of a tensor of floats; none where it is one of integers.
    pub fn f32s(&self) -> &[f32] {
        match &self.values {
            FedValues::F32(values) => values,
            FedValues::I32(_) => &[],
        }
    }

    /// The values of a tensor of integers; none where it is one of floats.
    pub fn i32s(&self) -> &[i32] {
        match &self.values {
            FedValues::I32(values) => values,
            FedValues::F32(_) => &[],
        }
    }
}

/// How many labels of a batch count: those that are no padding. Of images, sequences and sentences one
/// a sample, of pairs one a word of the target and one for its end.
pub fn counted(batch: &[Fed]) -> usize {
    let labels = batch.iter().filter(|fed| fed.name == "labels");
    labels.flat_map(Fed::i32s).filter(|&&label| label > PADDING_LABEL).count()
}

/// The order in which sentences of these lengths are packed, longest first and else as they come: row `r`
/// is sentence `order[r]`.
pub(super) fn longest_first(lengths: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    // stable: equal lengths stay in order
    order.sort_by_key(|&sentence| std::cmp::Reverse(lengths[sentence]));
    order
}

/// Where each entry of an order went: `inverse(order)[order[r]]` is `r`.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut rows = vec![0; order.len()];
    for (row, &sentence) in order.iter().enumerate() {
        rows[sentence] = row;
    }
    rows
}

/// How many of these lengths, longest first, are not over at each step: i32[longest].
pub(super) fn active(lengths: &[usize]) -> Vec<i32> {
    let longest = lengths.first().copied().unwrap_or(0);
    let mut rows = lengths.len();
    let not_over = (0..longest).map(|step| {
        while lengths[rows - 1] <= step {
            rows -= 1;
        }
        // fits: rows of one batch
        rows as i32
    });
    not_over.collect()
}

/// Sequences, longest first, step by step: the first element of each, then the second of each that has
/// one, …: i32[total].
pub(super) fn step_major(sequences: &[impl AsRef<[i32]>]) -> Vec<i32> {
    let lengths: Vec<usize> = sequences.iter().map(|s| s.as_ref().len()).collect();
    let steps = active(&lengths).into_iter().enumerate();
    // active rows are the first ones and not negative
    steps
        .flat_map(|(step, rows)| sequences[..rows as usize].iter().map(move |s| s.as_ref()[step]))
        .collect()
}

/// Row numbers as a tensor's elements.
pub(super) fn as_i32s(rows: impl IntoIterator<Item = usize>) -> Vec<i32> {
    // fits: rows of one batch
    rows.into_iter().map(|row| row as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_sentences_packed() {
        let sentences = [vec![1, 2, 3], vec![4, 5], vec![6]];
        assert_eq!(step_major(&sentences), [1, 4, 6, 2, 5, 3]);
        assert_eq!(active(&[3, 2, 1]), [3, 2, 1]);
        assert_eq!(active(&[4, 1, 1, 1]), [4, 1, 1, 1]);
        assert_eq!(active(&[2, 2]), [2, 2]);
        assert_eq!(active(&[]), [0; 0]);
    }

    #[test]
    fn equal_lengths_stay_in_order() {
        let order = longest_first(&[2, 5, 2, 5, 9]);
        assert_eq!(order, [4, 1, 3, 0, 2]);
        assert_eq!(inverse(&order), [3, 1, 4, 2, 0]);
    }

    #[test]
    fn padding_does_not_count() {
        let labels = Fed::vector("labels", vec![0, 7, PADDING_LABEL]);
        let rows = Fed::vector("order", vec![1, 1, 1]);
        assert_eq!(counted(&[rows, labels]), 2);
    }
}
