//! A NIC of the machine that is loaded as a driver: it reads and writes memory of its GPUs by address, from outside of the driver.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use crate::library;

/// A NIC. It works once the driver was started.
pub struct FakeNic {
    write: unsafe extern "C" fn(u64, *const c_void, usize) -> u32,
    read: unsafe extern "C" fn(u64, *mut c_void, usize) -> u32,
    _library: ManuallyDrop<libloading::Library>,
}

impl std::fmt::Debug for FakeNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeNic")
    }
}

impl FakeNic {
    /// Of the driver in [`library`].
    ///
    /// # Errors
    /// When that is not there.
    pub fn open() -> Result<FakeNic, String> {
        let path = library().ok_or("the driver without a GPU is not built")?;
        let missing = |error: libloading::Error| format!("{}: {error}", path.display());
        // SAFETY: the library is this crate's own: its functions have these types, and it is never unloaded.
        unsafe {
            let library = ManuallyDrop::new(libloading::Library::new(&path).map_err(missing)?);
            Ok(FakeNic {
                write: *library.get(b"fakeCudaRemoteWrite\0").map_err(missing)?,
                read: *library.get(b"fakeCudaRemoteRead\0").map_err(missing)?,
                _library: library,
            })
        }
    }

    /// Writes bytes; false where no GPU's memory is.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        // SAFETY: so many bytes are there; the driver finds out what the address is of.
        unsafe { (self.write)(address, bytes.as_ptr().cast(), bytes.len()) == 0 }
    }

    /// Reads as many bytes as there is room for; false where no GPU's memory is.
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // SAFETY: there is room for so many bytes; as above.
        unsafe { (self.read)(address, into.as_mut_ptr().cast(), into.len()) == 0 }
    }
}
