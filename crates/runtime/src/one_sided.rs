//! The zero-copy exchange (Xue et al. §3.2, §3.3). A tensor whose size is known is written by one
//! one-sided write from where the sender's operator put it to where the receiver's next operator reads
//! it, or stays where it is and only the news crosses. One whose size is not known is announced in a
//! slot that was prepared for it, and read by the receiver; the read's signal is the acknowledgement.

mod announcing;
mod completions;
mod events;
mod giving_up;
mod introduction;
mod mapping;
mod metadata;
mod opening;
mod options;
mod reach;
mod staging;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_fabric::{
    ArrivalSlot, Channel, CompletionError, Direction, Fabric, LocalSlice, Memcpy, PostError,
    Region, RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_graph::EdgeId;
use tensorwire_kernels::Shown;
use tensorwire_memory::{Buffer, DeviceLoan, DeviceWriteLoan, Loan, Slab, WriteLoan};
use tensorwire_tensor::{Fact, TensorSpec};

use crate::error::{AllocError, ExchangeError};
use crate::ports::{AnnouncedWay, DeviceWay, OnPeer, Sending, TensorExchange};
use announcing::{Announcing, Flight, Reached, Reading};
use completions::Completions;
use events::check_peers;
use giving_up::{Withdrawal, Withdrawals};
use introduction::Ear;
use staging::Staging;

pub(crate) use introduction::fuzz_introductions;
pub(crate) use metadata::fuzz_metadata;
pub use opening::Opening;
pub use options::OneSidedOptions;

/// Most regions of one peer that are kept open. Its arena has fewer chunks at a time: each is as large as
/// all before it; so what is over has gone.
const OPENED_MAX: usize = 32;

/// A [`TensorExchange`] over a fabric; made by an [`Opening`].
#[derive(Debug)]
pub struct OneSided {
    fabric: Fabric,
    /// Whose end it is.
    rank: Rank,
    options: OneSidedOptions,
    /// All memory that can be sent from and fetched into, by the address of its first byte.
    regions: HashMap<usize, Region>,
    /// By which peers map memory of the device, by its first address.
    shown: HashMap<usize, Region>,
    /// Devices of some peers map the memory of the first device; a NIC reaches it for some.
    maps: bool,
    by_nic: bool,
    outbound: HashMap<EdgeId, Outbound>,
    inbound: HashMap<EdgeId, Inbound>,
    /// The registered lane.
    lane: Region,
    /// Tensors that the fabric is reading, or reading into.
    loans: HashMap<EdgeId, Option<Lent>>,
    /// Announced tensors that are not acknowledged.
    flights: BTreeMap<EdgeId, Flight>,
    /// Peers' memory that dynamic tensors were found in, by peer and key.
    opened: HashMap<(Rank, u64), RemoteRegion>,
    /// The same in memory of their devices.
    mapped: HashMap<(Rank, u64), Buffer>,
    completions: Completions,
    /// By which tensors of the device go, where peers do not reach its memory.
    staging: Vec<Staging>,
    /// How that is, for people.
    device_way: Option<String>,
    /// Tensors that go in pieces, of which not all have gone.
    in_pieces: HashMap<EdgeId, InPieces>,
    /// Where this part hears that a peer gave up a step, and where peers hear it of this part.
    withdrawal: Withdrawal,
    withdrawals: Withdrawals,
}

/// A tensor that goes in pieces.
#[derive(Debug, Default)]
struct InPieces {
    loans: Vec<Loan>,
    /// Pieces that the fabric has taken and not completed.
    under_way: usize,
    /// The last one is posted.
    is_whole: bool,
}

/// An edge that this part sends.
#[derive(Debug)]
struct Outbound {
    name: String,
    channel: Channel,
    /// The receiver's: its lane, or its slots for metadata.
    region: RemoteRegion,
    ear: Ear,
    /// No bytes cross by the fabric.
    is_signal: bool,
    /// Where the device writes it, in the receiver's memory.
    on_device: Option<Buffer>,
    /// By which it goes to where the fabric reaches it.
    staged: Option<Arc<[Buffer]>>,
    /// So much the receiver counts for a whole tensor of known size.
    pieces: u64,
    /// Of a dynamic edge.
    dynamic: Option<Announcing>,
}

/// An edge that this part receives.
#[derive(Debug)]
struct Inbound {
    name: String,
    channel: Channel,
    /// The sender's lane, of which an acknowledgement writes nothing.
    region: RemoteRegion,
    slot: ArrivalSlot,
    fact: Fact,
    /// Of a dynamic edge.
    dynamic: Option<Reading>,
    /// Where it lands on its way to the device.
    staged: Option<Arc<[Buffer]>>,
    /// A NIC writes it into the device's memory.
    is_by_nic: bool,
}

/// A tensor that the fabric has, on either side.
#[derive(Debug)]
enum Lent {
    OnHost {
        _loan: Loan,
    },
    /// What a read fills: nobody else sees it before it is over.
    Filled {
        _loan: WriteLoan,
    },
    OnDevice {
        _loan: DeviceLoan,
    },
    /// As [`Lent::Filled`], of a device's memory.
    FilledOnDevice {
        _loan: DeviceWriteLoan,
    },
}

impl OneSided {
    fn new(
        (fabric, rank): (Fabric, Rank),
        options: OneSidedOptions,
        completions: Completions,
        regions: Vec<Region>,
        (outbound, inbound): (HashMap<EdgeId, Outbound>, HashMap<EdgeId, Inbound>),
        (withdrawal, withdrawals): (Withdrawal, Withdrawals),
    ) -> OneSided {
        let lane = regions[0].clone();
        let regions = regions.into_iter().map(|region| (region.slab().address(), region));
        OneSided {
            fabric,
            rank,
            options,
            regions: regions.collect(),
            shown: HashMap::new(),
            maps: false,
            by_nic: false,
            lane,
            outbound,
            inbound,
            loans: HashMap::new(),
            flights: BTreeMap::new(),
            opened: HashMap::new(),
            mapped: HashMap::new(),
            completions,
            staging: Vec::new(),
            device_way: None,
            in_pieces: HashMap::new(),
            withdrawal,
            withdrawals,
        }
    }

    /// How tensors of a device get to peers whose devices do not map its memory, and why so, for people; none where there are no
    /// such peers.
    pub fn device_way(&self) -> Option<&str> {
        self.device_way.as_deref()
    }

    /// Lets this session send what lies in another session's registered memory.
    pub(crate) fn send_from_too(&mut self, other: &OneSided) {
        self.add_region(&other.lane);
    }

    fn add_region(&mut self, region: &Region) {
        self.regions.insert(region.slab().address(), region.clone());
    }

    fn region_of(&self, buffer: &Buffer) -> &Region {
        let region = self.regions.get(&buffer.slab().address());
        region.expect("the executor sends from and fetches into registered memory only")
    }

    /// What a refused post means: ask again, or an error.
    fn refused(&self, name: &str, peer: Rank, source: PostError) -> Result<Sending, ExchangeError> {
        if let PostError::Full { .. } = source {
            return Ok(Sending::Full);
        }
        // the first fault says more than what it made of our post
        check_peers(&self.fabric)?;
        Err(ExchangeError::Post { edge: name.to_string(), peer, source })
    }

    /// Writes `source` to where the receiver of an edge wants it, and counts there on to `news`.
    fn write(
        &self,
        edge: EdgeId,
        news: u64,
        source: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        self.withdrawal.check()?;
        let route = &self.outbound[&edge];
        let (region, offset, bytes) = match source {
            Some(buffer) => (self.region_of(buffer), buffer.place().offset, buffer.bytes()),
            // nothing is read of it
            None => (&self.lane, 0, 0),
        };
        let posted = route.channel.memcpy(Memcpy {
            // fits: offset and size of memory of this process
            local: LocalSlice { region, offset: offset as u64 },
            remote: RemoteSlice { region: &route.region, offset: route.ear.offset },
            bytes: bytes as u64,
            direction: Direction::Write,
            signal: Some(Signal { slot: ArrivalSlot(route.ear.slot), epoch: news }),
            token: self.completions.token(edge),
        });
        match posted {
            Ok(()) => Ok(Sending::Started),
            Err(source) => self.refused(&route.name, route.channel.peer(), source),
        }
    }

    /// What the completion of a memcpy that failed means.
    fn not_sent(&self, edge: EdgeId, peer: Rank, source: CompletionError) -> ExchangeError {
        if let Some(fault) = self.fabric.fault() {
            return fault.into();
        }
        let sent = self.outbound.get(&edge).map(|route| route.name.clone());
        let name = sent.or(self.inbound.get(&edge).map(|inbound| inbound.name.clone()));
        ExchangeError::Send { edge: name.unwrap_or_default(), peer, source }
    }

    fn lend(&self, edge: EdgeId, buffer: &Buffer) -> Result<Loan, ExchangeError> {
        let edge = || self.outbound[&edge].name.clone();
        buffer.lend().map_err(|source| ExchangeError::Lent { edge: edge(), source })
    }

    /// As [`OneSided::lend`], also of memory of a device.
    fn lend_anywhere(&self, edge: EdgeId, buffer: &Buffer) -> Result<Lent, ExchangeError> {
        match buffer.space() {
            Space::Host => self.lend(edge, buffer).map(|_loan| Lent::OnHost { _loan }),
            Space::Device(_) => {
                let edge = || self.outbound[&edge].name.clone();
                let lent = buffer.lend_to_device();
                let lent = lent.map_err(|source| ExchangeError::Lent { edge: edge(), source });
                lent.map(|_loan| Lent::OnDevice { _loan })
            }
        }
    }
}

impl TensorExchange for OneSided {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        let tensor = tensor.filter(|_| !self.outbound[&edge].is_signal);
        let loan = tensor.map(|tensor| self.lend_anywhere(edge, tensor)).transpose()?;
        let sending = self.write(edge, epoch * self.outbound[&edge].pieces, tensor)?;
        if sending == Sending::Started {
            self.loans.insert(edge, loan);
        }
        Ok(sending)
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        self.announce_whole(edge, epoch, (spec, tensor))
    }

    fn announce_in_pieces(&mut self, edge: EdgeId, spec: &TensorSpec, pieces: Arc<[Buffer]>) {
        let route = self.outbound.get_mut(&edge);
        if let Some(announcing) = route.and_then(|route| route.dynamic.as_mut()) {
            announcing.in_pieces = Some((spec.clone(), pieces));
        }
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        Ok(self.inbound.get(&edge).is_some_and(|inbound| {
            let news = inbound.dynamic.as_ref().map_or(epoch, Reading::next_news);
            self.fabric.arrived(inbound.slot) >= news
        }))
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        self.read_announcement(edge, epoch)
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.fetch_whole(edge, epoch, into, deadline)
    }

    fn way_of_announced(&self, edge: EdgeId) -> AnnouncedWay {
        let reading = self.inbound.get(&edge).and_then(|inbound| inbound.dynamic.as_ref());
        match reading.and_then(|reading| reading.into) {
            Some(Reached::ByNic) => AnnouncedWay::Read,
            Some(Reached::Staged) => {
                AnnouncedWay::InPieces { piece_bytes: self.options.piece_bytes }
            }
            Some(Reached::Mapped) | None => AnnouncedWay::Mapped,
        }
    }

    fn fetch_piece(
        &mut self,
        edge: EdgeId,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.fetch_next(edge, into, deadline)
    }

    fn pieces_fetched(&self, edge: EdgeId) -> usize {
        let reading = self.inbound.get(&edge).and_then(|inbound| inbound.dynamic.as_ref());
        reading.map_or(0, Reading::fetched)
    }

    fn on_peer(
        &mut self,
        edge: EdgeId,
        deadline: Deadline,
    ) -> Result<Option<OnPeer>, ExchangeError> {
        let metadata = self.metadata_of(edge);
        // fits: it is inside of the region, which is mapped
        Ok(Some((self.map(edge, metadata.region, deadline)?, metadata.offset as usize)))
    }

    fn acknowledge(&mut self, edge: EdgeId, epoch: u64) -> Result<Sending, ExchangeError> {
        self.acknowledge_all(edge, epoch)
    }

    fn way_from_device(&self, edge: EdgeId) -> DeviceWay {
        match self.outbound.get(&edge) {
            Some(Outbound { on_device: Some(target), .. }) => DeviceWay::Copied(target.clone()),
            Some(Outbound { staged: Some(pieces), .. }) => DeviceWay::Staged(pieces.clone()),
            Some(Outbound { dynamic: Some(Announcing { from: Some(reached), .. }), .. }) => {
                let piece_bytes = self.options.piece_bytes;
                match reached {
                    Reached::Staged => DeviceWay::AnnouncedInPieces { piece_bytes },
                    Reached::Mapped | Reached::ByNic => DeviceWay::Announced,
                }
            }
            Some(Outbound { is_signal: false, .. }) => DeviceWay::Sent,
            _ => DeviceWay::Stays,
        }
    }

    fn send_piece(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        index: usize,
    ) -> Result<Sending, ExchangeError> {
        self.withdrawal.check()?;
        let route = &self.outbound[&edge];
        if route.dynamic.is_some() {
            return self.announce_piece(edge, epoch, index);
        }
        let pieces = route.staged.clone().expect("what goes in pieces is staged");
        let (piece, is_last) = (&pieces[index], index + 1 == pieces.len());
        let loan = self.lend(edge, piece)?;
        // fits: usize is 64 bits wide
        let (number, offset) = (index as u64 + 1, (index * self.options.piece_bytes) as u64);
        let arrived = match is_last {
            true => Some(route.pieces),
            false => Some(number).filter(|_| route.pieces > 1),
        };
        let posted = route.channel.memcpy(Memcpy {
            // fits: offset and size of memory of this process
            local: LocalSlice {
                region: self.region_of(piece),
                offset: piece.place().offset as u64,
            },
            remote: RemoteSlice { region: &route.region, offset: route.ear.offset + offset },
            bytes: piece.bytes() as u64,
            direction: Direction::Write,
            signal: arrived.map(|arrived| Signal {
                slot: ArrivalSlot(route.ear.slot),
                epoch: (epoch - 1) * route.pieces + arrived,
            }),
            token: self.completions.token(edge),
        });
        if let Err(source) = posted {
            return self.refused(&route.name, route.channel.peer(), source);
        }
        let gone = self.in_pieces.entry(edge).or_default();
        gone.loans.push(loan);
        gone.under_way += 1;
        gone.is_whole = is_last;
        Ok(Sending::Started)
    }

    fn way_to_device(&self, edge: EdgeId) -> Option<Arc<[Buffer]>> {
        self.inbound.get(&edge)?.staged.clone()
    }

    fn why_in_parts(&self, edge: EdgeId) -> Option<&'static str> {
        let sent = self.outbound.get(&edge).and_then(|route| route.staged.as_ref());
        let comes = self.inbound.get(&edge).and_then(|inbound| inbound.staged.as_ref());
        sent.or(comes).map(|_| "goes by way of the host's memory, in pieces")
    }

    fn is_written_by_nic(&self, edge: EdgeId) -> bool {
        self.inbound.get(&edge).is_some_and(|inbound| inbound.is_by_nic)
    }

    fn check_peers(&self) -> Result<(), ExchangeError> {
        self.withdrawal.check()
    }

    fn give_up(&mut self, deadline: Deadline) {
        self.tell_peers();
        self.let_go(deadline);
    }

    fn pieces_arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<usize, ExchangeError> {
        let Some(Inbound { slot, staged, dynamic, .. }) = self.inbound.get(&edge) else {
            return Ok(0);
        };
        if let Some(reading) = dynamic {
            return Ok(reading.readable(self.fabric.arrived(*slot), self.options.piece_bytes));
        }
        let Some(pieces) = staged else { return Ok(0) };
        // fits: usize is 64 bits wide
        let before = (epoch - 1) * pieces.len() as u64;
        let arrived = self.fabric.arrived(*slot).saturating_sub(before);
        Ok(usize::try_from(arrived).unwrap_or(usize::MAX).min(pieces.len()))
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        let mut failed = Ok(());
        // a part sends an edge or receives it, so that the edge says which of both is over
        for (edge, completion) in self.completions.poll(&self.fabric) {
            if let Err(source) = completion.result {
                // it is over, too: the fabric has what was lent no more
                self.loans.remove(&edge);
                failed = failed.and_then(|()| Err(self.not_sent(edge, completion.peer, source)));
                continue;
            }
            let inbound = self.inbound.get_mut(&edge);
            let reading = inbound.and_then(|inbound| inbound.dynamic.as_mut());
            if reading.is_some_and(Reading::took_piece) {
                continue;
            }
            if let Some(flight) = self.flights.get_mut(&edge) {
                flight.under_way -= 1;
            } else if let Some(pieces) = self.in_pieces.get_mut(&edge) {
                pieces.under_way -= 1;
                if pieces.is_whole && pieces.under_way == 0 {
                    self.in_pieces.remove(&edge);
                    finished.push(edge);
                }
            } else {
                self.loans.remove(&edge);
                finished.push(edge);
            }
        }
        failed?;
        let OneSided { flights, outbound, fabric, .. } = self;
        flights.retain(|edge, flight| {
            let announcing = outbound.get(edge).and_then(|route| route.dynamic.as_ref());
            let is_read = announcing.is_some_and(|to| fabric.arrived(to.ack) >= flight.epoch);
            let is_over = flight.is_written() && is_read;
            if is_over {
                finished.push(*edge);
            }
            !is_over
        });
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        // fits: usize is 64 bits wide
        let region = self.fabric.alloc_region(bytes as u64)?;
        self.add_region(&region);
        Ok(region.slab())
    }

    fn show(&mut self, memory: &Slab, file: Shown) -> Result<(), AllocError> {
        self.show_memory(memory, file)
    }

    fn free(&mut self, slab: &Slab) {
        self.regions.remove(&slab.address());
        self.shown.remove(&slab.address());
    }
}
