//! A word of 32 bits that a stream waits on or writes, and that others write or read: the host, the GPU of a peer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tensorwire_base::Space;
use tensorwire_memory::{DeviceWriteLoan, Slab};

use crate::host::Registration;

/// A word, and what keeps its memory. Clones name the same word.
#[derive(Clone, Debug)]
pub struct Word {
    /// For GPUs to follow.
    address: u64,
    /// For the host to follow; none in memory of a GPU.
    on_host: Option<NonNull<AtomicU32>>,
    slab: Slab,
    /// Held for their lives alone: nobody makes a slice of the word, and GPUs reach it.
    _loan: Option<Arc<DeviceWriteLoan>>,
    _registration: Option<Registration>,
}

// SAFETY: the word is atomic, and the slab keeps its memory, which belongs to no thread.
unsafe impl Send for Word {}
// SAFETY: as for Send.
unsafe impl Sync for Word {}

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Equal(u32),
    /// The difference, as a signed number, is not negative: words may wrap around.
    AtLeast(u32),
}

impl Word {
    /// The word at byte `at` of what is lent, in memory of a GPU or in pinned memory of the host. The loan keeps all others
    /// away while a clone of the word lives.
    ///
    /// # Panics
    /// If it is not inside, or no multiple of 4.
    pub fn new(loan: &Arc<DeviceWriteLoan>, at: usize) -> Word {
        check(loan, at);
        // fits: an address of this machine
        let address = (loan.address() + at) as u64;
        // SAFETY: the loan is exclusive, and the word keeps it.
        let word =
            unsafe { Word::in_slab(loan.slab(), loan.address() - loan.slab().address() + at) };
        Word { address, _loan: Some(loan.clone()), ..word }
    }

    /// The word at byte `at` of what is lent of a slab that is registered.
    ///
    /// # Panics
    /// If it is not inside, or no multiple of 4, or the loan is of another slab.
    pub fn registered(registration: &Registration, loan: &Arc<DeviceWriteLoan>, at: usize) -> Word {
        check(loan, at);
        let slab = registration.slab();
        let offset = loan.address().checked_sub(slab.address()).map(|offset| offset + at);
        let offset = offset.filter(|offset| offset + 4 <= slab.bytes());
        let offset = offset.expect("the loan is of the registered slab");
        // SAFETY: the loan is exclusive, and the word keeps it.
        let word = unsafe { Word::in_registered(registration, offset) };
        Word { _loan: Some(loan.clone()), ..word }
    }

    /// The word at byte `offset` of a slab of a GPU, or of a pinned one.
    ///
    /// # Safety
    /// While a clone of the word lives, no slice covers it, and whoever else uses it does so atomically.
    ///
    /// # Panics
    /// If it is not inside, or no multiple of 4.
    pub unsafe fn in_slab(slab: &Slab, offset: usize) -> Word {
        let end = offset.checked_add(4);
        assert!(end.is_some_and(|end| end <= slab.bytes()), "byte {offset} of {}", slab.bytes());
        assert_eq!((slab.address() + offset) % 4, 0, "a word lies at a multiple of 4");
        let on_host = (slab.space() == Space::Host).then(|| {
            // SAFETY: inside the slab, as was checked.
            unsafe { slab.start().add(offset) }.cast()
        });
        // fits: an address of this machine
        let address = (slab.address() + offset) as u64;
        Word { address, on_host, slab: slab.clone(), _loan: None, _registration: None }
    }

    /// The word at byte `offset` of a slab that is registered.
    ///
    /// # Safety
    /// As of [`Word::in_slab`].
    ///
    /// # Panics
    /// As [`Word::in_slab`].
    pub unsafe fn in_registered(registration: &Registration, offset: usize) -> Word {
        // SAFETY: the caller's duty.
        let word = unsafe { Word::in_slab(registration.slab(), offset) };
        // fits: inside of a slab
        let address = registration.address() + offset as u64;
        Word { address, _registration: Some(registration.clone()), ..word }
    }

    /// Address of the word, for GPUs to follow.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The memory that it lies in.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Reads the word, and what was written before it; none in memory of a GPU.
    pub fn load(&self) -> Option<u32> {
        Some(self.atomic()?.load(Ordering::Acquire))
    }

    /// Writes the word behind all that this thread has written. False in memory of a GPU, where the host writes nothing.
    pub fn store(&self, value: u32) -> bool {
        self.atomic().is_some_and(|word| {
            word.store(value, Ordering::Release);
            true
        })
    }

    fn atomic(&self) -> Option<&AtomicU32> {
        // SAFETY: the address is aligned memory of the host that the slab keeps; a loan or the maker's promise has it that
        // all others use it atomically.
        self.on_host.map(|word| unsafe { word.as_ref() })
    }
}

fn check(loan: &DeviceWriteLoan, at: usize) {
    let end = at.checked_add(4);
    assert!(end.is_some_and(|end| end <= loan.bytes()), "byte {at} of {}", loan.bytes());
}
