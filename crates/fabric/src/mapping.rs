//! Mapped memory, private or shared through a memfd. All `mmap` of the crate is here, and all copies
//! between mappings begin here. No Rust reference to mapped bytes is ever made: peers may write them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tensorwire_base::Deadline;
use tensorwire_memory::{HUGE_PAGE, Keepalive, Slab};

use crate::streaming;

/// The unit of mapping.
const PAGE_BYTES: u64 = 4096;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Advice that makes large pages of small ones, whatever the system's settings give, unless they deny: Linux 6.1 and later, and not
/// all C libraries name it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Pages of a file are taken, and large ones made of them, so many bytes at a time: a signal undoes what it interrupts, and a system
/// that has to look for room is found out.
const SLICE_BYTES: usize = 64 << 20;
/// A slice takes a tenth of a second where there is room for large pages.
const GATHER_PATIENCE: Duration = Duration::from_secs(1);
/// As somebody who looks at a page keeps it from being moved.
const GATHER_TRIES: usize = 3;

/// Why memory that a peer shared is not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerMemoryError {
    #[error("its file may still shrink; share a memfd that is sealed against that")]
    MayShrink,
    #[error("its file has {size} bytes where the peer said {bytes}")]
    TooSmall { size: u64, bytes: u64 },
    #[error(
        "its file holds pages for {held} bytes where the peer said {bytes}; allocate them before it is shared"
    )]
    NotHeld { held: u64, bytes: u64 },
    #[error(transparent)]
    System(#[from] Errno),
}

/// Mapped, readable, writable, zeroed or shared memory; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: u64,
    /// What was mapped: whole pages, at least one; 0 where somebody else did.
    mapped: usize,
    /// What keeps memory of a device, which the host has an address of and no bytes.
    of_device: Option<Keepalive>,
}

/// A mapping that other processes map too, and the descriptor that lets them.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    pub(crate) mapping: Mapping,
    pub(crate) fd: OwnedFd,
}

// SAFETY: the mapping is owned by this value alone and unmapped once, in `drop`; it belongs to the
// process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives an address; the copies below are raw, without references, and racing ones
// are the duty of their callers, as said there.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory, its pages already there.
    pub(crate) fn private(bytes: u64) -> Result<Mapping, Errno> {
        let mapped = whole_pages(bytes)?;
        // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let mapping = Mapping::new(not_null(start)?, bytes, mapped);
        if !mapping.take_pages()? {
            // fits: a page
            let pages = (0..mapped).step_by(PAGE_BYTES as usize);
            // SAFETY: each byte lies in memory that was just mapped, is zero, and known to nobody else
            pages.for_each(|at| unsafe { mapping.start.as_ptr().add(at).write_volatile(0) });
        }
        Ok(mapping)
    }

    /// Maps what a peer shared. Its seals, its size and its pages are checked, so that no access can fault later and
    /// mapping takes no memory that the peer did not take before. A file that a peer has adopted may have no seals; then
    /// it has no name, so that nobody shortens it but who was given it.
    pub(crate) fn of_peer(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping, PeerMemoryError> {
        check_peer_memory(|| rustix::fs::fcntl_get_seals(fd), || rustix::fs::fstat(fd), bytes)?;
        Ok(Mapping::map(fd, bytes, MapFlags::POPULATE)?)
    }

    /// Maps a file of this process's own, which it does not shorten while the mapping lives.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping, Errno> {
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if size < bytes {
            return Err(Errno::INVAL);
        }
        Mapping::map(fd, bytes, MapFlags::POPULATE)
    }

    fn map(fd: BorrowedFd<'_>, bytes: u64, populate: MapFlags) -> Result<Mapping, Errno> {
        let mapped = whole_pages(bytes)?;
        // the large pages of a file are found as such only where such pages begin
        let wish = if mapped >= HUGE_PAGE { free_place(mapped, HUGE_PAGE) } else { None };
        let wish = wish.map_or(std::ptr::null_mut(), |start| start.as_ptr().cast());
        // SAFETY: a fresh mapping at an address of the kernel's choice, which is free, aliases no Rust memory; that
        // other processes share the pages is why only raw and atomic accesses are made to them.
        let start = unsafe {
            rustix::mm::mmap(
                wish,
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | populate,
                fd,
                0,
            )
        }?;
        Ok(Mapping::new(not_null(start)?, bytes, mapped))
    }

    fn new(start: NonNull<u8>, bytes: u64, mapped: usize) -> Mapping {
        Mapping { start, bytes, mapped, of_device: None }
    }

    /// Has the pages of fresh memory there. Where it is as large as a large page, those are large, if the system gives such:
    /// there are fewer to clear, and fewer to find for who computes, copies or sends.
    /// False: the system does not do that.
    fn take_pages(&self) -> Result<bool, Errno> {
        // Miri knows no pages
        if cfg!(miri) {
            return Ok(true);
        }
        let advise = |advice| {
            // SAFETY: of memory that this value mapped. Such advice changes none of its bytes.
            unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.mapped, advice) }
        };
        // a system without them refuses, and the memory is as good, though slower to touch
        if self.mapped >= HUGE_PAGE {
            let _ = advise(Advice::LinuxHugepage);
        }
        match rustix::io::retry_on_intr(|| advise(Advice::LinuxPopulateWrite)) {
            // Linux before 5.14, and a filter of calls
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => Ok(false),
            // as the memory that there is not
            Err(Errno::FAULT) => Err(Errno::NOMEM),
            taken => taken.map(|()| true),
        }
    }

    /// Takes the pages of a file that is mapped here, and has large ones made of them until the system refuses or takes too
    /// long.
    fn hold_pages(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let (mut at, mut gathers) = (0, self.mapped >= HUGE_PAGE);
        while at < self.mapped {
            let bytes = SLICE_BYTES.min(self.mapped - at);
            // fits both: usize is 64 bits wide
            let hold =
                || rustix::fs::fallocate(fd, FallocateFlags::empty(), at as u64, bytes as u64);
            rustix::io::retry_on_intr(hold)?;
            if gathers && bytes >= HUGE_PAGE {
                gathers = self.gather_pages(at, bytes);
            }
            at += bytes;
        }
        Ok(())
    }

    /// Has large pages made of the small ones of a slice; true if that was done, and took no longer than it may.
    fn gather_pages(&self, at: usize, bytes: usize) -> bool {
        if cfg!(miri) {
            return false;
        }
        let soon = Deadline::after(GATHER_PATIENCE);
        for _ in 0..GATHER_TRIES {
            let start = self.start.as_ptr().wrapping_add(at);
            // SAFETY: of memory that this value mapped. Such advice changes none of its bytes.
            if unsafe { libc::madvise(start.cast(), bytes, MADV_COLLAPSE) } == 0 {
                return !soon.passed();
            }
            // somebody looked at a page just then; else an older system refuses, or there is no room for another large page
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
                return false;
            }
        }
        false
    }

    /// Memory of a device, for a NIC that reaches it: its addresses are for that alone.
    pub(crate) fn of_device(memory: &Slab) -> Mapping {
        let start = std::num::NonZero::new(memory.address());
        let start = NonNull::without_provenance(start.expect("no memory lies at 0"));
        // fits: usize is 64 bits wide
        let bytes = memory.bytes() as u64;
        let mut mapping = Mapping::new(start, bytes, 0);
        mapping.of_device = Some(Arc::new(memory.clone()));
        mapping
    }

    pub(crate) fn is_of_device(&self) -> bool {
        self.of_device.is_some()
    }

    /// First byte; valid for [`Mapping::bytes`] while the mapping lives, aligned to a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a byte, which must lie inside or just behind the last.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} of a mapping of {} bytes", self.bytes);
        // fits: as the mapping fits the address space. No `add`: memory of a device is none that the host may point into
        self.start.as_ptr().wrapping_add(offset as usize)
    }

    /// The 8 bytes at `offset` as a word that peers may write at any time. `offset` is a multiple of 8
    /// and the word lies inside.
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        let end = offset.checked_add(8).filter(|_| offset.is_multiple_of(8));
        assert!(!self.is_of_device(), "the host follows no address of a device");
        assert!(end.is_some_and(|end| end <= self.bytes), "word at {offset} of {}", self.bytes);
        // SAFETY: just checked to lie in the mapping and to be aligned (a mapping starts at a page);
        // it lives as long as `self`, any bits are valid, and whoever shares the word uses atomics.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast::<u64>()) }
    }

    /// Bytes of the host's memory, as they are now.
    pub(crate) fn bytes_at(&self, offset: u64, bytes: u64) -> Vec<u8> {
        // fits: as the mapping fits the address space
        let mut read = vec![0; bytes as usize];
        self.check_inside(offset, bytes);
        // SAFETY: just checked to lie in a live mapping of the host; as for [`Mapping::copy`].
        unsafe { std::ptr::copy(self.at(offset), read.as_mut_ptr(), read.len()) };
        read
    }

    /// Writes bytes to the host's memory.
    pub(crate) fn fill_at(&self, offset: u64, bytes: &[u8]) {
        // fits: usize is 64 bits wide
        self.check_inside(offset, bytes.len() as u64);
        // SAFETY: as of [`Mapping::bytes_at`].
        unsafe { std::ptr::copy(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    fn check_inside(&self, offset: u64, bytes: u64) {
        let end = offset.checked_add(bytes);
        assert!(!self.is_of_device(), "the host follows no address of a device");
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes leave their mapping");
    }

    /// Copies bytes between two mappings (or two places of one that do not overlap).
    pub(crate) fn copy(source: (&Mapping, u64), target: (&Mapping, u64), bytes: u64) {
        Mapping::check_copy(source, target, bytes);
        // SAFETY: both ranges were just checked to lie in live mappings; two mappings of one memfd may
        // overlap, so this is a memmove. No reference to the bytes exists: users reach them through
        // loans, and the plan keeps a loan and a copy of the same bytes apart. A plan that does not
        // would tear data of plain bytes, which have no invalid values.
        unsafe { std::ptr::copy(source.0.at(source.1), target.0.at(target.1), bytes as usize) }
    }

    /// The same to where another process reads next.
    pub(crate) fn write(source: (&Mapping, u64), target: (&Mapping, u64), bytes: u64) {
        Mapping::check_copy(source, target, bytes);
        // SAFETY: as of [`Mapping::copy`].
        unsafe {
            streaming::copy_for_another_core(
                source.0.at(source.1),
                target.0.at(target.1),
                bytes as usize,
            );
        }
    }

    fn check_copy(source: (&Mapping, u64), target: (&Mapping, u64), bytes: u64) {
        let inside = |(mapping, offset): (&Mapping, u64)| {
            offset.checked_add(bytes).is_some_and(|end| end <= mapping.bytes)
        };
        let on_host = !source.0.is_of_device() && !target.0.is_of_device();
        assert!(on_host, "the host follows no address of a device");
        assert!(inside(source) && inside(target), "a copy of {bytes} bytes leaves its mapping");
        #[cfg(loom)]
        tensorwire_base::sync::step_outside();
    }
}

impl SharedMapping {
    /// Zeroed memory in a memfd that can neither shrink nor grow, its pages already there, large ones where the system gives
    /// them to files in memory or makes them of small ones: running out of memory is an error here and never a SIGBUS later.
    pub(crate) fn create(name: &str, bytes: u64) -> Result<SharedMapping, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags)?;
        let mapped = whole_pages(bytes)? as u64;
        rustix::fs::ftruncate(&fd, mapped)?;
        let mapping = Mapping::map(fd.as_fd(), bytes, MapFlags::empty())?;
        let gives = gives_large_pages();
        if gives {
            // they come only by way of memory that is mapped; then those that did not come so
            mapping.take_pages()?;
        }
        mapping.hold_pages(&fd)?;
        if !gives {
            // behind that: it takes longer to gather pages that are mapped one by one
            mapping.take_pages()?;
        }
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(SharedMapping { mapping, fd })
    }
}

/// Where so many bytes are free, at a multiple of `begins_at`; None if nowhere. Another thread may take the place meanwhile.
fn free_place(bytes: usize, begins_at: usize) -> Option<NonNull<u8>> {
    let room = bytes.checked_add(begins_at)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing, and is gone before anybody knows of it.
    let start = unsafe {
        let start =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), flags)
                .ok()?;
        rustix::mm::munmap(start, room).ok()?;
        start
    };
    let start = not_null(start).ok()?;
    std::num::NonZero::new(start.addr().get().next_multiple_of(begins_at))
        .map(NonNull::without_provenance)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped == 0 {
            return;
        }
        // SAFETY: mapped by this value's constructor with this length, and unmapped only here; every
        // address that was given out is bound to this value's life.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

/// Holds what a peer shared against what it said of it. The seals are asked for first: a size that is read before them
/// may be gone by the time that they forbid it to change.
fn check_peer_memory(
    seals: impl FnOnce() -> Result<SealFlags, Errno>,
    stat: impl FnOnce() -> Result<Stat, Errno>,
    bytes: u64,
) -> Result<(), PeerMemoryError> {
    let seals = seals()?;
    let stat = stat()?;
    let is_adopted = seals == SealFlags::SEAL && stat.st_nlink == 0;
    if !(seals.contains(SealFlags::SHRINK) || is_adopted) {
        return Err(PeerMemoryError::MayShrink);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size < bytes {
        return Err(PeerMemoryError::TooSmall { size, bytes });
    }
    let held = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
    if held < bytes {
        return Err(PeerMemoryError::NotHeld { held, bytes });
    }
    Ok(())
}

/// True if the system gives large pages to files in memory that ask for them: the word in brackets of that setting says so.
fn gives_large_pages() -> bool {
    let setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let words = std::fs::read_to_string(setting).unwrap_or_default();
    !words.is_empty() && !words.contains("[never]") && !words.contains("[deny]")
}

fn whole_pages(bytes: u64) -> Result<usize, Errno> {
    let pages = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::NOMEM)?;
    isize::try_from(pages).map(isize::unsigned_abs).map_err(|_| Errno::NOMEM)
}

fn not_null(start: *mut std::ffi::c_void) -> Result<NonNull<u8>, Errno> {
    NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_shared_mapping_is_one_memory() {
        let shared = SharedMapping::create("test", 5000).unwrap();
        let peer = Mapping::of_peer(shared.fd.as_fd(), 5000).unwrap();
        let source = Mapping::private(100).unwrap();
        // SAFETY: one byte inside a live mapping of this test.
        unsafe { source.at(99).write(7) };
        Mapping::copy((&source, 0), (&peer, 4900), 100);
        // SAFETY: as above.
        assert_eq!(unsafe { shared.mapping.at(4999).read() }, 7);
    }

    /// How many bytes the system finds by large pages in the mapping that begins there.
    fn found_by_large_pages(mapping: &Mapping) -> usize {
        let begins = format!("{:x}-", mapping.start().addr());
        // not every system tells
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let its = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let found = its.filter_map(|line| line.strip_prefix("ShmemPmdMapped:")).next();
        found.map_or(0, |found| {
            1024 * found.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn shared_memory_lies_in_large_pages_at_both_ends() {
        let bytes = 3 * HUGE_PAGE + 5000;
        let shared = SharedMapping::create("test", bytes as u64).unwrap();
        let is_placed = |mapping: &Mapping| mapping.start().addr().get().is_multiple_of(HUGE_PAGE);
        // other threads of this program take places, too
        let peers =
            std::iter::repeat_with(|| Mapping::of_peer(shared.fd.as_fd(), bytes as u64).unwrap());
        let peer = peers.take(100).find(is_placed).unwrap();
        assert_eq!(peer.bytes_at(0, bytes as u64), vec![0; bytes]);
        shared.mapping.fill_at(bytes as u64 - 3, &[1, 2, 3]);
        assert_eq!(peer.bytes_at(bytes as u64 - 3, 3), [1, 2, 3]);
        let own = &shared.mapping;
        let lies_so = is_placed(own) && found_by_large_pages(own) == 3 * HUGE_PAGE;
        if !lies_so {
            let reason =
                "this system makes no large pages of files in memory, or has no room for three";
            return tensorwire_testkit::skip::skip(None, &reason);
        }
        assert_eq!(found_by_large_pages(&peer), 3 * HUGE_PAGE);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_descriptor_that_is_too_small_or_may_shrink_is_refused() {
        let shared = SharedMapping::create("test", 4096).unwrap();
        let refused = Mapping::of_peer(shared.fd.as_fd(), 4097).unwrap_err();
        assert!(matches!(refused, PeerMemoryError::TooSmall { size: 4096, bytes: 4097 }));
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let refused = Mapping::of_peer(unsealed.as_fd(), 4096).unwrap_err();
        assert!(matches!(refused, PeerMemoryError::MayShrink));
        assert!(Mapping::of_peer(std::io::stdin().as_fd(), 1).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_peer_that_shrinks_its_file_while_it_is_looked_at_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192).unwrap();
        let is_first = std::cell::Cell::new(true);
        // as soon as the first of the two questions is answered
        let meanwhile = || {
            if is_first.replace(false) {
                rustix::fs::ftruncate(&fd, 0).unwrap();
                rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
            }
        };
        let seals = || rustix::fs::fcntl_get_seals(&fd).inspect(|_| meanwhile());
        let stat = || rustix::fs::fstat(&fd).inspect(|_| meanwhile());
        assert!(check_peer_memory(seals, stat, 8192).is_err());
        assert!(!is_first.get());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_file_of_holes_is_refused_before_it_takes_memory() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 16 << 20).unwrap();
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let refused = Mapping::of_peer(fd.as_fd(), 16 << 20).unwrap_err();
        assert!(matches!(refused, PeerMemoryError::NotHeld { held: 4096, .. }), "{refused}");
        assert!(Mapping::of_peer(fd.as_fd(), 4096).is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri takes a size for its own memory")]
    fn sizes_beyond_the_address_space_are_errors() {
        assert!(Mapping::private(u64::MAX).is_err());
        assert!(Mapping::private(1 << 62).is_err());
    }

    #[test]
    #[should_panic(expected = "leaves its mapping")]
    fn a_copy_out_of_bounds_is_our_own_mistake() {
        let mapping = Mapping::private(10).unwrap();
        Mapping::copy((&mapping, 5), (&mapping, 0), 6);
    }
}
