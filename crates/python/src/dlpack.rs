//! Memory that Python's libraries share without a copy: the DLPack protocol, in both directions. It knows addresses, shapes
//! and element types; it does not know whose memory it is or what it means.
//!
//! What is given out is writable. Nobody but the user keeps Python from writing while others read, as with any tensor that two
//! libraries share.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};
use tensorwire::tensor::DType;

/// How a capsule is called before and after somebody has taken what is in it, in the protocol's first form.
const PLAIN: &CStr = c"dltensor";
/// The same, in its second form.
const VERSIONED: &CStr = c"dltensor_versioned";
/// The version whose structures these are.
const VERSION: (u32, u32) = (1, 0);
/// Memory of the host, as the protocol numbers devices.
const CPU: i32 = 1;
/// Memory of the host that a GPU reaches.
const CUDA_HOST: i32 = 3;
const READ_ONLY: u64 = 1;

/// An element type as the protocol spells it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DlType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

impl DlType {
    const SIGNED: u8 = 0;
    const UNSIGNED: u8 = 1;
    const FLOAT: u8 = 2;
    const BRAIN_FLOAT: u8 = 4;

    pub(crate) fn bytes(self) -> usize {
        usize::from(self.bits).div_ceil(8) * usize::from(self.lanes)
    }

    /// The element type that it is here; none if there is none.
    pub(crate) fn dtype(self) -> Option<DType> {
        let all = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::BF16];
        all.into_iter().find(|dtype| DlType::from(*dtype) == self)
    }
}

impl From<DType> for DlType {
    fn from(dtype: DType) -> DlType {
        let code = match dtype {
            DType::F32 | DType::F64 => DlType::FLOAT,
            DType::I32 | DType::I64 => DlType::SIGNED,
            DType::U8 => DlType::UNSIGNED,
            DType::BF16 => DlType::BRAIN_FLOAT,
        };
        // fits: an element has at most 8 bytes
        DlType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
    }
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: (i32, i32),
    dimensions: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Plain {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: (u32, u32),
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What stands behind a capsule: `head` is what others see, the rest what it points to.
#[repr(C)]
struct Given<T> {
    head: T,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
    _keepalive: Arc<dyn Any + Send + Sync>,
}

/// Ends the life of what a capsule held.
///
/// # Safety
/// `head` must come from a `Box<Given<T>>` that [`capsule`] leaked, and nobody may use it afterwards.
unsafe extern "C" fn delete<T>(head: *mut T) {
    // SAFETY: the caller promises that it is the box that was leaked; `head` is the first field of a C structure, so both
    // have one address.
    drop(unsafe { Box::from_raw(head.cast::<Given<T>>()) });
}

/// Deletes what is in a capsule that nobody has taken.
unsafe extern "C" fn destroy_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, once, with its lock held. Whoever takes what is in it gives the capsule
    // another name; under this name it is still the box that `capsule` leaked.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete::<Plain>(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

/// As [`destroy_plain`].
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `destroy_plain`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete::<Versioned>(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule of writable memory, for `__dlpack__` to return; `max_version` is what it was called with. The elements lie
/// one behind the other, rows first.
///
/// # Safety
/// From `start` on there must be memory for a tensor of this shape and type, readable and writable for as long as `keepalive`
/// lives.
pub(crate) unsafe fn capsule<'py>(
    py: Python<'py>,
    keepalive: Arc<dyn Any + Send + Sync>,
    start: NonNull<u8>,
    shape: &[i64],
    dtype: DlType,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let mut shape: Box<[i64]> = shape.into();
    let mut strides: Box<[i64]> = strides_of(&shape).into();
    let tensor = DlTensor {
        data: start.as_ptr().cast(),
        device: (CPU, 0),
        // fits: nobody has tensors of more dimensions
        dimensions: shape.len() as i32,
        dtype,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    let (given, name, destroy): (NonNull<c_void>, _, ffi::PyCapsule_Destructor) = match max_version
    {
        Some(version) if version >= VERSION => {
            let deleter = Some(delete::<Versioned> as _);
            let head = Versioned { version: VERSION, context, deleter, flags: 0, tensor };
            (leak(head, shape, strides, keepalive), VERSIONED, destroy_versioned)
        }
        _ => {
            let head = Plain { tensor, context, deleter: Some(delete::<Plain>) };
            (leak(head, shape, strides, keepalive), PLAIN, destroy_plain)
        }
    };
    // SAFETY: `given` is what `destroy` expects under `name`, and may be deleted by any thread: all that it owns is `Send`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, given, name, Some(destroy)) }
}

fn leak<T>(
    head: T,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    keepalive: Arc<dyn Any + Send + Sync>,
) -> NonNull<c_void> {
    let given = Given { head, _shape: shape, _strides: strides, _keepalive: keepalive };
    NonNull::from(Box::leak(Box::new(given))).cast()
}

/// What `__dlpack_device__` of memory of the host returns.
pub(crate) fn device() -> (i32, i32) {
    (CPU, 0)
}

/// Elements between neighbours, by dimension, where rows lie one behind the other.
fn strides_of(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    strides
}

/// A tensor of somebody else, in memory of the host, one element behind the other. It lives while this does.
#[derive(Debug)]
pub(crate) struct Borrowed {
    start: NonNull<u8>,
    shape: Vec<usize>,
    dtype: DlType,
    read_only: bool,
    /// Held for its life alone: a capsule that keeps its name deletes what is in it when it goes.
    _capsule: Py<PyAny>,
}

// SAFETY: an address, which is used only as `copy_into` and `fill` say, and an object that is dropped under Python's lock.
unsafe impl Send for Borrowed {}
// SAFETY: as for Send.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Returns what `tensor` is: an array of NumPy, a tensor of PyTorch, whatever has `__dlpack__`.
    ///
    /// # Errors
    /// When it has no `__dlpack__`, lies on a device, or its elements do not lie one behind the other.
    pub(crate) fn of(tensor: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
        let py = tensor.py();
        let name = intern!(py, "__dlpack__");
        if !tensor.hasattr(name)? {
            let kind = tensor.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a tensor is wanted, as of NumPy or PyTorch, and {kind} has no __dlpack__; numpy.asarray makes an array of numbers"
            )));
        }
        let options = PyDict::new(py);
        options.set_item("max_version", VERSION)?;
        let capsule = match tensor.call_method(name, (), Some(&options)) {
            // from before there were versions
            Err(error) if error.is_instance_of::<PyTypeError>(py) => tensor.call_method0(name)?,
            other => other?,
        };
        let pointer = |name: &CStr| {
            // SAFETY: `capsule` is an object that lives here, and `name` a text that ends; a name that is another makes it null.
            unsafe {
                match ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) {
                    1 => ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()),
                    _ => std::ptr::null_mut(),
                }
            }
        };
        let (plain, versioned) = (pointer(PLAIN), pointer(VERSIONED));
        let (head, read_only) = if let Some(head) = NonNull::new(versioned.cast::<Versioned>()) {
            // SAFETY: a capsule of this name holds that structure, and lives here; so does what it points to.
            let head = unsafe { head.as_ref() };
            (&head.tensor, head.flags & READ_ONLY != 0)
        } else if let Some(head) = NonNull::new(plain.cast::<Plain>()) {
            // SAFETY: as above.
            (unsafe { &head.as_ref().tensor }, false)
        } else {
            return Err(PyTypeError::new_err("its __dlpack__ returns no capsule of a tensor"));
        };
        Borrowed::read(head, read_only, capsule.clone().unbind())
    }

    fn read(head: &DlTensor, read_only: bool, capsule: Py<PyAny>) -> PyResult<Borrowed> {
        if ![CPU, CUDA_HOST].contains(&head.device.0) {
            return Err(PyValueError::new_err(
                "the tensor lies on a device, and only memory of the host is taken; copy it there first, as with .cpu()",
            ));
        }
        let dimensions = usize::try_from(head.dimensions).unwrap_or_default();
        let list = |at: *const i64| match NonNull::new(at.cast_mut()) {
            // SAFETY: the protocol promises as many numbers as there are dimensions.
            Some(at) if dimensions > 0 => unsafe {
                std::slice::from_raw_parts(at.as_ptr(), dimensions).to_vec()
            },
            _ => Vec::new(),
        };
        let (shape, strides) = (list(head.shape), list(head.strides));
        let wanted = strides_of(&shape);
        let mut pairs = shape.iter().zip(strides.iter().zip(&wanted));
        let is_empty = shape.contains(&0);
        if !is_empty && !pairs.all(|(size, (stride, wanted))| *size == 1 || stride == wanted) {
            return Err(PyValueError::new_err(format!(
                "the elements of the tensor of shape {shape:?} do not lie one behind the other; numpy.ascontiguousarray(x) or x.contiguous() makes one where they do"
            )));
        }
        // fits: what is in memory
        let shape: Vec<usize> = shape.into_iter().map(|size| size.max(0) as usize).collect();
        let start = NonNull::new(head.data.cast::<u8>()).filter(|_| !is_empty);
        let start = match start {
            // SAFETY: the protocol promises that the tensor begins so many bytes behind `data`, in the same memory.
            Some(start) => unsafe { start.add(head.byte_offset as usize) },
            None => NonNull::dangling(),
        };
        Ok(Borrowed { start, shape, dtype: head.dtype, read_only, _capsule: capsule })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn dtype(&self) -> DlType {
        self.dtype
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }

    /// Address of the first byte: tells this memory from other memory, and is nothing to follow.
    pub(crate) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// True if nobody is to write it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Copies its bytes over `into`.
    ///
    /// # Panics
    /// If `into` is of another size.
    pub(crate) fn copy_into(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.bytes(), "a copy is as large as what it is of");
        // SAFETY: `start` is valid for as many bytes while the capsule lives, which `read` found out. Whoever gave the tensor
        // leaves it as it is while the call that it was given to lasts. `into` is memory of the caller's alone.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), into.len());
        }
    }

    /// Copies `from` over its bytes.
    ///
    /// # Panics
    /// If `from` is of another size, or the memory is not to be written.
    pub(crate) fn fill(&self, from: &[u8]) {
        assert_eq!(from.len(), self.bytes(), "a copy is as large as what it is of");
        assert!(!self.read_only, "the caller has asked");
        // SAFETY: as in `copy_into`, the other way round; that it may be written was asked.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr(), from.len());
        }
    }
}
