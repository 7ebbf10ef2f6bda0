//! Tensors of unknown size (Xue et al. §3.3): what is told of one is written into a slot in the receiver's host memory, and the
//! receiver reads it. In memory of devices (§3.5) it is read from there by a NIC that reaches it, or a device maps it. Where neither
//! is so, the sender's device copies it to the host's memory in pieces. The first is announced with the tensor, and each of the others
//! by a number that counts on. The receiver reads it in pieces likewise where no NIC writes its device's memory; so each process
//! decides for itself.

use std::collections::VecDeque;
use std::sync::Arc;

use tensorwire_base::{Deadline, Space};
use tensorwire_fabric::{
    ArrivalSlot, Direction, LocalSlice, Memcpy, RegionDescriptor, RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_graph::EdgeId;
use tensorwire_kernels::Shown;
use tensorwire_memory::{Buffer, Slab};
use tensorwire_tensor::TensorSpec;

use super::metadata::Metadata;
use super::staging::pieces;
use super::{Inbound, Lent, OPENED_MAX, OneSided, Outbound};
use crate::error::{AllocError, ExchangeError};
use crate::ports::Sending;

/// How a peer reaches the memory of a part's device, and the part's own NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// Its device maps it.
    Mapped,
    /// NICs read and write it.
    ByNic,
    /// It does not.
    Staged,
}

/// What the sender of a dynamic edge knows.
#[derive(Debug)]
pub(super) struct Announcing {
    /// Where the receiver acknowledges.
    pub(super) ack: ArrivalSlot,
    /// What is written into the receiver's slot.
    slot: Buffer,
    /// How it leaves a device's memory; none: it lies in the host's.
    pub(super) from: Option<Reached>,
    /// So much the receiver was told of earlier tensors: one each, and one more for each piece behind the first.
    news: u64,
    /// What goes next in pieces.
    pub(super) in_pieces: Option<(TensorSpec, Arc<[Buffer]>)>,
}

/// What the receiver of a dynamic edge knows.
#[derive(Debug)]
pub(super) struct Reading {
    /// Where the sender awaits the acknowledgement.
    ack: ArrivalSlot,
    /// Our slot for metadata.
    slot: Buffer,
    /// How it gets into a device's memory; none: it goes to the host's.
    pub(super) into: Option<Reached>,
    /// The sender tells of pieces.
    comes_in_pieces: bool,
    /// As [`Announcing::news`].
    news: u64,
    announced: Option<Metadata>,
    /// Pieces that are being read, and how many are.
    under_way: VecDeque<Lent>,
    fetched: usize,
}

/// An announced tensor, which its receiver reads.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) epoch: u64,
    /// The tensor and what was written about it.
    loans: Vec<Lent>,
    /// Writes that the fabric has taken and not completed.
    pub(super) under_way: usize,
    /// All is posted.
    is_whole: bool,
}

impl Flight {
    /// The fabric has taken all that is written.
    pub(super) fn is_written(&self) -> bool {
        self.is_whole && self.under_way == 0
    }
}

impl Announcing {
    pub(super) fn new(ack: ArrivalSlot, slot: Buffer, from: Option<Reached>) -> Announcing {
        Announcing { ack, slot, from, news: 0, in_pieces: None }
    }
}

impl Reading {
    pub(super) fn new(
        ack: ArrivalSlot,
        slot: Buffer,
        into: Option<Reached>,
        comes_in_pieces: bool,
    ) -> Reading {
        let (announced, under_way) = (None, VecDeque::new());
        Reading { ack, slot, into, comes_in_pieces, news: 0, announced, under_way, fetched: 0 }
    }

    /// What the slot counts to once a tensor is announced.
    pub(super) fn next_news(&self) -> u64 {
        self.news + 1
    }

    /// How many pieces of what was announced can be read, where the slot has counted so far.
    pub(super) fn readable(&self, arrived: u64, piece_bytes: usize) -> usize {
        let Some(metadata) = &self.announced else { return 0 };
        let all = pieces(metadata.spec.bytes(), piece_bytes);
        let told = usize::try_from(arrived.saturating_sub(self.news)).unwrap_or(usize::MAX);
        let readable = match (self.comes_in_pieces, told) {
            (true, told) => told.min(all),
            (false, 0) => 0,
            (false, _) => all,
        };
        match self.into {
            Some(Reached::Staged) => readable,
            _ => usize::from(readable == all),
        }
    }

    pub(super) fn fetched(&self) -> usize {
        self.fetched
    }

    /// A memcpy of the edge is over: true if it was the reading of a piece.
    pub(super) fn took_piece(&mut self) -> bool {
        let took = self.under_way.pop_front().is_some();
        self.fetched += usize::from(took);
        took
    }

    /// What was announced is read: the next tensor comes.
    fn take(&mut self, piece_bytes: usize) {
        let bytes = self.announced.take().map_or(0, |metadata| metadata.spec.bytes());
        // fits: usize is 64 bits wide
        self.news += if self.comes_in_pieces { pieces(bytes, piece_bytes) as u64 } else { 1 };
        self.fetched = 0;
    }
}

impl Outbound {
    fn announcing(&self) -> &Announcing {
        self.dynamic.as_ref().expect("what is announced is of a dynamic edge")
    }
}

impl Inbound {
    fn reading(&self) -> &Reading {
        self.dynamic.as_ref().expect("what is announced is of a dynamic edge")
    }

    fn reading_mut(&mut self) -> &mut Reading {
        self.dynamic.as_mut().expect("what is announced is of a dynamic edge")
    }
}

impl OneSided {
    /// Announces a tensor that lies where the receiver reads it.
    pub(super) fn announce_whole(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        (spec, tensor): (&TensorSpec, &Buffer),
    ) -> Result<Sending, ExchangeError> {
        let slot = self.describe(edge, epoch, (spec, tensor))?;
        let loans = vec![self.lend_anywhere(edge, tensor)?, self.lend_anywhere(edge, &slot)?];
        let news = self.outbound[&edge].announcing().news + 1;
        let sending = self.write(edge, news, Some(&slot))?;
        if sending == Sending::Started {
            let flight = Flight { epoch, loans, under_way: 1, is_whole: true };
            self.flights.insert(edge, flight);
            self.has_told(edge, news);
        }
        Ok(sending)
    }

    /// Announces a tensor with its first piece, or tells of another of its pieces.
    pub(super) fn announce_piece(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        index: usize,
    ) -> Result<Sending, ExchangeError> {
        let announcing = self.outbound[&edge].announcing();
        let (spec, pieces) = announcing.in_pieces.clone().expect("pieces are given before they go");
        // fits: usize is 64 bits wide
        let news = announcing.news + index as u64 + 1;
        let mut loans = vec![self.lend_anywhere(edge, &pieces[index])?];
        let slot = match index {
            0 => {
                let slot = self.describe(edge, epoch, (&spec, &pieces[0]))?;
                loans.push(self.lend_anywhere(edge, &slot)?);
                Some(slot)
            }
            _ => None,
        };
        let sending = self.write(edge, news, slot.as_ref())?;
        if sending == Sending::Started {
            let none = Flight { epoch, loans: Vec::new(), under_way: 0, is_whole: false };
            let flight = self.flights.entry(edge).or_insert(none);
            flight.loans.extend(loans);
            flight.under_way += 1;
            flight.is_whole = index + 1 == pieces.len();
            if flight.is_whole {
                self.has_told(edge, news);
            }
        }
        Ok(sending)
    }

    /// Fills what is written into the receiver's slot about a tensor that begins in a buffer.
    fn describe(
        &self,
        edge: EdgeId,
        epoch: u64,
        (spec, first): (&TensorSpec, &Buffer),
    ) -> Result<Buffer, ExchangeError> {
        let route = &self.outbound[&edge];
        let slot = route.announcing().slot.clone();
        let metadata = Metadata {
            epoch,
            region: self.announced_in(edge, first),
            // fits: an offset into memory of this process
            offset: first.place().offset as u64,
            spec: spec.clone(),
        };
        let lent = |source| ExchangeError::Lent { edge: route.name.clone(), source };
        metadata.encode(&mut slot.write().map_err(lent)?);
        Ok(slot)
    }

    /// All of a tensor is announced, for which its receiver has counted on to `news`.
    fn has_told(&mut self, edge: EdgeId, news: u64) {
        let route = self.outbound.get_mut(&edge);
        if let Some(announcing) = route.and_then(|route| route.dynamic.as_mut()) {
            (announcing.news, announcing.in_pieces) = (news, None);
        }
    }

    pub(super) fn read_announcement(
        &mut self,
        edge: EdgeId,
        epoch: u64,
    ) -> Result<TensorSpec, ExchangeError> {
        let bytes_max = self.options.dynamic_bytes_max;
        let inbound = self.inbound.get_mut(&edge).expect("the plan has the edge");
        let lent = |source| ExchangeError::Lent { edge: inbound.name.clone(), source };
        let slot = inbound.reading().slot.read().map_err(lent)?;
        // once: what is checked is what is used, whatever a peer writes meanwhile
        let copy = slot.to_vec();
        drop(slot);
        let decoded = Metadata::decode(&copy, epoch, &inbound.fact, bytes_max);
        let metadata = decoded.map_err(|what| {
            let peer = inbound.channel.peer();
            ExchangeError::Metadata { edge: inbound.name.clone(), peer, what }
        })?;
        let spec = metadata.spec.clone();
        inbound.reading_mut().announced = Some(metadata);
        Ok(spec)
    }

    /// What was announced.
    pub(super) fn metadata_of(&self, edge: EdgeId) -> Metadata {
        let announced = self.inbound[&edge].reading().announced.clone();
        announced.expect("announced before it is read")
    }

    /// Reads all that was announced; the read's signal is the acknowledgement.
    pub(super) fn fetch_whole(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        let signal = Signal { slot: self.inbound[&edge].reading().ack, epoch };
        let posted = self.read(edge, into, 0, Some(signal), deadline)?;
        let Some(loan) = posted else { return Ok(Sending::Full) };
        self.loans.insert(edge, Some(loan));
        self.has_read(edge);
        Ok(Sending::Started)
    }

    /// Reads the piece behind those that were asked for.
    pub(super) fn fetch_next(
        &mut self,
        edge: EdgeId,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        let reading = self.inbound[&edge].reading();
        let asked = reading.fetched + reading.under_way.len();
        let posted = self.read(edge, into, asked * self.options.piece_bytes, None, deadline)?;
        let Some(loan) = posted else { return Ok(Sending::Full) };
        if let Some(inbound) = self.inbound.get_mut(&edge) {
            inbound.reading_mut().under_way.push_back(loan);
        }
        Ok(Sending::Started)
    }

    /// Posts a read from a byte of what was announced on; none if the queue is full.
    fn read(
        &mut self,
        edge: EdgeId,
        into: &Buffer,
        from: usize,
        signal: Option<Signal>,
        deadline: Deadline,
    ) -> Result<Option<Lent>, ExchangeError> {
        let metadata = self.metadata_of(edge);
        let remote = self.open(edge, metadata.region, deadline)?;
        let Inbound { name, channel, .. } = &self.inbound[&edge];
        let lent = |source| ExchangeError::Lent { edge: name.clone(), source };
        let loan = match into.space() {
            Space::Host => Lent::Filled { _loan: into.lend_for_writing().map_err(lent)? },
            Space::Device(_) => {
                Lent::FilledOnDevice { _loan: into.lend_to_device_for_writing().map_err(lent)? }
            }
        };
        let posted = channel.memcpy(Memcpy {
            // fits: offset and size of memory of this process
            local: LocalSlice { region: self.region_of(into), offset: into.place().offset as u64 },
            // fits: it is inside of what was announced
            remote: RemoteSlice { region: &remote, offset: metadata.offset + from as u64 },
            bytes: into.bytes() as u64,
            direction: Direction::Read,
            signal,
            token: self.completions.token(edge),
        });
        match posted {
            Ok(()) => Ok(Some(loan)),
            Err(source) => self.refused(name, channel.peer(), source).map(|_| None),
        }
    }

    /// Tells the sender that all is read that it announced.
    pub(super) fn acknowledge_all(
        &mut self,
        edge: EdgeId,
        epoch: u64,
    ) -> Result<Sending, ExchangeError> {
        self.withdrawal.check()?;
        let inbound = &self.inbound[&edge];
        let Inbound { name, channel, region, .. } = inbound;
        let posted = channel.memcpy(Memcpy {
            local: LocalSlice { region: &self.lane, offset: 0 },
            remote: RemoteSlice { region, offset: 0 },
            bytes: 0,
            direction: Direction::Write,
            signal: Some(Signal { slot: inbound.reading().ack, epoch }),
            token: self.completions.token(edge),
        });
        match posted {
            Ok(()) => {
                self.has_read(edge);
                Ok(Sending::Started)
            }
            Err(source) => self.refused(name, channel.peer(), source),
        }
    }

    fn has_read(&mut self, edge: EdgeId) {
        let piece_bytes = self.options.piece_bytes;
        if let Some(inbound) = self.inbound.get_mut(&edge) {
            inbound.reading_mut().take(piece_bytes);
        }
    }

    /// A region of a peer; the first time this asks the peer for it.
    fn open(
        &mut self,
        edge: EdgeId,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, ExchangeError> {
        let Inbound { channel, name, .. } = &self.inbound[&edge];
        let (peer, key) = (channel.peer(), descriptor.key);
        if let Some(region) = self.opened.get(&(peer, key)) {
            return Ok(region.clone());
        }
        let opened = channel.open_region(&descriptor, deadline);
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

    /// Has peers map memory of the device, and NICs read and write it.
    pub(super) fn show_memory(&mut self, memory: &Slab, file: Shown) -> Result<(), AllocError> {
        if let Some(device) = self.options.device.as_ref().filter(|_| self.by_nic) {
            let shown = device.lock().dma_buf(memory).map_err(|error| error.to_string());
            let (region, _) =
                self.fabric.adopt_device(memory, shown).map_err(ExchangeError::from)?;
            self.add_region(&region);
        }
        if self.maps {
            let region = self.fabric.offer_file(file?).map_err(ExchangeError::from)?;
            self.shown.insert(memory.address(), region);
        }
        Ok(())
    }
}
