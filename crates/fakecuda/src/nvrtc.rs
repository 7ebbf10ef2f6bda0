//! NVRTC in the place of the real one: a user's CUDA C is compiled by the C++ compiler that is here, with the shim that the
//! project's kernels are tested with. What it makes is text with the kernels' names and parameters, as PTX declares them, and
//! the number of a library of this process that runs them.

mod program;

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tensorwire_device::sys::nvrtc::*;

use crate::api::pointer;
use crate::state::Fake;
use program::{Failed, Made};

pub(crate) use program::{MACHINE_CODE, library_of};

/// Compute capabilities that it knows.
const TARGETS: [c_int; 8] = [75, 80, 86, 89, 90, 100, 103, 120];

#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    source: String,
    made: Mutex<Option<Result<Made, Failed>>>,
}

fn fake() -> Result<&'static Fake, nvrtcResult> {
    let fake = Fake::start().map_err(|_| NVRTC_ERROR_INTERNAL_ERROR)?;
    if fake.config.faults.no_library { Err(NVRTC_ERROR_INTERNAL_ERROR) } else { Ok(fake) }
}

fn answer(work: impl FnOnce() -> Result<(), nvrtcResult>) -> nvrtcResult {
    work().err().unwrap_or(NVRTC_SUCCESS)
}

fn known(program: nvrtcProgram) -> Result<Arc<Program>, nvrtcResult> {
    fake()?.programs.get(program.addr()).map_err(|_| NVRTC_ERROR_INVALID_PROGRAM)
}

/// A text that the caller gave.
///
/// # Safety
/// It is null, or ends with a 0.
unsafe fn text(text: *const c_char) -> Result<String, nvrtcResult> {
    if text.is_null() {
        return Err(NVRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: the caller's duty.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_owned).map_err(|_| NVRTC_ERROR_INVALID_INPUT)
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult {
    answer(|| {
        let version = fake()?.config.nvrtc_version();
        // SAFETY: room is the caller's duty.
        unsafe {
            major.write(version / 1000);
            minor.write(version % 1000 / 10);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(result: nvrtcResult) -> *const c_char {
    let text = match result {
        NVRTC_SUCCESS => c"NVRTC_SUCCESS",
        NVRTC_ERROR_INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        NVRTC_ERROR_INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        NVRTC_ERROR_INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        NVRTC_ERROR_COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult {
    // SAFETY: room is the caller's duty.
    unsafe { count.write(TARGETS.len() as c_int) };
    NVRTC_SUCCESS
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetSupportedArchs(targets: *mut c_int) -> nvrtcResult {
    // SAFETY: room for as many as there are is the caller's duty.
    unsafe { targets.copy_from_nonoverlapping(TARGETS.as_ptr(), TARGETS.len()) };
    NVRTC_SUCCESS
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut nvrtcProgram,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    _headers: *const *const c_char,
    _names: *const *const c_char,
) -> nvrtcResult {
    answer(|| {
        let fake = fake()?;
        // no program of the project's brings headers
        if program.is_null() || header_count != 0 {
            return Err(NVRTC_ERROR_INVALID_INPUT);
        }
        // SAFETY: the caller's duty.
        let (source, name) = unsafe { (text(source)?, text(name)?) };
        let new = Program { name, source, made: Mutex::new(None) };
        // SAFETY: room is the caller's duty.
        unsafe { program.write(pointer(fake.programs.add(Arc::new(new)))) };
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult {
    answer(|| {
        // SAFETY: the caller's duty.
        let handle = unsafe { program.read() };
        fake()?.programs.remove(handle.addr()).map_err(|_| NVRTC_ERROR_INVALID_PROGRAM)?;
        // SAFETY: as above.
        unsafe { program.write(std::ptr::null_mut()) };
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: nvrtcProgram,
    count: c_int,
    options: *const *const c_char,
) -> nvrtcResult {
    answer(|| {
        let (fake, program) = (fake()?, known(program)?);
        let number = fake.counts.programs.fetch_add(1, Ordering::Relaxed) + 1;
        if number == fake.config.faults.compile {
            return Err(NVRTC_ERROR_INTERNAL_ERROR);
        }
        // SAFETY: so many options are there, each of which ends with a 0: the caller's duty.
        let options = (0..usize::try_from(count).unwrap_or(0))
            .map(|at| unsafe { text(options.add(at).read()) })
            .collect::<Result<Vec<String>, _>>()?;
        let version = fake.config.nvrtc_version();
        let made = program::compile(&program.name, &program.source, &options, version, |kernels| {
            let mut libraries = fake.libraries.lock();
            libraries.push(Arc::new(kernels));
            libraries.len()
        });
        let status = made.as_ref().map_or_else(|failed| failed.status, |_| NVRTC_SUCCESS);
        *program.made.lock() = Some(made);
        if status == NVRTC_SUCCESS { Ok(()) } else { Err(status) }
    })
}

/// What a program has come to, ending with a 0.
fn output(program: nvrtcProgram, of: fn(&Made) -> &[u8]) -> Result<Vec<u8>, nvrtcResult> {
    let program = known(program)?;
    let made = program.made.lock();
    match &*made {
        Some(Ok(made)) => Ok(of(made).to_vec()),
        _ => Err(NVRTC_ERROR_INVALID_PROGRAM),
    }
}

fn log(program: nvrtcProgram) -> Result<Vec<u8>, nvrtcResult> {
    let program = known(program)?;
    let made = program.made.lock();
    let text = match &*made {
        Some(Err(failed)) => failed.log.as_bytes(),
        _ => &[],
    };
    Ok([text, &[0]].concat())
}

/// The two functions of something that a program comes to.
macro_rules! outputs {
    ($($size:ident $get:ident: $bytes:expr;)*) => {$(
        /// # Safety
        /// As of the library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $size(program: nvrtcProgram, size: *mut usize) -> nvrtcResult {
            answer(|| {
                let bytes: Vec<u8> = $bytes(program)?;
                // SAFETY: room is the caller's duty.
                unsafe { size.write(bytes.len()) };
                Ok(())
            })
        }

        /// # Safety
        /// As of the library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(program: nvrtcProgram, room: *mut c_char) -> nvrtcResult {
            answer(|| {
                let bytes: Vec<u8> = $bytes(program)?;
                // SAFETY: room for as many bytes as the other function says is the caller's duty.
                unsafe { room.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            })
        }
    )*};
}

outputs! {
    nvrtcGetPTXSize nvrtcGetPTX: |program| output(program, |made| &made.ptx);
    nvrtcGetCUBINSize nvrtcGetCUBIN: |program| output(program, |made| &made.machine_code);
    nvrtcGetProgramLogSize nvrtcGetProgramLog: log;
}
