//! Outputs that several threads write, each its own elements.

use std::marker::PhantomData;
use std::ops::Range;

/// The start of an output. What is in bounds is its user's to know.
pub(super) struct Shared<T>(pub(super) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: an address; the `unsafe` block that uses it says which elements it touches and why no
// other thread does. The elements move between threads, hence `T: Send`.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// By value, so that a closure captures the wrapper and not the pointer.
    pub(super) fn start(self) -> *mut T {
        self.0
    }
}

/// Rows of which each thread writes some columns.
pub(super) struct Sheet<'a, T> {
    start: Shared<T>,
    len: usize,
    columns: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Sheet<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Sheet<'_, T> {}

impl<'a, T> Sheet<'a, T> {
    pub(super) fn new(elements: &'a mut [T], columns: usize) -> Sheet<'a, T> {
        let len = elements.len();
        Sheet { start: Shared(elements.as_mut_ptr()), len, columns, borrowed: PhantomData }
    }

    /// Columns `columns` of row `row`.
    ///
    /// # Safety
    /// While the result is used, no other one of the same elements may be.
    pub(super) unsafe fn part(&self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        let start = row * self.columns + columns.start;
        assert!(columns.start <= columns.end && columns.end <= self.columns);
        assert!(start + columns.len() <= self.len);
        // SAFETY: asserted to be inside the elements, which are borrowed exclusively for 'a; that no two
        // parts overlap is the caller's duty.
        unsafe { std::slice::from_raw_parts_mut(self.start.start().add(start), columns.len()) }
    }
}
