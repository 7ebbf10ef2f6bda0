//! Raw memory with a proof that it lives, of the host or of a device. No reference to a slab's bytes exists
//! here: other processes and NICs may write them, so only a [`crate::Buffer`]'s loan turns them into a slice,
//! and memory of a device never is one.

use std::any::Any;
use std::num::NonZero;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use tensorwire_base::Space;
use tensorwire_base::sync::Arc;
use tensorwire_base::sync::atomic::{AtomicBool, Ordering};

/// Alignment of every slab and every planned place, in bytes: a cache line, and an AVX-512 vector.
pub const ALIGNMENT: usize = 64;

/// Bytes of a large page of x86-64, and of most kernels on aarch64. Memory of this size is touched 512 pages at a time: whoever maps
/// as much advises the system to take large ones.
pub const HUGE_PAGE: usize = 2 << 20;

/// Whatever must live as long as a slab's memory: a mapping, a registration with a NIC.
pub type Keepalive = std::sync::Arc<dyn Any + Send + Sync>;

/// A range of memory that stays valid while any clone of the slab lives.
#[derive(Clone)]
pub struct Slab {
    /// In memory of a device: an address there, which the host never follows.
    start: NonNull<u8>,
    bytes: usize,
    space: Space,
    /// Held for its life alone.
    _keepalive: Keepalive,
    mark: CutMark,
}

/// Whether memory is cut into an arena or a heap now. All slabs over the same memory share one, so
/// that there is one set of loans for each byte and never two.
#[derive(Clone, Debug, Default)]
pub struct CutMark(Arc<AtomicBool>);

/// A mark that is taken, and given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Cut(CutMark);

impl CutMark {
    /// Takes the mark; None if somebody has it.
    pub(crate) fn take(&self) -> Option<Cut> {
        // not a swap: whoever is refused writes nothing
        let taken = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Cut(self.clone()))
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// Why there is no slab.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    #[error(
        "cannot map {bytes} bytes of memory: {source}; free memory, or take less of it (smaller batches, smaller tensors)"
    )]
    Map { bytes: usize, source: std::io::Error },
}

impl Slab {
    /// Zeroed private memory of this process, aligned to a page.
    pub fn anonymous(bytes: usize) -> Result<Slab, SlabError> {
        let mapping = AnonymousMapping::new(bytes)?;
        let (start, space) = (mapping.start, Space::Host);
        let _keepalive: Keepalive = std::sync::Arc::new(mapping);
        Ok(Slab { start, bytes, space, _keepalive, mark: CutMark::default() })
    }

    /// A slab over memory that somebody else allocated.
    ///
    /// # Safety
    /// `start..start + bytes` must be readable and writable memory for as long as `keepalive` lives,
    /// `start` aligned to [`ALIGNMENT`], and no Rust reference into it may exist outside the slab. All
    /// slabs over the same memory must have clones of one `mark`.
    ///
    /// Whoever else reaches the memory (another process, a NIC, a copy that this process posted) must keep an agreement
    /// with those who use the slab: it writes no byte that is lent or read here meanwhile, and reads none that is lent
    /// for writing. Loans, windows and readers of the slab rest on that, and promise nothing of their own.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        bytes: usize,
        keepalive: Keepalive,
        mark: CutMark,
    ) -> Slab {
        assert_eq!(start.as_ptr() as usize % ALIGNMENT, 0, "a slab starts at a cache line");
        Slab { start, bytes, space: Space::Host, _keepalive: keepalive, mark }
    }

    /// A slab over memory of the device of that number, which the device has at `address`.
    ///
    /// # Safety
    /// `address..address + bytes` must be memory of the device for as long as `keepalive` lives. All slabs over the
    /// same memory must have clones of one `mark`.
    ///
    /// # Panics
    /// If `address` is no multiple of [`ALIGNMENT`], or zero.
    pub unsafe fn on_device(
        device: u32,
        address: NonZero<usize>,
        bytes: usize,
        keepalive: Keepalive,
        mark: CutMark,
    ) -> Slab {
        assert_eq!(address.get() % ALIGNMENT, 0, "a slab starts at a cache line");
        let start = NonNull::without_provenance(address);
        Slab { start, bytes, space: Space::Device(device), _keepalive: keepalive, mark }
    }

    /// As [`Slab::from_raw`] or [`Slab::on_device`], of any alignment, and with a mark of its own.
    ///
    /// # Safety
    /// `start..start + bytes` must be memory of that space for as long as `keepalive` lives: the host's readable and
    /// writable.
    pub(crate) unsafe fn unaligned(
        start: NonNull<u8>,
        bytes: usize,
        space: Space,
        keepalive: Keepalive,
    ) -> Slab {
        Slab { start, bytes, space, _keepalive: keepalive, mark: CutMark::default() }
    }

    /// Whose memory it is.
    pub fn space(&self) -> Space {
        self.space
    }

    /// First byte. Valid for [`Slab::bytes`] bytes while this slab or a clone of it lives.
    ///
    /// # Panics
    /// If it is memory of a device, where the host has no byte: [`Slab::address`] says where that lies.
    pub fn start(&self) -> NonNull<u8> {
        assert_eq!(self.space, Space::Host, "the host follows no address of a device");
        self.start
    }

    /// Address of the first byte, in the memory of its space: tells this memory from other memory, and is nothing
    /// for the host to follow.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn mark(&self) -> &CutMark {
        &self.mark
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Slab { start, bytes, space, .. } = self;
        let mut slab = f.debug_struct("Slab");
        slab.field("start", start).field("bytes", bytes).field("space", space).finish()
    }
}

// SAFETY: a slab hands out no references; the keepalive is Send + Sync, and the address range is
// plain memory of the process, not of a thread. Access is arbitrated by the loans of `Buffer`.
unsafe impl Send for Slab {}
// SAFETY: as for Send: `&Slab` gives an address and a length only.
unsafe impl Sync for Slab {}

struct AnonymousMapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned by this value alone and unmapped once, in `drop`.
unsafe impl Send for AnonymousMapping {}
// SAFETY: no method reads or writes the memory.
unsafe impl Sync for AnonymousMapping {}

impl AnonymousMapping {
    fn new(bytes: usize) -> Result<AnonymousMapping, SlabError> {
        if bytes == 0 {
            // fits: the alignment is a small non-zero constant; nothing is mapped, nothing unmapped
            let start = NonNull::without_provenance(
                NonZero::new(ALIGNMENT).expect("the alignment is not zero"),
            );
            return Ok(AnonymousMapping { start, bytes });
        }
        // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = mapped.map_err(|e| SlabError::Map { bytes, source: e.into() })?;
        let start = NonNull::new(start.cast::<u8>()).expect("the kernel maps no page at 0");
        // Miri has no such advice
        if bytes >= HUGE_PAGE && !cfg!(miri) {
            // SAFETY: advice about the mapping that was just made changes none of its bytes. A kernel that has no huge
            // pages refuses, and the memory is as good, though slower to touch.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        Ok(AnonymousMapping { start, bytes })
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: `start..start + bytes` was mapped by `new` and nobody unmaps it twice: the last
        // slab's keepalive is this value, so no slab over it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}
