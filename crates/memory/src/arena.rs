//! A slab cut into planned places. Places may overlap: then their loans exclude each other, so that
//! a plan which lets two live tensors share bytes is an error and never torn data.

use tensorwire_base::sync::Arc;

use crate::buffer::{Buffer, Loans, Owner};
use crate::slab::{ALIGNMENT, Slab};

/// Where a buffer lies in its arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub offset: usize,
    pub bytes: usize,
}

/// The buffers of one slab.
#[derive(Debug)]
pub struct Arena {
    buffers: Vec<Buffer>,
}

/// Why places do not fit a slab.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    #[error("place {index} ({place:?}) lies outside the arena of {arena_bytes} bytes")]
    OutOfArena { index: usize, place: Place, arena_bytes: usize },
    #[error("the slab is cut into an arena or a heap already, of which a buffer is alive")]
    AlreadyCut,
    #[error("place {index} starts at byte {offset}, which is no multiple of {ALIGNMENT}")]
    Misaligned { index: usize, offset: usize },
    /// Of windows, which are slices.
    #[error("the slab is memory of a device, of which the host has an address and no bytes")]
    OnDevice,
}

impl Arena {
    /// Cuts `slab` into one buffer for each place, in the order given.
    pub fn new(slab: &Slab, places: &[Place]) -> Result<Arena, ArenaError> {
        for (index, place) in places.iter().enumerate() {
            let end = place.offset.checked_add(place.bytes);
            if end.is_none_or(|end| end > slab.bytes()) {
                let arena_bytes = slab.bytes();
                return Err(ArenaError::OutOfArena { index, place: *place, arena_bytes });
            }
            if place.offset % ALIGNMENT != 0 {
                return Err(ArenaError::Misaligned { index, offset: place.offset });
            }
        }
        let cuts = cuts(places);
        let segments_count = cuts.len().saturating_sub(1);
        let cut = slab.mark().take().ok_or(ArenaError::AlreadyCut)?;
        let loans = Arc::new(Loans::new(Owner::Slab { _cut: cut }, segments_count));
        let buffers = places
            .iter()
            .map(|place| {
                let range = if place.bytes == 0 { 0..0 } else { segments(&cuts, place) };
                Buffer::new(slab.clone(), *place, loans.clone(), range)
            })
            .collect();
        Ok(Arena { buffers })
    }

    /// The buffers, in the order of the places.
    pub fn into_buffers(self) -> Vec<Buffer> {
        self.buffers
    }
}

/// Every boundary of a place, sorted: between two neighbours all bytes have the same owners.
fn cuts(places: &[Place]) -> Vec<usize> {
    let occupied = places.iter().filter(|p| p.bytes > 0);
    let mut cuts: Vec<usize> = occupied.flat_map(|p| [p.offset, p.offset + p.bytes]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

fn segments(cuts: &[usize], place: &Place) -> std::ops::Range<usize> {
    let at = |byte| cuts.binary_search(&byte).expect("a place's ends are among the cuts");
    at(place.offset)..at(place.offset + place.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::LoanError;

    fn buffers(places: &[(usize, usize)]) -> Vec<Buffer> {
        let slab = Slab::anonymous(4096).unwrap();
        let places: Vec<Place> =
            places.iter().map(|&(offset, bytes)| Place { offset, bytes }).collect();
        Arena::new(&slab, &places).unwrap().into_buffers()
    }

    #[test]
    fn disjoint_places_are_lent_independently() {
        let buffers = buffers(&[(0, 100), (128, 100)]);
        let mut a = buffers[0].write().unwrap();
        let mut b = buffers[1].write().unwrap();
        a.fill(1);
        b.fill(2);
        assert!(a.iter().all(|&x| x == 1) && b.iter().all(|&x| x == 2));
    }

    #[test]
    fn overlapping_places_exclude_each_other() {
        let buffers = buffers(&[(0, 256), (128, 256), (384, 64)]);
        let writing = buffers[0].write().unwrap();
        assert_eq!(buffers[1].read().unwrap_err(), LoanError::BeingWritten);
        assert!(buffers[2].write().is_ok());
        drop(writing);
        let reading = buffers[1].read().unwrap();
        assert_eq!(buffers[0].write().unwrap_err(), LoanError::Lent);
        assert!(buffers[0].read().is_ok(), "two readers may share");
        drop(reading);
        assert!(buffers[0].write().is_ok());
    }

    #[test]
    fn a_failed_loan_takes_nothing() {
        // the first place spans three segments of which the middle one is busy
        let buffers = buffers(&[(0, 384), (128, 64), (0, 64), (192, 64)]);
        let middle = buffers[1].write().unwrap();
        assert!(buffers[0].write().is_err() && buffers[0].read().is_err());
        assert!(buffers[2].write().is_ok() && buffers[3].write().is_ok());
        drop(middle);
        assert!(buffers[0].write().is_ok());
    }

    #[test]
    fn a_loan_for_writing_excludes_all_others_wherever_it_is() {
        let buffers = buffers(&[(0, 64), (64, 64)]);
        let mut loan = buffers[0].lend_for_writing().unwrap();
        assert_eq!(buffers[0].lend_for_writing().unwrap_err(), LoanError::BeingWritten);
        assert_eq!(buffers[0].read().unwrap_err(), LoanError::BeingWritten);
        assert!(buffers[1].write().is_ok());
        let at = loan.start();
        let mut moved = Box::new(loan);
        moved.fill(7);
        assert_eq!((moved.start(), moved.len(), moved[63]), (at, 64, 7));
        drop(moved);
        assert_eq!(*buffers[0].read().unwrap(), [7; 64]);
        let reading = buffers[0].lend().unwrap();
        assert_eq!(buffers[0].lend_for_writing().unwrap_err(), LoanError::Lent);
        drop(reading);
        assert!(buffers[0].lend_for_writing().is_ok());
    }

    #[test]
    fn a_slab_has_one_arena_at_a_time() {
        let slab = Slab::anonymous(256).unwrap();
        let places = [Place { offset: 0, bytes: 64 }];
        let first = Arena::new(&slab, &places).unwrap().into_buffers();
        let again = Arena::new(&slab.clone(), &places);
        assert!(matches!(again, Err(ArenaError::AlreadyCut)));
        let kept = first[0].clone();
        drop(first);
        assert!(matches!(Arena::new(&slab, &places), Err(ArenaError::AlreadyCut)));
        drop(kept);
        assert!(Arena::new(&slab, &places).is_ok());
    }

    #[test]
    fn empty_places_and_empty_arenas_work() {
        assert!(buffers(&[]).is_empty());
        let buffers = buffers(&[(64, 0), (0, 128)]);
        let all = buffers[1].write().unwrap();
        assert_eq!(buffers[0].write().unwrap().len(), 0);
        drop(all);
    }

    #[test]
    fn bad_places_are_refused() {
        let slab = Slab::anonymous(256).unwrap();
        let outside = Place { offset: 192, bytes: 65 };
        assert!(matches!(Arena::new(&slab, &[outside]), Err(ArenaError::OutOfArena { .. })));
        let wraps = Place { offset: 192, bytes: usize::MAX };
        assert!(matches!(Arena::new(&slab, &[wraps]), Err(ArenaError::OutOfArena { .. })));
        let crooked = Place { offset: 8, bytes: 8 };
        assert!(matches!(Arena::new(&slab, &[crooked]), Err(ArenaError::Misaligned { .. })));
    }
}
