//! The GPUs of a process, one or several, for sessions and for whoever has to do with the first one.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_kernels::SharedDevice;

use crate::engine::{CudaError, CudaKernels};
use crate::options::CudaOptions;
use crate::several::CudaDevices;

/// GPUs that were opened.
#[derive(Clone, Debug)]
pub enum OpenedGpus {
    One(Arc<Mutex<CudaKernels>>),
    Several(Arc<Mutex<CudaDevices>>),
}

impl OpenedGpus {
    /// Opens GPUs by their numbers in this process.
    ///
    /// # Errors
    /// When there is no driver or no such GPU, or one has no memory left.
    pub fn open(options: &CudaOptions, ordinals: &[usize]) -> Result<OpenedGpus, CudaError> {
        Ok(match ordinals {
            [ordinal] => {
                OpenedGpus::One(Arc::new(Mutex::new(CudaKernels::open(options, *ordinal)?)))
            }
            _ => OpenedGpus::Several(Arc::new(Mutex::new(CudaDevices::open(options, ordinals)?))),
        })
    }

    /// Returns how many there are.
    pub fn count(&self) -> u32 {
        match self {
            OpenedGpus::One(_) => 1,
            OpenedGpus::Several(gpus) => gpus.lock().count(),
        }
    }

    /// As sessions take them.
    pub fn shared(&self) -> SharedDevice {
        match self {
            OpenedGpus::One(gpu) => gpu.clone(),
            OpenedGpus::Several(gpus) => gpus.clone(),
        }
    }

    /// Returns what `with` makes of the first one; none, if there is none.
    pub fn with_first<T>(&self, with: impl FnOnce(&mut CudaKernels) -> T) -> Option<T> {
        match self {
            OpenedGpus::One(gpu) => Some(with(&mut gpu.lock())),
            OpenedGpus::Several(gpus) => gpus.lock().first().map(with),
        }
    }
}
