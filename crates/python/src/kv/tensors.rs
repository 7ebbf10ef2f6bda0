//! Tensors that are pushed and pulled: memory that the store gave, as Python has it, and what lies elsewhere, which is copied
//! there and back.

use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tensorwire::kvstore::{KvWorker, StoreError as Error, ValueSpec};
use tensorwire::memory::{Buffer, Copies, CopyPurpose};
use tensorwire::store::StoreFailure;
use tensorwire::tensor::DType;

use super::names::{Name, said};
use crate::dlpack::{self, Borrowed, DlType};

/// Element types by their names in Python.
pub(super) const NAMES: [(&str, DType); 6] = [
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("uint8", DType::U8),
    ("bfloat16", DType::BF16),
];

/// A tensor of Python that is pushed, or pulled into.
pub(super) enum Place {
    /// It lies in memory that the store gave.
    Given(Arc<Buffer>),
    Elsewhere(Borrowed),
}

/// A tensor in memory that servers reach: what is pushed from it and pulled into it is not copied.
#[pyclass(frozen, module = "tensorwire._native")]
pub(super) struct Tensor {
    pub(super) buffer: Arc<Buffer>,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        named(self.dtype)
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Returns it as an array of NumPy, of the same memory.
    fn numpy<'py>(slf: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("numpy")?.call_method1("from_dlpack", (slf,))
    }

    /// Returns it as a tensor of PyTorch, of the same memory.
    fn torch<'py>(slf: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // memory of the host has no streams
        drop(stream);
        if dl_device.is_some_and(|device| device != dlpack::device()) || copy == Some(true) {
            return Err(PyBufferError::new_err(
                "memory of a store is shared where it lies; ask for no copy and no other device, and copy it afterwards",
            ));
        }
        // fits: sizes of what is in memory
        let shape: Vec<i64> = self.shape.iter().map(|size| *size as i64).collect();
        let start = self.buffer.slab().start();
        // SAFETY: a buffer's place lies inside its slab, whose memory lives while the buffer does, and the buffer is as large as
        // the shape says, as `Store::empty` made it so. It is writable: the wire gave it for tensors.
        unsafe {
            let start = start.add(self.buffer.place().offset);
            dlpack::capsule(py, self.buffer.clone(), start, &shape, self.dtype.into(), max_version)
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device()
    }

    fn __repr__(&self) -> String {
        format!("<tensorwire.kv.Tensor {} of shape {:?}>", named(self.dtype), self.shape)
    }
}

/// A tensor in memory of the store for each: it itself, or a copy.
pub(super) fn stage(
    store: &mut KvWorker,
    places: &[Vec<Place>],
    copies: &mut Copies,
) -> Result<Vec<Vec<Buffer>>, StoreFailure> {
    let mut one = |place: &Place| match place {
        Place::Given(buffer) => Ok(Buffer::clone(buffer)),
        Place::Elsewhere(tensor) => {
            let buffer = room(store, tensor)?;
            tensor.copy_into(&mut buffer.write().map_err(lent)?);
            // fits: a size in memory
            copies.add(CopyPurpose::Staging, tensor.bytes() as u64);
            Ok(buffer)
        }
    };
    places.iter().map(|devices| devices.iter().map(&mut one).collect()).collect()
}

/// A tensor in memory of the store for each: it itself, or one to be copied from.
pub(super) fn rooms(
    store: &mut KvWorker,
    places: &[Vec<Place>],
) -> Result<Vec<Vec<Buffer>>, StoreFailure> {
    let mut one = |place: &Place| match place {
        Place::Given(buffer) => Ok(Buffer::clone(buffer)),
        Place::Elsewhere(tensor) => room(store, tensor),
    };
    places.iter().map(|devices| devices.iter().map(&mut one).collect()).collect()
}

/// Copies what was pulled to where it was wanted; returns what was copied.
pub(super) fn unstage(
    buffers: &[Vec<Buffer>],
    places: &[Vec<Place>],
) -> Result<Copies, StoreFailure> {
    let mut copies = Copies::default();
    for (buffer, place) in buffers.iter().flatten().zip(places.iter().flatten()) {
        if let Place::Elsewhere(tensor) = place {
            tensor.fill(&buffer.read().map_err(lent)?);
            // fits: a size in memory
            copies.add(CopyPurpose::Staging, tensor.bytes() as u64);
        }
    }
    Ok(copies)
}

fn room(store: &mut KvWorker, tensor: &Borrowed) -> Result<Buffer, StoreFailure> {
    let dtype = tensor.dtype().dtype().unwrap_or(DType::U8);
    let elements = tensor.bytes() / dtype.bytes();
    Ok(store.alloc(&ValueSpec::dense(dtype, elements))?)
}

fn lent(error: tensorwire::memory::LoanError) -> StoreFailure {
    StoreFailure::Store(Error::Update(error.to_string()))
}

pub(super) fn writable(place: Place, name: &Name) -> PyResult<Place> {
    match &place {
        Place::Elsewhere(tensor) if tensor.is_read_only() => Err(PyValueError::new_err(format!(
            "{} is to be pulled into a tensor that is read-only; give one that may be written",
            said(name)
        ))),
        _ => Ok(place),
    }
}

/// A value of this shape: its rows are what the first dimension counts.
pub(super) fn spec(shape: &[usize], dtype: DType) -> PyResult<ValueSpec> {
    let (rows, rest) = shape.split_first().unwrap_or((&1, &[]));
    let columns = rest.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    let spec = columns.map(|columns| ValueSpec { dtype, rows: *rows, columns });
    spec.filter(ValueSpec::fits_memory).ok_or_else(|| {
        PyValueError::new_err(format!("shape {shape:?} is more than any memory holds"))
    })
}

pub(super) fn named(dtype: DType) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == dtype).map_or("", |(name, _)| name)
}

pub(super) fn dtype_named(name: &str) -> PyResult<DType> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        PyTypeError::new_err(format!("a store has no values of {name}; it has {names}"))
    })
}

/// An element type of others, in words.
pub(super) fn kind(dtype: DlType) -> String {
    let DlType { code, bits, .. } = dtype;
    match dtype.dtype() {
        Some(known) => named(known).to_string(),
        None => format!("a type of {bits} bits (DLPack's code {code})"),
    }
}
