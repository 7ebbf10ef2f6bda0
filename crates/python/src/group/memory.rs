//! Memory of a group as Python has it, and memory that Python names by its address.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use tensorwire::collectives::communicator::Parts;
use tensorwire::memory::Buffer;
use tensorwire::tensor::DType;

use crate::dlpack::{capsule, device};

/// Memory of a group, as bytes that others take by DLPack.
#[pyclass(name = "Memory", module = "tensorwire._native", frozen)]
pub(super) struct PyMemory {
    pub(super) buffer: Buffer,
}

#[pymethods]
impl PyMemory {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Py<PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<Py<PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // of memory of the host there is no other stream or device; and what is copied would be useless
        let _ = (stream, dl_device, copy);
        let start = self.buffer.start();
        // fits: bytes of memory
        let shape = [self.buffer.bytes() as i64];
        let keepalive = Arc::new(self.buffer.clone());
        // SAFETY: the buffer holds its piece of the group's memory, which nobody else is given while it lives; the group's own
        // operations go there only as this process starts them.
        unsafe { capsule(py, keepalive, start, &shape, DType::U8.into(), max_version) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        device()
    }
}

/// Memory that Python names by addresses.
pub(super) fn parts(
    given: Option<&Bound<'_, PyAny>>,
    bytes: usize,
    count: usize,
    keep: &Arc<dyn Any + Send + Sync>,
) -> PyResult<Parts> {
    let Some(given) = given.filter(|_| count > 0) else { return Ok(Parts::None) };
    if let Ok(list) = given.cast::<PyList>() {
        let each = list.iter().map(|address| buffer(address.extract()?, bytes, keep));
        return Ok(Parts::Each(each.collect::<PyResult<_>>()?));
    }
    let all = bytes.checked_mul(count).ok_or_else(|| PyValueError::new_err("too many bytes"))?;
    Ok(Parts::Whole(buffer(given.extract()?, all, keep)?))
}

pub(super) fn buffer(
    address: usize,
    bytes: usize,
    keep: &Arc<dyn Any + Send + Sync>,
) -> PyResult<Buffer> {
    let start = match NonNull::new(address as *mut u8) {
        Some(start) => start,
        None if bytes == 0 => NonNull::dangling(),
        None => return Err(PyValueError::new_err(format!("{bytes} bytes at no address"))),
    };
    // SAFETY: as the Python package calls this: the memory is `keep`'s, which lives as long, and whoever starts an
    // operation on a tensor leaves it alone until the operation is over, as torch.distributed asks of him. Where an input
    // and an output are over the same memory, they are copied alone.
    Ok(unsafe { Buffer::foreign(start, bytes, keep.clone()) })
}
