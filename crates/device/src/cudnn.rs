//! Convolutions by cuDNN, where it is found. What is computed how is asked of its heuristics once for each shape; memory
//! and stream are the caller's. Knows which of its engines give the same bits in every run.
//!
//! By the graph API: the older functions of convolutions are deprecated in cuDNN 9, and this one says of every engine
//! whether it adds in the same order in each run, and whether it rounds what it multiplies.
//!
//! NVIDIA promises the same bits from run to run for one version of the library on GPUs of one kind with as many
//! multiprocessors, but for engines that say otherwise ("Reproducibility" in the manual), which are not taken.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cublas_lt::{LIBRARY_ALIGNMENT, RealType};
use crate::device::{Device, Handle};
use crate::error::{DeviceError, LibraryError, Refused};
use crate::libraries::{CudaLibrary, LibrarySearch, LibraryVersion, LoadedLibrary};
use crate::stream::Stream;
use crate::sys::cudnn::*;
use objects::{Descriptor, Int64, Maker, Pointer, checked, failure};

mod objects;

/// The major versions that have the table's functions so.
const MAJORS: [usize; 1] = [9];

/// What a tensor is called in a graph and when it is launched.
const IMAGES: i64 = 1;
const WEIGHT: i64 = 2;
const RESULTS: i64 = 3;

/// The loaded library, with one GPU.
#[derive(Debug)]
pub struct Cudnn {
    device: Arc<Device>,
    functions: CudnnFunctions,
    handle: Handle<c_void>,
    /// The stream that the handle works on, by its address. Who tells it something holds this.
    stream: Mutex<usize>,
    library: LoadedLibrary,
}

/// Which of the three tensors of a convolution is computed of the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionPass {
    /// y of x and w.
    Forward,
    /// The gradient of x, of w and the gradient of y.
    GradInput,
    /// The gradient of w, of x and the gradient of y.
    GradWeight,
}

/// A convolution of images: x[batch, rows, columns, channels] and w[outputs, channels/groups, kernel] make
/// y[batch, windows, outputs], all without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageConvolution {
    pub pass: ConvolutionPass,
    pub of: RealType,
    pub batch: usize,
    /// Rows and columns of x.
    pub size: [usize; 2],
    pub channels: usize,
    /// Rows and columns of y.
    pub windows: [usize; 2],
    pub outputs: usize,
    pub groups: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Rows and columns of padding before the first; behind the last there are as many as the windows take.
    pub before: [usize; 2],
    /// Numbers of f32 may be rounded to TF32 before they are multiplied.
    pub rounds_to_tf32: bool,
}

/// A convolution that the library has an engine for.
#[derive(Debug)]
pub struct ConvolutionPlan {
    library: Arc<Cudnn>,
    plan: ManuallyDrop<Descriptor>,
    /// What the plan was made of, and may still read.
    parts: ManuallyDrop<Vec<Descriptor>>,
    workspace_bytes: usize,
}

impl Cudnn {
    /// Loads the first that is found and that works on this GPU.
    ///
    /// # Errors
    /// When there is none: why the first that there is cannot be used.
    pub fn open(device: &Arc<Device>, search: &LibrarySearch) -> Result<Cudnn, LibraryError> {
        search.open(CudaLibrary::Cudnn, |library| Cudnn::start(device, library))
    }

    /// Loads the first that is found, and looks whether the table fits it: makes one operation of each kind. Needs no GPU,
    /// but a driver.
    ///
    /// # Errors
    /// As [`Cudnn::open`].
    pub fn look(search: &LibrarySearch) -> Result<LoadedLibrary, LibraryError> {
        search.open(CudaLibrary::Cudnn, |mut library| {
            let functions = fitting(&mut library)?;
            tried(&functions).map_err(|refused| library.refuses(refused))?;
            Ok(library)
        })
    }

    fn start(device: &Arc<Device>, mut library: LoadedLibrary) -> Result<Cudnn, LibraryError> {
        let functions = fitting(&mut library)?;
        // SAFETY: there is room for the pointer; this device's context is current.
        let create = |handle| unsafe { (functions.cudnnCreate)(handle) };
        let failure = |code| failure(&functions, code);
        let handle = library.start(device, "cudnnCreate", create, failure)?;
        let (device, stream) = (device.clone(), Mutex::new(0));
        let opened = Cudnn { device, functions, handle, stream, library };
        opened.library.check_driver(&opened.device)?;
        Ok(opened)
    }

    /// What was loaded.
    pub fn library(&self) -> &LoadedLibrary {
        &self.library
    }

    /// Asks how to compute a convolution with a workspace of at most so many bytes; none, where the library does not
    /// compute it, or not with the same bits each time, or rounds what it should not.
    ///
    /// # Errors
    /// When the library fails, or the GPU is lost.
    pub fn plan(
        self: &Arc<Self>,
        convolution: &ImageConvolution,
        workspace_bytes_max: usize,
    ) -> Result<Option<ConvolutionPlan>, DeviceError> {
        let make = Maker(&self.functions);
        let planned = self.device.in_context(|| {
            let Some(operation) = operation(&make, convolution)? else { return Ok(None) };
            let graph = make.graph(self.handle.0, &operation)?;
            for mode in [CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK] {
                // one of them may know nothing where the other does
                let Some(configurations) = unless_refused(make.configurations(&graph, mode))?
                else {
                    continue;
                };
                for configuration in configurations {
                    let fits = !make.notes(&configuration)?.iter().any(|note| {
                        is_forbidden(*note, convolution.of, convolution.rounds_to_tf32)
                    });
                    // what an engine lacks here another may not
                    let Some(plan) =
                        fits.then(|| make.plan(self.handle.0, &configuration)).and_then(Result::ok)
                    else {
                        continue;
                    };
                    let bytes = make.workspace_bytes(&plan)?;
                    if bytes <= workspace_bytes_max {
                        return Ok(Some((plan, vec![configuration, graph, operation], bytes)));
                    }
                }
            }
            Ok(None)
        })?;
        let planned = unless_refused(planned).map_err(|refused| self.error(refused))?.flatten();
        Ok(planned.map(|(plan, parts, workspace_bytes)| ConvolutionPlan {
            library: self.clone(),
            plan: ManuallyDrop::new(plan),
            parts: ManuallyDrop::new(parts),
            workspace_bytes,
        }))
    }

    fn error(&self, refused: Refused) -> DeviceError {
        refused.on(&self.device, CudaLibrary::Cudnn)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.device.settle() {
            // SAFETY: made once for this value; no stream works for it any more, and nobody calls it.
            let _ =
                self.device.try_call(|_| unsafe { (self.functions.cudnnDestroy)(self.handle.0) });
        }
    }
}

impl ImageConvolution {
    /// Returns the bytes of its three tensors.
    pub fn bytes(&self) -> usize {
        let area = |[rows, columns]: [usize; 2]| rows.saturating_mul(columns);
        let images = self.batch.saturating_mul(area(self.size)).saturating_mul(self.channels);
        let results = self.batch.saturating_mul(area(self.windows)).saturating_mul(self.outputs);
        let weight = area(self.kernel)
            .saturating_mul(self.outputs)
            .saturating_mul(self.channels / self.groups.max(1));
        images.saturating_add(results).saturating_add(weight).saturating_mul(self.of.bytes())
    }

    /// Rows and columns of padding behind the last: as many as before the first where the windows are as many then, which
    /// more engines take, else no more than the windows take.
    fn after(&self) -> [usize; 2] {
        std::array::from_fn(|side| {
            let (size, before) = (self.size[side], self.before[side]);
            let (windows, stride) = (self.windows[side], self.stride[side]);
            let reach = (self.kernel[side].max(1) - 1).saturating_mul(self.dilation[side]) + 1;
            let with = |after: usize| (size + before + after).checked_sub(reach);
            let last = windows.max(1) - 1;
            match with(before).map(|room| room / stride.max(1)) == Some(last) {
                true => before,
                false => {
                    last.saturating_mul(stride).saturating_add(reach).saturating_sub(size + before)
                }
            }
        })
    }
}

impl ConvolutionPlan {
    /// Bytes of the workspace that it needs.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Tells a stream the convolution.
    ///
    /// # Errors
    /// When the library refuses, or the GPU is lost.
    ///
    /// # Safety
    /// The addresses of x, w, y (or of their gradients) and the workspace are multiples of [`LIBRARY_ALIGNMENT`], of as
    /// many bytes as the convolution has and the plan needs, on this library's GPU; what is computed and the workspace
    /// overlap nothing. The rest is as for [`Stream::launch`].
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        [x, w, y]: [u64; 3],
        workspace: u64,
    ) -> Result<(), DeviceError> {
        let Cudnn { device, functions, handle, stream: current, .. } = &*self.library;
        let make = Maker(functions);
        let told = device.in_context(|| {
            let pack = make.create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
            let tensors = [IMAGES, WEIGHT, RESULTS].map(Int64);
            make.set(&pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &tensors)?;
            let addresses = [x, w, y].map(Pointer::at);
            make.set(&pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?;
            make.set(&pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Pointer::at(workspace)])?;
            make.finish(&pack, "cudnnBackendFinalize (of a variant pack)")?;
            let mut current = current.lock();
            let wanted = stream.raw();
            if *current != wanted.addr() {
                // SAFETY: both are of this device, whose context is current.
                let status = unsafe { (functions.cudnnSetStream)(handle.0, wanted) };
                checked(functions, "cudnnSetStream", status)?;
                *current = wanted.addr();
            }
            // SAFETY: all objects live until this returns, and the plan's own until no stream works for it. The addresses
            // are the caller's duty.
            let status =
                unsafe { (functions.cudnnBackendExecute)(handle.0, self.plan.at.0, pack.at.0) };
            checked(functions, "cudnnBackendExecute", status)
        })?;
        told.map_err(|refused| self.library.error(refused))
    }
}

impl Drop for ConvolutionPlan {
    fn drop(&mut self) {
        // an engine's own kernels may go with its plan
        if self.library.device.settle() {
            // SAFETY: nobody uses them behind this, and they are dropped once.
            unsafe {
                ManuallyDrop::drop(&mut self.plan);
                ManuallyDrop::drop(&mut self.parts);
            }
        }
    }
}

/// True if an engine of which this is said may not compute.
fn is_forbidden(note: u32, of: RealType, rounds_to_tf32: bool) -> bool {
    match note {
        // f32 is rounded to TF32 there, other types are not rounded
        CUDNN_NUMERICAL_NOTE_TENSOR_CORE => of == RealType::F32 && !rounds_to_tf32,
        CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
        | CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS
        | CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION
        // sums of other numbers, which are less exact
        | CUDNN_NUMERICAL_NOTE_FFT
        | CUDNN_NUMERICAL_NOTE_WINOGRAD => true,
        _ => false,
    }
}

/// None, where the library says that it does not do that: of its types, its shape or its layout.
fn unless_refused<T>(done: Result<T, Refused>) -> Result<Option<T>, Refused> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Refused { failure, .. })
            if (CUDNN_STATUS_BAD_PARAM..CUDNN_STATUS_INTERNAL_ERROR).contains(&failure.code) =>
        {
            Ok(None)
        }
        Err(refused) => Err(refused),
    }
}

/// The operation of a convolution; none, where there is more than the library counts.
fn operation(make: &Maker<'_>, of: &ImageConvolution) -> Result<Option<Descriptor>, Refused> {
    let [images, weight, results] = [
        [of.batch, of.channels, of.size[0], of.size[1]],
        [of.outputs, of.channels / of.groups.max(1), of.kernel[0], of.kernel[1]],
        [of.batch, of.outputs, of.windows[0], of.windows[1]],
    ];
    // channels are the fastest of images, and the second of a weight
    let by_channels = |[_, channels, rows, columns]: [usize; 4]| {
        let row = columns.checked_mul(channels)?;
        Some([rows.checked_mul(row)?, 1, row, channels])
    };
    let in_order = |[_, channels, rows, columns]: [usize; 4]| {
        let area = rows.checked_mul(columns)?;
        Some([channels.checked_mul(area)?, area, columns, 1])
    };
    let tensor = |name, dims: [usize; 4], steps: Option<[usize; 4]>| {
        let (Some(dims), Some(steps)) = (counted(dims), steps.and_then(counted)) else {
            return Ok(None);
        };
        make.tensor(name, of.of, dims, steps).map(Some)
    };
    let (Some(x), Some(w), Some(y)) = (
        tensor(IMAGES, images, by_channels(images))?,
        tensor(WEIGHT, weight, in_order(weight))?,
        tensor(RESULTS, results, by_channels(results))?,
    ) else {
        return Ok(None);
    };
    let (Some(stride), Some(dilation), Some(before), Some(after)) =
        (counted(of.stride), counted(of.dilation), counted(of.before), counted(of.after()))
    else {
        return Ok(None);
    };
    let window = make.window(of.of, [stride, dilation, before, after])?;
    make.operation(of.pass, of.of, &window, [&x, &w, &y]).map(|mut operation| {
        operation.parts.extend([window, x, w, y]);
        Some(operation)
    })
}

/// As the library counts.
fn counted<const N: usize>(numbers: [usize; N]) -> Option<[Int64; N]> {
    let mut counted = [Int64(0); N];
    for (counted, number) in counted.iter_mut().zip(numbers) {
        *counted = Int64(i64::try_from(number).ok()?);
    }
    Some(counted)
}

/// The table, if it fits the version, which is noted.
fn fitting(library: &mut LoadedLibrary) -> Result<CudnnFunctions, LibraryError> {
    // SAFETY: it has the name of this library, and its table is used only in versions that have it so; it is never unloaded.
    let functions = unsafe { CudnnFunctions::of(library.handle()) };
    let functions = functions.map_err(|function| library.without(function))?;
    // SAFETY: takes nothing, and may be called at any time.
    let number = unsafe { (functions.cudnnGetVersion)() };
    // 8904 is 8.9.4, and 90400 is 9.4.0
    let (major, rest) = match number {
        ..10_000 => (number / 1000, number % 1000),
        _ => (number / 10_000, number % 10_000),
    };
    let version = LibraryVersion { major, minor: rest / 100, patch: rest % 100 };
    library.check_version(version, &MAJORS)?;
    Ok(functions)
}

/// Makes an operation of each kind, with all that is ever set of it.
fn tried(functions: &CudnnFunctions) -> Result<(), Refused> {
    use ConvolutionPass::{Forward, GradInput, GradWeight};
    for pass in [Forward, GradInput, GradWeight] {
        let convolution = ImageConvolution {
            pass,
            of: RealType::F32,
            batch: 2,
            size: [8, 8],
            channels: 4,
            windows: [4, 4],
            outputs: 6,
            groups: 2,
            kernel: [3, 3],
            stride: [2, 2],
            dilation: [1, 1],
            before: [1, 1],
            rounds_to_tf32: true,
        };
        operation(&Maker(functions), &convolution)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(size: usize, windows: usize, stride: usize, before: usize) -> usize {
        let convolution = ImageConvolution {
            pass: ConvolutionPass::Forward,
            of: RealType::F32,
            batch: 1,
            size: [size, 8],
            channels: 1,
            windows: [windows, 6],
            outputs: 1,
            groups: 1,
            kernel: [3, 3],
            stride: [stride, 1],
            dilation: [1, 1],
            before: [before, 0],
            rounds_to_tf32: false,
        };
        assert_eq!(convolution.bytes(), 4 * (size * 8 + windows * 6 + 9));
        assert_eq!(convolution.after()[1], 0);
        convolution.after()[0]
    }

    #[test]
    fn padding_is_the_same_on_both_sides_where_that_adds_no_window() {
        assert_eq!(padded(8, 8, 1, 1), 1);
        // the last row of padding is read by nobody
        assert_eq!(padded(8, 4, 2, 1), 1);
        // none before, and one behind
        assert_eq!(padded(8, 4, 2, 0), 1);
        // two behind would be a window more
        assert_eq!(padded(8, 8, 1, 2), 0);
    }

    #[test]
    fn what_rounds_or_differs_from_run_to_run_is_not_taken() {
        let core = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        assert!(is_forbidden(core, RealType::F32, false));
        assert!(!is_forbidden(core, RealType::F32, true));
        assert!(!is_forbidden(core, RealType::Bf16, false));
        assert!(!is_forbidden(core, RealType::F64, false));
        for note in 1..=5 {
            assert!(is_forbidden(note, RealType::Bf16, true), "{note}");
        }
    }
}
