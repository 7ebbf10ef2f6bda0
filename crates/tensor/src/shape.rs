//! Concrete dimensions and the sizes that follow from them. Row-major and contiguous: the order in
//! which a tensor crosses the wire is the order in which kernels read it.

use std::fmt;

use crate::DType;

/// Most dimensions a tensor may have; a metadata slot on the wire has this many places.
pub const RANK_MAX: usize = 8;

/// Dimensions of a tensor, outermost first. No dimensions: a scalar.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: Vec<usize>,
}

/// Element type and shape: all that is needed to know a tensor's size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    pub dtype: DType,
    pub shape: Shape,
}

/// Why dimensions do not make a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("{found} dimensions; a tensor has at most {RANK_MAX}")]
    TooManyDimensions { found: usize },
    #[error("dimensions {dims:?} of {dtype} hold more bytes than this machine can address")]
    TooLarge { dims: Vec<usize>, dtype: DType },
}

impl Shape {
    /// A shape of at most [`RANK_MAX`] dimensions whose element count fits a `usize`.
    pub fn new(dims: &[usize]) -> Result<Shape, ShapeError> {
        if dims.len() > RANK_MAX {
            return Err(ShapeError::TooManyDimensions { found: dims.len() });
        }
        elements_checked(dims)
            .ok_or_else(|| ShapeError::TooLarge { dims: dims.to_vec(), dtype: DType::U8 })?;
        Ok(Shape { dims: dims.to_vec() })
    }

    /// The shape of one element without dimensions.
    pub fn scalar() -> Shape {
        Shape { dims: Vec::new() }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements: the product of the dimensions, 1 for a scalar.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

impl TensorSpec {
    /// A spec whose size in bytes fits an `isize`, as every allocation must.
    pub fn new(dtype: DType, dims: &[usize]) -> Result<TensorSpec, ShapeError> {
        let shape = Shape::new(dims)?;
        let fits = elements_checked(dims)
            .and_then(|n| n.checked_mul(dtype.bytes()))
            .is_some_and(|bytes| isize::try_from(bytes).is_ok());
        if !fits {
            return Err(ShapeError::TooLarge { dims: dims.to_vec(), dtype });
        }
        Ok(TensorSpec { dtype, shape })
    }

    /// Bytes of the tensor's elements.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.bytes()
    }

    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    pub fn elements(&self) -> usize {
        self.shape.elements()
    }
}

/// The product of the dimensions, none where it overflows even if one of them is 0.
fn elements_checked(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.dims, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { "×" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_dimensions() {
        let spec = TensorSpec::new(DType::F64, &[3, 0, 5]).unwrap();
        assert_eq!((spec.elements(), spec.bytes()), (0, 0));
        let spec = TensorSpec::new(DType::F32, &[64, 2048]).unwrap();
        assert_eq!(spec.bytes(), 64 * 2048 * 4);
        assert_eq!(Shape::scalar().elements(), 1);
        assert_eq!(spec.to_string(), "f32[64×2048]");
    }

    #[test]
    fn sizes_past_four_gib_are_exact() {
        let spec = TensorSpec::new(DType::F32, &[1 << 17, 1 << 16]).unwrap();
        assert_eq!(spec.bytes(), 1usize << 35);
    }

    #[test]
    fn what_cannot_be_addressed_is_refused() {
        assert!(matches!(Shape::new(&[usize::MAX, 2]), Err(ShapeError::TooLarge { .. })));
        assert!(matches!(Shape::new(&[0, usize::MAX, 2]), Err(ShapeError::TooLarge { .. })));
        let half = 1usize << 62;
        assert!(matches!(TensorSpec::new(DType::F32, &[half]), Err(ShapeError::TooLarge { .. })));
        let nine = Shape::new(&[1; 9]);
        assert_eq!(nine, Err(ShapeError::TooManyDimensions { found: 9 }));
    }
}
