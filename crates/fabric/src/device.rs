//! The seam between the API and a backend: a dozen calls, of which `post`, `progress` and
//! `alloc_region` never wait for a peer and the others wait until a deadline at most. Requests and
//! completions are plain data. A backend is chosen once, in `Fabric::open`.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank};
use tensorwire_memory::{DmaBuf, Slab};

use crate::api::{ArrivalSlot, Direction, Posted, Signal};
use crate::config::{Endpoint, PeerAddress};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, OpenRegionError, PostError, RegionError, SendMessageError,
};
use crate::region::{Region, RegionDescriptor, RegionMemory, RemoteRegion};

/// One memcpy, bounds checked against both regions. It holds both, so neither dies in flight.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) local: Arc<RegionMemory>,
    pub(crate) local_offset: u64,
    pub(crate) remote: RemoteRegion,
    pub(crate) remote_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) direction: Direction,
    pub(crate) signal: Option<Signal>,
    pub(crate) token: u64,
}

impl Work {
    /// Refuses a signal beyond the peer's arrival table.
    pub(crate) fn check_slot(&self, peer: Rank, slots: u64) -> Result<(), PostError> {
        match self.signal {
            Some(Signal { slot, .. }) if u64::from(slot.index()) >= slots => {
                Err(PostError::NoSuchSlot { peer, slot: slot.0, slots })
            }
            _ => Ok(()),
        }
    }
}

/// One end of the wire.
pub(crate) trait Device: Debug + Send + Sync {
    fn endpoint(&self) -> Endpoint;

    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError>;

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError>;

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError>;

    /// Lets the NIC reach memory of a device.
    fn adopt_device(
        &self,
        _memory: &Slab,
        _shown: Result<DmaBuf, String>,
    ) -> Result<(Region, String), RegionError> {
        Err(RegionError::NoNic)
    }

    /// A region of no bytes, by whose key a peer gets a file.
    fn offer_file(&self, _file: OwnedFd) -> Result<Region, RegionError> {
        Err(RegionError::NoFiles)
    }

    fn take_file(
        &self,
        peer: Rank,
        _descriptor: RegionDescriptor,
        _deadline: Deadline,
    ) -> Result<OwnedFd, OpenRegionError> {
        let reason = "files go from process to process over shared memory alone".to_string();
        Err(OpenRegionError::Map { peer, reason })
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError>;

    /// Accepts the work or refuses it whole. What is accepted completes exactly once.
    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError>;

    /// As [`Device::post`], of one who waits next. What can be done at once is over when this returns.
    fn post_now(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<Posted, PostError> {
        self.post(peer, queue_pair, work).map(|()| Posted::Queued)
    }

    /// Raises a slot of a peer whose arrival table is mapped here, whatever became of the connection; false where none is.
    fn raise(&self, _peer: Rank, _signal: Signal) -> bool {
        false
    }

    /// Moves what only moves when somebody looks. Bounded.
    fn progress(&self) {}

    /// Says where the epochs of a slot come with their payload, if they do; returns the slot as peers
    /// must name it.
    fn watch_tail(&self, slot: ArrivalSlot, _: &Arc<RegionMemory>, _end: u64) -> ArrivalSlot {
        slot
    }

    /// Brings the board up to what memory says of a slot, where epochs come as plain writes.
    fn look(&self, _: ArrivalSlot) {}

    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake;

    fn send_message(
        &self,
        peer: Rank,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError>;

    /// True if the peer's regions are mapped here.
    fn shares_memory(&self, _: Rank) -> bool {
        false
    }

    /// What was chosen where there was a choice, and why, a line each.
    fn choices(&self) -> Vec<String> {
        Vec::new()
    }

    fn close(&self, deadline: Deadline) -> Result<(), CloseError>;
}
