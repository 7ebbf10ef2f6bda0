//! One planned place, lent out. A loan is a count per segment of the arena: readers add one, a writer
//! takes it from 0 to -1. The flags stay in release builds: they are what makes the slices sound.
//!
//! What loans cannot see is a *remote* writer. The owner of a plan promises that nobody reads a
//! receive buffer between the moment its sender may write again and the arrival of that write.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::arena::Place;
use crate::slab::{CutMark, Slab};

/// A place in an arena. Clones name the same bytes and share their loans.
#[derive(Clone)]
pub struct Buffer {
    slab: Slab,
    place: Place,
    loans: Arc<Loans>,
    segments: Range<usize>,
}

/// The loans of one arena: a flag per segment. While it lives the slab is marked as cut.
pub(crate) struct Loans {
    flags: Box<[AtomicI32]>,
    mark: CutMark,
}

impl Loans {
    /// None if the slab is cut already.
    pub(crate) fn new(mark: &CutMark, segments: usize) -> Option<Loans> {
        let flags = (0..segments).map(|_| AtomicI32::new(0)).collect();
        mark.take().then(|| Loans { flags, mark: mark.clone() })
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.mark.give_back();
    }
}

/// Why a buffer cannot be lent now. Either is a fault of the plan or of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoanError {
    #[error("the buffer is being written")]
    BeingWritten,
    #[error("the buffer is lent to a reader")]
    Lent,
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

/// A shared loan that owns its buffer: what a NIC or a socket holds while it reads.
#[derive(Debug)]
pub struct Loan {
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

    /// Borrows the bytes for reading; any number of readers may.
    pub fn read(&self) -> Result<ReadGuard<'_>, LoanError> {
        self.acquire_shared()?;
        Ok(ReadGuard { buffer: self })
    }

    /// Borrows the bytes for writing, alone.
    pub fn write(&self) -> Result<WriteGuard<'_>, LoanError> {
        self.acquire_exclusive()?;
        Ok(WriteGuard { buffer: self })
    }

    /// Lends the bytes for reading until the loan is dropped, wherever it has gone.
    pub fn lend(&self) -> Result<Loan, LoanError> {
        self.acquire_shared()?;
        Ok(Loan { buffer: self.clone() })
    }

    pub fn bytes(&self) -> usize {
        self.place.bytes
    }

    /// Where the buffer lies in its slab.
    pub fn place(&self) -> Place {
        self.place
    }

    fn acquire_shared(&self) -> Result<(), LoanError> {
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

    fn release_shared(&self, count: usize) {
        for flag in &self.loans.flags[self.segments.clone()][..count] {
            let before = flag.fetch_sub(1, Ordering::Release);
            debug_assert!(before > 0, "released a loan that was not taken");
        }
    }

    fn acquire_exclusive(&self) -> Result<(), LoanError> {
        for (taken, flag) in self.loans.flags[self.segments.clone()].iter().enumerate() {
            let lent = flag.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed);
            if let Err(found) = lent {
                self.release_exclusive(taken);
                return Err(if found < 0 { LoanError::BeingWritten } else { LoanError::Lent });
            }
        }
        Ok(())
    }

    fn release_exclusive(&self, count: usize) {
        for flag in &self.loans.flags[self.segments.clone()][..count] {
            let before = flag.swap(0, Ordering::Release);
            debug_assert_eq!(before, -1, "released a write that was not taken");
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `Arena::new` checked that the place lies inside the slab, which lives here.
        unsafe { self.slab.start().as_ptr().add(self.place.offset) }
    }
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the place is valid memory of the slab held by the buffer; the shared loan keeps
        // local writers out for the guard's life, and remote ones are kept out by the plan (see //!).
        unsafe { std::slice::from_raw_parts(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, for reading.
        unsafe { std::slice::from_raw_parts(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the place is valid memory of the slab held by the buffer, and the exclusive loan
        // makes this the only slice over any of its segments; `&mut self` makes it unique here.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.buffer.release_shared(self.buffer.segments.len());
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.buffer.release_exclusive(self.buffer.segments.len());
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.buffer.release_shared(self.buffer.segments.len());
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("place", &self.place).finish_non_exhaustive()
    }
}
