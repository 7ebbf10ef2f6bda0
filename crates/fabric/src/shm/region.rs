//! Regions as memfds: allocating our own, mapping a peer's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tensorwire_base::Rank;

use crate::board::Board;
use crate::common::{ARRIVAL_SLOTS_MAX, Core};
use crate::error::{OpenRegionError, RegionError};
use crate::mapping::{Mapping, PeerMemoryError};
use crate::region::{Access, Exposure, Marks, Region, RegionDescriptor, RemoteRegion};

pub(super) fn alloc(core: &Core, bytes: u64) -> Result<Region, RegionError> {
    let shared = Core::allocate_shared(bytes)?;
    Ok(core.regions().enter(shared.mapping, Exposure::shared(shared.fd)))
}

pub(super) fn adopt(core: &Core, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
    let system = |source| RegionError::System { doing: "adopt", bytes, source };
    let mapping = Mapping::of_file(file.as_fd(), bytes).map_err(|error| system(error.into()))?;
    Ok(core.regions().enter(mapping, Exposure::shared(file)))
}

/// A file for peers, of which nothing is mapped here.
pub(super) fn offer(core: &Core, file: OwnedFd) -> Result<Region, RegionError> {
    let system = |source: rustix::io::Errno| RegionError::System {
        doing: "offer",
        bytes: 0,
        source: source.into(),
    };
    let nothing = Mapping::private(0).map_err(system)?;
    Ok(core.regions().enter(nothing, Exposure::shared(file)))
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
///
/// # Errors
/// What is wrong with it, or that there is no room for it here.
pub(super) fn map_board(fd: BorrowedFd<'_>, slots: u64) -> Result<Board, MapBoardError> {
    let slots = usize::try_from(slots).ok().filter(|slots| *slots <= ARRIVAL_SLOTS_MAX);
    let slots = slots.ok_or_else(|| {
        let most = ARRIVAL_SLOTS_MAX;
        MapBoardError::Peer(format!("it has more arrival slots than the {most} that there can be"))
    })?;
    let mapping = Mapping::of_peer(fd, Board::bytes(slots)).map_err(|error| match error {
        // the system refuses what is no memory in other words
        PeerMemoryError::System(Errno::NOMEM) => MapBoardError::Here(Errno::NOMEM.into()),
        error => MapBoardError::Peer(error.to_string()),
    })?;
    Board::of_peer(Arc::new(mapping)).map_err(|error| MapBoardError::Peer(error.to_string()))
}

/// Why a peer's arrival table cannot be mapped.
#[derive(Debug)]
pub(super) enum MapBoardError {
    /// It shared what is none.
    Peer(String),
    /// This process has no room for it.
    Here(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::SharedMapping;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn of_an_arrival_table_no_more_is_mapped_than_its_slots_take() {
        let bytes = Board::bytes(4) + (1 << 20);
        let shared = SharedMapping::create("test", bytes).unwrap();
        Board::create(Arc::new(shared.mapping), 4);
        let fd = shared.fd.as_fd();
        assert_eq!(map_board(fd, 4).unwrap().mapped_bytes(), Board::bytes(4));
        assert!(map_board(fd, 3).is_err(), "its own memory says 4");
        let why = |slots| match map_board(fd, slots) {
            Err(MapBoardError::Peer(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(1 << 20).contains("where the peer said"));
        assert!(why(u64::MAX).contains("more arrival slots"));
    }
}
