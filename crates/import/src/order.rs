//! A tensor whose dimensions are in another order than the module has them: what permutes is not computed until somebody
//! needs it otherwise.

use tensorwire_nn::{Op, Output, Scope};

/// A tensor, and where its dimensions lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) output: Output,
    /// Dimension d as the module counts is dimension `order[d]` of `output`.
    pub(crate) order: Vec<usize>,
}

/// The order in which channels, the module's second dimension, are last.
pub(crate) fn channels_last(rank: usize) -> Vec<usize> {
    (0..rank)
        .map(|axis| match axis {
            0 => 0,
            1 => rank - 1,
            _ => axis - 1,
        })
        .collect()
}

impl Tensor {
    /// A tensor as the module has it.
    pub(crate) fn plain(output: Output, rank: usize) -> Tensor {
        Tensor { output, order: (0..rank).collect() }
    }

    pub(crate) fn rank(&self) -> usize {
        self.order.len()
    }

    /// True if the dimensions are in the module's order.
    pub(crate) fn is_plain(&self) -> bool {
        self.order.is_sorted()
    }

    /// The same tensor with its dimensions in another order: dimension d is what was `permutation[d]`.
    pub(crate) fn permuted(&self, permutation: &[usize]) -> Tensor {
        let order = permutation.iter().map(|&from| self.order[from]).collect();
        Tensor { output: self.output, order }
    }

    /// The dimensions, in the module's order.
    pub(crate) fn dims(&self, s: &Scope<'_>) -> tensorwire_nn::Result<Vec<usize>> {
        self.order.iter().map(|&axis| s.size(self.output, axis)).collect()
    }

    /// The output with dimension d at `order[d]`; turned, if it is not so, by a node of this name.
    pub(crate) fn laid(
        &self,
        s: &mut Scope<'_>,
        name: &str,
        order: &[usize],
    ) -> tensorwire_nn::Result<Output> {
        if self.order == order {
            return Ok(self.output);
        }
        let dims = self.dims(s)?;
        let (mut permutation, mut turned) = (vec![0; order.len()], vec![0; order.len()]);
        for (axis, &to) in order.iter().enumerate() {
            permutation[to] = self.order[axis];
            turned[to] = dims[axis];
        }
        // where only dimensions of 1 change places, no element does
        let mut moved = permutation.iter().zip(&turned).filter(|(_, size)| **size != 1);
        match moved.by_ref().map(|(from, _)| from).is_sorted() {
            true => s.reshape(name, self.output, &turned),
            false => s.op(name, Op::Transpose { permutation }, &[self.output]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_last() {
        assert_eq!(channels_last(4), [0, 3, 1, 2]);
        assert_eq!(channels_last(3), [0, 2, 1]);
        assert_eq!(channels_last(2), [0, 1]);
    }
}
