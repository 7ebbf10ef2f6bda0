//! Loans by address: what a device holds while it reads or writes a buffer, in its own memory or in the host's that it
//! reaches. They count in the same flags as all loans of the buffer, and give no slice.
//!
//! A device works later than it is told to. Whoever tells it holds the loan until the work is done, or has the device's
//! own order (that of a stream) stand for it; then the loan says that nobody else was using the bytes when the work was
//! handed over.

use crate::buffer::{Buffer, LoanError};
use tensorwire_base::Space;

use crate::slab::Slab;

/// A shared loan by address, which owns its buffer.
#[derive(Debug)]
pub struct DeviceLoan {
    buffer: Buffer,
}

/// An exclusive loan by address, which owns its buffer.
#[derive(Debug)]
pub struct DeviceWriteLoan {
    buffer: Buffer,
}

impl Buffer {
    /// Lends the bytes to a device for reading until the loan is dropped.
    ///
    /// # Errors
    /// [`LoanError::BeingWritten`].
    pub fn lend_to_device(&self) -> Result<DeviceLoan, LoanError> {
        self.acquire_shared()?;
        Ok(DeviceLoan { buffer: self.clone() })
    }

    /// Lends the bytes to a device for writing, alone, until the loan is dropped.
    ///
    /// # Errors
    /// [`LoanError::BeingWritten`] and [`LoanError::Lent`].
    pub fn lend_to_device_for_writing(&self) -> Result<DeviceWriteLoan, LoanError> {
        self.acquire_exclusive()?;
        Ok(DeviceWriteLoan { buffer: self.clone() })
    }
}

/// What both kinds of loans tell.
macro_rules! tells {
    ($loan:ident) => {
        impl $loan {
            /// Address of the first byte, for the device to follow.
            pub fn address(&self) -> usize {
                self.buffer.address()
            }

            pub fn bytes(&self) -> usize {
                self.buffer.bytes()
            }

            /// Whose memory it is.
            pub fn space(&self) -> Space {
                self.buffer.space()
            }

            /// The memory that the bytes lie in: keeps it alive, as the loan does.
            pub fn slab(&self) -> &Slab {
                self.buffer.slab()
            }
        }
    };
}
tells!(DeviceLoan);
tells!(DeviceWriteLoan);

impl Drop for DeviceLoan {
    fn drop(&mut self) {
        self.buffer.end_shared();
    }
}

impl Drop for DeviceWriteLoan {
    fn drop(&mut self) {
        self.buffer.end_exclusive();
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;
    use std::sync::Arc;

    use super::*;
    use crate::slab::CutMark;
    use crate::{Arena, ArenaError, Heap, PeerMapped, Place, Window};

    const ADDRESS: usize = 0x7000_0000_0000;

    /// Nothing is there: whatever followed the address would end the test's process.
    fn slab(bytes: usize) -> Slab {
        let address = NonZero::new(ADDRESS).unwrap();
        // SAFETY: the duty is memory of a device; nothing here hands the address to one.
        unsafe { Slab::on_device(0, address, bytes, Arc::new(()), CutMark::default()) }
    }

    fn buffers(slab: &Slab) -> Vec<Buffer> {
        let places = [(0, 128), (64, 64), (192, 64)];
        let places = places.map(|(offset, bytes)| Place { offset, bytes });
        Arena::new(slab, &places).unwrap().into_buffers()
    }

    #[test]
    fn memory_of_a_device_never_becomes_a_slice() {
        let slab = slab(256);
        let buffer = &buffers(&slab)[0];
        assert_eq!((slab.space(), buffer.space()), (Space::Device(0), Space::Device(0)));
        assert_eq!(buffer.read().unwrap_err(), LoanError::OnDevice);
        assert_eq!(buffer.write().unwrap_err(), LoanError::OnDevice);
        assert_eq!(buffer.lend().unwrap_err(), LoanError::OnDevice);
        assert_eq!(buffer.lend_for_writing().unwrap_err(), LoanError::OnDevice);
        let host = Slab::anonymous(256).unwrap();
        let on_host = &buffers(&host)[0];
        assert_eq!(on_host.copy_from(0, buffer, 0..8).unwrap_err(), LoanError::OnDevice);
        assert_eq!(buffer.copy_from(0, on_host, 0..8).unwrap_err(), LoanError::OnDevice);
        assert!(buffer.lend_to_device_for_writing().is_ok(), "what was refused took nothing");
    }

    #[test]
    fn loans_by_address_exclude_each_other_as_all_loans_do() {
        let slab = slab(256);
        let buffers = buffers(&slab);
        let writing = buffers[0].lend_to_device_for_writing().unwrap();
        assert_eq!((writing.address(), writing.bytes()), (ADDRESS, 128));
        assert_eq!(writing.slab().address(), ADDRESS);
        assert_eq!(buffers[1].lend_to_device().unwrap_err(), LoanError::BeingWritten);
        assert_eq!(buffers[2].lend_to_device().unwrap().address(), ADDRESS + 192);
        drop(writing);
        let reading = [buffers[1].lend_to_device().unwrap(), buffers[0].lend_to_device().unwrap()];
        assert_eq!(buffers[1].lend_to_device_for_writing().unwrap_err(), LoanError::Lent);
        drop(reading);
        assert!(buffers[1].lend_to_device_for_writing().is_ok());
    }

    #[test]
    fn memory_of_the_host_is_lent_to_a_device_under_the_same_flags() {
        let host = Slab::anonymous(256).unwrap();
        let buffers = buffers(&host);
        let reading = buffers[0].lend_to_device().unwrap();
        assert_eq!((reading.space(), reading.address()), (Space::Host, host.address()));
        assert_eq!(buffers[0].write().unwrap_err(), LoanError::Lent);
        assert!(buffers[0].read().is_ok());
        drop(reading);
        let writing = buffers[0].write().unwrap();
        assert_eq!(buffers[1].lend_to_device().unwrap_err(), LoanError::BeingWritten);
        drop(writing);
    }

    #[test]
    fn a_heap_and_what_a_peer_shows_may_lie_on_a_device_and_a_window_may_not() {
        let slab = slab(256);
        assert_eq!(Window::new(&slab).unwrap_err(), ArenaError::OnDevice);
        let heap = Heap::new(&slab).unwrap();
        let piece = heap.alloc(64).unwrap();
        assert_eq!(piece.lend_to_device().unwrap().address(), ADDRESS);
        drop((piece, heap));
        let shown = PeerMapped::new(&slab).unwrap();
        let place = Place { offset: 64, bytes: 64 };
        assert!(shown.read(place).is_none());
        let buffer = shown.buffer(place).unwrap();
        assert_eq!(buffer.lend_to_device().unwrap().address(), ADDRESS + 64);
        assert_eq!(buffer.lend_to_device_for_writing().unwrap_err(), LoanError::Lent);
        assert_eq!(buffer.read().unwrap_err(), LoanError::OnDevice);
        assert!(shown.buffer(Place { offset: 255, bytes: 2 }).is_none());
    }

    #[test]
    fn memory_of_others_on_a_device_is_lent_at_any_address() {
        let address = NonZero::new(ADDRESS + 5).unwrap();
        // SAFETY: as in `slab`.
        let buffer = unsafe { Buffer::foreign_on_device(address, 7, Arc::new(())) };
        assert_eq!(buffer.lend_to_device().unwrap().address(), ADDRESS + 5);
        assert_eq!(buffer.read().unwrap_err(), LoanError::OnDevice);
    }

    #[test]
    #[should_panic(expected = "follows no address of a device")]
    fn the_host_gets_no_pointer_to_follow() {
        slab(64).start();
    }
}
