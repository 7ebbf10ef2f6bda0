//! One peer: the ring that we write at its end, the ring that it writes here, and large values on their
//! way. Everything goes over one queue pair, which keeps the order: first the values, then the messages
//! that tell of them.

use std::collections::VecDeque;

use tensorwire_fabric::{
    Channel, Direction, Fabric, Gone, LocalSlice, Memcpy, PostError, Region, RemoteRegion,
    RemoteSlice,
};
use tensorwire_memory::{Copies, DeviceLoan, Place};

use super::flights::{Flight, Flights};
use super::format::{self, Frame};
use super::introduction::Introduction;
use super::ring::{ReceiveRing, Room, Segment, SendRing, WORD_BYTES};
use super::shares::Shares;
use crate::wire::{Incoming, Outgoing, WireError};

/// Values that wait to be posted: as many as a queue pair takes by default. Then messages with more of them
/// wait.
const PARCELS_MAX: usize = 256;

/// The other end.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) channel: Channel,
    /// Where the ring is that we write into.
    pub(super) region: RemoteRegion,
    pub(super) told: Introduction,
}

/// A large value that is to be posted.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) remote: RemoteRegion,
    pub(super) remote_offset: u64,
    pub(super) token: u64,
    /// By address, for it may lie on a device.
    pub(super) loan: DeviceLoan,
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Peer {
    remote: Remote,
    /// What it was told.
    mine: Introduction,
    /// Which shares it has a part of, and where that begins, in the ring and in the mirror.
    memory: usize,
    offset: usize,
    capacity: usize,
    sending: SendRing,
    receiving: ReceiveRing,
    pub(super) parcels: VecDeque<Parcel>,
    /// There was no room for all that was to be posted.
    is_stuck: bool,
    end: Option<End>,
    /// Nothing more of it is looked at.
    is_deaf: bool,
    is_reported: bool,
}

/// How it ended.
#[derive(Debug)]
struct End {
    reason: String,
    is_lost: bool,
}

impl Peer {
    /// A peer after both introductions.
    pub(super) fn new(
        remote: Remote,
        mine: Introduction,
        memory: usize,
    ) -> Result<Peer, WireError> {
        // a share is what one end can hold, here as a mirror and there as a ring, and the other way round
        let capacity = mine.bytes.min(remote.told.bytes);
        let out_of = |_| WireError::Failed(format!("a ring of {capacity} bytes"));
        let capacity = usize::try_from(capacity).map_err(out_of)?;
        let offset = usize::try_from(mine.offset).map_err(out_of)?;
        Ok(Peer {
            remote,
            mine,
            memory,
            offset,
            capacity,
            sending: SendRing::new(capacity),
            receiving: ReceiveRing::new(capacity),
            parcels: VecDeque::new(),
            is_stuck: false,
            end: None,
            is_deaf: false,
            is_reported: false,
        })
    }

    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Is what it shows mapped here?
    pub(super) fn shares_memory(&self) -> bool {
        self.remote.region.slab().is_some()
    }

    /// Bytes of each of the two rings.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Refuses what is to go to a peer that ended.
    pub(super) fn check(&self) -> Result<(), WireError> {
        let Some(End { reason, .. }) = &self.end else { return Ok(()) };
        Err(WireError::Lost { rank: self.remote.channel.peer(), reason: reason.clone() })
    }

    /// Takes room for a frame and for values; None if there is none now.
    pub(super) fn reserve(
        &mut self,
        fabric: &Fabric,
        flights: &mut Flights,
        bytes: usize,
        parcels: usize,
    ) -> Result<Option<Room>, WireError> {
        self.check()?;
        let is_crowded = self.parcels.len() + parcels > PARCELS_MAX;
        if is_crowded && parcels > 0 && !self.parcels.is_empty() {
            return Ok(None);
        }
        let credit = fabric.arrived(self.mine.consumed(0).slot);
        if let Err(bad) = self.sending.credit(credit) {
            return Err(self.garbled(flights, bad.to_string()));
        }
        Ok(self.sending.reserve(bytes))
    }

    /// Puts a message together in the mirror.
    pub(super) fn write(
        &mut self,
        shares: &mut Shares,
        room: Room,
        bytes: usize,
        message: &Outgoing<'_>,
        copies: &mut Copies,
    ) {
        if let Some(at) = room.left_out_at {
            self.mirror(shares, at, WORD_BYTES).copy_from_slice(&format::LEFT_OUT);
        }
        let frame = self.mirror(shares, room.at, bytes);
        format::write(frame, message.meta, message.blocks, copies);
    }

    fn mirror<'a>(&self, shares: &'a mut Shares, at: usize, bytes: usize) -> &'a mut [u8] {
        let place = Place { offset: self.offset + at, bytes };
        shares.sending.write(place).expect("a share lies in its region")
    }

    /// Posts all that was taken, as far as there is room.
    pub(super) fn post(&mut self, fabric: &Fabric, shares: &Shares, flights: &mut Flights) {
        if self.end.is_none() {
            let posted = self.try_post(shares, flights);
            self.is_stuck = matches!(posted, Err(PostError::Full { .. }));
            self.settle(fabric, flights, posted);
        }
    }

    /// The same for what was left over, and for a credit that is due.
    pub(super) fn post_again(&mut self, fabric: &Fabric, shares: &Shares, flights: &mut Flights) {
        if self.is_stuck {
            self.post(fabric, shares, flights);
        }
        if self.owes_credit() {
            let posted = self.try_credit(shares, flights);
            self.settle(fabric, flights, posted);
        }
    }

    /// A queue that is full empties by itself; every other refusal is the end.
    fn settle(&mut self, fabric: &Fabric, flights: &mut Flights, posted: Result<(), PostError>) {
        match posted {
            Ok(()) | Err(PostError::Full { .. }) => {}
            Err(error) => self.fail(fabric, flights, &error),
        }
    }

    fn try_credit(&mut self, shares: &Shares, flights: &mut Flights) -> Result<(), PostError> {
        if let Some(consumed) = self.receiving.credit_due() {
            self.post_credit(shares, consumed, flights.next())?;
            flights.start(Flight::Credit);
            self.receiving.credited(consumed);
        }
        Ok(())
    }

    fn try_post(&mut self, shares: &Shares, flights: &mut Flights) -> Result<(), PostError> {
        while let Some(parcel) = self.parcels.front() {
            self.remote.channel.memcpy(parcel.memcpy(flights.next()))?;
            if let Some(Parcel { token, loan, .. }) = self.parcels.pop_front() {
                flights.start(Flight::Value { token, _loan: loan });
            }
        }
        while let Some(segment) = self.sending.segment() {
            self.post_segment(shares, segment, flights.next())?;
            flights.start(Flight::Frames { end: segment.end });
            self.sending.post(segment);
        }
        Ok(())
    }

    fn post_segment(&self, shares: &Shares, segment: Segment, token: u64) -> Result<(), PostError> {
        let Remote { channel, region, told } = &self.remote;
        channel.memcpy(Memcpy {
            // fits: indices of memory
            local: LocalSlice {
                region: shares.mirror(),
                offset: (self.offset + segment.at) as u64,
            },
            remote: RemoteSlice { region, offset: told.offset + segment.at as u64 },
            bytes: segment.bytes as u64,
            direction: Direction::Write,
            signal: Some(told.written(segment.end)),
            token,
        })
    }

    /// A write of nothing, for its signal.
    fn post_credit(&self, shares: &Shares, consumed: u64, token: u64) -> Result<(), PostError> {
        let Remote { channel, region, told } = &self.remote;
        channel.memcpy(Memcpy {
            local: LocalSlice { region: shares.mirror(), offset: 0 },
            remote: RemoteSlice { region, offset: told.offset },
            bytes: 0,
            direction: Direction::Write,
            signal: Some(told.consumed(consumed)),
            token,
        })
    }

    /// A segment of frames is out of the mirror.
    pub(super) fn complete(&mut self, end: u64) {
        self.sending.complete(end);
    }

    /// Hands every message that has come to `take`; returns how many.
    pub(super) fn receive(
        &mut self,
        fabric: &Fabric,
        shares: &Shares,
        flights: &mut Flights,
        take: &mut dyn FnMut(Incoming<'_>),
    ) -> Result<usize, WireError> {
        if self.is_deaf {
            return Ok(0);
        }
        // first whether it went, then what it wrote: nothing comes in between
        if let Some(gone) = fabric.gone(self.remote.channel.peer()) {
            self.finish(flights, gone.to_string(), matches!(gone, Gone::Lost(_)));
        }
        self.is_deaf = self.end.is_some();
        let written = fabric.arrived(self.mine.written(0).slot);
        let taken = self.take_all(written, shares, take);
        taken.map_err(|what| self.garbled(flights, what))
    }

    fn take_all(
        &mut self,
        written: u64,
        shares: &Shares,
        take: &mut dyn FnMut(Incoming<'_>),
    ) -> Result<usize, String> {
        self.receiving.arrive(written).map_err(|bad| bad.to_string())?;
        let from = self.remote.channel.peer();
        let (mut count, mut blocks) = (0, Vec::new());
        loop {
            let (at, bytes) = self.receiving.unread();
            if bytes == 0 {
                return Ok(count);
            }
            let place = Place { offset: self.offset + at, bytes };
            let unread = shares.received.read(place).expect("a share lies in its region");
            match format::read(unread, &mut blocks).map_err(|error| error.to_string())? {
                Frame::Message { meta, bytes } => {
                    take(Incoming { from, meta, blocks: &blocks });
                    self.receiving.consume(bytes);
                    count += 1;
                }
                Frame::LeftOut => {
                    if !self.receiving.leave_out() {
                        return Err("it left out bytes that it did not count".into());
                    }
                }
            }
        }
    }

    /// Nothing can be posted to it any more; what it wrote before is still handed out.
    pub(super) fn fail(
        &mut self,
        fabric: &Fabric,
        flights: &mut Flights,
        error: &dyn std::fmt::Display,
    ) {
        match fabric.gone(self.remote.channel.peer()) {
            Some(gone) => self.finish(flights, gone.to_string(), matches!(gone, Gone::Lost(_))),
            None => self.finish(flights, error.to_string(), true),
        }
    }

    /// It sent what is no message: nothing of it is looked at any more.
    fn garbled(&mut self, flights: &mut Flights, what: String) -> WireError {
        self.finish(flights, format!("it sent what is no message: {what}"), true);
        self.is_deaf = true;
        WireError::Garbled { rank: self.remote.channel.peer(), what }
    }

    fn finish(&mut self, flights: &mut Flights, reason: String, is_lost: bool) {
        // the first reason counts: the others follow from it
        if self.end.is_none() {
            self.end = Some(End { reason, is_lost });
        }
        self.is_stuck = false;
        self.parcels.drain(..).for_each(|parcel| flights.give_up(parcel.token));
    }

    /// Why it was lost, once, when all it wrote was handed out.
    pub(super) fn loss(&mut self) -> Option<String> {
        let is_new = self.is_deaf && !self.is_reported;
        let end = self.end.as_ref().filter(|end| end.is_lost && is_new)?;
        self.is_reported = true;
        Some(end.reason.clone())
    }

    /// It ended, and that is not known yet.
    pub(super) fn has_news(&self) -> bool {
        self.end.as_ref().is_some_and(|end| !self.is_deaf || end.is_lost && !self.is_reported)
    }

    /// Something is to be posted that there was no room for.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck || self.owes_credit()
    }

    fn owes_credit(&self) -> bool {
        self.end.is_none() && self.receiving.credit_due().is_some()
    }
}

impl Parcel {
    fn memcpy(&self, token: u64) -> Memcpy<'_> {
        Memcpy {
            local: LocalSlice { region: &self.region, offset: self.offset },
            remote: RemoteSlice { region: &self.remote, offset: self.remote_offset },
            bytes: self.bytes,
            direction: Direction::Write,
            signal: None,
            token,
        }
    }
}
