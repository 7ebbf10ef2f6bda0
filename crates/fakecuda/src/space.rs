//! Addresses of GPUs: a range of this process's that nothing else lies in, so that an address of a GPU is never one of
//! the host. Allocations are anonymous files, which processes really share, and are mapped here and once more where only
//! this library finds them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Ranges are so far apart at least, however small they are.
const HOLE: usize = 2 << 20;
/// Bytes of addresses.
const RANGE: usize = 4 << 40;
/// Where they start, if the system agrees: far from what a process has.
const START: usize = 0x2000_0000_0000;
/// What the files are called in /proc/self/fd.
const NAME: &str = "fake-cuda-memory";

/// One allocation: memory without an address.
#[derive(Debug)]
pub(crate) struct Allocation {
    file: OwnedFd,
    pub(crate) bytes: usize,
    /// The GPU that it lies on; none, where another process allocated it.
    pub(crate) device: Option<usize>,
    /// Where this library has it.
    alias: NonNull<u8>,
    /// Bytes that its GPU has given away, to be given back.
    used: Option<Arc<AtomicU64>>,
}

// SAFETY: the alias is shared memory of this process that any thread may use; it is unmapped once, in `drop`.
unsafe impl Send for Allocation {}
// SAFETY: as for Send; bytes are read and written through raw pointers alone, as a GPU does.
unsafe impl Sync for Allocation {}

/// All addresses of GPUs in this process.
#[derive(Debug)]
pub(crate) struct Space {
    start: usize,
    /// By address.
    reserved: BTreeMap<usize, Reserved>,
    /// The host follows an address only while a kernel runs.
    is_guarded: bool,
    kernels_running: usize,
}

/// A range that was given away.
#[derive(Debug)]
struct Reserved {
    bytes: usize,
    mapped: Option<Mapped>,
}

/// What is mapped over a whole range.
#[derive(Debug)]
struct Mapped {
    allocation: Arc<Allocation>,
    offset: usize,
    bytes: usize,
    /// GPUs that reach it, by ordinal.
    accessible: Vec<usize>,
}

/// Some mapped bytes, where this library has them.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub(crate) first: NonNull<u8>,
    /// Keeps them.
    _allocation: Arc<Allocation>,
}

impl Allocation {
    pub(crate) fn new(
        bytes: usize,
        device: usize,
        used: Arc<AtomicU64>,
    ) -> rustix::io::Result<Allocation> {
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let alias = map_file(None, &file, 0, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Allocation { file, bytes, device: Some(device), alias, used: Some(used) })
    }

    /// Memory that another process shows; none, if the descriptor is something else.
    pub(crate) fn import(descriptor: BorrowedFd<'_>) -> Option<Allocation> {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
        if !name.to_string_lossy().contains(NAME) {
            return None;
        }
        let file = descriptor.try_clone_to_owned().ok()?;
        let bytes = usize::try_from(rustix::fs::fstat(&file).ok()?.st_size).ok()?;
        let alias = map_file(None, &file, 0, bytes, ProtFlags::READ | ProtFlags::WRITE).ok()?;
        Some(Allocation { file, bytes, device: None, alias, used: None })
    }

    /// Another descriptor of the same memory.
    pub(crate) fn export(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Fills it with something that nobody expects.
    pub(crate) fn fill(&self, byte: u8) {
        // the pages at once; where the system does not know how, one by one
        // SAFETY: the alias is so many bytes, and its pages are given to nobody else.
        let _ = unsafe {
            rustix::mm::madvise(self.alias.as_ptr().cast(), self.bytes, Advice::LinuxPopulateWrite)
        };
        // SAFETY: the alias is so many bytes, and nobody else knows of the allocation yet.
        unsafe { self.alias.write_bytes(byte, self.bytes) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` or `import`, unmapped once; all `Bytes` hold the allocation.
        let _ = unsafe { rustix::mm::munmap(self.alias.as_ptr().cast(), self.bytes) };
        if let Some(used) = &self.used {
            used.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Space {
    /// Takes the range of addresses.
    pub(crate) fn new(is_guarded: bool) -> rustix::io::Result<Space> {
        // another one in each process: an address of a peer is none of one's own
        let process = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() as usize;
        let wanted = START + process % 8 * RANGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel takes the hint only where nothing is mapped.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(wanted as *mut c_void, RANGE, ProtFlags::empty(), flags)
        }?;
        let start = (mapped as usize).next_multiple_of(HOLE);
        Ok(Space { start, reserved: BTreeMap::new(), is_guarded, kernels_running: 0 })
    }

    /// True if it is an address of a GPU, mapped or not.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let start = self.start as u64;
        (start..start + RANGE as u64 - HOLE as u64).contains(&address)
    }

    /// Gives away addresses.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Option<u64> {
        if bytes == 0 || !bytes.is_multiple_of(rustix::param::page_size()) || bytes > RANGE / 2 {
            return None;
        }
        let mut at = self.start;
        for (&start, reserved) in &self.reserved {
            // a hole behind each: who writes over its end writes nowhere
            if at + bytes + HOLE <= start {
                break;
            }
            at = start + reserved.bytes + HOLE;
        }
        (at + bytes < self.start + RANGE - HOLE).then(|| {
            self.reserved.insert(at, Reserved { bytes, mapped: None });
            at as u64
        })
    }

    /// Takes addresses back; false if they are others, or mapped.
    pub(crate) fn free(&mut self, address: u64, bytes: usize) -> bool {
        let at = address as usize;
        let fits = |reserved: &Reserved| reserved.bytes == bytes && reserved.mapped.is_none();
        self.reserved.get(&at).is_some_and(fits) && self.reserved.remove(&at).is_some()
    }

    /// Maps an allocation over reserved addresses. Nobody reaches it yet.
    pub(crate) fn map(
        &mut self,
        address: u64,
        bytes: usize,
        offset: usize,
        allocation: &Arc<Allocation>,
    ) -> bool {
        let end = offset.checked_add(bytes);
        if !bytes.is_multiple_of(rustix::param::page_size())
            || end.is_none_or(|end| end > allocation.bytes)
        {
            return false;
        }
        let Some(reserved) = self.reserved.get_mut(&(address as usize)) else { return false };
        if bytes == 0 || reserved.bytes != bytes || reserved.mapped.is_some() {
            return false;
        }
        let allocation = allocation.clone();
        reserved.mapped = Some(Mapped { allocation, offset, bytes, accessible: Vec::new() });
        true
    }

    /// Lets a GPU reach what is mapped.
    pub(crate) fn allow(&mut self, address: u64, bytes: usize, device: usize) -> bool {
        let at = address as usize;
        let is_open = !self.is_guarded || self.kernels_running > 0;
        let Some(reserved) = self.reserved.get_mut(&at) else { return false };
        let Some(mapped) = reserved.mapped.as_mut().filter(|mapped| mapped.bytes == bytes) else {
            return false;
        };
        if mapped.accessible.is_empty() {
            let Mapped { allocation, offset, .. } = &*mapped;
            let access =
                if is_open { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
            if map_file(Some(at), &allocation.file, *offset, bytes, access).is_err() {
                return false;
            }
        }
        if !mapped.accessible.contains(&device) {
            mapped.accessible.push(device);
        }
        true
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: usize) -> bool {
        let at = address as usize;
        let Some(reserved) = self.reserved.get_mut(&at) else { return false };
        if reserved.bytes != bytes || reserved.mapped.take().is_none() {
            return false;
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the addresses are this library's own, and nothing is mapped there any more that anybody may use.
        unsafe {
            rustix::mm::mmap_anonymous(at as *mut c_void, bytes, ProtFlags::empty(), flags).is_ok()
        }
    }

    /// Mapped bytes that a GPU reaches; none, where not all of them are.
    pub(crate) fn bytes(&self, address: u64, bytes: usize, device: usize) -> Option<Bytes> {
        let at = usize::try_from(address).ok()?;
        let (start, reserved) = self.reserved.range(..=at).next_back()?;
        let mapped = reserved.mapped.as_ref()?;
        let inside = at - start;
        if inside.checked_add(bytes)? > mapped.bytes || !mapped.accessible.contains(&device) {
            return None;
        }
        // SAFETY: the alias has `offset + mapped.bytes` bytes at least, and `inside` lies in the latter.
        let first = unsafe { mapped.allocation.alias.add(mapped.offset + inside) };
        Some(Bytes { first, _allocation: mapped.allocation.clone() })
    }

    /// Mapped bytes that some GPU reaches, as a NIC gets at them, and whose GPU's they are.
    pub(crate) fn remote(&self, address: u64, bytes: usize) -> Option<(Bytes, Option<usize>)> {
        let at = usize::try_from(address).ok()?;
        let (_, reserved) = self.reserved.range(..=at).next_back()?;
        let mapped = reserved.mapped.as_ref()?;
        let device = *mapped.accessible.first()?;
        Some((self.bytes(address, bytes, device)?, mapped.allocation.device))
    }

    /// The allocation that a mapped range is of, and where in it.
    pub(crate) fn allocation(&self, address: u64, bytes: usize) -> Option<Arc<Allocation>> {
        let at = usize::try_from(address).ok()?;
        let (start, reserved) = self.reserved.range(..=at).next_back()?;
        let mapped = reserved.mapped.as_ref()?;
        ((at - start).checked_add(bytes)? <= mapped.bytes).then(|| mapped.allocation.clone())
    }

    /// A kernel begins, and follows addresses.
    pub(crate) fn enter_kernel(&mut self) {
        self.kernels_running += 1;
        if self.kernels_running == 1 {
            self.protect(MprotectFlags::READ | MprotectFlags::WRITE);
        }
    }

    pub(crate) fn leave_kernel(&mut self) {
        self.kernels_running -= 1;
        if self.kernels_running == 0 {
            self.protect(MprotectFlags::empty());
        }
    }

    fn protect(&self, flags: MprotectFlags) {
        if !self.is_guarded {
            return;
        }
        for (&at, reserved) in &self.reserved {
            let Some(mapped) =
                reserved.mapped.as_ref().filter(|mapped| !mapped.accessible.is_empty())
            else {
                continue;
            };
            // SAFETY: the addresses are this library's own; no Rust reference is made of them.
            let _ = unsafe { rustix::mm::mprotect(at as *mut c_void, mapped.bytes, flags) };
        }
    }
}

/// Maps a file, at an address of this library's own or anywhere.
fn map_file(
    at: Option<usize>,
    file: &OwnedFd,
    offset: usize,
    bytes: usize,
    access: ProtFlags,
) -> rustix::io::Result<NonNull<u8>> {
    let flags = at.map_or(MapFlags::SHARED, |_| MapFlags::SHARED | MapFlags::FIXED);
    let wanted = at.unwrap_or(0) as *mut c_void;
    // SAFETY: a fixed address is one that was reserved here and that nothing is mapped at; any other is fresh.
    let mapped = unsafe { rustix::mm::mmap(wanted, bytes, access, flags, file, offset as u64) }?;
    Ok(NonNull::new(mapped.cast()).unwrap_or(NonNull::dangling()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(bytes: usize) -> Arc<Allocation> {
        let used = Arc::new(AtomicU64::new(bytes as u64));
        Arc::new(Allocation::new(bytes, 0, used).unwrap())
    }

    #[test]
    fn only_what_is_mapped_and_allowed_has_bytes() {
        let mut space = Space::new(false).unwrap();
        let allocation = allocation(2 * HOLE);
        let address = space.reserve(2 * HOLE).unwrap();
        assert!(space.contains(address) && space.bytes(address, 1, 0).is_none());
        assert!(!space.map(address, 4 * HOLE, 0, &allocation), "it has no such bytes");
        assert!(space.map(address, 2 * HOLE, 0, &allocation));
        assert!(space.bytes(address, 1, 0).is_none(), "no GPU reaches it yet");
        assert!(space.allow(address, 2 * HOLE, 0));
        assert!(space.bytes(address + 5, 2 * HOLE - 5, 0).is_some());
        assert!(space.bytes(address + 5, 2 * HOLE, 0).is_none(), "over the end");
        assert!(space.bytes(address, 1, 1).is_none(), "another GPU");
        assert!(!space.free(address, 2 * HOLE), "it is mapped");
        assert!(space.unmap(address, 2 * HOLE) && space.free(address, 2 * HOLE));
        assert!(space.bytes(address, 1, 0).is_none());
    }

    #[test]
    fn a_kernel_sees_what_is_written_by_the_alias() {
        let mut space = Space::new(false).unwrap();
        let address = space.reserve(HOLE).unwrap();
        assert!(space.map(address, HOLE, 0, &allocation(HOLE)));
        assert!(space.allow(address, HOLE, 0));
        let bytes = space.bytes(address + 64, 4, 0).unwrap();
        // SAFETY: both are the same four bytes, which nobody else uses.
        let seen = unsafe {
            bytes.first.write_bytes(7, 4);
            ((address + 64) as *const u32).read()
        };
        assert_eq!(seen, 0x0707_0707);
    }

    #[test]
    fn holes_are_used_again_and_ranges_do_not_touch() {
        let mut space = Space::new(false).unwrap();
        let [a, b, c] = [(); 3].map(|()| space.reserve(HOLE).unwrap());
        assert!(b >= a + 2 * HOLE as u64 && c >= b + 2 * HOLE as u64);
        assert!(space.free(b, HOLE));
        // the hole behind it is its own: what needs a little more does not fit, and what comes then fits as before
        assert!(space.reserve(2 * HOLE).unwrap() > c);
        assert_eq!(space.reserve(HOLE).unwrap(), b);
        assert!(space.reserve(HOLE).unwrap() > c);
        assert!(space.reserve(HOLE + 1).is_none() && space.reserve(0).is_none());
        let small = 64 << 10;
        let at = space.reserve(small).unwrap();
        assert!(space.map(at, small, 0, &allocation(small)) && space.allow(at, small, 0));
        assert!(space.bytes(at, small, 0).is_some() && space.bytes(at, small + 1, 0).is_none());
    }

    #[test]
    fn a_descriptor_of_something_else_is_no_memory() {
        let memory = allocation(HOLE);
        let exported = memory.export().unwrap();
        assert_eq!(Allocation::import(exported.as_fd()).unwrap().bytes, HOLE);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Allocation::import(file.as_fd()).is_none());
    }
}
