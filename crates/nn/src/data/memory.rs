//! Where batches are written: input tensors of whoever trains, or a [`HostBatch`]. Data sets write there directly, without a
//! copy in between.

use tensorwire_tensor::{DType, Element, TensorSpec};

use crate::error::{Error, Result};

/// Memory for the tensors of one batch.
pub trait BatchMemory {
    /// Returns the bytes of these tensors, in the same order. Each has the size that its spec says and is aligned for its
    /// elements. The contents are unspecified.
    ///
    /// # Errors
    /// When there is no such tensor, or not enough memory.
    fn claim<'a>(&'a mut self, wanted: &[(&str, TensorSpec)]) -> Result<Vec<&'a mut [u8]>>;
}

impl dyn BatchMemory + '_ {
    /// Like [`BatchMemory::claim`], for a fixed number of tensors.
    ///
    /// # Errors
    /// As there.
    pub fn claim_array<'a, const N: usize>(
        &'a mut self,
        wanted: [(&str, TensorSpec); N],
    ) -> Result<[&'a mut [u8]; N]> {
        let tensors = self.claim(&wanted)?;
        let found = tensors.len();
        let why = |_| Error::other(format!("memory for {found} tensors instead of {N}"));
        tensors.try_into().map_err(why)
    }
}

/// How much of a batch counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Samples. The rows behind them are padding.
    pub samples: usize,
    /// Labels that are not padding: the weight of the batch's loss in a mean over batches. One a sample, or for sentences one a
    /// word. The number of samples if the data have no labels.
    pub labels: usize,
}

/// A batch in this process's memory. It keeps its memory when it is filled again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostBatch {
    tensors: Vec<HostTensor>,
    /// The number of tensors in use. The memory of others is kept.
    used: usize,
    pub filled: Filled,
}

/// A tensor of a [`HostBatch`].
#[derive(Clone, Debug)]
pub struct HostTensor {
    name: String,
    spec: TensorSpec,
    /// Words of eight bytes, so that elements of any type are aligned.
    words: Vec<u64>,
}

impl HostBatch {
    /// An empty batch.
    pub fn new() -> HostBatch {
        HostBatch::default()
    }

    /// The tensors, in the order in which they were claimed.
    pub fn tensors(&self) -> &[HostTensor] {
        &self.tensors[..self.used]
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.tensors().iter().find(|tensor| tensor.name == name)
    }

    /// The size of all tensors in bytes.
    pub fn bytes(&self) -> usize {
        self.tensors().iter().map(|tensor| tensor.spec.bytes()).sum()
    }
}

impl BatchMemory for HostBatch {
    fn claim<'a>(&'a mut self, wanted: &[(&str, TensorSpec)]) -> Result<Vec<&'a mut [u8]>> {
        self.used = wanted.len();
        for (index, (name, spec)) in wanted.iter().enumerate() {
            if self.tensors.len() == index {
                let (name, spec, words) = (String::new(), spec.clone(), Vec::new());
                self.tensors.push(HostTensor { name, spec, words });
            }
            let tensor = &mut self.tensors[index];
            if tensor.name != *name {
                tensor.name = (*name).to_string();
            }
            tensor.spec = spec.clone();
            let words = spec.bytes().div_ceil(size_of::<u64>());
            match tensor.words.is_empty() {
                // pages of zeros that nobody has to write
                true => tensor.words = vec![0; words],
                false => tensor.words.resize(words, 0),
            }
        }
        Ok(self.tensors[..self.used].iter_mut().map(HostTensor::bytes_mut).collect())
    }
}

impl HostTensor {
    /// Its name in the data's description.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type and dimensions.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Its elements in row-major order.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.spec.bytes()]
    }

    /// The place of the first element that is not finite, and its value. None if there is none, as of integers.
    pub fn not_finite(&self) -> Option<(usize, f64)> {
        let found = |values: &mut dyn Iterator<Item = f64>| {
            values.enumerate().find(|(_, value)| !value.is_finite())
        };
        match self.spec.dtype {
            DType::F32 => found(&mut self.values::<f32>().iter().map(|value| f64::from(*value))),
            DType::F64 => found(&mut self.values::<f64>().iter().copied()),
            // the upper half of an f32
            DType::BF16 => found(
                &mut bytemuck::cast_slice(self.bytes())
                    .iter()
                    .map(|half: &u16| f64::from(f32::from_bits(u32::from(*half) << 16))),
            ),
            DType::I32 | DType::I64 | DType::U8 => None,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.spec.bytes();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    /// Its elements in row-major order. Empty if they have another type.
    pub fn values<T: Element>(&self) -> &[T] {
        match self.spec.dtype == T::DTYPE {
            true => bytemuck::cast_slice(self.bytes()),
            false => &[],
        }
    }
}

impl PartialEq for HostTensor {
    /// True if names, specs and bytes are equal.
    fn eq(&self, other: &HostTensor) -> bool {
        self.name == other.name && self.spec == other.spec && self.bytes() == other.bytes()
    }
}

/// The elements of a tensor of `dtype`, from the bytes that [`BatchMemory::claim`] returned.
///
/// # Errors
/// When the elements have another type, or the bytes are not aligned for them.
pub fn elements<'a, T: Element>(
    name: &str,
    dtype: DType,
    bytes: &'a mut [u8],
) -> Result<&'a mut [T]> {
    if dtype != T::DTYPE {
        return Err(Error::other(format!("'{name}' is of {dtype}, not of {}", T::DTYPE)));
    }
    let why = |error| Error::other(format!("'{name}' lies where no {dtype} can: {error}"));
    bytemuck::try_cast_slice_mut(bytes).map_err(why)
}

/// The spec of a tensor of a batch.
///
/// # Errors
/// When its size overflows.
pub fn spec(name: &str, dtype: DType, dims: &[usize]) -> Result<TensorSpec> {
    TensorSpec::new(dtype, dims).map_err(|source| Error::Shape { name: name.to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_filled_again_holds_what_is_new() {
        let mut batch = HostBatch::new();
        let wide = [
            ("x", spec("x", DType::F32, &[2, 3]).unwrap()),
            ("y", spec("y", DType::U8, &[3]).unwrap()),
        ];
        let tensors = batch.claim(&wide).unwrap();
        assert_eq!(tensors.iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [24, 3]);
        for (bytes, value) in tensors.into_iter().zip(1..) {
            bytes.fill(value);
        }
        assert_eq!(batch.get("y").unwrap().values::<u8>(), [2; 3]);
        assert_eq!((batch.bytes(), batch.get("y").unwrap().values::<f32>().len()), (27, 0));
        let narrow = [("z", spec("z", DType::I32, &[1]).unwrap())];
        batch.claim(&narrow).unwrap()[0].copy_from_slice(&7i32.to_ne_bytes());
        assert_eq!((batch.tensors().len(), batch.get("y")), (1, None));
        assert_eq!(batch.get("z").unwrap().values::<i32>(), [7]);
    }
}
