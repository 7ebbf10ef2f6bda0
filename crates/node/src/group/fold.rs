//! The folds of a group, computed by the kernels.

use tensorwire_collectives::Fold;
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
}
