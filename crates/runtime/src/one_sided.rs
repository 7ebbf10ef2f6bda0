//! The zero-copy exchange (Xue et al. §3.2, §3.3). A tensor whose size is known is written by one
//! one-sided write from where the sender's operator put it to where the receiver's next operator reads
//! it, or stays where it is and only the news crosses. One whose size is not known is announced in a
//! slot that was prepared for it, and read by the receiver; the read's signal is the acknowledgement.

mod completions;
mod events;
mod giving_up;
mod introduction;
mod mapping;
mod metadata;
mod opening;
mod options;
mod staging;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_fabric::{
    ArrivalSlot, Channel, CompletionError, Direction, Fabric, LocalSlice, Memcpy, PostError,
    Region, RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_graph::EdgeId;
use tensorwire_memory::{Buffer, DeviceLoan, Loan, Slab, WriteLoan};
use tensorwire_tensor::{Fact, TensorSpec};

use crate::error::ExchangeError;
use crate::ports::{DeviceWay, OnPeer, Sending, TensorExchange};
use completions::Completions;
use events::check_peers;
use giving_up::{Withdrawal, Withdrawals};
use introduction::Ear;
use metadata::Metadata;
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
    /// So much the receiver counts for a whole tensor.
    pieces: u64,
    /// Where the receiver acknowledges (dynamic edges).
    ack: Option<ArrivalSlot>,
    /// What is written into the receiver's slot (dynamic edges).
    metadata: Option<Buffer>,
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
    /// Where the sender awaits the acknowledgement (dynamic edges).
    ack: Option<ArrivalSlot>,
    /// Our slot for metadata (dynamic edges).
    metadata: Option<Buffer>,
    announced: Option<Metadata>,
    /// Where it lands on its way to the device.
    staged: Option<Arc<[Buffer]>>,
    /// A NIC writes it into the device's memory.
    is_by_nic: bool,
}

/// An announced tensor, which its receiver reads.
#[derive(Debug)]
struct Flight {
    epoch: u64,
    /// The tensor and what was written about it.
    _loans: [Lent; 2],
    /// The fabric has taken what was written.
    is_written: bool,
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

    /// How tensors of a device get to other hosts, and why so, for people; none where they do not, or devices map each
    /// other's memory.
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

    /// Writes `source` to where the receiver of an edge wants it.
    fn write(
        &self,
        edge: EdgeId,
        epoch: u64,
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
            signal: Some(Signal { slot: ArrivalSlot(route.ear.slot), epoch: epoch * route.pieces }),
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

    /// A region of a peer; the first time this asks the peer for it.
    fn open(
        &mut self,
        edge: EdgeId,
        metadata: &Metadata,
        deadline: Deadline,
    ) -> Result<RemoteRegion, ExchangeError> {
        let Inbound { channel, name, .. } = &self.inbound[&edge];
        let (peer, key) = (channel.peer(), metadata.region.key);
        if let Some(region) = self.opened.get(&(peer, key)) {
            return Ok(region.clone());
        }
        let opened = channel.open_region(&metadata.region, deadline);
        let region = opened.map_err(|source| {
            let edge = name.clone();
            ExchangeError::Open { edge, peer, source }
        })?;
        // what is read now keeps its region itself
        if self.opened.keys().filter(|(owner, _)| *owner == peer).count() >= OPENED_MAX {
            self.opened.retain(|(owner, _), _| *owner != peer);
        }
        self.opened.insert((peer, key), region.clone());
        Ok(region)
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
        let sending = self.write(edge, epoch, tensor)?;
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
        let slot = self.outbound[&edge].metadata.clone().expect("a dynamic edge has a slot");
        let lent = |source| {
            let edge = self.outbound[&edge].name.clone();
            ExchangeError::Lent { edge, source }
        };
        let metadata = Metadata {
            epoch,
            region: self.announced_in(tensor),
            // fits: an offset into memory of this process
            offset: tensor.place().offset as u64,
            spec: spec.clone(),
        };
        metadata.encode(&mut slot.write().map_err(lent)?);
        let loans = [self.lend_anywhere(edge, tensor)?, self.lend_anywhere(edge, &slot)?];
        let sending = self.write(edge, epoch, Some(&slot))?;
        if sending == Sending::Started {
            let flight = Flight { epoch, _loans: loans, is_written: false };
            self.flights.insert(edge, flight);
        }
        Ok(sending)
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        let slot = self.inbound.get(&edge).map(|inbound| inbound.slot);
        Ok(slot.is_some_and(|slot| self.fabric.arrived(slot) >= epoch))
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        let bytes_max = self.options.dynamic_bytes_max;
        let inbound = self.inbound.get_mut(&edge).expect("the plan has the edge");
        let name = || inbound.name.clone();
        let slot = inbound.metadata.as_ref().expect("a dynamic edge has a slot");
        let slot = slot.read().map_err(|source| ExchangeError::Lent { edge: name(), source })?;
        // once: what is checked is what is used, whatever a peer writes meanwhile
        let copy = slot.to_vec();
        drop(slot);
        let decoded = Metadata::decode(&copy, epoch, &inbound.fact, bytes_max);
        let metadata = decoded.map_err(|what| {
            let peer = inbound.channel.peer();
            ExchangeError::Metadata { edge: inbound.name.clone(), peer, what }
        })?;
        let spec = metadata.spec.clone();
        inbound.announced = Some(metadata);
        Ok(spec)
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        let metadata = self.inbound[&edge].announced.clone();
        let metadata = metadata.expect("announced before it is fetched");
        let remote = self.open(edge, &metadata, deadline)?;
        let Inbound { name, channel, ack, .. } = &self.inbound[&edge];
        let loan = into.lend_for_writing();
        let loan = loan.map_err(|source| ExchangeError::Lent { edge: name.clone(), source })?;
        let posted = channel.memcpy(Memcpy {
            // fits: offset and size of memory of this process
            local: LocalSlice { region: self.region_of(into), offset: into.place().offset as u64 },
            remote: RemoteSlice { region: &remote, offset: metadata.offset },
            bytes: into.bytes() as u64,
            direction: Direction::Read,
            signal: ack.map(|slot| Signal { slot, epoch }),
            token: self.completions.token(edge),
        });
        match posted {
            Ok(()) => {
                self.loans.insert(edge, Some(Lent::Filled { _loan: loan }));
                Ok(Sending::Started)
            }
            Err(source) => self.refused(name, channel.peer(), source),
        }
    }

    fn on_peer(
        &mut self,
        edge: EdgeId,
        deadline: Deadline,
    ) -> Result<Option<OnPeer>, ExchangeError> {
        let announced = self.inbound[&edge].announced.clone();
        let Metadata { region, offset, .. } = announced.expect("announced before it is read");
        // fits: it is inside of the region, which is mapped
        Ok(Some((self.map(edge, region, deadline)?, offset as usize)))
    }

    fn acknowledge(&mut self, edge: EdgeId, epoch: u64) -> Result<Sending, ExchangeError> {
        self.withdrawal.check()?;
        let Inbound { name, channel, region, ack, .. } = &self.inbound[&edge];
        let posted = channel.memcpy(Memcpy {
            local: LocalSlice { region: &self.lane, offset: 0 },
            remote: RemoteSlice { region, offset: 0 },
            bytes: 0,
            direction: Direction::Write,
            signal: ack.map(|slot| Signal { slot, epoch }),
            token: self.completions.token(edge),
        });
        match posted {
            Ok(()) => Ok(Sending::Started),
            Err(source) => self.refused(name, channel.peer(), source),
        }
    }

    fn way_from_device(&self, edge: EdgeId) -> DeviceWay {
        match self.outbound.get(&edge) {
            Some(Outbound { on_device: Some(target), .. }) => DeviceWay::Copied(target.clone()),
            Some(Outbound { staged: Some(pieces), .. }) => DeviceWay::Staged(pieces.clone()),
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
        let Some(Inbound { slot, staged: Some(pieces), .. }) = self.inbound.get(&edge) else {
            return Ok(0);
        };
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
            if let Some(flight) = self.flights.get_mut(&edge) {
                flight.is_written = true;
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
            let ack = outbound.get(edge).and_then(|route| route.ack);
            let is_read = ack.is_some_and(|slot| fabric.arrived(slot) >= flight.epoch);
            let is_over = flight.is_written && is_read;
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

    fn show(&mut self, memory: &Slab, file: OwnedFd) -> Result<(), ExchangeError> {
        let region = self.fabric.offer_file(file)?;
        self.shown.insert(memory.address(), region);
        Ok(())
    }

    fn free(&mut self, slab: &Slab) {
        self.regions.remove(&slab.address());
        self.shown.remove(&slab.address());
    }
}
