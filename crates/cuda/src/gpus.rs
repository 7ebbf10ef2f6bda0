//! Which GPUs there are, before one is opened.

use std::path::Path;
use std::sync::Arc;

use tensorwire_device::{DeviceError, Driver};

use crate::engine::CudaError;

/// The GPUs that this process sees.
#[derive(Clone, Debug)]
pub struct Gpus {
    driver: Arc<Driver>,
    count: usize,
}

impl Gpus {
    /// Loads the driver, of this library or of the one that the dynamic linker finds, and counts its GPUs.
    ///
    /// # Errors
    /// When there is no driver, or it is too old or broken.
    pub fn find(driver: Option<&Path>) -> Result<Gpus, CudaError> {
        let driver = Driver::open(driver)?;
        let count = driver.device_count()?;
        Ok(Gpus { driver, count })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Checks that there is a GPU of that number.
    ///
    /// # Errors
    /// When there is none.
    pub fn check(&self, ordinal: usize) -> Result<(), CudaError> {
        match ordinal < self.count {
            true => Ok(()),
            false => Err(DeviceError::NoSuchDevice { ordinal, count: self.count }.into()),
        }
    }

    /// Returns a GPU's name, for people.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn name(&self, ordinal: usize) -> Result<String, CudaError> {
        let facts = self.driver.facts(ordinal)?;
        let (major, minor) = facts.compute;
        let version = self.driver.version();
        let name = &facts.name;
        Ok(format!("cuda: GPU {ordinal}, {name} ({major}.{minor}), driver of CUDA {version}"))
    }
}
