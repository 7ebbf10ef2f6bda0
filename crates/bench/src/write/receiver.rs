//! The end whose memory is written: it answers arrivals, and looks at what has arrived when it is told
//! that no more will come. A gRPC server of the same process takes the calls.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;
use tensorwire_fabric::{
    ArrivalSlot, Direction, LocalSlice, Memcpy, RegionDescriptor, RemoteRegion, RemoteSlice,
    Signal, Wake,
};

use super::calls::Server;
use super::member::{End, FromReceiver, FromSender, PATIENCE, WriteError, decode};
use super::{WriteSpec, payload};

/// What the receiver reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiverReport {
    pub(super) writes_verified: u64,
    pub(super) calls_verified: u64,
    pub(super) spin_us: u64,
}

/// Takes part until the sender is done. Listens at `address` if there are to be calls.
pub(super) fn receive(
    mut end: End,
    spec: &WriteSpec,
    address: IpAddr,
    spin: Duration,
) -> Result<ReceiverReport, WriteError> {
    let at = SocketAddr::new(address, 0);
    let server = spec.against_grpc.then(|| Server::start(at, spec.bytes)).transpose()?;
    let theirs: [u8; RegionDescriptor::WIRE_BYTES] = end.hear()?;
    let theirs = RegionDescriptor::from_bytes(&theirs)?;
    let theirs = end.channel.open_region(&theirs, Deadline::after(PATIENCE))?;
    let (memory, grpc) = (end.region.descriptor().to_bytes(), server.as_ref());
    end.tell(&FromReceiver::Here { memory, grpc: grpc.map(Server::address) })?;
    let mut arrivals: Option<Arrivals> = None;
    let mut writes_verified = 0;
    loop {
        match listen(&mut end, &mut arrivals, &theirs)? {
            FromSender::Begin { answers } => {
                for place in &end.places {
                    payload::spoil(&mut place.write()?);
                }
                let at = end.slot()?;
                arrivals = Some(Arrivals { at, answers: ArrivalSlot(answers), answered: 0 });
                end.tell(&FromReceiver::Ready { arrivals: at.0 })?;
            }
            FromSender::End { last } => {
                arrivals = None;
                verify(&end, last)?;
                writes_verified += 1;
                end.tell(&FromReceiver::Verified)?;
            }
            FromSender::Done => break,
        }
    }
    let calls_verified = server.map_or(Ok(0), |server| server.stop(Deadline::after(PATIENCE)))?;
    let spin_us = spin.as_micros() as u64; // fits: microseconds
    Ok(ReceiverReport { writes_verified, calls_verified, spin_us })
}

/// Where arrivals are signalled, and where the answers go.
struct Arrivals {
    at: ArrivalSlot,
    answers: ArrivalSlot,
    answered: u64,
}

/// Answers arrivals until the sender says something.
fn listen(
    end: &mut End,
    arrivals: &mut Option<Arrivals>,
    theirs: &RemoteRegion,
) -> Result<FromSender, WriteError> {
    loop {
        let ticket = end.fabric.ticket();
        if let Some(arrivals) = arrivals {
            let arrived = end.fabric.arrived(arrivals.at);
            if arrived > arrivals.answered {
                arrivals.answered = arrived;
                answer(end, arrivals, theirs)?;
                continue;
            }
        }
        end.poll()?;
        if let Some(message) = end.fabric.try_receive_message() {
            return decode(&message.body);
        }
        if let Some(fault) = end.fabric.fault() {
            return Err(fault.into());
        }
        if end.fabric.wait(ticket, Deadline::after(PATIENCE)) == Wake::TimedOut {
            return Err(WriteError::Silent);
        }
    }
}

/// A signal without bytes. One answer may stand for several arrivals: a slot only rises.
fn answer(end: &End, arrivals: &Arrivals, theirs: &RemoteRegion) -> Result<(), WriteError> {
    Ok(end.channel.memcpy(Memcpy {
        local: LocalSlice { region: &end.region, offset: 0 },
        remote: RemoteSlice { region: theirs, offset: 0 },
        bytes: 0,
        direction: Direction::Write,
        signal: Some(Signal { slot: arrivals.answers, epoch: arrivals.answered }),
        token: arrivals.answered,
    })?)
}

/// Compares the write of that number (from 1) with what was sent.
fn verify(end: &End, last: u64) -> Result<(), WriteError> {
    // fits: a remainder; the number as the sender stamped it
    let place = ((last - 1) % end.places.len() as u64) as usize;
    let found = payload::first_difference(&end.places[place].read()?, last as u32);
    found.map_or(Ok(()), |at| Err(WriteError::WrongWrite { number: last, at }))
}
