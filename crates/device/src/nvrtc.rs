//! CUDA C that is compiled at run time by NVRTC, where it is found. It needs no GPU. Knows not what a program computes.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use crate::driver::Driver;
use crate::error::{LibraryError, text_of};
use crate::libraries::{CudaLibrary, LibrarySearch, LibraryVersion, LoadedLibrary};
use crate::sys::nvrtc::*;

/// The major versions that have the table's functions so.
const MAJORS: [usize; 2] = [12, 13];
/// More than any version knows.
const TARGETS_MAX: c_int = 1024;

/// The loaded library.
#[derive(Debug)]
pub struct Nvrtc {
    functions: NvrtcFunctions,
    library: LoadedLibrary,
    /// Compute capabilities, major and minor in one number.
    targets: Vec<u32>,
    /// Folders of CUDA's headers.
    headers: Vec<PathBuf>,
}

/// What became of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    pub ptx: String,
    /// For the GPU that was asked for; none where the library does not know it, whose driver then compiles the PTX.
    pub machine_code: Option<Vec<u8>>,
}

/// Why a source is not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source is wrong, or an option. The log is the compiler's.
    #[error("{}", .log.trim())]
    Source { log: String },
    #[error("the GPU is of compute capability {}.{}, which {library} does not know", .compute.0, .compute.1)]
    Target { library: String, compute: (u32, u32) },
    #[error("{call} of {library} says {text} ({code})")]
    Call { library: String, call: &'static str, code: u32, text: String },
    #[error("the source, its name or an option has a byte of 0")]
    Text,
}

impl Nvrtc {
    /// Loads the first that is found whose programs this driver takes.
    ///
    /// # Errors
    /// When there is none: why the first that there is cannot be used.
    pub fn open(search: &LibrarySearch, driver: &Driver) -> Result<Nvrtc, LibraryError> {
        let newest = driver.version().major as usize;
        let majors: Vec<usize> = MAJORS.into_iter().filter(|major| *major <= newest).collect();
        search.open(CudaLibrary::Nvrtc, |library| start(library, &majors))
    }

    /// Loads the first that is found, for any driver. Needs no GPU.
    ///
    /// # Errors
    /// As [`Nvrtc::open`].
    pub fn look(search: &LibrarySearch) -> Result<Nvrtc, LibraryError> {
        search.open(CudaLibrary::Nvrtc, |library| start(library, &MAJORS))
    }

    /// What was loaded.
    pub fn library(&self) -> &LoadedLibrary {
        &self.library
    }

    /// Compiles a source for GPUs of a compute capability. `name` is what the log calls it. CUDA's headers are found where they
    /// lie beside the library, and behind what the options name.
    ///
    /// # Errors
    /// When the source or an option is wrong, or the library fails.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        compute: (u32, u32),
    ) -> Result<CompiledProgram, CompileError> {
        let wanted = compute.0 * 10 + compute.1;
        let known = self.targets.iter().copied().filter(|target| *target <= wanted).max();
        let target = match known {
            Some(target) if target == wanted => format!("--gpu-architecture=sm_{target}"),
            Some(target) => format!("--gpu-architecture=compute_{target}"),
            None => {
                return Err(CompileError::Target { library: self.library.to_string(), compute });
            }
        };
        let text = |text: &str| CString::new(text).map_err(|_| CompileError::Text);
        let (name, source) = (text(name)?, text(source)?);
        let headers = self.headers.iter();
        let headers: Vec<String> =
            headers.map(|folder| format!("--include-path={}", folder.display())).collect();
        let all = std::iter::once(&target).chain(options).chain(&headers);
        let all: Vec<CString> = all.map(|option| text(option)).collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = all.iter().map(|option| option.as_ptr()).collect();
        let mut handle = std::ptr::null_mut();
        let nothing = std::ptr::null();
        // SAFETY: there is room for the handle, the texts end with a 0, and there are no headers.
        let status = unsafe {
            let create = self.functions.nvrtcCreateProgram;
            create(&mut handle, source.as_ptr(), name.as_ptr(), 0, nothing, nothing)
        };
        self.check("nvrtcCreateProgram", status)?;
        let program = Program { library: self, handle };
        // fits: a few options
        let count = options.len() as c_int;
        // SAFETY: the program lives, and so do so many options, each of which ends with a 0.
        let status =
            unsafe { (self.functions.nvrtcCompileProgram)(handle, count, options.as_ptr()) };
        if matches!(status, NVRTC_ERROR_COMPILATION | NVRTC_ERROR_INVALID_OPTION) {
            return Err(CompileError::Source { log: program.log()? });
        }
        self.check("nvrtcCompileProgram", status)?;
        let NvrtcFunctions { nvrtcGetPTXSize, nvrtcGetPTX, .. } = self.functions;
        let ptx = program.output("nvrtcGetPTX", nvrtcGetPTXSize, nvrtcGetPTX)?;
        let NvrtcFunctions { nvrtcGetCUBINSize, nvrtcGetCUBIN, .. } = self.functions;
        let code = match known == Some(wanted) {
            true => program.output("nvrtcGetCUBIN", nvrtcGetCUBINSize, nvrtcGetCUBIN)?,
            false => Vec::new(),
        };
        let machine_code = Some(code).filter(|code| !code.is_empty());
        Ok(CompiledProgram { ptx: text_until_0(&ptx), machine_code })
    }

    fn check(&self, call: &'static str, code: nvrtcResult) -> Result<(), CompileError> {
        if code == NVRTC_SUCCESS {
            return Ok(());
        }
        let text = failure(&self.functions, code);
        Err(CompileError::Call { library: self.library.to_string(), call, code, text })
    }
}

/// A program of the library's, while it is there.
struct Program<'a> {
    library: &'a Nvrtc,
    handle: nvrtcProgram,
}

type SizeFn = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult;
type OutputFn = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

impl Program<'_> {
    fn log(&self) -> Result<String, CompileError> {
        let NvrtcFunctions { nvrtcGetProgramLogSize, nvrtcGetProgramLog, .. } =
            self.library.functions;
        let log = self.output("nvrtcGetProgramLog", nvrtcGetProgramLogSize, nvrtcGetProgramLog)?;
        Ok(text_until_0(&log))
    }

    /// What one function says the size of, and the other writes.
    fn output(
        &self,
        call: &'static str,
        size: SizeFn,
        output: OutputFn,
    ) -> Result<Vec<u8>, CompileError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and there is room for the size.
        self.library.check(call, unsafe { size(self.handle, &mut bytes) })?;
        let mut room = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: there is room for as many bytes as the library has just said.
            let status = unsafe { output(self.handle, room.as_mut_ptr().cast()) };
            self.library.check(call, status)?;
        }
        Ok(room)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made once for this value.
        unsafe { (self.library.functions.nvrtcDestroyProgram)(&mut self.handle) };
    }
}

fn start(mut library: LoadedLibrary, majors: &[usize]) -> Result<Nvrtc, LibraryError> {
    // SAFETY: it has the name of this library, and its table is used only in versions that have it so; it is never unloaded.
    let functions = unsafe { NvrtcFunctions::of(library.handle()) };
    let functions = functions.map_err(|function| library.without(function))?;
    let started = |library: &LoadedLibrary, call: &str, status| match status {
        NVRTC_SUCCESS => Ok(()),
        status => Err(library.refused(format!("{call} says {}", failure(&functions, status)))),
    };
    let (mut major, mut minor, mut count) = (0, 0, 0);
    // SAFETY: there is room for both numbers.
    let status = unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) };
    started(&library, "nvrtcVersion", status)?;
    let number = |number: c_int| usize::try_from(number).unwrap_or_default();
    let version = LibraryVersion { major: number(major), minor: number(minor), patch: 0 };
    library.check_version(version, majors)?;
    // SAFETY: there is room for the number.
    let status = unsafe { (functions.nvrtcGetNumSupportedArchs)(&mut count) };
    started(&library, "nvrtcGetNumSupportedArchs", status)?;
    let mut targets = vec![0; number(count.min(TARGETS_MAX))];
    if count == 0 || count > TARGETS_MAX {
        return Err(library.refused(format!("it knows {count} kinds of GPUs")));
    }
    // SAFETY: there is room for as many as it has just said.
    let status = unsafe { (functions.nvrtcGetSupportedArchs)(targets.as_mut_ptr()) };
    started(&library, "nvrtcGetSupportedArchs", status)?;
    let targets = targets.into_iter().filter_map(|target| u32::try_from(target).ok()).collect();
    let headers = headers(&library.found().path);
    Ok(Nvrtc { functions, library, targets, headers })
}

/// The folders of CUDA's headers beside a library, as the toolkit has them, and NVIDIA's packages for Python.
fn headers(library: &Path) -> Vec<PathBuf> {
    let above = |path: &Path| path.parent().map(Path::to_owned);
    let Some(beside) = above(library).and_then(|folder| above(&folder)) else { return Vec::new() };
    let of_packages = above(&beside).into_iter();
    let of_packages =
        of_packages.flat_map(|all| ["cuda_runtime", "cuda_cccl"].map(|one| all.join(one)));
    let all = std::iter::once(beside).chain(of_packages).map(|folder| folder.join("include"));
    all.filter(|folder| folder.is_dir()).collect()
}

fn failure(functions: &NvrtcFunctions, code: nvrtcResult) -> String {
    // SAFETY: takes any number; its texts live as long as the library.
    unsafe { text_of((functions.nvrtcGetErrorString)(code)) }
}

fn text_until_0(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
