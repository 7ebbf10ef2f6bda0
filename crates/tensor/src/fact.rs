//! What is known of a tensor before it exists: its element type, its number of dimensions, and for
//! each dimension a number or a name. The paper (Xue et al., §3.3) rests on the number of
//! dimensions being fixed even where their sizes are not.

use std::fmt;

use crate::{DType, ShapeError, TensorSpec};

/// A dimension whose size is known only when the tensor exists. Equal symbols are equal sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

/// One dimension of a [`Fact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    Known(usize),
    Dynamic(Symbol),
}

/// Element type and dimensions of a tensor that is yet to come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    pub dtype: DType,
    pub dims: Vec<Dim>,
}

impl Fact {
    /// A fact with every dimension known.
    pub fn known(dtype: DType, dims: &[usize]) -> Fact {
        Fact { dtype, dims: dims.iter().map(|&d| Dim::Known(d)).collect() }
    }

    /// The spec, where every dimension is known; none where one is dynamic.
    pub fn spec(&self) -> Option<Result<TensorSpec, ShapeError>> {
        let mut dims = Vec::with_capacity(self.dims.len());
        for dim in &self.dims {
            match dim {
                Dim::Known(size) => dims.push(*size),
                Dim::Dynamic(_) => return None,
            }
        }
        Some(TensorSpec::new(self.dtype, &dims))
    }
}

impl From<&TensorSpec> for Fact {
    fn from(spec: &TensorSpec) -> Fact {
        Fact::known(spec.dtype, spec.dims())
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(size) => write!(f, "{size}"),
            Dim::Dynamic(symbol) => write!(f, "?{}", symbol.0),
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { "×" })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_has_a_spec_only_when_all_is_known() {
        let known = Fact::known(DType::F32, &[2, 3]);
        assert_eq!(known.spec().unwrap().unwrap().bytes(), 24);
        let dims = vec![Dim::Dynamic(Symbol(0)), Dim::Known(3)];
        let dynamic = Fact { dtype: DType::F32, dims };
        assert!(dynamic.spec().is_none());
        assert_eq!(dynamic.to_string(), "f32[?0×3]");
    }
}
