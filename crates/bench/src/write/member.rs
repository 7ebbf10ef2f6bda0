//! What the two ends have in common: how they open, what they tell each other beside the writes, and
//! why they give up.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalError, ArrivalSlot, Channel, ChannelError, CloseError, Completion, CompletionError,
    DescriptorError, Fabric, OpenRegionError, PeerFault, PostError, ReceiveError, Region,
    RegionDescriptor, RegionError, SendMessageError,
};
use tensorwire_launch::{Blame, JoinError, Member, MemberError, Peers, WireOptions};
use tensorwire_memory::{ALIGNMENT, Arena, ArenaError, Buffer, LoanError, Place};

use super::calls::CallError;
use super::receiver::{self, ReceiverReport};
use super::sender::{self, SenderReport};
use super::{RECEIVER, SENDER, WriteSpec};
use crate::machine::cores;

/// How long a wait spins before it sleeps, if both members have a core.
const SPIN: Duration = Duration::from_micros(50);
/// Longest that an end waits for the other, which may be filling or comparing memory.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Why an end gave up.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("allocating registered memory: {0}")]
    Region(#[from] RegionError),
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error("opening the receiver's memory: {0}")]
    Open(#[from] OpenRegionError),
    #[error("posting a write: {0}")]
    Post(#[from] PostError),
    #[error("a write failed: {0}")]
    Completion(#[from] CompletionError),
    #[error("telling the other end: {0}")]
    Tell(#[from] SendMessageError),
    #[error("hearing of the other end: {0}")]
    Hear(#[from] ReceiveError),
    #[error("{0}")]
    Fault(#[from] PeerFault),
    #[error("the other end has been silent for {} s; is the machine overloaded?", PATIENCE.as_secs())]
    Silent,
    #[error("the other end speaks another language: do both run the same version?")]
    Language,
    #[error("gRPC: {0}")]
    Call(#[from] CallError),
    #[error("write {number} arrived, and byte {at} of its memory is not what was sent: wrong data")]
    WrongWrite { number: u64, at: usize },
    #[error("a gRPC call brought wrong data: {what}")]
    WrongCall { what: String },
    #[error("leaving the job: {0}")]
    Close(#[from] CloseError),
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

impl From<DescriptorError> for WriteError {
    fn from(_: DescriptorError) -> WriteError {
        WriteError::Language
    }
}

impl WriteError {
    /// The peer whose loss made this, if that was the cause.
    fn lost_peer(&self) -> Option<Rank> {
        match self {
            WriteError::Fault(fault) | WriteError::Hear(ReceiveError::Fault(fault)) => {
                Some(fault.rank)
            }
            WriteError::Post(PostError::PeerLost { peer, .. })
            | WriteError::Completion(CompletionError::PeerLost { peer, .. })
            | WriteError::Tell(SendMessageError::PeerLost { peer, .. })
            | WriteError::Open(OpenRegionError::PeerLost { peer, .. }) => Some(*peer),
            WriteError::Call(error) if error.is_lost() => Some(RECEIVER),
            _ => None,
        }
    }

    fn is_user_error(&self) -> bool {
        matches!(self, WriteError::Member(MemberError::Verbs(_)))
    }
}

/// What the sender says to the receiver.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum FromSender {
    /// Writes will come, numbered from 1, each to the place of its number, and are answered here.
    Begin { answers: u32 },
    /// The last one was this; look at it.
    End { last: u64 },
    /// There will be nothing more.
    Done,
}

/// What the receiver says to the sender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromReceiver {
    /// Where the memory is, and who takes calls.
    Here { memory: [u8; RegionDescriptor::WIRE_BYTES], grpc: Option<SocketAddr> },
    /// Nothing of earlier writes is left; signal arrivals here.
    Ready { arrivals: u32 },
    /// The last write was whole.
    Verified,
}

/// What an end reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum EndReport {
    Sender(SenderReport),
    Receiver(ReceiverReport),
}

/// One end of the measurement, from its assignment to its report.
///
/// # Errors
/// When anything fails or wrong data arrived; the launcher has been told then.
pub fn write_member(member: &Member) -> Result<(), WriteError> {
    let done = take_part(member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::of(error.is_user_error(), error.lost_peer()));
    }
    done
}

fn take_part(member: &Member) -> Result<(), WriteError> {
    let spec: WriteSpec = member.payload()?;
    let spin = if member.members_here() > cores() { Duration::ZERO } else { SPIN };
    let wire = WireOptions {
        transport: spec.transport,
        verbs: spec.verbs.clone(),
        arrival: spec.arrival,
        encrypt: false,
        spin,
        // one, as ib_write_bw has it
        queue_pairs: 1,
        peers: Peers::All,
    };
    let fabric = member.connect(&wire, super::WRITE)?;
    let peer = if member.rank() == SENDER { RECEIVER } else { SENDER };
    let end = End::new(fabric.clone(), peer, &spec)?;
    let report = match member.rank() {
        SENDER => EndReport::Sender(sender::send(end, &spec)?),
        _ => EndReport::Receiver(receiver::receive(end, &spec, member.address(), spin)?),
    };
    fabric.close(Deadline::after(member.setup_patience()))?;
    Ok(member.finish(report)?)
}

/// One process: the way to the other, and memory with a place for each write that may be on its way.
pub(super) struct End {
    pub(super) fabric: Fabric,
    pub(super) channel: Channel,
    pub(super) region: Region,
    pub(super) places: Vec<Buffer>,
    completions: Vec<Completion>,
}

impl End {
    fn new(fabric: Fabric, peer: Rank, spec: &WriteSpec) -> Result<End, WriteError> {
        let channel = fabric.channel(peer, 0)?;
        let places: Vec<Place> = (0..spec.window as u64)
            // fits: usize is 64 bits wide
            .map(|write| Place { offset: offset(write, spec) as usize, bytes: spec.bytes })
            .collect();
        let region = fabric.alloc_region(spec.window as u64 * stride(spec))?;
        let places = Arena::new(&region.slab(), &places)?.into_buffers();
        Ok(End { fabric, channel, region, places, completions: Vec::new() })
    }

    pub(super) fn tell(&self, word: &impl Serialize) -> Result<(), WriteError> {
        let body = serde_json::to_vec(word).map_err(JoinError::Payload)?;
        Ok(self.channel.send_message(&body, Deadline::after(PATIENCE))?)
    }

    pub(super) fn hear<T: DeserializeOwned>(&self) -> Result<T, WriteError> {
        decode(&self.fabric.receive_message(Deadline::after(PATIENCE))?.body)
    }

    /// Takes the completions there are; says how many.
    pub(super) fn poll(&mut self) -> Result<u64, WriteError> {
        self.completions.clear();
        let count = self.fabric.poll(&mut self.completions);
        self.completions.drain(..).try_for_each(|completion| completion.result)?;
        Ok(count as u64)
    }

    /// A slot that nothing has arrived at.
    pub(super) fn slot(&self) -> Result<ArrivalSlot, WriteError> {
        Ok(self.fabric.alloc_arrival()?)
    }
}

/// Where the write of a number (from 0) goes to, and comes from, in either region.
pub(super) fn offset(write: u64, spec: &WriteSpec) -> u64 {
    write % spec.window as u64 * stride(spec)
}

fn stride(spec: &WriteSpec) -> u64 {
    // fits: usize is 64 bits wide
    spec.bytes.next_multiple_of(ALIGNMENT) as u64
}

pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WriteError> {
    serde_json::from_slice(body).map_err(|_| WriteError::Language)
}
