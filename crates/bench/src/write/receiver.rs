//! The end whose memory is written: it answers arrivals, and looks at what has arrived when it is told
//! that no more will come. A gRPC server of the same process takes the calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;
use tensorwire_fabric::{
    ArrivalSlot, Direction, LocalSlice, Memcpy, RegionDescriptor, RemoteRegion, RemoteSlice,
    Signal, Wake,
};
use tensorwire_rpc::grpc::GrpcServer;

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
    let calls = Arc::new(Calls::new(spec.bytes));
    let server = match spec.against_grpc {
        false => None,
        true => {
            let calls = calls.clone();
            let at = SocketAddr::new(address, 0);
            Some(GrpcServer::start(at, move |tensor| calls.take(tensor))?)
        }
    };
    let theirs: [u8; RegionDescriptor::WIRE_BYTES] = end.hear()?;
    let theirs = RegionDescriptor::from_bytes(&theirs)?;
    let theirs = end.channel.open_region(&theirs, Deadline::after(PATIENCE))?;
    let (memory, grpc) = (end.region.descriptor().to_bytes(), server.as_ref());
    end.tell(&FromReceiver::Here { memory, grpc: grpc.map(GrpcServer::address) })?;
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
    if let Some(server) = server {
        server.stop(Deadline::after(PATIENCE))?;
    }
    let calls_verified = calls.verdict()?;
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

/// What calls bring. All calls of a measurement carry one number; the first, which nobody times, is
/// compared whole, the others at both ends.
struct Calls {
    bytes: usize,
    number: AtomicU32,
    verified: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Calls {
    fn new(bytes: usize) -> Calls {
        let (number, verified) = (AtomicU32::new(0), AtomicU64::new(0));
        Calls { bytes, number, verified, wrong: Mutex::new(None) }
    }

    fn take(&self, tensor: &[u8]) {
        let wrong = match payload::number(tensor) {
            _ if tensor.len() != self.bytes => Some(format!("{} bytes", tensor.len())),
            Some(number) if self.number.swap(number, Ordering::Relaxed) != number => {
                self.verified.fetch_add(1, Ordering::Relaxed);
                let at = payload::first_difference(tensor, number);
                at.map(|at| format!("byte {at} is not what was sent"))
            }
            Some(number) if !tensor.ends_with(&number.to_le_bytes()) => {
                Some("its end is of another call".to_string())
            }
            _ => None,
        };
        if wrong.is_some() {
            *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = wrong;
        }
    }

    /// How many were compared whole, if nothing was ever wrong.
    fn verdict(&self) -> Result<u64, WriteError> {
        match self.wrong.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(what) => Err(WriteError::WrongCall { what }),
            None => Ok(self.verified.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        payload::fill(&mut bytes);
        payload::stamp(&mut bytes, number);
        bytes
    }

    #[test]
    fn the_first_call_of_each_number_is_compared_whole() {
        let calls = Calls::new(8192);
        for number in [1, 1, 2, 2] {
            calls.take(&call(number));
        }
        assert_eq!(calls.verdict().unwrap(), 2);
    }

    #[test]
    fn wrong_calls_are_found() {
        let mut torn = call(1);
        torn[5000] ^= 1;
        let mut half = call(1);
        half[8188..].copy_from_slice(&[0; 4]);
        for wrong in [torn, half, call(1)[..4096].to_vec(), Vec::new()] {
            let calls = Calls::new(8192);
            calls.take(&wrong);
            calls.verdict().unwrap_err();
        }
        let calls = Calls::new(8192);
        calls.take(&call(1));
        let mut half = call(1);
        half[8188..].copy_from_slice(&[0; 4]);
        calls.take(&half);
        calls.verdict().unwrap_err();
    }
}
