//! A slab handed out piece by piece while a job runs, for tensors whose size no plan knew. Pieces
//! never overlap, so each has one loan flag of its own. Knows no order of a run: what is taken and
//! given back when is the caller's.

use std::collections::BTreeMap;

use tensorwire_base::sync::{Arc, Mutex};

use crate::arena::{ArenaError, Place};
use crate::buffer::{Buffer, Loans, Owner};
use crate::slab::{ALIGNMENT, Cut, Slab};

/// The pieces of one slab. Clones share it.
#[derive(Clone, Debug)]
pub struct Heap {
    shared: Arc<Shared>,
}

/// What the heap and every piece of it keep alive.
#[derive(Debug)]
struct Shared {
    slab: Slab,
    state: Mutex<State>,
    /// Held for its life alone: the slab stays cut while a piece of it is out.
    _cut: Cut,
}

#[derive(Debug)]
struct State {
    /// Bytes of each hole by its offset. No two touch; every offset is a multiple of [`ALIGNMENT`].
    holes: BTreeMap<usize, usize>,
    in_use: usize,
    peak: usize,
}

/// A range that is out of the heap, and comes back to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    heap: Arc<Shared>,
    range: Place,
}

impl Heap {
    /// A heap over all of `slab`. The only error is [`ArenaError::AlreadyCut`].
    pub fn new(slab: &Slab) -> Result<Heap, ArenaError> {
        let cut = slab.mark().take().ok_or(ArenaError::AlreadyCut)?;
        let holes = match slab.bytes() {
            0 => BTreeMap::new(),
            bytes => BTreeMap::from([(0, bytes)]),
        };
        let state = Mutex::new(State { holes, in_use: 0, peak: 0 });
        Ok(Heap { shared: Arc::new(Shared { slab: slab.clone(), state, _cut: cut }) })
    }

    /// A buffer of `bytes` bytes at a multiple of [`ALIGNMENT`], which holds whatever these bytes
    /// held before. They come back when its last clone and loan are dropped, on any thread. None if
    /// no hole is large enough; zero bytes always fit.
    pub fn alloc(&self, bytes: usize) -> Option<Buffer> {
        Some(self.alloc_in_pieces(bytes, bytes.max(1))?.remove(0))
    }

    /// As [`Heap::alloc`], as buffers of `piece_bytes` bytes one behind the other, the last of what is left, each with loans of
    /// its own; at least one.
    ///
    /// # Panics
    /// If a piece has no bytes.
    pub fn alloc_in_pieces(&self, bytes: usize, piece_bytes: usize) -> Option<Vec<Buffer>> {
        let range = match bytes {
            0 => Place { offset: 0, bytes: 0 },
            _ => self.shared.state.lock().take(bytes)?,
        };
        let piece = Piece { heap: self.shared.clone(), range };
        let flags_count = bytes.div_ceil(piece_bytes);
        let loans = Arc::new(Loans::new(Owner::Heap { _piece: piece }, flags_count));
        let cut = |index: usize| {
            let at = index * piece_bytes;
            let place = Place { offset: range.offset + at, bytes: (bytes - at).min(piece_bytes) };
            let flags = index..(index + 1).min(flags_count);
            Buffer::new(self.shared.slab.clone(), place, loans.clone(), flags)
        };
        Some((0..flags_count.max(1)).map(cut).collect())
    }

    /// Bytes there are, taken or not.
    pub fn bytes(&self) -> usize {
        self.shared.slab.bytes()
    }

    /// Bytes that are out now, each piece rounded up to [`ALIGNMENT`].
    pub fn in_use(&self) -> usize {
        self.shared.state.lock().in_use
    }

    /// The most bytes that ever were out at one time, rounded as in [`Heap::in_use`].
    pub fn peak(&self) -> usize {
        self.shared.state.lock().peak
    }

    pub fn slab(&self) -> &Slab {
        &self.shared.slab
    }
}

impl State {
    /// Cuts at least `bytes` bytes from the smallest hole that has them, the first of equals.
    fn take(&mut self, bytes: usize) -> Option<Place> {
        let fitting = self.holes.iter().filter(|&(_, &hole)| hole >= bytes);
        let (&offset, &hole) = fitting.min_by_key(|&(_, &hole)| hole)?;
        // only the slab's last hole can end between two multiples; then the piece ends with it
        let taken = bytes.next_multiple_of(ALIGNMENT).min(hole);
        self.holes.remove(&offset);
        if taken < hole {
            self.holes.insert(offset + taken, hole - taken);
        }
        self.in_use += taken;
        self.peak = self.peak.max(self.in_use);
        Some(Place { offset, bytes: taken })
    }

    /// Makes a hole of `range`, one with the holes that touch it.
    fn give_back(&mut self, range: Place) {
        self.in_use -= range.bytes;
        let Place { mut offset, mut bytes } = range;
        if let Some(behind) = self.holes.remove(&(offset + bytes)) {
            bytes += behind;
        }
        if let Some((&before, hole)) = self.holes.range_mut(..offset).next_back()
            && before + *hole == offset
        {
            offset = before;
            bytes += *hole;
        }
        self.holes.insert(offset, bytes);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.range.bytes > 0 {
            self.heap.state.lock().give_back(self.range);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arena::Arena;
    use crate::buffer::LoanError;

    fn heap(bytes: usize) -> Heap {
        Heap::new(&Slab::anonymous(bytes).unwrap()).unwrap()
    }

    fn holes(heap: &Heap) -> Vec<(usize, usize)> {
        heap.shared.state.lock().holes.iter().map(|(&offset, &bytes)| (offset, bytes)).collect()
    }

    #[test]
    fn a_dropped_piece_is_handed_out_again() {
        let heap = heap(256);
        let first = heap.alloc(256).unwrap();
        let address = first.address();
        assert!(heap.alloc(1).is_none());
        drop(first);
        assert_eq!(heap.alloc(200).unwrap().address(), address);
        assert_eq!((heap.in_use(), heap.peak()), (0, 256));
    }

    #[test]
    fn a_hole_grows_together_with_its_neighbours_on_both_sides() {
        let heap = heap(256);
        let [a, b, c, d] = [(); 4].map(|()| heap.alloc(64).unwrap());
        drop(a);
        drop(c);
        assert_eq!(holes(&heap), [(0, 64), (128, 64)]);
        assert!(heap.alloc(128).is_none(), "128 bytes are free, but not in one piece");
        drop(b);
        assert_eq!(holes(&heap), [(0, 192)]);
        drop(d);
        assert_eq!(holes(&heap), [(0, 256)]);
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let heap = heap(1024);
        let mut pieces = [256, 64, 128, 64, 512].map(|bytes| heap.alloc(bytes));
        let small = pieces[2].take().unwrap().place().offset;
        pieces[0] = None;
        assert_eq!(heap.alloc(100).unwrap().place(), Place { offset: small, bytes: 100 });
        assert_eq!(heap.alloc(129).unwrap().place(), Place { offset: 0, bytes: 129 });
    }

    #[test]
    fn a_tensor_in_pieces_is_one_range_with_loans_for_each() {
        let heap = heap(1024);
        let pieces = heap.alloc_in_pieces(250, 128).unwrap();
        let places: Vec<Place> = pieces.iter().map(Buffer::place).collect();
        let place = |offset, bytes| Place { offset, bytes };
        assert_eq!(places, [place(0, 128), place(128, 122)]);
        let mut first = pieces[0].write().unwrap();
        assert_eq!(pieces[0].read().unwrap_err(), LoanError::BeingWritten);
        pieces[1].write().unwrap().fill(2);
        first.fill(1);
        drop(first);
        let last = pieces[1].clone();
        drop(pieces);
        assert_eq!(heap.in_use(), 256, "the last piece keeps all of it");
        drop(last);
        assert_eq!(heap.in_use(), 0);
        let empty = heap.alloc_in_pieces(0, 128).unwrap();
        assert_eq!((empty.len(), empty[0].bytes(), heap.in_use()), (1, 0, 0));
    }

    #[test]
    fn pieces_are_aligned_and_what_rounding_takes_counts_as_in_use() {
        let heap = heap(4096);
        let pieces: Vec<Buffer> = [1, 63, 64, 65].map(|n| heap.alloc(n).unwrap()).into();
        assert!(pieces.iter().all(|piece| piece.address() % ALIGNMENT == 0));
        assert_eq!(pieces.iter().map(Buffer::bytes).sum::<usize>(), 193);
        assert_eq!(heap.in_use(), 320);
        assert_eq!(pieces[3].address(), heap.slab().address() + 192);
        assert_eq!(pieces[3].slab().address(), heap.slab().address());
    }

    #[test]
    fn the_last_bytes_of_a_slab_are_used_although_no_multiple_ends_there() {
        let heap = heap(100);
        assert!(heap.alloc(101).is_none() && heap.alloc(usize::MAX).is_none());
        let whole = heap.alloc(100).unwrap();
        assert_eq!((heap.in_use(), heap.bytes()), (100, 100));
        drop(whole);
        let first = heap.alloc(1).unwrap();
        assert_eq!(heap.alloc(36).unwrap().place(), Place { offset: 64, bytes: 36 });
        drop(first);
        assert_eq!(holes(&heap), [(0, 100)]);
    }

    #[test]
    fn zero_bytes_always_fit() {
        for bytes in [0, 64] {
            let heap = heap(bytes);
            let _all = heap.alloc(bytes).unwrap();
            let none = heap.alloc(0).unwrap();
            assert!(none.write().unwrap().is_empty() && none.lend().is_ok());
            assert_eq!(heap.in_use(), bytes);
        }
    }

    #[test]
    fn a_loan_that_outlives_its_buffer_keeps_the_bytes() {
        let heap = heap(64);
        let buffer = heap.alloc(64).unwrap();
        let clone = buffer.clone();
        let loan = buffer.lend().unwrap();
        drop(buffer);
        assert_eq!(clone.write().unwrap_err(), LoanError::Lent);
        drop(clone);
        assert!(heap.alloc(1).is_none());
        drop(loan);
        assert!(heap.alloc(64).unwrap().write().is_ok(), "a piece starts with no loans");
    }

    #[test]
    fn a_slab_stays_cut_until_the_last_heap_and_piece_are_gone() {
        let slab = Slab::anonymous(128).unwrap();
        let heap = Heap::new(&slab).unwrap();
        assert_eq!(Heap::new(&slab).unwrap_err(), ArenaError::AlreadyCut);
        let piece = heap.clone().alloc(64).unwrap();
        drop(heap);
        let place = Place { offset: 64, bytes: 64 };
        assert_eq!(Arena::new(&slab, &[place]).unwrap_err(), ArenaError::AlreadyCut);
        drop(piece);
        let arena = Arena::new(&slab, &[place]).unwrap();
        assert_eq!(Heap::new(&slab).unwrap_err(), ArenaError::AlreadyCut);
        drop(arena);
        assert!(Heap::new(&slab).is_ok());
    }

    #[test]
    fn threads_share_a_heap_and_give_back_each_others_pieces() {
        let heap = heap(64 * 64);
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Buffer>(8);
        let taker = heap.clone();
        let taking = std::thread::spawn(move || {
            for round in 0..if cfg!(miri) { 100 } else { 2000 } {
                let bytes = 1 + round % 300;
                let Some(piece) = taker.alloc(bytes) else { continue };
                piece.write().unwrap().fill((round % 251) as u8);
                sender.send(piece).unwrap();
            }
        });
        for piece in receiver {
            // taken while the other thread takes and fills: would be torn if pieces overlapped
            let _mine = heap.alloc(64).map(|mine| mine.write().unwrap().fill(255));
            let bytes = piece.read().unwrap();
            assert!(bytes.iter().all(|&byte| byte == bytes[0] && byte != 255));
        }
        taking.join().unwrap();
        assert_eq!((heap.in_use(), holes(&heap)), (0, vec![(0, heap.bytes())]));
    }

    proptest! {
        /// Each step takes a piece of so many bytes, or gives back one of those that are out.
        #[test]
        fn pieces_never_overlap_and_all_come_back_as_one_hole(
            slab_bytes in 1_usize..5000,
            steps in prop::collection::vec((any::<bool>(), 0_usize..600), 1..200),
        ) {
            let heap = heap(slab_bytes);
            let mut out: Vec<Buffer> = Vec::new();
            for (take, number) in steps {
                if take || out.is_empty() {
                    match heap.alloc(number) {
                        Some(piece) => out.push(piece),
                        None => prop_assert!(holes(&heap).iter().all(|&(_, hole)| hole < number)),
                    }
                } else {
                    out.swap_remove(number % out.len());
                }
                let mut places: Vec<Place> = out.iter().map(Buffer::place).collect();
                places.retain(|place| place.bytes > 0);
                places.sort_by_key(|place| place.offset);
                for pair in places.windows(2) {
                    prop_assert!(pair[0].offset + pair[0].bytes <= pair[1].offset);
                }
                let end = places.last().map_or(0, |last| last.offset + last.bytes);
                prop_assert!(end <= slab_bytes);
                prop_assert!(places.iter().all(|place| place.offset % ALIGNMENT == 0));
                let free: usize = holes(&heap).iter().map(|&(_, hole)| hole).sum();
                prop_assert_eq!(free + heap.in_use(), slab_bytes);
                prop_assert!(heap.in_use() <= heap.peak());
            }
            drop(out);
            prop_assert_eq!(holes(&heap), vec![(0, slab_bytes)]);
        }
    }
}
