//! The seam below the store: how messages and values travel. A message is metadata and blocks; a large value
//! is no block but is written, once, to the place that its receiver told. Nothing here waits but
//! [`Wire::wait`], and for a round trip [`Wire::open_region`] and [`Wire::connect`].

mod loopback;
mod rings;

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::RegionDescriptor;
use tensorwire_memory::{Buffer, DmaBuf, Slab};

use crate::transfer::TransferThresholds;

pub use loopback::Loopback;
pub use rings::{RingOptions, Rings, SHOWN_FROM};
pub(crate) use rings::{fuzz_frames, fuzz_introductions};

/// Bytes in registered memory of a peer; plain data that its owner tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemotePlace {
    /// A region's descriptor: key and size.
    pub region: (u64, u64),
    pub offset: u64,
    pub bytes: u64,
    /// It is memory of a device ([`crate::StoreDevice`]), which others map and nobody writes into.
    pub on_device: bool,
}

/// What a peer's memory is known by: a key, and whether it is that of a device's memory.
pub(crate) type PlaceKey = (u64, bool);

impl RemotePlace {
    /// What the memory that it lies in is known by.
    pub(crate) fn key(&self) -> PlaceKey {
        (self.region.0, self.on_device)
    }

    /// Makes the memory that it lies in known to a wire, once per region.
    pub(crate) fn open(
        &self,
        wire: &mut dyn Wire,
        peer: Rank,
        deadline: Deadline,
    ) -> Result<(), WireError> {
        let (key, bytes) = self.region;
        let region = RegionDescriptor { key, bytes };
        match self.on_device {
            true => wire.open_on_device(peer, region, deadline),
            false => wire.open_region(peer, region, deadline),
        }
    }
}

/// A value that is written straight to where it belongs, before the message that tells of it.
#[derive(Clone, Debug)]
pub struct Direct<'a> {
    /// Registered memory of this process ([`Wire::alloc`], [`Wire::adopt_device`]); lent until [`Wire::finished`] names the token.
    pub from: &'a Buffer,
    /// Written to the first bytes of this place.
    pub to: RemotePlace,
    /// Where in `from` it starts, and how many bytes.
    pub offset: usize,
    pub bytes: usize,
    pub token: u64,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub meta: &'a [u8],
    /// Copied into the message.
    pub blocks: &'a [&'a [u8]],
    pub direct: &'a [Direct<'a>],
}

/// A message that has come, where it lies; everything written [`Direct`]ly before it is in place.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    pub from: Rank,
    pub meta: &'a [u8],
    pub blocks: &'a [&'a [u8]],
}

/// Whether a message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// It is under way, or goes with the next [`Wire::flush`].
    Started,
    /// There is no room now: receive, since peers may wait for room as well, wait, and ask again. Of this
    /// message nothing was sent.
    Full,
}

/// What a wire did so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireStats {
    /// Bytes that peers may read or write, or that this process sends from.
    pub registered_bytes: u64,
    pub messages: u64,
    /// One-sided writes, or frames of another transport: several messages may share one.
    pub transfers: u64,
    /// Bytes of values copied into and out of messages by this process.
    pub bytes_copied: u64,
    /// Bytes written straight to their place.
    pub bytes_direct: u64,
}

/// Why a wire failed.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("rank {rank} was lost: {reason}")]
    Lost { rank: Rank, reason: String },
    #[error("rank {rank} sent what is no message: {what}")]
    Garbled { rank: Rank, what: String },
    #[error(
        "a message of {bytes} bytes is larger than {bytes_max}, the most that fits rank {rank}'s ring"
    )]
    TooLarge { rank: Rank, bytes: usize, bytes_max: usize },
    #[error(
        "rank {rank} did not say before the deadline where its ring is; is it alive, and does it open its wire to this process?"
    )]
    Late { rank: Rank },
    #[error("no channel to rank {rank}")]
    NoPeer { rank: Rank },
    #[error("{0}")]
    Failed(String),
}

/// How a store's messages travel: over one-sided writes, or over another protocol as a baseline.
pub trait Wire: Send {
    /// Takes a message for `to`. Messages to one peer arrive in order, each behind its direct values.
    fn send(&mut self, to: Rank, message: &Outgoing<'_>) -> Result<SendStatus, WireError>;

    /// What was taken goes out: for each peer, all of it in one transfer where it can.
    fn flush(&mut self) -> Result<(), WireError>;

    /// Hands every message that has come to `take`; returns how many. What is lent ends with the call.
    fn receive(&mut self, take: &mut dyn FnMut(Incoming<'_>)) -> Result<usize, WireError>;

    /// Appends the tokens of direct values that may be written again here.
    fn finished(&mut self, tokens: &mut Vec<u64>) -> Result<(), WireError>;

    /// Peers that were lost since the last call, each once: they left without a goodbye, failed, or sent
    /// what is no message. Nothing can be sent to them any more, and all that came from them has been handed
    /// out by [`Wire::receive`], which is what notices. Who said goodbye is not lost, but sending to it
    /// fails as if it were.
    fn lost(&mut self, lost: &mut Vec<(Rank, String)>);

    /// Values from this size on are written directly; none: all values are blocks.
    fn direct_from(&self) -> Option<usize>;

    /// Most bytes of the metadata and blocks of one message to `to`, all told, with up to 64 blocks; each
    /// block more costs a few bytes. None fit if there is no such peer.
    fn message_bytes_max(&self, to: Rank) -> usize;

    /// Memory that values are sent from and written into, until the wire is dropped.
    fn alloc(&mut self, bytes: usize) -> Result<(Slab, RegionDescriptor), WireError>;

    /// Opens the way to one more peer, who must do so too: a server that took over from another. Until it has done its part this
    /// is [`WireError::Late`], at once, and to be called again. The deadline is for a round trip behind that.
    fn connect(&mut self, peer: Rank, deadline: Deadline) -> Result<(), WireError>;

    /// Forgets a peer that is [`WireError::Late`], because another comes in its place: what it does later is nothing to anybody.
    fn give_up(&mut self, peer: Rank) {
        let _ = peer;
    }

    /// Makes a region of a peer known, a round trip; once per region, before the first direct write.
    fn open_region(
        &mut self,
        peer: Rank,
        region: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<(), WireError>;

    /// Lets peers map memory of this process's device by its file, for as long as the wire lives.
    fn offer_device(&mut self, file: OwnedFd, bytes: u64) -> Result<RegionDescriptor, WireError> {
        let _ = (file, bytes);
        Err(no_devices())
    }

    /// Has the NIC read and write memory of this process's device for peers, who know it as they know memory of [`Wire::alloc`],
    /// for as long as the wire lives; says how it does. `shown`: the memory as a dma-buf, or why there is none.
    fn adopt_device(
        &mut self,
        memory: &Slab,
        shown: Result<DmaBuf, String>,
    ) -> Result<(RegionDescriptor, String), WireError> {
        let _ = (memory, shown);
        Err(no_devices())
    }

    /// As [`Wire::open_region`], of memory of a peer's device, which this process's device maps.
    fn open_on_device(
        &mut self,
        peer: Rank,
        region: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<(), WireError> {
        let _ = (peer, region, deadline);
        Err(no_devices())
    }

    /// The bytes of a place of a peer's memory, where this process can read them where they lie (both share
    /// it, and its region was opened). The peer must not write there meanwhile, which its owner promises.
    fn view(&self, _peer: Rank, _place: &RemotePlace) -> Option<&[u8]> {
        None
    }

    /// The same as a buffer, which can be read and never written; of memory of the peer's device, too.
    fn mapped(&self, _peer: Rank, _place: &RemotePlace) -> Option<Buffer> {
        None
    }

    /// Values from this size on are read where they lie by this peer, and by this process where it has them
    /// ([`Wire::view`]); none: they share no memory.
    fn mapped_from(&self, _peer: Rank) -> Option<usize> {
        None
    }

    /// What decides how values travel to and from this peer.
    fn sizes(&self, peer: Rank) -> TransferThresholds {
        TransferThresholds { direct_from: self.direct_from(), mapped_from: self.mapped_from(peer) }
    }

    /// Takes note of this moment; [`Wire::wait`] returns if anything happened after it.
    fn observe(&mut self);

    /// Waits until something may have changed since [`Wire::observe`], or until the deadline.
    fn wait(&mut self, deadline: Deadline);

    fn stats(&self) -> WireStats;

    /// Says goodbye once all that was sent has landed.
    fn close(&mut self, deadline: Deadline) -> Result<(), WireError>;
}

fn no_devices() -> WireError {
    WireError::Failed("this end of the store has no device that maps memory of others".into())
}
