//! One place of an arena, of a heap or of others' memory, lent out. A loan is a count per segment (a heap's piece is one):
//! readers add one, a writer takes it from 0 to -1. The flags stay in release builds: they are what makes the slices sound.
//!
//! What loans cannot see is a *remote* writer. The owner of a plan promises that nobody reads a
//! receive buffer between the moment its sender may write again and the arrival of that write; of a store, whoever
//! pulls promises it of what is pulled into. No exclusive loan stands for such a writer: one buffer may be
//! pulled into by parts, from several servers at once, while other parts of it are still lent to their pushes.
//!
//! Memory of a device has the same loans, and no slices: it is lent by its address alone ([`crate::DeviceLoan`]).

use std::num::NonZero;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use tensorwire_base::Space;
use tensorwire_base::sync::Arc;
use tensorwire_base::sync::atomic::{AtomicI32, Ordering};

use crate::arena::Place;
use crate::heap::Piece;
use crate::slab::{Cut, Keepalive, Slab};

/// A place in an arena or a heap. Clones name the same bytes and share their loans.
#[derive(Clone)]
pub struct Buffer {
    slab: Slab,
    place: Place,
    loans: Arc<Loans>,
    segments: Range<usize>,
}

/// The loans of one arena, or of one piece of a heap: a flag per segment.
pub(crate) struct Loans {
    flags: Box<[AtomicI32]>,
    /// Held for its life alone.
    _owner: Owner,
}

/// Whom the bytes go back to, by dropping this, when no buffer and no loan of them is left.
pub(crate) enum Owner {
    Slab {
        _cut: Cut,
    },
    Heap {
        _piece: Piece,
    },
    PeerMapped {
        _cut: Arc<Cut>,
    },
    /// Memory of others: the slab keeps it alive.
    Foreign,
}

impl Loans {
    pub(crate) fn new(owner: Owner, segments: usize) -> Loans {
        let flags = (0..segments).map(|_| AtomicI32::new(0)).collect();
        Loans { flags, _owner: owner }
    }

    /// One segment that is lent for good: nobody can write it.
    pub(crate) fn read_only(owner: Owner) -> Loans {
        Loans { flags: Box::new([AtomicI32::new(1)]), _owner: owner }
    }
}

/// Why a buffer cannot be lent now. Either is a fault of the plan or of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoanError {
    #[error("the buffer is being written")]
    BeingWritten,
    #[error("the buffer is lent to a reader")]
    Lent,
    /// It has loans by its address, [`Buffer::lend_to_device`] and [`Buffer::lend_to_device_for_writing`].
    #[error("the buffer is memory of a device, of which the host has an address and no bytes")]
    OnDevice,
}

/// A shared loan that borrows its buffer.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    buffer: &'a Buffer,
}

/// An exclusive loan.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    buffer: &'a Buffer,
}

/// A shared loan that owns its buffer: what a NIC, a socket or another thread holds while it reads.
#[derive(Debug)]
pub struct Loan {
    buffer: Buffer,
}

/// An exclusive loan that owns its buffer: what a library of others holds while it writes.
#[derive(Debug)]
pub struct WriteLoan {
    buffer: Buffer,
}

impl Buffer {
    pub(crate) fn new(
        slab: Slab,
        place: Place,
        loans: Arc<Loans>,
        segments: Range<usize>,
    ) -> Buffer {
        Buffer { slab, place, loans, segments }
    }

    /// A buffer over memory that somebody else allocated, at any address: it need not be aligned as a slab is.
    ///
    /// # Safety
    /// `start..start + bytes` must be readable and writable for as long as `keepalive` lives. While a loan of the buffer
    /// lives, nobody else writes there, nor reads what is lent for writing. Two buffers over the same bytes may
    /// be copied to each other by [`Buffer::copy_from`], and are not lent at the same time.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, keepalive: Keepalive) -> Buffer {
        // SAFETY: as promised.
        let slab = unsafe { Slab::unaligned(start, bytes, Space::Host, keepalive) };
        Buffer::alone(slab, Place { offset: 0, bytes })
    }

    /// A buffer over memory of the first device that somebody else allocated, at any address.
    ///
    /// # Safety
    /// `address..address + bytes` must be memory of the device for as long as `keepalive` lives. While a loan of the
    /// buffer lives, nobody else writes there, nor reads what is lent for writing.
    pub unsafe fn foreign_on_device(
        address: NonZero<usize>,
        bytes: usize,
        keepalive: Keepalive,
    ) -> Buffer {
        let start = NonNull::without_provenance(address);
        // SAFETY: as promised.
        let slab = unsafe { Slab::unaligned(start, bytes, Space::Device(0), keepalive) };
        Buffer::alone(slab, Place { offset: 0, bytes })
    }

    /// A buffer over a part of a slab that others use, too.
    ///
    /// # Safety
    /// As of [`Buffer::foreign`], of the part's bytes.
    ///
    /// # Panics
    /// If the part is not inside.
    pub unsafe fn within(slab: &Slab, place: Place) -> Buffer {
        let end = place.offset.checked_add(place.bytes);
        assert!(end.is_some_and(|end| end <= slab.bytes()), "{place:?} of {} bytes", slab.bytes());
        Buffer::alone(slab.clone(), place)
    }

    fn alone(slab: Slab, place: Place) -> Buffer {
        Buffer::new(slab, place, Arc::new(Loans::new(Owner::Foreign, 1)), 0..1)
    }

    /// The same bytes as a place of a slab, with the same loans; None if they do not lie in it.
    pub fn seen_in(&self, slab: &Slab) -> Option<Buffer> {
        let offset = self.address().checked_sub(slab.address())?;
        let end = offset.checked_add(self.place.bytes)?;
        (end <= slab.bytes()).then(|| Buffer {
            slab: slab.clone(),
            place: Place { offset, bytes: self.place.bytes },
            loans: self.loans.clone(),
            segments: self.segments.clone(),
        })
    }

    /// Copies a range of another buffer here, from byte `at` on. The two may lie over the same memory.
    ///
    /// # Errors
    /// When either is lent, or is memory of a device.
    ///
    /// # Panics
    /// If the range is not inside of one of them.
    pub fn copy_from(
        &self,
        at: usize,
        from: &Buffer,
        range: Range<usize>,
    ) -> Result<(), LoanError> {
        let inside = |start: usize, bytes: usize, of: &Buffer| {
            start.checked_add(bytes).is_some_and(|end| end <= of.bytes())
        };
        assert!(range.start <= range.end, "{range:?} ends before it begins");
        assert!(
            inside(range.start, range.len(), from) && inside(at, range.len(), self),
            "bytes {range:?} of {} to byte {at} of {}",
            from.bytes(),
            self.bytes()
        );
        let _source = from.read()?;
        let _target = self.write()?;
        // SAFETY: both ranges lie inside of their buffers, whose memory lives; the loans keep others out. No slice is made
        // of either, and a memmove may overlap.
        unsafe {
            let (from, to) = (from.first().add(range.start), self.first().add(at));
            std::ptr::copy(from, to, range.len());
        }
        Ok(())
    }

    /// Borrows the bytes for reading; any number of readers may.
    ///
    /// # Errors
    /// As every loan that becomes a slice: when the buffer is lent, or is memory of a device.
    pub fn read(&self) -> Result<ReadGuard<'_>, LoanError> {
        self.check_on_host()?;
        self.acquire_shared()?;
        Ok(ReadGuard { buffer: self })
    }

    /// Borrows the bytes for writing, alone.
    ///
    /// # Errors
    /// As of [`Buffer::read`].
    pub fn write(&self) -> Result<WriteGuard<'_>, LoanError> {
        self.check_on_host()?;
        self.acquire_exclusive()?;
        Ok(WriteGuard { buffer: self })
    }

    /// Lends the bytes for reading until the loan is dropped, wherever it has gone.
    ///
    /// # Errors
    /// As of [`Buffer::read`].
    pub fn lend(&self) -> Result<Loan, LoanError> {
        self.check_on_host()?;
        self.acquire_shared()?;
        Ok(Loan { buffer: self.clone() })
    }

    /// Lends the bytes for writing, alone, until the loan is dropped, wherever it has gone.
    ///
    /// # Errors
    /// As of [`Buffer::read`].
    pub fn lend_for_writing(&self) -> Result<WriteLoan, LoanError> {
        self.check_on_host()?;
        self.acquire_exclusive()?;
        Ok(WriteLoan { buffer: self.clone() })
    }

    pub fn bytes(&self) -> usize {
        self.place.bytes
    }

    /// Where the buffer lies in its slab.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whose memory it is.
    pub fn space(&self) -> Space {
        self.slab.space()
    }

    /// First byte. Valid for [`Buffer::bytes`] bytes while the buffer or a clone lives; whoever reads or writes there holds a loan,
    /// or promises what a loan does.
    ///
    /// # Panics
    /// If it is memory of a device: [`Buffer::address`] says where that lies.
    pub fn start(&self) -> NonNull<u8> {
        let start = self.slab.start();
        // SAFETY: the place lies inside the slab, which lives here: `Arena::new` checked it, and a heap
        // cuts its pieces from holes of its slab.
        unsafe { start.add(self.place.offset) }
    }

    /// Address of the first byte, in the memory of its space: tells this memory from other memory, and is nothing for
    /// the host to follow.
    pub fn address(&self) -> usize {
        self.slab.address() + self.place.offset
    }

    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    fn check_on_host(&self) -> Result<(), LoanError> {
        match self.space() {
            Space::Host => Ok(()),
            Space::Device(_) => Err(LoanError::OnDevice),
        }
    }

    pub(crate) fn acquire_shared(&self) -> Result<(), LoanError> {
        for (taken, flag) in self.loans.flags[self.segments.clone()].iter().enumerate() {
            let lent = flag
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| (n >= 0).then_some(n + 1));
            if lent.is_err() {
                self.release_shared(taken);
                return Err(LoanError::BeingWritten);
            }
        }
        Ok(())
    }

    /// Gives back what [`Buffer::acquire_shared`] took.
    pub(crate) fn end_shared(&self) {
        self.release_shared(self.segments.len());
    }

    fn release_shared(&self, count: usize) {
        for flag in &self.loans.flags[self.segments.clone()][..count] {
            let before = flag.fetch_sub(1, Ordering::Release);
            debug_assert!(before > 0, "released a loan that was not taken");
        }
    }

    pub(crate) fn acquire_exclusive(&self) -> Result<(), LoanError> {
        for (taken, flag) in self.loans.flags[self.segments.clone()].iter().enumerate() {
            let lent = flag.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed);
            if let Err(found) = lent {
                self.release_exclusive(taken);
                return Err(if found < 0 { LoanError::BeingWritten } else { LoanError::Lent });
            }
        }
        Ok(())
    }

    /// Gives back what [`Buffer::acquire_exclusive`] took.
    pub(crate) fn end_exclusive(&self) {
        self.release_exclusive(self.segments.len());
    }

    fn release_exclusive(&self, count: usize) {
        for flag in &self.loans.flags[self.segments.clone()][..count] {
            let before = flag.swap(0, Ordering::Release);
            debug_assert_eq!(before, -1, "released a write that was not taken");
        }
    }

    fn first(&self) -> *mut u8 {
        self.start().as_ptr()
    }
}

/// A place of a loan that is a range of its buffer.
fn part(buffer: &Buffer, range: &Range<usize>) -> (*mut u8, usize) {
    let bytes = buffer.place.bytes;
    assert!(range.start <= range.end && range.end <= bytes, "bytes {range:?} of {bytes}");
    // SAFETY: just checked to lie inside of the buffer's place.
    (unsafe { buffer.first().add(range.start) }, range.len())
}

impl ReadGuard<'_> {
    /// The bytes of a range, where what is beside it may be written by others meanwhile: no slice covers that.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        let (start, bytes) = part(self.buffer, &range);
        // SAFETY: as in `deref`, of these bytes alone.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

impl WriteGuard<'_> {
    /// The bytes of a range, where what is beside it may be written or read by others meanwhile: no slice covers that.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let (start, bytes) = part(self.buffer, &range);
        // SAFETY: as in `deref_mut`, of these bytes alone.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Copies a range to byte `at`, with no slice of either.
    ///
    /// # Panics
    /// If one of both is not inside.
    pub fn copy_part(&mut self, range: Range<usize>, at: usize) {
        let (from, bytes) = part(self.buffer, &range);
        let (to, _) = part(self.buffer, &(at..at.saturating_add(bytes)));
        // SAFETY: both ranges lie inside of the buffer's place, which the exclusive loan has alone; a memmove may overlap.
        unsafe { std::ptr::copy(from, to, bytes) }
    }
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the place is valid memory of the slab held by the buffer; the shared loan keeps
        // local writers out for the guard's life, and remote ones are kept out by the plan (see //!).
        unsafe { std::slice::from_raw_parts(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, for reading.
        unsafe { std::slice::from_raw_parts(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the place is valid memory of the slab held by the buffer, and the exclusive loan
        // makes this the only slice over any of its segments; `&mut self` makes it unique here.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as for `ReadGuard`: the place is valid memory of the slab that the loan's buffer holds, and
        // the shared loan keeps local writers out while this lives; remote ones the plan keeps out (see //!).
        unsafe { std::slice::from_raw_parts(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl WriteLoan {
    /// First byte. Valid for the buffer's bytes while this loan lives, wherever it is moved to; whoever writes
    /// there keeps no slice of it at the same time.
    pub fn start(&mut self) -> *mut u8 {
        self.buffer.first()
    }
}

impl Deref for WriteLoan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, for reading.
        unsafe { std::slice::from_raw_parts(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl DerefMut for WriteLoan {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `WriteGuard`: the loan, which owns its buffer, makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.first(), self.buffer.place.bytes) }
    }
}

impl Drop for WriteLoan {
    fn drop(&mut self) {
        self.buffer.end_exclusive();
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.buffer.end_shared();
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.buffer.end_exclusive();
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.buffer.end_shared();
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("place", &self.place).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    #[test]
    fn memory_of_others_is_lent_at_any_address() {
        let slab = Slab::anonymous(64).unwrap();
        // SAFETY: 12 bytes are inside of the slab, which the keepalive holds, and nobody else uses.
        let buffer =
            unsafe { Buffer::foreign(slab.start().add(5), 7, std::sync::Arc::new(slab.clone())) };
        buffer.write().unwrap().fill(3);
        let reading = buffer.lend().unwrap();
        assert_eq!(buffer.write().unwrap_err(), LoanError::Lent);
        drop(reading);
        buffer.write().unwrap()[6] = 9;
        assert_eq!(buffer.read().unwrap()[5..], [3, 9]);
    }

    /// What a reduction stands on, whose vectors peers write beside the bytes that it reads and writes. Miri takes a slice that
    /// covers what another thread writes for a race.
    #[test]
    fn a_part_of_a_loan_covers_no_byte_beside_it() {
        struct Peer(std::ptr::NonNull<u8>);
        // SAFETY: the bytes that it writes are nobody else's, which is what is tested.
        unsafe impl Send for Peer {}
        let slab = Slab::anonymous(256).unwrap();
        let place = Place { offset: 0, bytes: 256 };
        let buffer = Arena::new(&slab, &[place]).unwrap().into_buffers().remove(0);
        let peer = Peer(slab.start());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let Peer(start) = { peer };
                for at in 64..192 {
                    // SAFETY: inside of the slab, which outlives the scope; the other thread stays out of these bytes.
                    unsafe { start.add(at).write(7) };
                }
            });
            let mut loan = buffer.write().unwrap();
            for _ in 0..4 {
                loan.part_mut(0..64).iter_mut().for_each(|byte| *byte += 1);
                let own = loan.part_mut(0..64)[3];
                loan.part_mut(192..256).fill(own);
            }
            drop(loan);
            assert_eq!(buffer.read().unwrap().part(0..64), [4; 64]);
        });
        let expected = [[4; 64], [7; 64], [7; 64], [4; 64]].concat();
        assert_eq!(*buffer.read().unwrap(), expected[..]);
    }

    #[test]
    fn what_overlaps_is_copied_whole() {
        let slab = Slab::anonymous(64).unwrap();
        // SAFETY: the slab is this test's alone, and the two are only copied to each other or read one at a time.
        let of = |offset, bytes| unsafe { Buffer::within(&slab, Place { offset, bytes }) };
        let (all, behind) = (of(0, 16), of(4, 12));
        for (at, byte) in (0..).zip(all.write().unwrap().iter_mut()) {
            *byte = at;
        }
        behind.copy_from(0, &all, 0..12).unwrap();
        assert_eq!(*all.read().unwrap(), [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let lent = all.lend().unwrap();
        assert_eq!(all.copy_from(0, &behind, 0..1).unwrap_err(), LoanError::Lent);
        drop(lent);
    }

    #[test]
    fn parts_of_a_loan_are_those_bytes_and_no_more() {
        let slab = Slab::anonymous(64).unwrap();
        // SAFETY: as above.
        let buffer = unsafe { Buffer::within(&slab, Place { offset: 8, bytes: 16 }) };
        let mut writing = buffer.write().unwrap();
        writing.part_mut(4..6).fill(7);
        writing.copy_part(4..8, 12);
        writing.copy_part(0..0, 16);
        assert!(writing.part_mut(16..16).is_empty());
        drop(writing);
        let reading = buffer.read().unwrap();
        assert_eq!(reading.part(3..7), [0, 7, 7, 0]);
        assert_eq!(reading.part(11..16), [0, 7, 7, 0, 0]);
        let beyond = std::panic::AssertUnwindSafe(|| reading.part(10..17).len());
        assert!(std::panic::catch_unwind(beyond).is_err());
    }

    #[test]
    #[should_panic(expected = "of 8 to byte")]
    fn a_copy_out_of_bounds_is_refused() {
        let slab = Slab::anonymous(64).unwrap();
        // SAFETY: as above.
        let of = |offset, bytes| unsafe { Buffer::within(&slab, Place { offset, bytes }) };
        let _ = of(0, 8).copy_from(4, &of(8, 8), 0..5);
    }
}
