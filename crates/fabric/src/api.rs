//! The fabric as its users see it: the first paper's Table 1, with an arrival table instead of a tail
//! byte. Nothing here depends on how bytes travel; that is behind [`Device`].
//!
//! | paper (Table 1) | here |
//! |---|---|
//! | `CreateRdmaDevice` | [`Fabric::open`] |
//! | `AllocateMemRegion` | [`Fabric::alloc_region`] |
//! | `GetChannel` | [`Fabric::channel`] |
//! | `Memcpy` | [`Channel::memcpy`] |
//! | vanilla RPC | [`Channel::send_message`], [`Fabric::receive_message`] |
//!
//! **Guarantees.** Memcpys of one queue pair take effect in the order they were posted: when a signal
//! has arrived, the payload of its memcpy and of all earlier writes of that queue pair is visible to
//! whoever read the slot with [`Fabric::arrived`]. Only a write may overtake a read that was posted
//! before it, as on RDMA hardware without a fence: what must come behind a read waits for the read's
//! completion, or at its owner for the read's signal. Between queue pairs there is no order. A
//! completion of a write says that its source may be written again, not that it has arrived; a
//! completion of a read says that the bytes are here. A failed or lost memcpy completes with an
//! error, so every post that was accepted completes exactly once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank};
use tensorwire_memory::{DmaBuf, Slab};

use crate::common::{Core, FabricStats, Gone};
use crate::config::{Backend, Endpoint, FabricConfig, PeerAddress};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    ArrivalError, ChannelError, CloseError, CompletionError, ConnectError, OpenFabricError,
    OpenRegionError, PeerFault, PostError, ReceiveError, RegionError, SendMessageError, Side,
};
use crate::region::{Region, RegionDescriptor, RemoteRegion, in_bounds};
use crate::{limits, neighbours, shm, sim, tcp, verbs};

/// Most bytes of one message. Messages hand out addresses; bulk data goes by memcpy.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// This process's end of the wire. Clones share it. Dropping the last one hangs up, which peers see
/// as a fault unless [`Fabric::close`] said goodbye before.
#[derive(Clone, Debug)]
pub struct Fabric {
    // before `core`: the device's threads end before what they work on
    device: Arc<dyn Device>,
    core: Arc<Core>,
}

/// One queue pair to one peer. Clones share it.
#[derive(Clone, Debug)]
pub struct Channel {
    fabric: Fabric,
    peer: Rank,
    queue_pair: usize,
}

/// A place in a region of this process.
#[derive(Clone, Copy, Debug)]
pub struct LocalSlice<'a> {
    pub region: &'a Region,
    /// In bytes, from the region's start.
    pub offset: u64,
}

/// A place in a region of the peer.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSlice<'a> {
    pub region: &'a RemoteRegion,
    /// In bytes, from the region's start.
    pub offset: u64,
}

/// The direction of a memcpy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Local to remote.
    Write,
    /// Remote to local.
    Read,
}

/// An index into a process's arrival table. Plain data, which its owner sends to the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArrivalSlot(pub u32);

impl ArrivalSlot {
    /// Set in slots whose epoch comes with their payload's own write (`flag-tail`).
    pub(crate) const TAIL: u32 = 1 << 31;
    /// Bytes of the epoch behind such a payload.
    pub(crate) const TAIL_BYTES: u64 = 8;

    /// Its place in the arrival table.
    pub(crate) fn index(self) -> u32 {
        self.0 & !ArrivalSlot::TAIL
    }

    pub(crate) fn is_tail(self) -> bool {
        self.0 & ArrivalSlot::TAIL != 0
    }
}

/// Raises the *peer's* `slot` to at least `epoch` once the bytes are there. After a write this says that the
/// payload may be read; after a read, that its source has been read and may be written again. A slot only
/// ever rises, so a late signal of an earlier epoch changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// A slot that the peer allocated and told us.
    pub slot: ArrivalSlot,
    /// Counts the signals of a slot, from 1.
    pub epoch: u64,
}

/// One one-sided copy between a region of this process and a region of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Memcpy<'a> {
    pub local: LocalSlice<'a>,
    pub remote: RemoteSlice<'a>,
    /// Length of both slices; 0 sends the signal alone.
    pub bytes: u64,
    pub direction: Direction,
    /// Tells the peer that the copy is done.
    pub signal: Option<Signal>,
    /// Returned in the [`Completion`]. The fabric does not interpret it.
    pub token: u64,
}

/// The outcome of [`Channel::memcpy_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The copy is done, and has no completion.
    Done,
    /// The copy was posted; a completion follows.
    Queued,
}

/// The end of one posted memcpy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token of its [`Memcpy`].
    pub token: u64,
    pub peer: Rank,
    pub result: Result<(), CompletionError>,
}

/// A message from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: Rank,
    /// At most [`MESSAGE_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
}

impl Fabric {
    /// Opens this process's end. Peers can dial it from now on, and are answered from [`Fabric::connect`] on.
    ///
    /// # Errors
    /// If the configuration is out of range, nothing can listen on its endpoint, or the host lacks what the
    /// backend takes.
    pub fn open(backend: Backend, config: FabricConfig) -> Result<Fabric, OpenFabricError> {
        let (core, device): (Arc<Core>, Arc<dyn Device>) = match (backend, config.host) {
            (Backend::Shm, _) => shm::open(config)?,
            (far, Some(host)) => neighbours::open(host, &far, config)?,
            (Backend::Sim(network), None) => sim::open(network, config)?,
            (Backend::Tcp, None) => tcp::open(config)?,
            (Backend::Verbs(options), None) => verbs::open(&options, config)?,
        };
        Ok(Fabric { device, core })
    }

    /// Returns the address at which peers find this fabric.
    pub fn endpoint(&self) -> Endpoint {
        self.device.endpoint()
    }

    /// Connects to all `peers`, each of which must call this too. Returns once every one of them is ready.
    ///
    /// # Errors
    /// If a peer does not answer before the deadline, refuses this process, or proves to be somebody else.
    pub fn connect(&self, peers: &[PeerAddress], deadline: Deadline) -> Result<(), ConnectError> {
        self.connect_while(peers, deadline, &|| true)
    }

    /// Connects as [`Fabric::connect`] does, for as long as `go_on` says so: it is asked ten times a second while a peer has
    /// not come.
    ///
    /// # Errors
    /// As `connect`, and [`ConnectError::GivenUp`] where `go_on` said no.
    pub fn connect_while(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let mut seen = std::collections::HashSet::from([self.core.me().rank]);
        for peer in peers {
            if !seen.insert(peer.rank) {
                return Err(ConnectError::BadPeerTable { rank: peer.rank });
            }
            if self.core.peer(peer.rank).is_some() {
                return Err(ConnectError::AlreadyConnected { rank: peer.rank });
            }
        }
        self.device.connect(peers, deadline, go_on)
    }

    /// Allocates zeroed memory that peers may read and write once they know its descriptor.
    ///
    /// # Errors
    /// If the host has less memory than that, or a control group allows less, or the NIC cannot register it.
    pub fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        limits::check_room(bytes)?;
        self.device.alloc_region(bytes)
    }

    /// Makes the first `bytes` bytes of a file in memory a region, through a mapping of its own: whoever has mapped the
    /// file, too, shares the bytes with peers. Nobody shortens the file while the region lives. Over shared memory
    /// it has no name any more, or is sealed against that.
    ///
    /// # Errors
    /// If the file is shorter or no memory, or the NIC cannot register it.
    pub fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        self.device.adopt_region(file, bytes)
    }

    /// Makes memory of a GPU a region, which the NIC reads and writes where it lies (GPUDirect RDMA: Xue et al. §3.5), and says
    /// how it reaches it. `shown`: the memory as a dma-buf, or why there is none. Its arrivals are completions; whoever told the GPU to write what is sent from it waits until that is done.
    ///
    /// # Errors
    /// If the NIC does not reach the GPU's memory, arrivals are flags in memory, or there is no NIC.
    ///
    /// # Panics
    /// If the slab is memory of the host.
    pub fn adopt_device(
        &self,
        memory: &Slab,
        shown: Result<DmaBuf, String>,
    ) -> Result<(Region, String), RegionError> {
        assert!(memory.space().is_device(), "memory of the host has regions of its own");
        self.device.adopt_device(memory, shown)
    }

    /// Lets peers of this host have a file, as long as the region lives: one of no bytes, whose descriptor they give to
    /// [`Channel::take_file`]. What is in the file is between the two.
    ///
    /// # Errors
    /// If processes do not share memory.
    pub fn offer_file(&self, file: OwnedFd) -> Result<Region, RegionError> {
        self.device.offer_file(file)
    }

    /// Allocates a slot of this process's arrival table, at epoch 0. Slots are never freed.
    ///
    /// # Errors
    /// If all slots are taken.
    pub fn alloc_arrival(&self) -> Result<ArrivalSlot, ArrivalError> {
        let slots = self.core.board().slots();
        self.core.board().alloc_slot().ok_or(ArrivalError::NoSlot { slots })
    }

    /// Allocates a slot for payloads that end at byte `end` of `region`, behind which 8 bytes are free. In
    /// mode `flag-tail` the epoch is written into these bytes with the payload; in every other mode the slot
    /// is an ordinary one, and the bytes are not touched. One payload of one peer at a time may use it.
    ///
    /// # Errors
    /// If all slots are taken, or `end` is no multiple of 8 with 8 bytes behind it.
    pub fn alloc_tail_arrival(
        &self,
        region: &Region,
        end: u64,
    ) -> Result<ArrivalSlot, ArrivalError> {
        if region.is_of_device() {
            return Err(ArrivalError::OnDevice);
        }
        if !end.is_multiple_of(8) || !in_bounds(end, ArrivalSlot::TAIL_BYTES, region.bytes()) {
            return Err(ArrivalError::NoTailRoom { end, region_bytes: region.bytes() });
        }
        let slot = self.alloc_arrival()?;
        Ok(self.device.watch_tail(slot, region.memory(), end))
    }

    /// Returns the highest epoch that has arrived at a slot of this process. What was written before the
    /// signal is visible after this returns it (acquire).
    ///
    /// # Panics
    /// If the slot was not allocated here.
    pub fn arrived(&self, slot: ArrivalSlot) -> u64 {
        self.device.look(slot);
        self.core.board().epoch(slot.index())
    }

    /// Returns true if regions of this peer are mapped here when they are opened, and it can have files ([`Fabric::offer_file`]): it
    /// is on this host, and reached through shared memory.
    pub fn shares_memory(&self, peer: Rank) -> bool {
        self.device.shares_memory(peer)
    }

    /// Returns the way to a connected peer over one of its queue pairs (the paper's `GetChannel`).
    ///
    /// # Errors
    /// If the peer is not connected, or has fewer queue pairs.
    pub fn channel(&self, peer: Rank, queue_pair: usize) -> Result<Channel, ChannelError> {
        if self.core.peer(peer).is_none() {
            return Err(ChannelError::NotConnected { rank: peer });
        }
        let count = self.core.config().queue_pairs_per_peer;
        if queue_pair >= count {
            return Err(ChannelError::NoSuchQueuePair { queue_pair, count });
        }
        Ok(Channel { fabric: self.clone(), peer, queue_pair })
    }

    /// Appends every completion that is there to `completions`, and returns their number.
    pub fn poll(&self, completions: &mut Vec<Completion>) -> usize {
        self.device.progress();
        self.core.completions().drain(completions)
    }

    /// Returns the present moment, to wait from: take it, look for what you await, and only then call
    /// [`Fabric::wait`].
    pub fn ticket(&self) -> Ticket {
        self.core.board().ticket()
    }

    /// Waits until something has happened since `ticket`: an arrival, a completion, a message or a
    /// fault. No event between the two calls is lost. The event may be another than the awaited one.
    pub fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        self.device.wait(ticket, deadline)
    }

    /// Returns the next message of any peer, and waits for it until the deadline.
    ///
    /// # Errors
    /// If no message came in time; at once if there is none and a peer has been lost.
    pub fn receive_message(&self, deadline: Deadline) -> Result<Message, ReceiveError> {
        loop {
            let ticket = self.ticket();
            if let Some(message) = self.try_receive_message() {
                return Ok(message);
            }
            if let Some(fault) = self.fault() {
                return Err(ReceiveError::Fault(fault));
            }
            if self.wait(ticket, deadline) == Wake::TimedOut {
                return self.try_receive_message().ok_or(ReceiveError::TimedOut);
            }
        }
    }

    /// Returns the next message if there is one now.
    pub fn try_receive_message(&self) -> Option<Message> {
        self.device.progress();
        self.core.inbox().pop()
    }

    /// Returns the first peer that was lost, and the cause. It stays the same; other peers may still be used.
    pub fn fault(&self) -> Option<PeerFault> {
        self.core.fault().cloned()
    }

    /// Returns how this peer left, whatever became of others; None while it is connected, and for a peer
    /// that never was. Posts to a peer that is gone are refused, and what was posted before completes.
    pub fn gone(&self, peer: Rank) -> Option<Gone> {
        self.core.peer(peer)?.gone().cloned()
    }

    /// Says goodbye to every peer, and waits until each has confirmed that all our writes have landed.
    /// This process may exit then, and no peer sees a fault. Posts fail from now on.
    ///
    /// # Errors
    /// If a peer did not confirm before the deadline. The fabric is closed all the same.
    pub fn close(&self, deadline: Deadline) -> Result<(), CloseError> {
        self.device.close(deadline)
    }

    /// Returns what this fabric chose where there was a choice (verbs: NIC, port, GID, MTU, arrival mode),
    /// with the reason, one line each.
    pub fn choices(&self) -> Vec<String> {
        self.device.choices()
    }

    /// Returns the counts of what this fabric did so far.
    pub fn stats(&self) -> FabricStats {
        self.core.counters().snapshot()
    }
}

impl Channel {
    /// Returns the peer at the other end.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Returns the index of its queue pair.
    pub fn queue_pair(&self) -> usize {
        self.queue_pair
    }

    /// Makes a region of the peer accessible. Takes one round trip of the control connection, once per region.
    ///
    /// # Errors
    /// If the peer refuses the descriptor, does not answer before the deadline, or is gone.
    pub fn open_region(
        &self,
        descriptor: &RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        self.fabric.device.open_region(self.peer, *descriptor, deadline)
    }

    /// Returns a file that the peer offers. Takes one round trip of the control connection.
    ///
    /// # Errors
    /// If the peer refuses the descriptor, does not answer before the deadline, or is gone, or if processes do not share
    /// memory.
    pub fn take_file(
        &self,
        descriptor: &RegionDescriptor,
        deadline: Deadline,
    ) -> Result<OwnedFd, OpenRegionError> {
        self.fabric.device.take_file(self.peer, *descriptor, deadline)
    }

    /// Posts one copy, and never waits for the peer. The completion comes through [`Fabric::poll`]; the
    /// local region stays alive until then.
    ///
    /// Loans do not see a copy: that nobody uses what it writes, and nobody writes what it reads, until it is complete and its
    /// signal has come, is the agreement that whoever made the regions' memory promised (`Slab::from_raw`). Plans keep it by
    /// the order of their steps.
    ///
    /// # Errors
    /// If it was not posted: the queue is full, the ranges are wrong, or the peer is gone. There is no
    /// completion then.
    pub fn memcpy(&self, memcpy: Memcpy<'_>) -> Result<(), PostError> {
        let work = self.work(memcpy)?;
        self.fabric.device.post(self.peer, self.queue_pair, work)
    }

    /// Like [`Channel::memcpy`], of one who waits for the fabric next: a copy that this transport can do at once (a small one to
    /// shared memory) is done when this returns, and has no completion; of one to a socket the first piece has gone, and the rest
    /// goes while the caller waits, in turns with what comes.
    ///
    /// # Errors
    /// As [`Channel::memcpy`].
    pub fn memcpy_now(&self, memcpy: Memcpy<'_>) -> Result<Posted, PostError> {
        let work = self.work(memcpy)?;
        self.fabric.device.post_now(self.peer, self.queue_pair, work)
    }

    /// Raises a slot of a peer that shares memory, also of one that is gone: it is there when this returns, in no order with
    /// what was posted. False where the peer does not share memory, or has no such slot; nothing was done then.
    pub fn raise(&self, signal: Signal) -> bool {
        self.fabric.device.raise(self.peer, signal)
    }

    fn work(&self, memcpy: Memcpy<'_>) -> Result<Work, PostError> {
        let Memcpy { local, remote, bytes, direction, signal, token } = memcpy;
        check(Side::Local, local.offset, bytes, local.region.bytes())?;
        check(Side::Remote, remote.offset, bytes, remote.region.bytes())?;
        if remote.region.peer() != self.peer {
            let (channel, region) = (self.peer, remote.region.peer());
            return Err(PostError::WrongPeer { channel, region });
        }
        Ok(Work {
            local: local.region.memory().clone(),
            local_offset: local.offset,
            remote: remote.region.clone(),
            remote_offset: remote.offset,
            bytes,
            direction,
            signal,
            token,
        })
    }

    /// Sends at most [`MESSAGE_BYTES_MAX`] bytes. Messages of one peer arrive in order. Waits until
    /// `deadline` for room in the outgoing queue, and does not wait for the peer to receive.
    ///
    /// # Errors
    /// If the message is too long, the queue stays full until the deadline, or the peer is gone.
    pub fn send_message(&self, body: &[u8], deadline: Deadline) -> Result<(), SendMessageError> {
        if body.len() > MESSAGE_BYTES_MAX {
            let (bytes, bytes_max) = (body.len(), MESSAGE_BYTES_MAX);
            return Err(SendMessageError::TooLarge { bytes, bytes_max });
        }
        self.fabric.device.send_message(self.peer, body, deadline)
    }
}

fn check(side: Side, offset: u64, bytes: u64, region_bytes: u64) -> Result<(), PostError> {
    if in_bounds(offset, bytes, region_bytes) {
        Ok(())
    } else {
        Err(PostError::OutOfBounds { side, offset, bytes, region_bytes })
    }
}
