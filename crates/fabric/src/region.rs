//! Regions: memory that peers may access, as its owner holds it ([`Region`]), as it travels
//! ([`RegionDescriptor`]) and as a peer holds it ([`RemoteRegion`]). A local and a remote view are
//! different types, so that neither can be passed for the other.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tensorwire_base::Rank;
use tensorwire_memory::{CutMark, Slab};

use crate::error::DescriptorError;
use crate::mapping::Mapping;
use crate::verbs::{MemoryRegion, Remote};

/// Memory of this process that peers may access. Clones share it. The last holder frees it; a memcpy in
/// flight is a holder.
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<RegionMemory>,
}

/// A capability: whoever knows the key may read and write the region while it lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegionDescriptor {
    /// Random, and unique in its process.
    pub key: u64,
    /// The size of the region.
    pub bytes: u64,
}

/// A peer's region, as this process may access it. Clones share it. It is a type of its own, so that a peer's
/// memory cannot be passed for local memory, nor its descriptor be handed on.
///
/// ```compile_fail,E0308
/// # use tensorwire_fabric::{LocalSlice, RemoteRegion};
/// fn mistaken(remote: &RemoteRegion) -> LocalSlice<'_> {
///     LocalSlice { region: remote, offset: 0 }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    memory: Arc<RemoteMemory>,
}

/// A region's memory and its place in the table of what peers may access.
#[derive(Debug)]
pub(crate) struct RegionMemory {
    key: u64,
    // before the mapping: the NIC lets go of it first
    exposure: Exposure,
    mapping: Mapping,
    mark: CutMark,
    table: Weak<RegionTable>,
}

/// How peers get at a region of this process. Where in neither way, it writes and reads the region for them (tcp, sim).
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    /// Peers of this host map it (shm).
    pub(crate) shared: Option<OwnedFd>,
    /// The NIC accesses it (verbs).
    pub(crate) registered: Option<MemoryRegion>,
}

/// Every region of a fabric by key. Weak: the table keeps nothing alive.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    regions: RwLock<HashMap<u64, Weak<RegionMemory>>>,
}

#[derive(Debug)]
struct RemoteMemory {
    peer: Rank,
    key: u64,
    bytes: u64,
    access: Access,
}

/// The marks of peers' regions that are mapped here, by peer and key. Weak: an opening keeps its mark.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    marks: Mutex<HashMap<(Rank, u64), Weak<CutMark>>>,
}

/// How this process gets at a peer's region.
#[derive(Debug)]
pub(crate) enum Access {
    /// By asking the peer (tcp, sim).
    Asked,
    /// The peer's memory itself (shm), and the mark of this process's loans of it, which all openings of the region share.
    Mapped(Mapping, Arc<CutMark>),
    /// Where the peer's NIC finds it (verbs).
    Registered(Remote),
}

impl Region {
    /// Returns the size.
    pub fn bytes(&self) -> u64 {
        self.memory.mapping.bytes()
    }

    /// Returns the region's memory as a slab, which keeps the region alive.
    pub fn slab(&self) -> Slab {
        let mapping = &self.memory.mapping;
        // fits: what is mapped fits the address space
        let bytes = mapping.bytes() as usize;
        let (keepalive, mark) = (self.memory.clone(), self.memory.mark.clone());
        if mapping.is_of_device() {
            // what crosses is the first device's. SAFETY: the mapping keeps the device's memory, and is kept by
            // `self.memory`, which has the mark.
            return unsafe { Slab::on_device(0, mapping.start().addr(), bytes, keepalive, mark) };
        }
        // SAFETY: the mapping is readable and writable for `bytes` bytes and starts at a page, which
        // is a multiple of the alignment; `self.memory`, which owns it, is the keepalive and has the
        // mark. This crate makes no reference into mapped bytes: it copies through raw pointers only. Peers
        // that know the descriptor have proven the job's secret, and write where and when the plan, the store or
        // the schedule says, as this process does with the copies that it posts into the region.
        unsafe { Slab::from_raw(mapping.start(), bytes, keepalive, mark) }
    }

    /// True if it is memory of a device.
    pub(crate) fn is_of_device(&self) -> bool {
        self.memory.mapping.is_of_device()
    }

    /// Returns what a peer must know to access the region. Give it to nobody else.
    pub fn descriptor(&self) -> RegionDescriptor {
        RegionDescriptor { key: self.memory.key, bytes: self.bytes() }
    }

    pub(crate) fn memory(&self) -> &Arc<RegionMemory> {
        &self.memory
    }
}

impl RegionDescriptor {
    /// Length of [`RegionDescriptor::to_bytes`].
    pub const WIRE_BYTES: usize = 16;

    /// Returns key and bytes.
    pub fn to_words(&self) -> (u64, u64) {
        (self.key, self.bytes)
    }

    /// Encodes it for a message: key, then bytes, both little-endian.
    pub fn to_bytes(&self) -> [u8; RegionDescriptor::WIRE_BYTES] {
        let mut wire = [0; RegionDescriptor::WIRE_BYTES];
        wire[..8].copy_from_slice(&self.key.to_le_bytes());
        wire[8..].copy_from_slice(&self.bytes.to_le_bytes());
        wire
    }

    /// Decodes what [`RegionDescriptor::to_bytes`] encoded.
    ///
    /// # Errors
    /// If the length is another.
    pub fn from_bytes(wire: &[u8]) -> Result<RegionDescriptor, DescriptorError> {
        let wire: &[u8; RegionDescriptor::WIRE_BYTES] = wire.try_into().map_err(|_| {
            DescriptorError { expected: RegionDescriptor::WIRE_BYTES, found: wire.len() }
        })?;
        let (key, bytes) = wire.split_at(8);
        let word = |half: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| half[i]));
        Ok(RegionDescriptor { key: word(key), bytes: word(bytes) })
    }
}

impl fmt::Debug for RegionDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the key is a capability and does not belong into logs
        f.debug_struct("RegionDescriptor").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl RemoteRegion {
    pub(crate) fn new(peer: Rank, descriptor: RegionDescriptor, access: Access) -> RemoteRegion {
        let RegionDescriptor { key, bytes } = descriptor;
        RemoteRegion { memory: Arc::new(RemoteMemory { peer, key, bytes, access }) }
    }

    /// Returns its owner.
    pub fn peer(&self) -> Rank {
        self.memory.peer
    }

    /// Returns the size.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Returns the peer's memory itself, to read a tensor where the peer put it; None if it is not mapped
    /// into this process (tcp, sim, verbs). The slab keeps it mapped, whatever becomes of this handle and of
    /// the peer.
    ///
    /// Its loans are this process's own: all openings of the region by one fabric share them, and they do not exclude
    /// the peer's loans. As with a receive buffer, whoever reads must know that the peer does not write
    /// meanwhile, and whoever writes, that it does not read.
    pub fn slab(&self) -> Option<Slab> {
        let Access::Mapped(mapping, mark) = &self.memory.access else { return None };
        // fits: what is mapped fits the address space
        let bytes = mapping.bytes() as usize;
        // SAFETY: the duty is memory that is valid while the keepalive lives, is aligned, has one
        // mark, and into which nobody else makes references. `Mapping::of_peer` checked that the
        // peer's memory is as large and sealed against shrinking, so it stays readable and writable
        // until `self.memory`, the keepalive, unmaps it; it starts at a page, and the mark lies beside
        // it: the one of all openings of the region, as `Marks` keeps it. In this process only slabs of that
        // mark make references into the peer's memory. The peer has its own
        // mapping of the same pages and writes there: that it does not while a loan is out here is the
        // duty of the plan, which keeps it as for receive buffers: its reuse proof orders the peer's
        // next write behind our last read, and the arrival that we await orders the read behind the
        // write.
        let slab = unsafe {
            Slab::from_raw(mapping.start(), bytes, self.memory.clone(), (**mark).clone())
        };
        Some(slab)
    }

    pub(crate) fn key(&self) -> u64 {
        self.memory.key
    }

    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        match &self.memory.access {
            Access::Mapped(mapping, _) => Some(mapping),
            Access::Asked | Access::Registered(_) => None,
        }
    }

    /// Where the peer's NIC finds it (verbs).
    pub(crate) fn remote(&self) -> Option<Remote> {
        match self.memory.access {
            Access::Registered(remote) => Some(remote),
            Access::Asked | Access::Mapped(..) => None,
        }
    }
}

impl Marks {
    /// The mark of a region, which is that of its other openings as long as one of them lives.
    pub(crate) fn of(&self, peer: Rank, key: u64) -> Arc<CutMark> {
        let mut marks = self.marks.lock();
        if let Some(mark) = marks.get(&(peer, key)).and_then(Weak::upgrade) {
            return mark;
        }
        marks.retain(|_, mark| mark.strong_count() > 0);
        let mark = Arc::new(CutMark::default());
        marks.insert((peer, key), Arc::downgrade(&mark));
        mark
    }
}

impl Exposure {
    /// Peers of this host map it.
    pub(crate) fn shared(file: OwnedFd) -> Exposure {
        Exposure { shared: Some(file), registered: None }
    }
}

impl RegionTable {
    /// Enters fresh memory under a fresh random key.
    pub(crate) fn enter(self: &Arc<Self>, mapping: Mapping, exposure: Exposure) -> Region {
        let mut regions = self.regions.write();
        let key = loop {
            let key = crate::handshake::random_u64();
            if key != 0 && !regions.contains_key(&key) {
                break key;
            }
        };
        let memory = Arc::new(RegionMemory {
            key,
            exposure,
            mapping,
            mark: CutMark::default(),
            table: Arc::downgrade(self),
        });
        regions.insert(key, Arc::downgrade(&memory));
        Region { memory }
    }

    /// The living region of that key.
    pub(crate) fn find(&self, key: u64) -> Option<Arc<RegionMemory>> {
        self.regions.read().get(&key)?.upgrade()
    }

    /// The living region of that key, if the range lies inside: what every remote access must pass.
    pub(crate) fn check(
        &self,
        key: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<Arc<RegionMemory>, String> {
        let unknown = || "its key names no living region".to_string();
        let region = self.find(key).ok_or_else(unknown)?;
        if in_bounds(offset, bytes, region.mapping.bytes()) {
            return Ok(region);
        }
        let region_bytes = region.mapping.bytes();
        Err(format!("bytes {offset}..+{bytes} lie outside the region of {region_bytes} bytes"))
    }

    /// Checks a descriptor that a peer wants to open.
    pub(crate) fn check_descriptor(
        &self,
        descriptor: RegionDescriptor,
    ) -> Result<Arc<RegionMemory>, String> {
        self.check(descriptor.key, 0, descriptor.bytes)
    }
}

impl RegionMemory {
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.exposure.shared.as_ref()
    }

    pub(crate) fn registration(&self) -> Option<&MemoryRegion> {
        self.exposure.registered.as_ref()
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.regions.write().remove(&self.key);
        }
    }
}

/// True if `bytes` bytes from `offset` lie in a region of `region_bytes`; never overflows.
pub(crate) fn in_bounds(offset: u64, bytes: u64, region_bytes: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= region_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_never_overflow() {
        assert!(in_bounds(0, 0, 0));
        assert!(in_bounds(4, 4, 8));
        assert!(!in_bounds(4, 5, 8));
        assert!(!in_bounds(u64::MAX, 1, u64::MAX));
        assert!(!in_bounds(1, u64::MAX, 8));
        assert!(in_bounds(5 << 32, 1 << 32, 6 << 32));
        assert!(!in_bounds(5 << 32, (1 << 32) + 1, 6 << 32));
    }

    #[test]
    fn a_region_leaves_the_table_with_its_last_holder() {
        let table = Arc::new(RegionTable::default());
        let region = table.enter(Mapping::private(100).unwrap(), Exposure::default());
        let key = region.descriptor().key;
        let slab = region.slab();
        drop(region);
        assert!(table.check(key, 90, 10).is_ok(), "the slab holds it");
        assert!(table.check(key, 90, 11).is_err());
        drop(slab);
        assert!(table.find(key).is_none());
        assert!(table.regions.read().is_empty());
    }

    #[test]
    fn descriptors_travel() {
        let descriptor = RegionDescriptor { key: 0x0123_4567_89ab_cdef, bytes: 6 << 32 };
        assert_eq!(RegionDescriptor::from_bytes(&descriptor.to_bytes()), Ok(descriptor));
        assert!(RegionDescriptor::from_bytes(&[0; 15]).is_err());
        assert!(!format!("{descriptor:?}").contains("cdef"));
    }
}
