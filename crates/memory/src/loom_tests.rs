//! Loans in every order of their threads' steps. Whoever holds a loan touches a cell of loom's for each 64 bytes of it;
//! that panics where two threads do so and neither is ordered behind the other, as their slices would be a race.

use loom::cell::UnsafeCell;
use loom::thread;
use tensorwire_base::sync::{Arc, model};

use crate::{Arena, ArenaError, Buffer, Heap, LoanError, PeerMapped, Place, Slab, Window};

/// Bytes that a cell stands for.
const CELL_BYTES: usize = 64;
const ALL: Place = Place { offset: 0, bytes: 3 * CELL_BYTES };

/// Stand for the bytes of a slab.
struct Cells([UnsafeCell<()>; 3]);

// SAFETY: the cells hold nothing; loom, not the compiler, is to say who touches them at the same time.
unsafe impl Sync for Cells {}

impl Cells {
    fn new() -> Arc<Cells> {
        Arc::new(Cells([(); 3].map(UnsafeCell::new)))
    }

    fn of(&self, place: Place) -> &[UnsafeCell<()>] {
        &self.0[place.offset / CELL_BYTES..(place.offset + place.bytes) / CELL_BYTES]
    }

    fn read(&self, place: Place) {
        self.of(place).iter().for_each(|cell| cell.with(|_| ()));
    }

    fn write(&self, place: Place) {
        self.of(place).iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}

fn slab() -> Slab {
    Slab::anonymous(ALL.bytes).unwrap()
}

/// Two places that share the bytes in the middle.
fn overlapping(slab: &Slab) -> [Buffer; 2] {
    let bytes = 2 * CELL_BYTES;
    let places = [0, CELL_BYTES].map(|offset| Place { offset, bytes });
    Arena::new(slab, &places).unwrap().into_buffers().try_into().unwrap()
}

/// Writes if nobody else has the bytes; true if so.
fn write(buffer: &Buffer, cells: &Cells) -> bool {
    let lent = buffer.write();
    if lent.is_ok() {
        cells.write(buffer.place());
    }
    lent.is_ok()
}

/// Reads if nobody writes the bytes; true if so.
fn read(buffer: &Buffer, cells: &Cells) -> bool {
    let lent = buffer.read();
    if lent.is_ok() {
        cells.read(buffer.place());
    }
    lent.is_ok()
}

/// No loan is left: whoever comes gets everything, one after the other.
fn all_is_free(buffers: &[Buffer], cells: &Cells) {
    for buffer in buffers {
        assert!(write(buffer, cells), "a flag was lost");
        assert!(read(buffer, cells), "a flag was lost");
    }
}

#[test]
fn of_two_writers_of_overlapping_places_one_at_a_time_writes() {
    model(None, || {
        let (buffers, cells) = (overlapping(&slab()), Cells::new());
        let (theirs, also) = (buffers[1].clone(), cells.clone());
        let other = thread::spawn(move || write(&theirs, &also));
        let wrote = write(&buffers[0], &cells);
        assert!(other.join().unwrap() || wrote, "both were refused");
        all_is_free(&buffers, &cells);
    });
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    // three threads at three flags: all orders take a minute
    model(Some(3), || {
        let (buffers, cells) = (overlapping(&slab()), Cells::new());
        let (first, second) =
            ((buffers[0].clone(), cells.clone()), (buffers[1].clone(), cells.clone()));
        let reader = thread::spawn(move || read(&first.0, &first.1));
        let writer = thread::spawn(move || write(&second.0, &second.1));
        read(&buffers[1], &cells);
        reader.join().unwrap();
        writer.join().unwrap();
        all_is_free(&buffers, &cells);
    });
}

#[test]
fn two_readers_are_never_in_each_others_way() {
    model(None, || {
        let (buffers, cells) = (overlapping(&slab()), Cells::new());
        let (theirs, also) = (buffers[1].clone(), cells.clone());
        let other = thread::spawn(move || read(&theirs, &also));
        assert!(read(&buffers[0], &cells));
        assert!(other.join().unwrap());
        all_is_free(&buffers, &cells);
    });
}

#[test]
fn a_loan_ends_where_it_was_moved_to() {
    model(None, || {
        let (buffers, cells) = (overlapping(&slab()), Cells::new());
        let (loan, also) = (buffers[0].lend().unwrap(), cells.clone());
        let reader = thread::spawn(move || {
            also.read(Place { offset: 0, bytes: loan.as_ref().len() });
            drop(loan);
        });
        let writing = buffers[1].lend_for_writing();
        match &writing {
            Ok(_) => cells.write(buffers[1].place()),
            Err(error) => assert_eq!(*error, LoanError::Lent),
        }
        drop(writing);
        reader.join().unwrap();
        all_is_free(&buffers, &cells);
    });
}

#[test]
fn a_device_and_a_host_exclude_each_other() {
    model(None, || {
        let (buffers, cells) = (overlapping(&slab()), Cells::new());
        let (theirs, also) = (buffers[1].clone(), cells.clone());
        let device = thread::spawn(move || {
            let writing = theirs.lend_to_device_for_writing();
            if writing.is_ok() {
                also.write(theirs.place());
            }
            drop(writing);
            let reading = theirs.lend_to_device();
            if reading.is_ok() {
                also.read(theirs.place());
            }
        });
        write(&buffers[0], &cells);
        device.join().unwrap();
        all_is_free(&buffers, &cells);
    });
}

#[test]
fn a_slab_has_one_owner_at_a_time() {
    model(None, || {
        let (slab, cells) = (slab(), Cells::new());
        let (theirs, also) = (slab.clone(), cells.clone());
        let other = thread::spawn(move || {
            if let Ok(arena) = Arena::new(&theirs, &[ALL]) {
                assert!(write(&arena.into_buffers()[0], &also));
            }
        });
        match Window::new(&slab) {
            Ok(_window) => cells.write(ALL),
            Err(error) => assert_eq!(error, ArenaError::AlreadyCut),
        }
        other.join().unwrap();
        assert!(Window::new(&slab).is_ok(), "the mark was lost");
    });
}

#[test]
fn a_slab_is_cut_again_once_the_last_thread_is_done_with_it() {
    model(None, || {
        let (slab, cells) = (slab(), Cells::new());
        let [first, second] = overlapping(&slab);
        let (also, once_more) = (cells.clone(), cells.clone());
        let writer = thread::spawn(move || write(&first, &also));
        let reader = thread::spawn(move || read(&second, &once_more));
        if let Ok(shown) = PeerMapped::new(&slab) {
            assert!(read(&shown.buffer(ALL).unwrap(), &cells));
        }
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(Heap::new(&slab).is_ok(), "the mark was lost");
    });
}

#[test]
fn pieces_of_a_heap_never_overlap_and_all_come_back() {
    model(None, || {
        let (heap, cells) = (Heap::new(&slab()).unwrap(), Cells::new());
        let (theirs, also) = (heap.clone(), cells.clone());
        let other = thread::spawn(move || {
            let pieces = [1, 2].map(|count| theirs.alloc(count * CELL_BYTES));
            pieces.iter().flatten().for_each(|piece| assert!(write(piece, &also)));
        });
        for _ in 0..2 {
            if let Some(piece) = heap.alloc(2 * CELL_BYTES) {
                assert!(write(&piece, &cells), "a piece starts with no loans");
            }
        }
        other.join().unwrap();
        assert_eq!(heap.in_use(), 0);
        assert!(heap.alloc(ALL.bytes).is_some(), "a piece did not come back");
    });
}
