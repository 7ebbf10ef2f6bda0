//! The folds of a group, computed by the kernels.

use tensorwire_collectives::{Element, Fold, Op, Plain};
use tensorwire_kernels::{FoldKind, Folding, NoFold};
use tensorwire_tensor::DType;

/// A fold of vectors of one type.
#[derive(Clone, Copy, Debug)]
pub struct VectorFold {
    folding: Folding,
}

impl VectorFold {
    /// # Errors
    /// For types without arithmetic.
    pub fn new(dtype: DType, kind: FoldKind) -> Result<VectorFold, NoFold> {
        Ok(VectorFold { folding: Folding::new(dtype, kind)? })
    }
}

impl Fold for VectorFold {
    fn element_bytes(&self) -> usize {
        self.folding.dtype().bytes()
    }

    fn fold(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        self.folding.fold(parts, into, whole);
    }

    fn fold_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        self.folding.fold_into(into, from, whole);
    }

    fn plain(&self) -> Option<Plain> {
        let element = match self.folding.dtype() {
            DType::F32 => Element::F32,
            DType::F64 => Element::F64,
            _ => return None,
        };
        let op = match self.folding.kind() {
            FoldKind::Sum => Op::Sum,
            FoldKind::Mean => Op::Mean,
            // where any is not a number ours is none, which nobody else promises
            FoldKind::Max => return None,
        };
        Some(Plain { element, op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_know_too_is_said() {
        let plain = |dtype, kind| VectorFold::new(dtype, kind).unwrap().plain();
        let sum = Plain { element: Element::F64, op: Op::Sum };
        assert_eq!(plain(DType::F64, FoldKind::Sum), Some(sum));
        let mean = Plain { element: Element::F32, op: Op::Mean };
        assert_eq!(plain(DType::F32, FoldKind::Mean), Some(mean));
        // added up in f32 and rounded once
        assert_eq!(plain(DType::BF16, FoldKind::Sum), None);
        assert_eq!(plain(DType::F32, FoldKind::Max), None);
    }
}
