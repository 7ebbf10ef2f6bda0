//! Matrix products by cuBLASLt, where it is found. What is computed how is asked of its heuristic once for each shape;
//! memory and stream are the caller's. Knows which of its answers give the same bits in every run.
//!
//! NVIDIA promises the same bits from run to run for one version of the library on GPUs of one kind with as many
//! multiprocessors, while one stream uses it ("Results Reproducibility" in the manual). Here one stream does, with a
//! workspace of the caller's own. What is cut along the inner dimension is summed apart, in the type that is computed in:
//! the schemes that add in place are masked out.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::device::{Device, Handle};
use crate::error::{DeviceError, LibraryError, Refused};
use crate::libraries::{CudaLibrary, LibrarySearch, LibraryVersion, LoadedLibrary};
use crate::stream::Stream;
use crate::sys::cublas_lt::*;
use objects::{Maker, Object, checked, failure, layouts};

mod objects;

/// Multiples of this many bytes are addresses of operands and of workspaces.
pub const LIBRARY_ALIGNMENT: u64 = 16;

/// The major versions that have the table's functions so.
const MAJORS: [usize; 2] = [12, 13];

/// Answers of the heuristic that are looked at.
const ANSWERS: usize = 8;

/// The loaded library, with one GPU.
#[derive(Debug)]
pub struct CublasLt {
    device: Arc<Device>,
    functions: CublasLtFunctions,
    handle: Handle<c_void>,
    library: LoadedLibrary,
}

/// What the numbers of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RealType {
    F32,
    F64,
    Bf16,
}

impl RealType {
    pub(crate) fn bytes(self) -> usize {
        match self {
            RealType::F32 => 4,
            RealType::F64 => 8,
            RealType::Bf16 => 2,
        }
    }
}

/// y ← a·b of matrices whose rows lie one behind the other, and `batch` times that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixProduct {
    /// Of y and of a.
    pub rows: usize,
    /// Of y and of b.
    pub columns: usize,
    /// Columns of a, rows of b.
    pub depth: usize,
    pub batch: usize,
    pub a: ProductFactor,
    pub b: ProductFactor,
    pub result: RealType,
    /// Numbers of f32 may be rounded to TF32 before they are multiplied.
    pub rounds_to_tf32: bool,
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductFactor {
    pub of: RealType,
    /// The other way round: its columns are what lies in rows.
    pub is_turned: bool,
    /// Elements from one row in memory to the next.
    pub row_step: usize,
    /// Elements from one product's matrix to the next one's.
    pub batch_step: usize,
}

/// A product that the library has an algorithm for.
#[derive(Debug)]
pub struct ProductPlan {
    library: Arc<CublasLt>,
    description: Object,
    // in the library's order
    layouts: [Object; 3],
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    is_double: bool,
}

impl CublasLt {
    /// Loads the first that is found and that works on this GPU.
    ///
    /// # Errors
    /// When there is none: why the first that there is cannot be used.
    pub fn open(device: &Arc<Device>, search: &LibrarySearch) -> Result<CublasLt, LibraryError> {
        search.open(CudaLibrary::CublasLt, |library| CublasLt::start(device, library))
    }

    /// Loads the first that is found, and looks whether the table fits it: makes one object of each kind. Needs no GPU.
    ///
    /// # Errors
    /// As [`CublasLt::open`].
    pub fn look(search: &LibrarySearch) -> Result<LoadedLibrary, LibraryError> {
        search.open(CudaLibrary::CublasLt, |mut library| {
            fitting(&mut library)?;
            Ok(library)
        })
    }

    fn start(device: &Arc<Device>, mut library: LoadedLibrary) -> Result<CublasLt, LibraryError> {
        let functions = fitting(&mut library)?;
        // SAFETY: there is room for the pointer; this device's context is current.
        let create = |handle| unsafe { (functions.cublasLtCreate)(handle) };
        let failure = |code| failure(&functions, code);
        let handle = library.start(device, "cublasLtCreate", create, failure)?;
        let opened = CublasLt { device: device.clone(), functions, handle, library };
        opened.library.check_driver(device)?;
        Ok(opened)
    }

    /// What was loaded.
    pub fn library(&self) -> &LoadedLibrary {
        &self.library
    }

    /// Asks how to compute a product with a workspace of at most so many bytes; none, where the library does not compute
    /// it, or not with the same bits each time.
    ///
    /// # Errors
    /// When the library fails, or the GPU is lost.
    pub fn plan(
        self: &Arc<Self>,
        product: &MatrixProduct,
        workspace_bytes_max: usize,
    ) -> Result<Option<ProductPlan>, DeviceError> {
        let Some([a, b, d]) = layouts(product) else { return Ok(None) };
        let make = Maker(&self.functions);
        let made = make.description(product).and_then(|description| {
            let layouts = [make.layout(b)?, make.layout(a)?, make.layout(d)?];
            Ok((description, layouts, make.preference(workspace_bytes_max)?))
        });
        let (description, layouts, preference) = made.map_err(|refused| self.error(refused))?;
        let mut answers = [cublasLtMatmulHeuristicResult_t::default(); ANSWERS];
        let mut count: c_int = 0;
        let [a, b, d] = layouts.each_ref().map(|layout| layout.at.0);
        let status = self.device.try_call(|_| {
            // SAFETY: all objects live, and there is room for as many answers as are asked for and for their number.
            unsafe {
                (self.functions.cublasLtMatmulAlgoGetHeuristic)(
                    self.handle.0,
                    description.at.0,
                    a,
                    b,
                    d,
                    d,
                    preference.at.0,
                    ANSWERS as c_int,
                    answers.as_mut_ptr(),
                    &mut count,
                )
            }
        })?;
        if status == CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        self.check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let count = usize::try_from(count).unwrap_or(0).min(ANSWERS);
        let fits = |answer: &&cublasLtMatmulHeuristicResult_t| {
            answer.state == CUBLAS_STATUS_SUCCESS
                && answer.workspaceSize <= workspace_bytes_max
                && make.adds_in_order(&answer.algo)
        };
        Ok(answers[..count].iter().find(fits).map(|answer| ProductPlan {
            library: self.clone(),
            description,
            layouts,
            algorithm: answer.algo,
            workspace_bytes: answer.workspaceSize,
            is_double: product.result == RealType::F64,
        }))
    }

    fn check(&self, call: &'static str, status: cublasStatus_t) -> Result<(), DeviceError> {
        checked(&self.functions, call, status).map_err(|refused| self.error(refused))
    }

    fn error(&self, refused: Refused) -> DeviceError {
        refused.on(&self.device, CudaLibrary::CublasLt)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.device.settle() {
            // SAFETY: made once for this value; no stream works for it any more, and nobody calls it.
            let _ = self
                .device
                .try_call(|_| unsafe { (self.functions.cublasLtDestroy)(self.handle.0) });
        }
    }
}

impl ProductPlan {
    /// Bytes of the workspace that it needs.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Tells a stream the product.
    ///
    /// # Errors
    /// When the library refuses, or the GPU is lost.
    ///
    /// # Safety
    /// The addresses of a, b, y and the workspace are multiples of [`LIBRARY_ALIGNMENT`], of as many bytes as the product
    /// has and the plan needs, on this library's GPU; y and the workspace overlap nothing. The rest is as for
    /// [`Stream::launch`].
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        [a, b, y]: [u64; 3],
        workspace: u64,
    ) -> Result<(), DeviceError> {
        let (one, zero) = (1f32, 0f32);
        let (one_double, zero_double) = (1f64, 0f64);
        let (alpha, beta): (*const c_void, *const c_void) = match self.is_double {
            true => ((&raw const one_double).cast(), (&raw const zero_double).cast()),
            false => ((&raw const one).cast(), (&raw const zero).cast()),
        };
        let at = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let [of_b, of_a, of_y] = self.layouts.each_ref().map(|layout| layout.at.0);
        let CublasLt { device, functions, handle, .. } = &*self.library;
        let status = device.try_call(|_| {
            // SAFETY: all objects live until this returns, and so do both numbers of the host; the algorithm is the
            // heuristic's for these objects. The addresses are the caller's duty.
            unsafe {
                (functions.cublasLtMatmul)(
                    handle.0,
                    self.description.at.0,
                    alpha,
                    at(b),
                    of_b,
                    at(a),
                    of_a,
                    beta,
                    at(y),
                    of_y,
                    at(y),
                    of_y,
                    &self.algorithm,
                    at(workspace),
                    self.workspace_bytes,
                    stream.raw(),
                )
            }
        })?;
        self.library.check("cublasLtMatmul", status)
    }
}

/// The table, if it fits the version, which is noted.
fn fitting(library: &mut LoadedLibrary) -> Result<CublasLtFunctions, LibraryError> {
    // SAFETY: it has the name of this library, and its table is used only in versions that have it so; it is never unloaded.
    let functions = unsafe { CublasLtFunctions::of(library.handle()) };
    let functions = functions.map_err(|function| library.without(function))?;
    // SAFETY: takes nothing, and may be called at any time.
    let number = unsafe { (functions.cublasLtGetVersion)() };
    let (major, minor, patch) = (number / 10_000, number / 100 % 100, number % 100);
    let version = LibraryVersion { major, minor, patch };
    library.check_version(version, &MAJORS)?;
    tried(&functions).map_err(|refused| library.refuses(refused))?;
    Ok(functions)
}

/// Makes one object of each kind, with all that is ever set of it.
fn tried(functions: &CublasLtFunctions) -> Result<(), Refused> {
    let factor = ProductFactor { of: RealType::F32, is_turned: true, row_step: 8, batch_step: 64 };
    let product = MatrixProduct {
        rows: 8,
        columns: 8,
        depth: 8,
        batch: 2,
        a: factor,
        b: factor,
        result: RealType::F32,
        rounds_to_tf32: true,
    };
    let make = Maker(functions);
    make.description(&product)?;
    for layout in layouts(&product).into_iter().flatten() {
        make.layout(layout)?;
    }
    make.preference(0).map(|_| ())
}
