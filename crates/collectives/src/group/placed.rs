//! Operations on memory that nobody bound: each member says where its own lies in a region of the group ([`MemorySpot`]), the
//! others are told by whatever means, and the operation goes over the slots and the landing of a vector that was bound.

use std::os::fd::OwnedFd;

use tensorwire_base::Deadline;
use tensorwire_fabric::Region;
use tensorwire_memory::{Buffer, Slab};

use super::bind::Purpose;
use super::run::Elsewhere;
use super::{Group, failed};
use crate::error::GroupError;
use crate::ports::{CollectiveCall, Collectives, Handle, VectorId};

/// Where memory of a member lies, as others are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpot {
    /// Of the region, and its bytes.
    pub key: u64,
    pub region_bytes: u64,
    /// From the region's start.
    pub offset: u64,
}

/// Where a vector lies that was bound, while it lends its slots to other memory.
#[derive(Debug)]
pub(super) struct Home {
    buffer: Buffer,
    region: Region,
    /// By member, in [`Group::opened`] and from this byte on; none of this one.
    remotes: Vec<Option<(usize, u64)>>,
}

impl Group {
    /// Binds vectors that serve [`Group::start_at`], too. All members call this, in the same order with what
    /// they bind.
    ///
    /// # Errors
    /// As of [`Collectives::bind`].
    pub fn bind_lanes(
        &mut self,
        lanes: &[Buffer],
        deadline: Deadline,
    ) -> Result<Vec<VectorId>, GroupError> {
        self.introduce(lanes, Purpose::Lanes, deadline)
    }

    /// Makes the first `bytes` bytes of a file in memory the group's, for its life; see [`tensorwire_fabric::Fabric::adopt_region`].
    ///
    /// # Errors
    /// When it cannot be mapped or registered.
    pub fn adopt(&mut self, file: OwnedFd, bytes: usize) -> Result<Slab, GroupError> {
        // fits: usize is 64 bits wide
        let region = self.fabric.adopt_region(file, bytes as u64);
        let region = region.map_err(|error| failed(&error))?;
        let slab = region.slab();
        self.regions.insert(slab.address(), region);
        Ok(slab)
    }

    /// Returns where a buffer lies for other members; None if it is not in memory of [`Collectives::alloc`].
    pub fn spot(&self, buffer: &Buffer) -> Option<MemorySpot> {
        let region = self.regions.get(&buffer.slab().address())?;
        let (key, region_bytes) = region.descriptor().to_words();
        // fits: an offset into memory
        Some(MemorySpot { key, region_bytes, offset: buffer.place().offset as u64 })
    }

    /// Starts an operation in place on memory of the group that was not bound, over a lane of [`Group::bind_lanes`].
    /// `spots` says where each other member's lies; all members start it, having told each other so, and all give as many
    /// bytes. What a reduce-scatter makes goes to `out`, if there is one, and leaves the memory as it was.
    ///
    /// # Errors
    /// As of [`Collectives::start`], and when a member's region cannot be opened before the deadline, which takes a round
    /// trip for each region once.
    pub fn start_at(
        &mut self,
        lane: VectorId,
        memory: &Buffer,
        out: Option<Buffer>,
        spots: &[Option<MemorySpot>],
        call: CollectiveCall,
        deadline: Deadline,
    ) -> Result<Handle, GroupError> {
        let foreign = || GroupError::Vector {
            vector: lane.0,
            what: "memory that the group did not give; take it from Collectives::alloc".to_string(),
        };
        if self.vector(lane)?.busy {
            let what = "an operation on it is under way; wait for that first".to_string();
            return Err(GroupError::Vector { vector: lane.0, what });
        }
        let region = self.regions.get(&memory.slab().address()).cloned().ok_or_else(foreign)?;
        let me = self.me;
        let mut places = vec![None; self.size()];
        let others = places.iter_mut().enumerate().filter(|(member, _)| *member != me);
        for (member, place) in others {
            let spot = spots.get(member).copied().flatten();
            let unknown = || failed(&format!("where member {member} has its memory was not said"));
            let spot = spot.ok_or_else(unknown)?;
            // fits: usize is 64 bits wide
            let end = spot.offset.checked_add(memory.bytes() as u64);
            if end.is_none_or(|end| end > spot.region_bytes) {
                return Err(failed(&format!(
                    "member {member} says that its memory is where none is"
                )));
            }
            let opened = self.open_region(member, (spot.key, spot.region_bytes), deadline)?;
            *place = Some((opened, spot.offset));
        }
        // fits: it was looked up
        let vector = &mut self.vectors[lane.0 as usize];
        let home = vector.move_to(memory.clone(), region, &places);
        vector.home.get_or_insert(home);
        let elsewhere = out.map_or(Elsewhere::No, Elsewhere::Out);
        let begun = self.begin(lane, memory.bytes(), call, elsewhere);
        if begun.is_err() {
            // fits: as above
            self.vectors[lane.0 as usize].come_home();
        }
        let handle = begun?;
        self.progress()?;
        Ok(handle)
    }
}

impl super::Vector {
    /// Lies elsewhere from now on; returns where it lay.
    fn move_to(&mut self, buffer: Buffer, region: Region, places: &[Option<(usize, u64)>]) -> Home {
        let mut remotes = Vec::with_capacity(places.len());
        for (remote, place) in self.remotes.iter_mut().zip(places) {
            remotes.push(remote.as_ref().map(|remote| (remote.vector, remote.offset)));
            if let (Some(remote), Some((vector, offset))) = (remote, place) {
                (remote.vector, remote.offset) = (*vector, *offset);
            }
        }
        let buffer = std::mem::replace(&mut self.buffer, buffer);
        let region = std::mem::replace(&mut self.region, region);
        Home { buffer, region, remotes }
    }

    /// Lies again where it was bound.
    pub(super) fn come_home(&mut self) {
        if let Some(Home { buffer, region, remotes }) = self.home.take() {
            self.move_to(buffer, region, &remotes);
        }
    }
}
