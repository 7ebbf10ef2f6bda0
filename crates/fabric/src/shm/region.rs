//! Regions as memfds: allocating our own, mapping a peer's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tensorwire_base::Rank;

use crate::board::Board;
use crate::common::{ARRIVAL_SLOTS_MAX, Core};
use crate::error::{OpenRegionError, RegionError};
use crate::mapping::{Mapping, SharedMapping};
use crate::region::{Access, Exposure, Marks, Region, RegionDescriptor, RemoteRegion};

pub(super) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "allocate", bytes, source };
    let shared =
        SharedMapping::create("tensorwire-region", bytes).map_err(|error| system(error.into()))?;
    Ok(core.regions().enter(shared.mapping, Exposure::Shared(shared.fd)))
}

pub(super) fn adopt(core: &Core, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "adopt", bytes, source };
    let mapping = Mapping::of_file(file.as_fd(), bytes).map_err(|error| system(error.into()))?;
    Ok(core.regions().enter(mapping, Exposure::Shared(file)))
}

/// A file for peers, of which nothing is mapped here.
pub(super) fn offer(core: &Core, file: OwnedFd) -> Result<Region, RegionError> {
    let system = |source: rustix::io::Errno| RegionError::System {
        doing: "offer",
        bytes: 0,
        source: source.into(),
    };
    let nothing = Mapping::private(0).map_err(system)?;
    Ok(core.regions().enter(nothing, Exposure::Shared(file)))
}

/// Maps what the peer sent, all pages at once: off the critical path.
pub(super) fn open(
    peer: Rank,
    descriptor: RegionDescriptor,
    fd: Option<OwnedFd>,
    marks: &Marks,
) -> Result<RemoteRegion, OpenRegionError> {
    let map = |reason| OpenRegionError::Map { peer, reason };
    let fd = fd.ok_or_else(|| map("the peer sent no descriptor".into()))?;
    let mapping =
        Mapping::of_peer(fd.as_fd(), descriptor.bytes).map_err(|error| map(error.to_string()))?;
    Ok(RemoteRegion::new(peer, descriptor, Access::Mapped(mapping, marks.of(peer, descriptor.key))))
}

/// Maps a peer's arrival table and doorbell, of as many slots as it said.
pub(super) fn map_board(fd: BorrowedFd<'_>, slots: u64) -> Result<Board, String> {
    let slots = usize::try_from(slots).ok().filter(|slots| *slots <= ARRIVAL_SLOTS_MAX);
    let slots = slots.ok_or_else(|| {
        format!("it has more arrival slots than the {ARRIVAL_SLOTS_MAX} that there can be")
    })?;
    let mapping = Mapping::of_peer(fd, Board::bytes(slots)).map_err(|error| error.to_string())?;
    Board::of_peer(Arc::new(mapping)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn of_an_arrival_table_no_more_is_mapped_than_its_slots_take() {
        let bytes = Board::bytes(4) + (1 << 20);
        let shared = SharedMapping::create("test", bytes).unwrap();
        Board::create(Arc::new(shared.mapping), 4);
        let fd = shared.fd.as_fd();
        assert_eq!(map_board(fd, 4).unwrap().mapped_bytes(), Board::bytes(4));
        assert!(map_board(fd, 3).is_err(), "its own memory says 4");
        assert!(map_board(fd, 1 << 20).unwrap_err().contains("where the peer said"));
        assert!(map_board(fd, u64::MAX).unwrap_err().contains("more arrival slots"));
    }
}
