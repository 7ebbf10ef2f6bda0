//! The reductions of a group, computed by the kernels.

use tensorwire_collectives::{ElementType, Plain, ReduceOp, Reducer};
use tensorwire_kernels::{FoldElement, FoldKind, Folding, NoFold};

/// The reduction of vectors of one type.
#[derive(Clone, Copy, Debug)]
pub struct VectorReducer {
    folding: Folding,
}

impl VectorReducer {
    /// # Errors
    /// As of [`Folding::new`].
    pub fn new(element: impl Into<FoldElement>, kind: FoldKind) -> Result<VectorReducer, NoFold> {
        Ok(VectorReducer { folding: Folding::new(element, kind)? })
    }
}

impl Reducer for VectorReducer {
    fn element_bytes(&self) -> usize {
        self.folding.element().bytes()
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        self.folding.fold(parts, into, whole);
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        self.folding.fold_into(into, from, whole);
    }

    fn plain(&self) -> Option<Plain> {
        let element = match self.folding.element() {
            FoldElement::F32 => ElementType::F32,
            FoldElement::F64 => ElementType::F64,
            _ => return None,
        };
        let op = match self.folding.kind() {
            FoldKind::Sum => ReduceOp::Sum,
            FoldKind::Mean => ReduceOp::Mean,
            // of a maximum, where any is not a number ours is none, which nobody else promises; so of a minimum. Of the
            // others no `ReduceOp` speaks
            FoldKind::Max
            | FoldKind::Min
            | FoldKind::Product
            | FoldKind::BitAnd
            | FoldKind::BitOr
            | FoldKind::BitXor => return None,
        };
        Some(Plain { element, op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_know_too_is_said() {
        let plain = |element, kind| VectorReducer::new(element, kind).unwrap().plain();
        let sum = Plain { element: ElementType::F64, op: ReduceOp::Sum };
        assert_eq!(plain(FoldElement::F64, FoldKind::Sum), Some(sum));
        let mean = Plain { element: ElementType::F32, op: ReduceOp::Mean };
        assert_eq!(plain(FoldElement::F32, FoldKind::Mean), Some(mean));
        // added up in f32 and rounded once
        assert_eq!(plain(FoldElement::BF16, FoldKind::Sum), None);
        assert_eq!(plain(FoldElement::F32, FoldKind::Max), None);
        assert_eq!(plain(FoldElement::F32, FoldKind::Product), None);
        // a type that is not said to others
        assert_eq!(plain(FoldElement::I32, FoldKind::Sum), None);
    }
}
