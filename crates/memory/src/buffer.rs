//! One place of an arena or a heap, lent out. A loan is a count per segment (a heap's piece is one):
//! readers add one, a writer takes it from 0 to -1. The flags stay in release builds: they are what makes the slices sound.
//!
//! What loans cannot see is a *remote* writer. The owner of a plan promises that nobody reads a
//! receive buffer between the moment its sender may write again and the arrival of that write; of a store, whoever
//! pulls promises it of what is pulled into. No exclusive loan stands for such a writer: one buffer may be
//! pulled into by parts, from several servers at once, while other parts of it are still lent to their pushes.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::arena::Place;
use crate::heap::Piece;
use crate::slab::{Cut, Slab};

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
    Slab { _cut: Cut },
    Heap { _piece: Piece },
    PeerMapped { _cut: Arc<Cut> },
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

    /// Lends the bytes for writing, alone, until the loan is dropped, wherever it has gone.
    pub fn lend_for_writing(&self) -> Result<WriteLoan, LoanError> {
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

    /// Address of the first byte: tells this memory from other memory, and is nothing to follow.
    pub fn address(&self) -> usize {
        self.slab.address() + self.place.offset
    }

    pub fn slab(&self) -> &Slab {
        &self.slab
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
        // SAFETY: the place lies inside the slab, which lives here: `Arena::new` checked it, and a heap
        // cuts its pieces from holes of its slab.
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

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as for `ReadGuard`: the place is valid memory of the slab that the loan's buffer holds, and
        // the shared loan keeps local writers out while this lives; remote ones the plan keeps out (see //!).
        unsafe { std::slice::from_raw_parts(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl WriteLoan {
    /// First byte. Valid for the buffer's bytes while this loan lives, wherever it is moved to; whoever writes
    /// there keeps no slice of it at the same time.
    pub fn start(&mut self) -> *mut u8 {
        self.buffer.start()
    }
}

impl Deref for WriteLoan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, for reading.
        unsafe { std::slice::from_raw_parts(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl DerefMut for WriteLoan {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `WriteGuard`: the loan, which owns its buffer, makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.start(), self.buffer.place.bytes) }
    }
}

impl Drop for WriteLoan {
    fn drop(&mut self) {
        self.buffer.release_exclusive(self.buffer.segments.len());
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
