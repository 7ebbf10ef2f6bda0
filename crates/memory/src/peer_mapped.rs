//! Memory of another process that this one reads where it lies and never writes. What cannot be seen from here
//! is its owner's writes: whoever made the slab promised ([`Slab::from_raw`]) that what is lent here stays as it is until
//! that is over.

use tensorwire_base::sync::Arc;

use crate::arena::{ArenaError, Place};
use crate::buffer::{Buffer, Loans, Owner};
use crate::slab::{Cut, Slab};

/// All bytes of a slab, for reading. Clones share it.
#[derive(Clone, Debug)]
pub struct PeerMapped {
    slab: Slab,
    /// Held for its life alone: nobody of this process writes.
    cut: Arc<Cut>,
}

impl PeerMapped {
    /// Takes the slab as a whole.
    ///
    /// # Errors
    /// [`ArenaError::AlreadyCut`] alone.
    pub fn new(slab: &Slab) -> Result<PeerMapped, ArenaError> {
        let cut = slab.mark().take().ok_or(ArenaError::AlreadyCut)?;
        Ok(PeerMapped { slab: slab.clone(), cut: Arc::new(cut) })
    }

    /// The bytes of a place; None if it does not lie inside, or is memory of a device.
    pub fn read(&self, place: Place) -> Option<&[u8]> {
        if !self.has(place) || self.slab.space().is_device() {
            return None;
        }
        // SAFETY: the place lies inside the slab, which lives here and is valid memory of the host. The cut makes this the
        // only owner of its bytes in this process, and nothing here writes. The process that does keeps
        // its writes out (see //!).
        Some(unsafe {
            std::slice::from_raw_parts(self.slab.start().as_ptr().add(place.offset), place.bytes)
        })
    }

    /// A place as a buffer, which can be read and never written; None if it does not lie inside.
    pub fn buffer(&self, place: Place) -> Option<Buffer> {
        if !self.has(place) {
            return None;
        }
        let loans = Loans::read_only(Owner::PeerMapped { _cut: self.cut.clone() });
        Some(Buffer::new(self.slab.clone(), place, Arc::new(loans), 0..1))
    }

    /// True if the place lies inside.
    fn has(&self, place: Place) -> bool {
        place.offset.checked_add(place.bytes).is_some_and(|end| end <= self.slab.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::buffer::LoanError;

    #[test]
    fn what_is_shown_is_read_and_never_written() {
        let slab = Slab::anonymous(256).unwrap();
        {
            let buffers =
                Arena::new(&slab, &[Place { offset: 64, bytes: 8 }]).unwrap().into_buffers();
            buffers[0].write().unwrap().fill(9);
        }
        let shown = PeerMapped::new(&slab).unwrap();
        let place = Place { offset: 64, bytes: 8 };
        assert_eq!(shown.read(place).unwrap(), [9; 8]);
        let buffer = shown.buffer(place).unwrap();
        assert_eq!(*buffer.read().unwrap(), [9; 8]);
        assert_eq!(buffer.write().unwrap_err(), LoanError::Lent);
        assert!(shown.read(Place { offset: 250, bytes: 8 }).is_none());
        assert!(shown.buffer(Place { offset: usize::MAX, bytes: 2 }).is_none());
    }

    #[test]
    fn nobody_else_has_the_slab_while_a_buffer_of_it_lives() {
        let slab = Slab::anonymous(64).unwrap();
        let buffer =
            PeerMapped::new(&slab).unwrap().buffer(Place { offset: 0, bytes: 64 }).unwrap();
        assert_eq!(Arena::new(&slab, &[]).unwrap_err(), ArenaError::AlreadyCut);
        drop(buffer);
        assert!(Arena::new(&slab, &[]).is_ok());
    }
}
