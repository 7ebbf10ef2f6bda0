//! Images of kernels and the library that runs them on the CPU. An image is PTX of which nothing is read but what it is
//! for and the names in it; the library has the same kernels, compiled from the same source.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tensorwire_device::sys::*;

use crate::nvrtc::{MACHINE_CODE, library_of};
use crate::state::{Context, Outcome};

type LaunchFn = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    *const c_uint,
    c_uint,
    *const c_void,
    usize,
) -> c_int;

/// A library that runs kernels.
pub(crate) struct Kernels {
    launch: LaunchFn,
    error: unsafe extern "C" fn() -> *const c_char,
    /// Not all have it.
    has: Option<unsafe extern "C" fn(*const c_char) -> c_int>,
    /// Those of programs alone have it.
    entries: Option<unsafe extern "C" fn() -> *const c_char>,
    _library: ManuallyDrop<libloading::Library>,
}

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) context: Arc<Context>,
    names: Vec<String>,
    /// The number of the library that runs its kernels, if it is not the machine's.
    pub(crate) library: Option<usize>,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernels")
    }
}

/// A kernel of an image.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) context: Arc<Context>,
    pub(crate) name: CString,
    /// Bytes of shared memory that a launch may ask for.
    pub(crate) shared_max: AtomicU32,
    /// Its handle dies with it.
    pub(crate) image: usize,
    /// What runs it, if it is not the machine's library.
    pub(crate) library: Option<Arc<Kernels>>,
}

impl Kernels {
    pub(crate) fn load(path: &str) -> Result<Kernels, String> {
        let missing = |error: libloading::Error| format!("FAKE_CUDA_KERNELS={path}: {error}");
        // SAFETY: the library's initialisers run, which whoever names it asks for. It is never unloaded. Its functions
        // have these types: whoever names it promises so.
        unsafe {
            let library = ManuallyDrop::new(libloading::Library::new(path).map_err(missing)?);
            Ok(Kernels {
                launch: *library.get(b"tensorwire_shim_launch\0").map_err(missing)?,
                error: *library.get(b"tensorwire_shim_error\0").map_err(missing)?,
                has: library.get(b"tensorwire_shim_has\0").ok().map(|symbol| *symbol),
                entries: library.get(b"tensorwire_program_entries\0").ok().map(|symbol| *symbol),
                _library: library,
            })
        }
    }

    pub(crate) fn has(&self, name: &CStr) -> bool {
        // SAFETY: the name ends with a 0.
        self.has.is_none_or(|has| unsafe { has(name.as_ptr()) } != 0)
    }

    /// Its kernels as PTX declares them, if it is the library of a program.
    pub(crate) fn entries(&self) -> Result<String, String> {
        let entries = self.entries.ok_or("the library of a program does not say its kernels")?;
        // SAFETY: the text is the library's, which stays.
        Ok(unsafe { CStr::from_ptr(entries()) }.to_string_lossy().into_owned())
    }

    /// Runs a kernel, whole.
    pub(crate) fn run(&self, launching: &Launching) -> Result<(), String> {
        let Launching { kernel, grid, block, shared_bytes, arguments } = launching;
        // SAFETY: the library reads a name that ends with a 0, three and three numbers, and the arguments' bytes, which are
        // aligned as a structure of words; what they name is the duty of who launched.
        unsafe {
            let status = (self.launch)(
                kernel.name.as_ptr(),
                grid.as_ptr(),
                block.as_ptr(),
                *shared_bytes,
                arguments.words.as_ptr().cast(),
                arguments.bytes,
            );
            if status == 0 {
                return Ok(());
            }
            let text = (self.error)();
            let text = if text.is_null() { c"it does not say why" } else { CStr::from_ptr(text) };
            Err(format!("kernel {}: {}", kernel.name.to_string_lossy(), text.to_string_lossy()))
        }
    }
}

/// A launch that a stream was told.
#[derive(Debug)]
pub(crate) struct Launching {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) arguments: Arguments,
}

/// A kernel's structure, aligned as one.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) words: Vec<u64>,
    pub(crate) bytes: usize,
}

impl Image {
    /// Reads an image, or says in words and as a number why it is none.
    pub(crate) fn parse(
        image: &CStr,
        context: Arc<Context>,
        version: i32,
        compute: i32,
    ) -> Result<Image, (CUresult, String)> {
        let bytes = image.to_bytes();
        let own = bytes.strip_prefix(MACHINE_CODE.as_bytes());
        if let Some(own) = own {
            let major = own.iter().take_while(|byte| byte.is_ascii_digit());
            let major = major.fold(0, |number, digit| 10 * number + i32::from(digit - b'0'));
            if major > version / 1000 {
                let why = "machine code of a CUDA that is newer than this driver";
                return Err((CUDA_ERROR_NO_BINARY_FOR_GPU, why.to_owned()));
            }
        } else if bytes.starts_with(b"\x7fELF") || bytes.starts_with(&0xba55_ed50_u32.to_le_bytes())
        {
            let why = "machine code of a GPU, and this one is a CPU";
            return Err((CUDA_ERROR_NO_BINARY_FOR_GPU, why.to_owned()));
        }
        let text = std::str::from_utf8(bytes);
        let text =
            text.map_err(|_| (CUDA_ERROR_INVALID_IMAGE, "neither text nor ELF".to_owned()))?;
        let library = library_of(text);
        let text = without_comments(text);
        let bad = |why: &str| (CUDA_ERROR_INVALID_PTX, format!("ptxas fatal: {why}"));
        let behind = |directive: &str| {
            let mut words = text.split_whitespace().skip_while(|word| *word != directive);
            words.nth(1).map(|word| word.trim_end_matches(',').to_owned())
        };
        let ptx = behind(".version").ok_or_else(|| bad("no .version"))?;
        let parts = ptx.split_once('.');
        let parts =
            parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor): (i32, i32) = parts.ok_or_else(|| bad("no version in .version"))?;
        // PTX 8.0 came with CUDA 12.0, 9.0 with 13.0
        let is_newer = (major + 4, minor) > (version / 1000, version % 1000 / 10);
        if is_newer && own.is_none() {
            let why = format!("PTX {ptx} is newer than this driver");
            return Err((CUDA_ERROR_UNSUPPORTED_PTX_VERSION, why));
        }
        let target = behind(".target").ok_or_else(|| bad("no .target"))?;
        let number = target.trim_start_matches("sm_").trim_end_matches(['a', 'f']).parse::<i32>();
        if number.map_err(|_| bad("no target in .target"))? > compute {
            let why = format!("{target} is newer than this GPU");
            return Err((CUDA_ERROR_NO_BINARY_FOR_GPU, why));
        }
        let names: Vec<String> = text.split(".entry").skip(1).filter_map(name_of).collect();
        if names.is_empty() {
            return Err(bad("no .entry"));
        }
        Ok(Image { context, names, library })
    }

    pub(crate) fn has(&self, name: &CStr) -> bool {
        self.names.iter().any(|known| known.as_bytes() == name.to_bytes())
    }
}

/// The name that a text begins with.
fn name_of(text: &str) -> Option<String> {
    let text = text.trim_start();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '%';
    let name = &text[..text.find(|c| !is_part(c)).unwrap_or(text.len())];
    (!name.is_empty()).then(|| name.to_owned())
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The largest structure that a kernel takes.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 4096;

impl Arguments {
    /// Reads what `extra` of a launch says.
    ///
    /// # Safety
    /// It ends with `CU_LAUNCH_PARAM_END`, and names a buffer of the bytes that it says.
    pub(crate) unsafe fn read(extra: *const *mut c_void) -> Outcome<Arguments> {
        let (mut buffer, mut bytes) = (std::ptr::null::<u8>(), 0);
        for at in 0.. {
            // SAFETY: before the end, which the caller promises.
            let kind = unsafe { extra.add(2 * at).read() }.addr() as u32;
            if kind == CU_LAUNCH_PARAM_END_AS_INT {
                break;
            }
            // SAFETY: each kind but the end has a value behind it.
            let value = unsafe { extra.add(2 * at + 1).read() };
            match kind {
                CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => buffer = value.cast_const().cast(),
                CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => {
                    // SAFETY: it is a pointer to the size.
                    bytes = unsafe { value.cast::<usize>().read() }
                }
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
        }
        if bytes > ARGUMENT_BYTES_MAX || (bytes > 0 && buffer.is_null()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut words = vec![0u64; bytes.div_ceil(8)];
        if bytes > 0 {
            // SAFETY: the buffer has so many bytes, and there is room for them.
            unsafe { std::ptr::copy_nonoverlapping(buffer, words.as_mut_ptr().cast(), bytes) };
        }
        Ok(Arguments { words, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Fake;

    const PTX: &CStr =
        c"// made by hand, .entry no\n.version 8.4\n.target sm_80\n.address_size 64\n\
        .visible .entry axpy(\n.param .b8 p[32]) { ret; }\n.entry spin(.param .u64 a) { ret; }\n";

    fn parse(image: &CStr) -> Result<Image, (CUresult, String)> {
        let fake = Fake::for_tests();
        Image::parse(image, fake.gpus[0].context.clone(), 12_040, 80)
    }

    #[test]
    fn an_image_has_the_kernels_of_its_entries() {
        let image = parse(PTX).unwrap();
        assert!(image.has(c"axpy") && image.has(c"spin") && !image.has(c"no"));
    }

    #[test]
    fn what_a_driver_refuses_is_refused() {
        let status = |text: &str| {
            let text = CString::new(text).unwrap();
            parse(&text).unwrap_err().0
        };
        let text = PTX.to_str().unwrap();
        assert_eq!(status(&text.replace("8.4", "8.5")), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
        assert_eq!(status(&text.replace("sm_80", "sm_90a")), CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert_eq!(status(&text.replace(".entry", ".func")), CUDA_ERROR_INVALID_PTX);
        assert_eq!(status("kernels"), CUDA_ERROR_INVALID_PTX);
        assert_eq!(status("\u{7f}ELF"), CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
}
