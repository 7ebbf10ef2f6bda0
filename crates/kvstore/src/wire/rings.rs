//! Messages in circular buffers of registered memory, written by one-sided writes (Li et al. §3.3, §3.4).
//! Each direction between two peers is a ring with an index: messages are put together in a mirror of it,
//! and all that wait go out as one write. The receiver reads them where they lie. Large values bypass
//! the rings. Knows nothing of what messages say.
//!
//! | file | what |
//! |---|---|
//! | `ring.rs` | where a message goes, when it fits, when room comes back: arithmetic |
//! | `format.rs` | a message as bytes (Table 1) |
//! | `shares.rs` | the registered memory, and what each peer gets of it |
//! | `introduction.rs` | what two ends tell each other first |
//! | `peer.rs` | one peer: a ring each way, and large values on their way |
//! | `flights.rs` | what was posted and has not completed |

mod flights;
mod format;
mod introduction;
mod peer;
mod ring;
mod shares;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalError, Channel, Completion, Fabric, OpenRegionError, Region, RegionDescriptor,
    RemoteRegion, SendMessageError, Ticket,
};
use tensorwire_memory::{Buffer, Copies, CopyPurpose, DmaBuf, PeerMapped, Place, Slab};

use super::{Incoming, Outgoing, RemotePlace, SendStatus, Wire, WireError, WireStats, no_devices};
use crate::ports::StoreDevice;
use flights::{Flight, Flights};
use introduction::Introduction;
use peer::{Parcel, Peer, Remote};
use shares::Shares;

pub(crate) use format::fuzz_frames;
pub(crate) use introduction::fuzz_introductions;

/// With something left to post that the fabric had no room for, a wait is no longer than this: the room may
/// come without an event of ours.
const POST_AGAIN: Duration = Duration::from_millis(1);

/// A page: what is smaller is sooner copied than looked up at another process that shares memory.
pub const SHOWN_FROM: usize = 4096;

/// What [`Rings`] are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Memory that peers write messages into, shared out among them; each gets at least 64 KiB.
    pub ring_bytes: usize,
    /// Values from this size on bypass the rings. At most a quarter of what a peer gets.
    pub direct_from: usize,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions { ring_bytes: 4 << 20, direct_from: 16 << 10 }
    }
}

/// A [`Wire`] over a fabric, whose completions and messages it takes for itself.
#[derive(Debug)]
pub struct Rings {
    fabric: Fabric,
    options: RingOptions,
    /// Of the peers of the beginning, and of each that came later.
    shares: Vec<Shares>,
    /// What a peer that comes later gets.
    share_bytes: usize,
    peers: BTreeMap<Rank, Peer>,
    /// Peers that were told where they may write, and have not said where they listen.
    entering: BTreeMap<Rank, Entering>,
    /// Introductions of peers that were not asked for yet.
    heard: HashMap<Rank, Vec<u8>>,
    /// Memory for values, of the host and of its device, by the address of its first byte.
    regions: HashMap<usize, Region>,
    opened: HashMap<(Rank, u64), Opened>,
    /// Memory of peers' devices, which this one maps.
    on_devices: HashMap<(Rank, u64), PeerMapped>,
    device: Option<Arc<dyn StoreDevice>>,
    /// By which peers map memory of this process's device.
    offered: Vec<Region>,
    flights: Flights,
    copies: Copies,
    messages: u64,
    bytes_direct: u64,
    ticket: Ticket,
    /// Kept for its memory.
    completions: Vec<Completion>,
}

/// What a peer was told.
#[derive(Debug)]
struct Entering {
    channel: Channel,
    mine: Introduction,
    /// In [`Rings::shares`].
    memory: usize,
}

/// A region of a peer.
#[derive(Debug)]
struct Opened {
    region: RemoteRegion,
    /// Its memory, where it is mapped here.
    mapped: Option<PeerMapped>,
}

impl Rings {
    /// Opens rings with all `peers`, who must do so too; the fabric is connected to them.
    ///
    /// # Errors
    /// When options do not fit, memory is short, or a peer is lost, of another mind or late.
    pub fn open(
        fabric: Fabric,
        peers: &[Rank],
        options: RingOptions,
        deadline: Deadline,
    ) -> Result<Rings, WireError> {
        let share_bytes = shares::share_bytes(options.ring_bytes, peers.len());
        let ticket = fabric.ticket();
        let mut rings = Rings {
            fabric,
            options,
            shares: Vec::new(),
            share_bytes,
            peers: BTreeMap::new(),
            entering: BTreeMap::new(),
            heard: HashMap::new(),
            regions: HashMap::new(),
            opened: HashMap::new(),
            on_devices: HashMap::new(),
            device: None,
            offered: Vec::new(),
            flights: Flights::default(),
            copies: Copies::default(),
            messages: 0,
            bytes_direct: 0,
            ticket,
            completions: Vec::new(),
        };
        rings.enter(peers, deadline)?;
        Ok(rings)
    }

    /// With a device that maps memory of peers' devices.
    #[must_use]
    pub fn with_device(self, device: Arc<dyn StoreDevice>) -> Rings {
        Rings { device: Some(device), ..self }
    }

    /// Tells all of `ranks` where they may write, and only then waits for what they tell.
    fn enter(&mut self, ranks: &[Rank], deadline: Deadline) -> Result<(), WireError> {
        self.tell(ranks, deadline)?;
        for rank in ranks {
            loop {
                let ticket = self.fabric.ticket();
                match self.meet(*rank, deadline) {
                    Err(WireError::Late { .. }) if !deadline.passed() => {
                        self.fabric.wait(ticket, deadline);
                    }
                    met => break met?,
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, ranks: &[Rank], deadline: Deadline) -> Result<(), WireError> {
        if let Some(twice) = ranks.iter().find(|rank| self.peers.contains_key(rank)) {
            return Err(WireError::Failed(format!(
                "rank {twice} has its rings already; open them once for each peer"
            )));
        }
        self.check_direct_from(self.share_bytes)?;
        let shares = Shares::new(&self.fabric, self.share_bytes, ranks.len())?;
        let memory = self.shares.len();
        for (index, rank) in ranks.iter().enumerate() {
            let slot = || self.fabric.alloc_arrival().map_err(no_slot);
            let mine = shares.introduction(index, slot()?, slot()?);
            let channel = self.fabric.channel(*rank, 0);
            let channel = channel.map_err(|_| WireError::NoPeer { rank: *rank })?;
            let sent = channel.send_message(&mine.encode(), deadline);
            sent.map_err(|error| untold(*rank, &error))?;
            self.entering.insert(*rank, Entering { channel, mine, memory });
        }
        self.shares.push(shares);
        Ok(())
    }

    /// Takes in a peer that was told, once it has introduced itself; until then it is [`WireError::Late`].
    fn meet(&mut self, rank: Rank, deadline: Deadline) -> Result<(), WireError> {
        let theirs = self.hear(rank)?;
        let entering = self.entering.remove(&rank).ok_or(WireError::NoPeer { rank })?;
        let Entering { channel, mine, memory } = entering;
        let region = channel.open_region(&theirs.region(), deadline).map_err(unopened)?;
        let remote = Remote { channel, region, told: theirs };
        let peer = Peer::new(remote, mine, memory)?;
        self.check_direct_from(peer.capacity())?;
        self.peers.insert(rank, peer);
        Ok(())
    }

    /// What is not written directly must fit the ring several times, or it would wait for its own room.
    fn check_direct_from(&self, ring_bytes: usize) -> Result<(), WireError> {
        let RingOptions { direct_from, .. } = self.options;
        if direct_from <= ring_bytes / 4 {
            return Ok(());
        }
        Err(WireError::Failed(format!(
            "values below {direct_from} bytes are to go through rings of {ring_bytes} bytes, which must \
             hold four of them; raise the ring bytes here and at the peers, or write smaller ones directly"
        )))
    }

    /// The introduction of `rank`, if it has come; those of others that have are kept.
    fn hear(&mut self, rank: Rank) -> Result<Introduction, WireError> {
        let gone = self.fabric.gone(rank);
        while let Some(message) = self.fabric.try_receive_message() {
            self.heard.insert(message.from, message.body);
        }
        match (self.heard.remove(&rank), gone) {
            (Some(body), _) => {
                Introduction::decode(&body).map_err(|what| WireError::Garbled { rank, what })
            }
            (None, Some(gone)) => Err(WireError::Lost { rank, reason: gone.to_string() }),
            (None, None) => Err(WireError::Late { rank }),
        }
    }

    /// Takes the completions there are, and posts what there was no room for before.
    fn progress(&mut self) {
        let Rings { fabric, peers, flights, completions, shares, .. } = self;
        fabric.poll(completions);
        for completion in completions.drain(..) {
            let flight = flights.land(completion.token);
            let Some(peer) = peers.get_mut(&completion.peer) else { continue };
            if let (Some(Flight::Frames { end }), Ok(())) = (flight, &completion.result) {
                peer.complete(end);
            }
            if let Err(error) = completion.result {
                peer.fail(fabric, flights, &error);
            }
        }
        for peer in peers.values_mut() {
            peer.post_again(fabric, &shares[peer.memory()], flights);
        }
    }

    /// A value as it will be posted: everything about it is checked here.
    fn parcel(&self, to: Rank, direct: &super::Direct<'_>) -> Result<Parcel, WireError> {
        let failed = |what: String| WireError::Failed(format!("a value for rank {to}: {what}"));
        let super::Direct { from, to: place, offset, bytes, token } = *direct;
        let end = offset.checked_add(bytes).filter(|end| *end <= from.bytes());
        if end.is_none() {
            let all = from.bytes();
            return Err(failed(format!("bytes {offset}..+{bytes} of a buffer of {all}")));
        }
        let region = self.regions.get(&from.slab().address()).ok_or_else(|| {
            failed("it lies in memory of another origin; send from what the wire allocated".into())
        })?;
        let opened = self.opened.get(&(to, place.region.0)).filter(|_| !place.on_device);
        let opened = opened.ok_or_else(|| {
            failed("its place is in a region that was not opened; open the region first".into())
        })?;
        // fits: usize is 64 bits wide
        let bytes = bytes as u64;
        let end = place.offset.checked_add(place.bytes);
        let is_inside = end.is_some_and(|end| end <= opened.region.bytes());
        if bytes > place.bytes || !is_inside {
            return Err(failed(format!("{bytes} bytes do not fit {place:?}")));
        }
        let loan = from.lend_to_device().map_err(|error| failed(error.to_string()))?;
        Ok(Parcel {
            region: region.clone(),
            // fits: an offset into memory
            offset: (from.place().offset + offset) as u64,
            bytes,
            remote: opened.region.clone(),
            remote_offset: place.offset,
            token,
            loan,
        })
    }
}

impl Wire for Rings {
    fn connect(&mut self, peer: Rank, deadline: Deadline) -> Result<(), WireError> {
        if !self.entering.contains_key(&peer) {
            self.tell(&[peer], deadline)?;
        }
        let met = self.meet(peer, deadline);
        if !matches!(met, Err(WireError::Late { .. })) {
            self.entering.remove(&peer);
        }
        met
    }

    fn give_up(&mut self, peer: Rank) {
        self.entering.remove(&peer);
        self.heard.remove(&peer);
    }

    fn send(&mut self, to: Rank, message: &Outgoing<'_>) -> Result<SendStatus, WireError> {
        self.peers.get(&to).ok_or(WireError::NoPeer { rank: to })?.check()?;
        let parcels = message.direct.iter().map(|direct| self.parcel(to, direct));
        let mut parcels = parcels.collect::<Result<Vec<_>, _>>()?;
        let Rings { fabric, peers, shares, flights, .. } = self;
        let peer = peers.get_mut(&to).ok_or(WireError::NoPeer { rank: to })?;
        let bytes_max = ring::frame_bytes_max(peer.capacity());
        let bytes = format::frame_bytes(message.meta, message.blocks).unwrap_or(usize::MAX);
        if bytes > bytes_max {
            return Err(WireError::TooLarge { rank: to, bytes, bytes_max });
        }
        let mut room = peer.reserve(fabric, flights, bytes, parcels.len())?;
        if room.is_none() {
            // what was taken can make room only once it is posted
            peer.post(fabric, &shares[peer.memory()], flights);
            self.progress();
            let Rings { fabric, peers, flights, .. } = self;
            let peer = peers.get_mut(&to).ok_or(WireError::NoPeer { rank: to })?;
            room = peer.reserve(fabric, flights, bytes, parcels.len())?;
        }
        let Some(room) = room else { return Ok(SendStatus::Full) };
        let Rings { peers, shares, copies, .. } = self;
        let peer = peers.get_mut(&to).ok_or(WireError::NoPeer { rank: to })?;
        self.bytes_direct += parcels.iter().map(|parcel| parcel.bytes).sum::<u64>();
        self.messages += 1;
        peer.write(&mut shares[peer.memory()], room, bytes, message, copies);
        peer.parcels.extend(parcels.drain(..));
        Ok(SendStatus::Started)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        let Rings { fabric, peers, shares, flights, .. } = self;
        for peer in peers.values_mut() {
            peer.post(fabric, &shares[peer.memory()], flights);
        }
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Incoming<'_>)) -> Result<usize, WireError> {
        self.progress();
        let Rings { fabric, peers, shares, flights, .. } = self;
        let (mut count, mut result) = (0, Ok(()));
        for peer in peers.values_mut() {
            let shares = &shares[peer.memory()];
            match peer.receive(fabric, shares, flights, take) {
                Ok(taken) => count += taken,
                Err(error) => result = result.and(Err(error)),
            }
            peer.post_again(fabric, shares, flights);
        }
        result.map(|()| count)
    }

    fn finished(&mut self, tokens: &mut Vec<u64>) -> Result<(), WireError> {
        self.progress();
        self.flights.take_finished(tokens);
        Ok(())
    }

    fn lost(&mut self, lost: &mut Vec<(Rank, String)>) {
        lost.extend(self.peers.iter_mut().filter_map(|(rank, peer)| Some((*rank, peer.loss()?))));
    }

    fn direct_from(&self) -> Option<usize> {
        Some(self.options.direct_from)
    }

    fn message_bytes_max(&self, to: Rank) -> usize {
        self.peers.get(&to).map_or(0, |peer| format::message_bytes_max(peer.capacity()))
    }

    fn alloc(&mut self, bytes: usize) -> Result<(Slab, RegionDescriptor), WireError> {
        // fits: usize is 64 bits wide
        let region = self.fabric.alloc_region(bytes as u64);
        let region = region.map_err(|error| WireError::Failed(error.to_string()))?;
        let (slab, descriptor) = (region.slab(), region.descriptor());
        self.regions.insert(slab.address(), region);
        Ok((slab, descriptor))
    }

    fn open_region(
        &mut self,
        peer: Rank,
        region: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<(), WireError> {
        let known = self.opened.get(&(peer, region.key));
        if known.is_some_and(|known| known.region.bytes() >= region.bytes) {
            return Ok(());
        }
        let channel = self.fabric.channel(peer, 0).map_err(|_| WireError::NoPeer { rank: peer })?;
        let opened = channel.open_region(&region, deadline);
        let opened = opened.map_err(unopened)?;
        // the loans of all openings of a region are one: nobody else in this process has cut it
        let mapped = opened.slab().and_then(|slab| PeerMapped::new(&slab).ok());
        self.opened.insert((peer, region.key), Opened { region: opened, mapped });
        Ok(())
    }

    fn offer_device(&mut self, file: OwnedFd, bytes: u64) -> Result<RegionDescriptor, WireError> {
        let offered = self.fabric.offer_file(file);
        let offered = offered.map_err(|error| WireError::Failed(error.to_string()))?;
        let RegionDescriptor { key, .. } = offered.descriptor();
        self.offered.push(offered);
        Ok(RegionDescriptor { key, bytes })
    }

    fn adopt_device(
        &mut self,
        memory: &Slab,
        shown: Result<DmaBuf, String>,
    ) -> Result<(RegionDescriptor, String), WireError> {
        let adopted = self.fabric.adopt_device(memory, shown);
        let (region, way) = adopted.map_err(|error| WireError::Failed(error.to_string()))?;
        let descriptor = region.descriptor();
        self.regions.insert(memory.address(), region);
        Ok((descriptor, way))
    }

    fn open_on_device(
        &mut self,
        peer: Rank,
        region: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<(), WireError> {
        let device = self.device.clone().ok_or_else(no_devices)?;
        let RegionDescriptor { key, bytes } = region;
        if self.on_devices.contains_key(&(peer, key)) {
            return Ok(());
        }
        let channel = self.fabric.channel(peer, 0).map_err(|_| WireError::NoPeer { rank: peer })?;
        let file = channel.take_file(&RegionDescriptor { key, bytes: 0 }, deadline);
        let file = file.map_err(unopened)?;
        // fits: usize is 64 bits wide, and the driver holds it against the file
        let slab = device.import(file, bytes as usize).map_err(WireError::Failed)?;
        let mapped =
            PeerMapped::new(&slab).map_err(|error| WireError::Failed(error.to_string()))?;
        self.on_devices.insert((peer, key), mapped);
        Ok(())
    }

    fn view(&self, peer: Rank, place: &RemotePlace) -> Option<&[u8]> {
        let opened = self.opened.get(&(peer, place.region.0)).filter(|_| !place.on_device)?;
        opened.mapped.as_ref()?.read(local(place)?)
    }

    fn mapped(&self, peer: Rank, place: &RemotePlace) -> Option<Buffer> {
        let at = (peer, place.region.0);
        let mapped = match place.on_device {
            true => self.on_devices.get(&at)?,
            false => self.opened.get(&at)?.mapped.as_ref()?,
        };
        mapped.buffer(local(place)?)
    }

    fn mapped_from(&self, peer: Rank) -> Option<usize> {
        let shares_memory = self.peers.get(&peer).is_some_and(Peer::shares_memory);
        shares_memory.then_some(SHOWN_FROM)
    }

    fn observe(&mut self) {
        self.ticket = self.fabric.ticket();
    }

    fn wait(&mut self, deadline: Deadline) {
        if self.peers.values().any(Peer::has_news) {
            return;
        }
        let is_stuck = self.peers.values().any(Peer::is_stuck);
        let deadline = if is_stuck { deadline.min(Deadline::after(POST_AGAIN)) } else { deadline };
        self.fabric.wait(self.ticket, deadline);
    }

    fn stats(&self) -> WireStats {
        let values: u64 = self.regions.values().map(Region::bytes).sum();
        let rings: u64 = self.shares.iter().map(Shares::registered_bytes).sum();
        WireStats {
            registered_bytes: rings + values,
            messages: self.messages,
            transfers: self.flights.started(),
            bytes_copied: self.copies.of(CopyPurpose::Store),
            bytes_direct: self.bytes_direct,
        }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), WireError> {
        self.flush()?;
        while self.peers.values().any(Peer::is_stuck) {
            if deadline.passed() {
                return Err(WireError::Failed(
                    "not all messages were sent before the deadline; give it longer".into(),
                ));
            }
            self.observe();
            self.progress();
            self.fabric.wait(self.ticket, deadline.min(Deadline::after(POST_AGAIN)));
        }
        self.fabric.close(deadline).map_err(|error| WireError::Failed(error.to_string()))
    }
}

fn local(place: &RemotePlace) -> Option<Place> {
    let offset = usize::try_from(place.offset).ok()?;
    Some(Place { offset, bytes: usize::try_from(place.bytes).ok()? })
}

fn untold(rank: Rank, error: &SendMessageError) -> WireError {
    match error {
        SendMessageError::PeerLost { cause, .. } => WireError::Lost { rank, reason: cause.clone() },
        error => WireError::Failed(error.to_string()),
    }
}

fn unopened(error: OpenRegionError) -> WireError {
    match error {
        OpenRegionError::PeerLost { peer, cause } => WireError::Lost { rank: peer, reason: cause },
        // it told of the region a moment ago: it ends
        OpenRegionError::Refused { peer, .. } => {
            WireError::Lost { rank: peer, reason: error.to_string() }
        }
        error => WireError::Failed(error.to_string()),
    }
}

fn no_slot(error: ArrivalError) -> WireError {
    WireError::Failed(error.to_string())
}
