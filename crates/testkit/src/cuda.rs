//! Which of CUDA's drivers suites run on. Knows no driver.

use std::path::PathBuf;

/// Names the one driver that suites of GPUs run on: `real`, this machine's, or a library. Unset, they run on what stands in
/// its place, and on this machine's where there is one.
pub const TEST_CUDA: &str = "TENSORWIRE_TEST_CUDA";

/// A driver that suites run on, and on no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnlyDriver {
    /// The one that the dynamic linker finds.
    Real,
    Library(PathBuf),
}

impl OnlyDriver {
    /// What the environment names; none where it leaves it open.
    pub fn named() -> Option<OnlyDriver> {
        let named = std::env::var_os(TEST_CUDA).filter(|named| !named.is_empty())?;
        Some(if named == "real" { OnlyDriver::Real } else { OnlyDriver::Library(named.into()) })
    }

    /// True if it is no GPU's, but what this project made.
    pub fn is_stand_in(&self) -> bool {
        matches!(self, OnlyDriver::Library(path) if path.to_string_lossy().contains("fakecuda"))
    }

    /// The library to load; none for the one that the dynamic linker finds.
    pub fn library(&self) -> Option<PathBuf> {
        match self {
            OnlyDriver::Real => None,
            OnlyDriver::Library(path) => Some(path.clone()),
        }
    }
}
