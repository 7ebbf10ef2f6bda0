//! Tensors that own their bytes.

use half::bf16;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, Element, TensorSpec};

/// A tensor with its own, aligned bytes: an operand of a check.
#[derive(Clone, Debug)]
pub struct Tensor {
    spec: TensorSpec,
    words: Vec<u64>,
}

impl Tensor {
    /// A tensor of `dims` that holds `elements`, row-major.
    ///
    /// # Panics
    /// When there are more or fewer elements than `dims` say.
    #[track_caller]
    pub fn new<T: Element>(dims: &[usize], elements: &[T]) -> Tensor {
        let mut tensor = Tensor::unwritten(T::DTYPE, dims);
        assert_eq!(tensor.spec.elements(), elements.len(), "elements for dimensions {dims:?}");
        tensor.view_mut().bytes().copy_from_slice(bytemuck::cast_slice(elements));
        tensor
    }

    /// A tensor of no dimension.
    pub fn scalar<T: Element>(element: T) -> Tensor {
        Tensor::new(&[], &[element])
    }

    /// A tensor with every byte 0xFF: NaN as a float, −1 as an integer.
    ///
    /// # Panics
    /// When its size does not fit an address space.
    #[track_caller]
    pub fn unwritten(dtype: DType, dims: &[usize]) -> Tensor {
        Tensor::of(TensorSpec::new(dtype, dims).expect("a size that fits an address space"))
    }

    /// As [`Tensor::unwritten`].
    pub(super) fn of(spec: TensorSpec) -> Tensor {
        let words = vec![u64::MAX; spec.bytes().div_ceil(8)];
        Tensor { spec, words }
    }

    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    pub fn view(&self) -> TensorRef<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        TensorRef::new(&self.spec, &bytes[..self.spec.bytes()]).expect("as many bytes as it needs")
    }

    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        let len = self.spec.bytes();
        TensorMut::new(&self.spec, &mut bytes[..len]).expect("as many bytes as it needs")
    }

    /// Its elements, row-major.
    ///
    /// # Panics
    /// When they are of another type.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.spec.dtype, T::DTYPE);
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        bytemuck::cast_slice(&bytes[..self.spec.bytes()]).to_vec()
    }

    /// The same bytes under another shape of as many elements.
    pub(super) fn reshaped(mut self, spec: TensorSpec) -> Tensor {
        debug_assert_eq!(spec.bytes(), self.spec.bytes());
        self.spec = spec;
        self
    }

    /// Its elements as numbers, exact but for an i64 beyond 2⁵³.
    pub(super) fn numbers(&self) -> Vec<f64> {
        match self.spec.dtype {
            DType::F32 => self.to_vec::<f32>().into_iter().map(f64::from).collect(),
            DType::F64 => self.to_vec(),
            DType::BF16 => self.to_vec::<bf16>().into_iter().map(f64::from).collect(),
            DType::I32 => self.to_vec::<i32>().into_iter().map(f64::from).collect(),
            // counts, which are small
            DType::I64 => self.to_vec::<i64>().into_iter().map(|x| x as f64).collect(),
            DType::U8 => self.to_vec::<u8>().into_iter().map(f64::from).collect(),
        }
    }
}
