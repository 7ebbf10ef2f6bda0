//! Typed views of lent bytes: what a kernel gets.

use tensorwire_tensor::{DType, Element, TensorSpec};

/// A tensor that may be read.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    spec: &'a TensorSpec,
    bytes: &'a [u8],
}

/// A tensor that may be written.
#[derive(Debug)]
pub struct TensorMut<'a> {
    spec: &'a TensorSpec,
    bytes: &'a mut [u8],
}

/// Why bytes are not the tensor that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("{spec} needs {} bytes, the buffer has {bytes}", spec.bytes())]
    WrongSize { spec: TensorSpec, bytes: usize },
    #[error("the tensor holds {found}, not {wanted}")]
    WrongDType { found: DType, wanted: DType },
    #[error("the buffer is not aligned for {0}")]
    Misaligned(DType),
}

impl<'a> TensorRef<'a> {
    pub fn new(spec: &'a TensorSpec, bytes: &'a [u8]) -> Result<TensorRef<'a>, TensorError> {
        check_size(spec, bytes.len())?;
        Ok(TensorRef { spec, bytes })
    }

    pub fn spec(&self) -> &'a TensorSpec {
        self.spec
    }

    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    pub fn dims(&self) -> &'a [usize] {
        self.spec.dims()
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, row-major.
    pub fn elements<T: Element>(&self) -> Result<&'a [T], TensorError> {
        check_dtype::<T>(self.spec.dtype)?;
        bytemuck::try_cast_slice(self.bytes).map_err(|_| TensorError::Misaligned(T::DTYPE))
    }
}

impl<'a> TensorMut<'a> {
    pub fn new(spec: &'a TensorSpec, bytes: &'a mut [u8]) -> Result<TensorMut<'a>, TensorError> {
        check_size(spec, bytes.len())?;
        Ok(TensorMut { spec, bytes })
    }

    pub fn spec(&self) -> &'a TensorSpec {
        self.spec
    }

    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    pub fn dims(&self) -> &'a [usize] {
        self.spec.dims()
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The elements, row-major.
    pub fn elements<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        check_dtype::<T>(self.spec.dtype)?;
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|_| TensorError::Misaligned(T::DTYPE))
    }
}

fn check_size(spec: &TensorSpec, bytes: usize) -> Result<(), TensorError> {
    if spec.bytes() == bytes {
        Ok(())
    } else {
        Err(TensorError::WrongSize { spec: spec.clone(), bytes })
    }
}

fn check_dtype<T: Element>(found: DType) -> Result<(), TensorError> {
    if found == T::DTYPE {
        Ok(())
    } else {
        Err(TensorError::WrongDType { found, wanted: T::DTYPE })
    }
}
