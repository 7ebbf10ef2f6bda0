//! Images, kernels and launches.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tensorwire_device::sys::*;

use super::{in_context, on_stream, pointer, put, same, started};
use crate::kernels::{Arguments, Image, Kernel, Launching};
use crate::stream::Op;

/// Shared memory of a block, in bytes: without asking, and at most (compute capability 8.0).
pub(crate) const SHARED_MAX: u32 = 48 << 10;
pub(crate) const SHARED_ALLOWED_MAX: c_int = 163 << 10;
const THREADS_MAX: u64 = 1024;
/// Of a grid and of a block.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    in_context(|fake, context| {
        if image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        fake.before_making(context, "an image that is loaded")?;
        // SAFETY: text ends with a 0, and the header of machine code has one.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let parsed = Image::parse(text, context.clone(), fake.config.version, fake.config.compute);
        let parsed = parsed.map_err(|(status, why)| {
            // SAFETY: so many options and values are there: the caller's duty.
            unsafe { write_log(count, options, values, &why) };
            status
        })?;
        // SAFETY: room is the caller's duty.
        unsafe { put(module, pointer(fake.images.add(Arc::new(parsed)))) }
    })
}

/// Writes where the options want it.
///
/// # Safety
/// So many options are there, and as many values; a log's value is a buffer of the size that the other says.
unsafe fn write_log(
    count: c_uint,
    options: *const CUjit_option,
    values: *const *mut c_void,
    why: &str,
) {
    let value = |wanted: CUjit_option| {
        // SAFETY: within the count, which the caller promises.
        (0..count as usize)
            .find(|&at| unsafe { options.add(at).read() } == wanted)
            .map(|at| unsafe { values.add(at).read() })
    };
    let (Some(buffer), Some(size)) =
        (value(CU_JIT_ERROR_LOG_BUFFER), value(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES))
    else {
        return;
    };
    let length = why.len().min(size.addr().saturating_sub(1));
    // SAFETY: the buffer has one byte more.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(why.as_ptr(), length);
        buffer.cast::<u8>().add(length).write(0);
    }
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    started(|fake| fake.images.remove(module.addr()).map(|_| ()))
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    in_context(|fake, context| {
        let image = fake.images.get(module.addr())?;
        same(&image.context, context)?;
        // SAFETY: a name ends with a 0.
        let name = unsafe { CStr::from_ptr(name) };
        let libraries = fake.libraries.lock();
        let library = image.library.and_then(|number| libraries.get(number.checked_sub(1)?));
        let library = library.cloned();
        let runs = match (&library, &fake.kernels) {
            (Some(library), _) => library.has(name),
            (None, kernels) => kernels.as_ref().is_none_or(|kernels| kernels.has(name)),
        };
        if !image.has(name) || !runs {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let made = Kernel {
            context: context.clone(),
            name: CString::from(name),
            shared_max: AtomicU32::new(SHARED_MAX),
            image: module.addr(),
            library,
        };
        // SAFETY: room is the caller's duty.
        unsafe { put(function, pointer(fake.functions.add(Arc::new(made)))) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: c_int,
) -> CUresult {
    in_context(|fake, _| {
        let kernel = fake.functions.get(function.addr())?;
        let is_known = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if !is_known || !(0..=SHARED_ALLOWED_MAX).contains(&value) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // fits: not negative
        kernel.shared_max.store(value as u32, Ordering::Relaxed);
        Ok(())
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    on_stream(stream, |fake, stream| {
        let kernel = fake.functions.get(function.addr())?;
        same(&kernel.context, &stream.context)?;
        // a function dies with its image
        fake.images.get(kernel.image)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let fits = |sizes: [u32; 3], most: [u32; 3]| {
            sizes.iter().zip(most).all(|(&size, most)| size > 0 && size <= most)
        };
        let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
        let is_wrong = !fits(grid, GRID_MAX)
            || !fits(block, BLOCK_MAX)
            || threads > THREADS_MAX
            || shared_bytes > kernel.shared_max.load(Ordering::Relaxed)
            || !parameters.is_null()
            || extra.is_null();
        if is_wrong {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let name = kernel.name.to_string_lossy();
        fake.before_using(&stream.context, format!("kernel {name} of image {}", kernel.image))?;
        // SAFETY: it is what `extra` of a launch must be: the caller's duty.
        let arguments = unsafe { Arguments::read(extra) }?;
        let launching = Launching { kernel, grid, block, shared_bytes, arguments };
        stream.tell(Op::Launch(Arc::new(launching)))
    })
}
