//! What can go wrong while a partition is set up or runs. Each error says where: node, edge, peer, step.

use tensorwire_base::Rank;
use tensorwire_fabric::{
    ArrivalError, ChannelError, CompletionError, OpenRegionError, PeerFault, PostError,
    ReceiveError, RegionError, SendMessageError,
};
use tensorwire_graph::GraphError;
use tensorwire_kernels::{DeviceFailure, KernelError};
use tensorwire_memory::{ArenaError, LoanError, SlabError, TensorError};
use tensorwire_tensor::Fact;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("{0}")]
    Peer(#[from] PeerFault),
    #[error("sending '{edge}' to rank {peer}: {source}")]
    Post { edge: String, peer: Rank, source: PostError },
    #[error("sending '{edge}' to rank {peer}: {source}")]
    Send { edge: String, peer: Rank, source: CompletionError },
    #[error("'{edge}': {source}")]
    Lent { edge: String, source: LoanError },
    #[error("rank {peer} announced '{edge}', and it makes no sense: {what}")]
    Metadata { edge: String, peer: Rank, what: String },
    #[error("reading '{edge}' at rank {peer}: {source}")]
    Open { edge: String, peer: Rank, source: OpenRegionError },
    #[error("mapping '{edge}' of rank {peer}'s device: {source}")]
    Map { edge: String, peer: Rank, source: Box<AllocError> },
    #[error(
        "{edge} was announced, and its exchange does not say where the sender's device has it; exchange it by way of the \
         host (--exchange copy)"
    )]
    NotOnDevice { edge: String },
    #[error(transparent)]
    Region(#[from] RegionError),
    /// What is behind the exchange is no fabric, and says itself what happened.
    #[error("{what}")]
    Other { peer: Option<Rank>, what: String },
    /// What was read of its device's memory may be torn.
    #[error("{}", given_up(*peer, *cause))]
    GivenUp { peer: Rank, cause: Rank },
    /// Another member failed, or is late. Which one, and why, others know.
    #[error("{what}")]
    Others { what: String },
}

fn given_up(peer: Rank, cause: Rank) -> String {
    let why = match peer == cause {
        true => "look at what it says".to_owned(),
        false => format!("since rank {cause} was lost"),
    };
    format!(
        "rank {peer} gave up its step, {why}; what its device does with shared memory from then on is not for use"
    )
}

impl ExchangeError {
    /// True if another member failed or is late, and this one knows no more.
    fn is_of_others(&self) -> bool {
        match self {
            ExchangeError::Others { .. } => true,
            ExchangeError::GivenUp { peer, cause } => peer == cause,
            _ => false,
        }
    }

    /// The peer that was lost, if that is what happened.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            ExchangeError::Peer(fault) => Some(fault.rank),
            ExchangeError::Other { peer, .. } => *peer,
            ExchangeError::GivenUp { peer, cause } => Some(*cause).filter(|cause| cause != peer),
            ExchangeError::Post { source: PostError::PeerLost { peer, .. }, .. }
            | ExchangeError::Open { source: OpenRegionError::PeerLost { peer, .. }, .. }
            // it told of the region a moment ago: it ends
            | ExchangeError::Open { source: OpenRegionError::Refused { peer, .. }, .. }
            | ExchangeError::Send { source: CompletionError::PeerLost { peer, .. }, .. } => {
                Some(*peer)
            }
            _ => None,
        }
    }
}

/// Why the edges of a partition could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectEdgesError {
    #[error("allocating registered memory: {0}")]
    Region(#[from] RegionError),
    #[error(transparent)]
    Storage(#[from] SessionError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(
        "the plan reads tensors of rank {peer} where they lie, and its memory is not shared with us"
    )]
    NotShared { peer: Rank },
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("telling rank {peer} where its tensors go: {source}")]
    Tell { peer: Rank, source: SendMessageError },
    #[error("waiting to be told where tensors go: {0}")]
    Told(#[from] ReceiveError),
    #[error(
        "rank {peer} told us where its tensors go, and it makes no sense: {what}; do all processes run the same plan?"
    )]
    Nonsense { peer: Rank, what: String },
    #[error("opening the region of rank {peer}: {source}")]
    Open { peer: Rank, source: OpenRegionError },
    #[error("mapping the memory of rank {peer}'s device: {source}")]
    Device { peer: Rank, source: DeviceFailure },
}

/// Why a session could not be made, or asked for something it has not.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error("part {part} has {edges} edges that cross, and its session was given no exchange")]
    NoExchange { part: usize, edges: usize },
    #[error(
        "'{node}' in part {part} is a collective operation, and its session was given no group to do it in"
    )]
    NoGroup { part: usize, node: String },
    #[error("there is no node '{name}' in {task}'s part")]
    NoSuchNode { name: String, task: String },
    #[error("'{name}': {source}")]
    Lent { name: String, source: LoanError },
    #[error("part {part} computes on a device, and its session was given none")]
    NoDevice { part: usize },
    #[error("'{name}': {source}")]
    Device { name: String, source: DeviceFailure },
    #[error(
        "'{name}' is not kept: its memory may be another tensor's when a run is over; make its node a root of the run"
    )]
    NotKept { name: String },
    #[error(
        "'{name}' is still being reduced or sent, or waits for that, after a run that left its tail; settle it first"
    )]
    Unsettled { name: String },
    #[error("'{name}': {source}")]
    Peer { name: String, source: ExchangeError },
    #[error("peers read variable '{name}' where it lies; write it before the first run")]
    ReadByPeers { name: String },
    #[error("'{name}' is {fact}; {dims:?} does not fit it")]
    Dims { name: String, fact: Fact, dims: Vec<usize> },
    #[error("'{name}': {source}")]
    Memory { name: String, source: AllocError },
    #[error("'{name}': {source}")]
    Tensor { name: String, source: TensorError },
}

impl SessionError {
    /// True if another member failed or is late, and this one knows no more.
    pub fn is_of_others(&self) -> bool {
        matches!(self, SessionError::Peer { source, .. } if source.is_of_others())
    }

    /// The peer that was lost, if that is what happened.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            SessionError::Peer { source, .. }
            | SessionError::Memory { source: AllocError::Exchange(source), .. } => {
                source.lost_peer()
            }
            _ => None,
        }
    }
}

/// Why there is no memory for a tensor whose size was not known before.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    #[error(
        "{request} bytes do not fit the {lane} arena: {in_use} of at most {bytes_max} bytes are in use; \
         raise --dynamic-memory (in Rust dynamic_bytes_max)"
    )]
    Exhausted { lane: &'static str, request: usize, in_use: usize, bytes_max: usize },
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Device(#[from] DeviceFailure),
}

/// Why a run ended early. The session cannot be used after it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("step {step}: node '{node}': {source}")]
    Kernel { step: u64, node: String, source: KernelError },
    #[error("step {step}: node '{node}': {source}")]
    Device { step: u64, node: String, source: DeviceFailure },
    #[error("step {step}: node '{node}': {source}")]
    Lent { step: u64, node: String, source: LoanError },
    #[error("step {step}: node '{node}': {source}")]
    Tensor { step: u64, node: String, source: TensorError },
    #[error("step {step}: node '{node}': {source}")]
    Memory { step: u64, node: String, source: AllocError },
    #[error("step {step}: {source}")]
    Shape { step: u64, source: GraphError },
    #[error("step {step}: '{node}' has no value; its size is known only when it is fed")]
    NotFed { step: u64, node: String },
    #[error("step {step}: {source}")]
    Exchange { step: u64, source: ExchangeError },
    #[error(
        "step {step}: nothing happened for {waited_s} s while waiting for {missing}; if the peers \
         are alive and only slow, raise the step deadline (--step-deadline)"
    )]
    Stalled {
        step: u64,
        waited_s: u64,
        missing: String,
        /// Nothing of others is missing, but what this process does itself.
        is_own: bool,
    },
}

impl RunError {
    /// The same, of a step that is counted otherwise than by runs: of a job that went on from a checkpoint.
    #[must_use]
    pub fn in_step(mut self, number: u64) -> RunError {
        let (RunError::Kernel { step, .. }
        | RunError::Device { step, .. }
        | RunError::Lent { step, .. }
        | RunError::Tensor { step, .. }
        | RunError::Memory { step, .. }
        | RunError::Shape { step, .. }
        | RunError::NotFed { step, .. }
        | RunError::Exchange { step, .. }
        | RunError::Stalled { step, .. }) = &mut self;
        *step = number;
        self
    }
}

impl RunError {
    /// True if another member failed or is late, and this one knows no more.
    pub fn is_of_others(&self) -> bool {
        match self {
            RunError::Stalled { is_own, .. } => !is_own,
            RunError::Exchange { source, .. } => source.is_of_others(),
            _ => false,
        }
    }

    /// The peer that was lost, if that is what happened.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            RunError::Exchange { source, .. }
            | RunError::Memory { source: AllocError::Exchange(source), .. } => source.lost_peer(),
            _ => None,
        }
    }
}
