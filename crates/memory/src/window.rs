//! A slab that is shared by agreement about ranges instead of by loans: rings, of which one part is written
//! by a peer or read by a NIC while another is in use here, and memory of another process. No slice is
//! larger than what was asked for, so that none covers bytes that others touch meanwhile.
//!
//! What a window cannot see is who touches its bytes from *outside*. Whoever made the slab promised for those
//! ([`Slab::from_raw`]): no peer writes what is lent here, and none reads what is written here, until that is over.

use std::ops::Range;

use crate::arena::{ArenaError, Place};

use crate::slab::{Cut, Slab};

/// All bytes of a slab, for one owner.
#[derive(Debug)]
pub struct Window {
    slab: Slab,
    /// Held for its life alone.
    _cut: Cut,
}

impl Window {
    /// Takes the slab as a whole.
    ///
    /// # Errors
    /// [`ArenaError::AlreadyCut`], and [`ArenaError::OnDevice`] for memory of a device.
    pub fn new(slab: &Slab) -> Result<Window, ArenaError> {
        if slab.space().is_device() {
            return Err(ArenaError::OnDevice);
        }
        let cut = slab.mark().take().ok_or(ArenaError::AlreadyCut)?;
        Ok(Window { slab: slab.clone(), _cut: cut })
    }

    /// The bytes of a place; None if it does not lie inside.
    pub fn read(&self, place: Place) -> Option<&[u8]> {
        let range = self.range(place)?;
        // SAFETY: `range` lies inside the slab, which lives here and is valid memory. `&self` keeps this
        // process's writers out, as `write` needs `&mut self` and the cut makes this the only window,
        // arena or heap over the slab. Remote writers are kept out by whoever made the slab (see //!).
        Some(unsafe { std::slice::from_raw_parts(self.start(&range), range.len()) })
    }

    /// The bytes of a place, to write; None if it does not lie inside.
    pub fn write(&mut self, place: Place) -> Option<&mut [u8]> {
        let range = self.range(place)?;
        // SAFETY: as in `read`; and `&mut self` makes this the only slice of this process over the slab.
        // Remote readers and writers of the range are kept out by whoever made the slab (see //!).
        Some(unsafe { std::slice::from_raw_parts_mut(self.start(&range), range.len()) })
    }

    /// Bytes there are.
    pub fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    fn range(&self, place: Place) -> Option<Range<usize>> {
        let end = place.offset.checked_add(place.bytes)?;
        (end <= self.slab.bytes()).then_some(place.offset..end)
    }

    fn start(&self, range: &Range<usize>) -> *mut u8 {
        // SAFETY: `range` came from `range()`, so its start lies in the slab or just behind its end.
        unsafe { self.slab.start().as_ptr().add(range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    #[test]
    fn what_is_written_is_read_and_nothing_beside_it() {
        let mut window = Window::new(&Slab::anonymous(256).unwrap()).unwrap();
        window.write(Place { offset: 3, bytes: 5 }).unwrap().fill(7);
        let all = window.read(Place { offset: 0, bytes: 256 }).unwrap();
        assert!((0..256).all(|at| all[at] == if (3..8).contains(&at) { 7 } else { 0 }));
    }

    #[test]
    fn places_end_with_the_slab() {
        let mut window = Window::new(&Slab::anonymous(64).unwrap()).unwrap();
        for (offset, bytes, is_inside) in
            [(0, 64, true), (64, 0, true), (1, 64, false), (65, 0, false), (usize::MAX, 2, false)]
        {
            let place = Place { offset, bytes };
            assert_eq!(window.read(place).is_some(), is_inside, "{place:?}");
            assert_eq!(window.write(place).is_some(), is_inside, "{place:?}");
        }
    }

    #[test]
    fn a_slab_has_one_window_or_one_arena() {
        let slab = Slab::anonymous(64).unwrap();
        let window = Window::new(&slab).unwrap();
        assert_eq!(Window::new(&slab).unwrap_err(), ArenaError::AlreadyCut);
        assert_eq!(Arena::new(&slab, &[]).unwrap_err(), ArenaError::AlreadyCut);
        drop(window);
        assert!(Arena::new(&slab, &[]).is_ok());
    }
}
