//! Images of kernels: PTX, which the driver compiles for its GPU, or machine code. Knows not what a kernel computes.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use crate::device::{Device, Handle};
use crate::error::{DeviceError, mend_image};
use crate::sys::*;

/// Bytes of what the driver's compiler says.
const LOG_BYTES: usize = 4096;

/// A loaded image. Its kernels keep it.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// A kernel of an image.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Loaded>,
    handle: Arc<Handle<CUfunc_st>>,
}

#[derive(Debug)]
struct Loaded {
    device: Arc<Device>,
    handle: Handle<CUmod_st>,
}

impl Module {
    /// Loads an image. PTX is compiled here, once for this GPU: the driver keeps what it made.
    ///
    /// # Errors
    /// When the image is damaged or not for this GPU, the driver is too old for it, or refuses.
    pub fn load(device: &Arc<Device>, image: &[u8]) -> Result<Module, DeviceError> {
        // text must end with a 0, which does no harm to machine code
        let image = [image, &[0]].concat();
        let mut log = vec![0u8; LOG_BYTES];
        let mut kinds = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES - 1)];
        let mut module = std::ptr::null_mut();
        let status = device.try_call(|functions| {
            // SAFETY: there is room for the pointer; the image ends with a 0 and lives until this returns, and so do two
            // options with their values, the second of which is the size of the first.
            unsafe {
                (functions.cuModuleLoadDataEx)(
                    &mut module,
                    image.as_ptr().cast(),
                    2,
                    kinds.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            }
        })?;
        match status {
            CUDA_SUCCESS => {}
            CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
                let log =
                    String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ");
                return Err(DeviceError::Image {
                    device: device.ordinal(),
                    call: "cuModuleLoadDataEx",
                    failure: device.driver().failure(status),
                    log,
                    mend: mend_image(status, device.facts().compute),
                });
            }
            _ => device.check_memory("cuModuleLoadDataEx", status, image.len() as u64)?,
        }
        let loaded = Loaded { device: device.clone(), handle: Handle(module) };
        Ok(Module { loaded: Arc::new(loaded) })
    }

    /// Returns a kernel by the name that it has in the image.
    ///
    /// # Errors
    /// When there is none, or the driver refuses.
    pub fn function(&self, name: &str) -> Result<Function, DeviceError> {
        let Loaded { device, handle } = &*self.loaded;
        let missing =
            || DeviceError::NoSuchKernel { device: device.ordinal(), kernel: name.to_owned() };
        let c_name = CString::new(name).map_err(|_| missing())?;
        let mut function = std::ptr::null_mut();
        let status = device.try_call(|functions| {
            // SAFETY: there is room for the pointer, the module lives, and the name ends with a 0.
            unsafe { (functions.cuModuleGetFunction)(&mut function, handle.0, c_name.as_ptr()) }
        })?;
        match status {
            CUDA_ERROR_NOT_FOUND => return Err(missing()),
            _ => device.check("cuModuleGetFunction", status)?,
        }
        Ok(Function { module: self.loaded.clone(), handle: Arc::new(Handle(function)) })
    }
}

impl Function {
    /// Allows a launch that much shared memory, up to the GPU's [`crate::DeviceFacts::shared_bytes_allowed_max`].
    ///
    /// # Errors
    /// When that is more than there is, or the driver refuses.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        self.module.device.call("cuFuncSetAttribute", |functions| {
            let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            // SAFETY: the function lives as long as its module, which this holds.
            unsafe { (functions.cuFuncSetAttribute)(self.handle.0, attribute, bytes) }
        })
    }

    pub(crate) fn raw(&self) -> CUfunction {
        self.handle.0
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !self.device.settle() {
            // a kernel of it may still run: it is kept for good
            return;
        }
        // SAFETY: loaded for this value, and unloaded once; no stream has work any more, and no function names it.
        let _ =
            self.device.try_call(|functions| unsafe { (functions.cuModuleUnload)(self.handle.0) });
    }
}
