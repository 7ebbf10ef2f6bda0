//! Which GPUs there are, before one is opened.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use tensorwire_device::{
    CublasLt, CudaLibrary, Cudnn, DeviceError, DeviceFacts, Driver, LibrarySearch, LoadedLibrary,
};

use crate::Rounding;
use crate::engine::CudaError;

/// The least compute capability that the PTX of the kernels is for.
pub(crate) const COMPUTE_MIN: (u32, u32) = (8, 0);

/// Returns what computes matrix products and convolutions, for people, without asking a GPU whether the libraries work
/// there.
pub fn products(libraries: Option<&LibrarySearch>, rounding: Rounding) -> String {
    let (products, convolutions) = match libraries {
        Some(search) => (
            CublasLt::look(search).map_err(|error| unused(CudaLibrary::CublasLt, &error)),
            Cudnn::look(search).map_err(|error| unused(CudaLibrary::Cudnn, &error)),
        ),
        None => (Err(NO_LIBRARY.to_owned()), Err(NO_LIBRARY.to_owned())),
    };
    computed_by(products.as_ref(), convolutions.as_ref(), rounding)
}

/// Why kernels of ours compute where nobody looks for a library.
pub(crate) const NO_LIBRARY: &str = "no library is to be used";

/// Why a library is not used, and what brings one that can be.
pub(crate) fn unused(library: CudaLibrary, why: &dyn Display) -> String {
    format!("{why}; python3 -m pip install {} brings one", library.package())
}

/// As in `products by cuBLASLt 13.1.0, convolutions by cuDNN 9.4.0, rounded to TF32`.
pub(crate) fn computed_by(
    products: Result<&LoadedLibrary, &String>,
    convolutions: Result<&LoadedLibrary, &String>,
    rounding: Rounding,
) -> String {
    let rounded = match rounding {
        Rounding::Nothing => "",
        Rounding::Tf32 => ", rounded to TF32",
        Rounding::Bf16 => ", rounded to bf16",
    };
    let by = |library: Result<&LoadedLibrary, &String>| match library {
        Ok(library) => library.to_string(),
        Err(why) => format!("own kernels ({why})"),
    };
    match (products, convolutions) {
        (Err(why), Err(other)) if why == other => {
            format!("products and convolutions by own kernels ({why}){rounded}")
        }
        _ => format!("products by {}, convolutions by {}{rounded}", by(products), by(convolutions)),
    }
}

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

    /// Checks that there is a GPU of that number, for which kernels are made.
    ///
    /// # Errors
    /// When there is none, or it is too old.
    pub fn check(&self, ordinal: usize) -> Result<(), CudaError> {
        if ordinal >= self.count {
            return Err(DeviceError::NoSuchDevice { ordinal, count: self.count }.into());
        }
        let DeviceFacts { name, compute, .. } = self.driver.facts(ordinal)?;
        match compute < COMPUTE_MIN {
            true => Err(CudaError::TooOld { ordinal, name, compute }),
            false => Ok(()),
        }
    }

    /// True if each of these GPUs reaches the memory of each other, and shows its own to other processes.
    ///
    /// # Errors
    /// When one is not there.
    pub fn reach_each_other(&self, ordinals: &[usize]) -> Result<bool, CudaError> {
        let mut reach = true;
        for (at, from) in ordinals.iter().enumerate() {
            reach &= self.driver.facts(*from)?.export;
            for to in &ordinals[..at] {
                reach &= self.driver.can_reach(*from, *to)? && self.driver.can_reach(*to, *from)?;
            }
        }
        Ok(reach)
    }

    /// Returns where the kernel has a GPU, as in `0000:3b:00.0`.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn pci_address(&self, ordinal: usize) -> Result<String, CudaError> {
        Ok(self.driver.facts(ordinal)?.pci_bus_id)
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
