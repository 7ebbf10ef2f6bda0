//! One typed error per verb: what happened, where, and how to mend it.

use tensorwire_base::{Rank, human_bytes};

use crate::arrival::ArrivalMode;
use crate::handshake::HandshakeError;
use crate::limits::MemoryLimit;

/// Why [`crate::Fabric::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenFabricError {
    #[error("{what} must be {range}, not {found}; correct the fabric's configuration")]
    Config { what: &'static str, range: &'static str, found: u64 },
    #[error("cannot listen on {at}: {source}; choose a free port of an address of this host")]
    Listen { at: String, source: std::io::Error },
    #[error("cannot {doing}: {source}; raise the limit on open files or memory (ulimit -a)")]
    System { doing: &'static str, source: std::io::Error },
    #[error("rank {rank} is already open in this simulated network; a rank opens once")]
    RankTaken { rank: Rank },
    #[error(
        "{mode} is a mode of verbs; {backend} has a rule of its own: leave the arrival mode out"
    )]
    NoArrivalModes { mode: ArrivalMode, backend: &'static str },
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsUnusable),
}

/// Why [`crate::Fabric::connect`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the peer table names rank {rank} twice, or names this process; list each peer once")]
    BadPeerTable { rank: Rank },
    #[error("rank {rank} is already connected; connect each peer once")]
    AlreadyConnected { rank: Rank },
    #[error(
        "rank {rank} has endpoint {endpoint}, which a fabric on {backend} cannot dial; open the same backend everywhere"
    )]
    WrongBackend { rank: Rank, endpoint: String, backend: &'static str },
    #[error(
        "cannot reach rank {rank} at {endpoint}: {source}; is that process alive, and no firewall between?"
    )]
    Unreachable { rank: Rank, endpoint: String, source: std::io::Error },
    #[error("rank {rank} at {endpoint}: {source}")]
    Handshake { rank: Rank, endpoint: String, source: HandshakeError },
    #[error(
        "still waiting for {missing} when the deadline passed; are those processes alive, with this process in their peer table?"
    )]
    TimedOut { missing: String },
    #[error("gave up waiting for {missing}")]
    GivenUp { missing: String },
    #[error(
        "rank {rank} and this process cannot use arrival mode {mode}: {reason}; use write-imm, which is right on every device"
    )]
    ArrivalRefused { rank: Rank, mode: ArrivalMode, reason: String },
    #[error("the flags of rank {rank}: {source}")]
    Flags { rank: Rank, source: RegionError },
    #[error("while connecting: {0}")]
    Lost(PeerFault),
    #[error("cannot set up queue pairs to rank {rank}: {reason}")]
    QueuePairs { rank: Rank, reason: String },
    #[error("cannot {doing}: {source}; raise the limit on open files or memory (ulimit -a)")]
    System { doing: &'static str, source: std::io::Error },
    #[error("this fabric is closed")]
    Closed,
}

/// Why [`crate::Fabric::alloc_region`] failed.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error(
        "a region of {bytes} bytes does not fit the {available} bytes of memory available on this host; exchange less at once (smaller batches, smaller tensors) or use more hosts"
    )]
    NoMemory { bytes: u64, available: u64 },
    #[error(
        "a region of {} does not fit: {limit}; raise the limit, exchange less at once (smaller batches, smaller tensors) or use more hosts", human_bytes(*bytes)
    )]
    Limited { bytes: u64, limit: MemoryLimit },
    #[error(
        "cannot {doing} a region of {bytes} bytes: {source}; free memory or raise the limits (ulimit -a)"
    )]
    System { doing: &'static str, bytes: u64, source: std::io::Error },
    #[error(
        "a region of {bytes} bytes is over the {bytes_max} that this RDMA NIC registers at once; use more processes"
    )]
    TooLargeForNic { bytes: u64, bytes_max: u64 },
    #[error(
        "cannot lock {bytes} bytes in memory for the RDMA NIC: the limit is {limit}; raise it ({})",
        crate::limits::memlock_mend()
    )]
    Memlock { bytes: u64, limit: u64 },
    #[error("files go from process to process over shared memory alone (--transport shm)")]
    NoFiles,
    #[error("memory of a GPU is reached by RDMA NICs alone (--transport verbs)")]
    NoNic,
    #[error(
        "the arrival mode {mode} polls memory that is written behind the tensor, and memory of a GPU has no such order; use write-imm"
    )]
    FlagsOnDevice { mode: &'static str },
    #[error(
        "the RDMA NIC cannot reach the GPU's memory: by dma-buf: {dma_buf}; by nvidia-peermem: {peermem}; load it (modprobe nvidia-peermem), and see `tensorwire doctor`"
    )]
    Unreached { dma_buf: String, peermem: std::io::Error },
}

/// Why [`crate::Fabric::alloc_arrival`] or [`crate::Fabric::alloc_tail_arrival`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalError {
    #[error("memory of a GPU has no room for epochs: a host cannot poll it; use write-imm")]
    OnDevice,
    #[error("all {slots} arrival slots are taken; open the fabric with more arrival_slots")]
    NoSlot { slots: usize },
    #[error(
        "an epoch of 8 bytes, at a multiple of 8, does not fit behind byte {end} of a region of {region_bytes}; leave room there"
    )]
    NoTailRoom { end: u64, region_bytes: u64 },
}

/// Why [`crate::Fabric::channel`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    #[error("rank {rank} is not connected; connect to it first")]
    NotConnected { rank: Rank },
    #[error("queue pair {queue_pair} does not exist: there are {count} per peer")]
    NoSuchQueuePair { queue_pair: usize, count: usize },
}

/// The error of bytes that are no region descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a region descriptor has {expected} bytes, not {found}")]
pub struct DescriptorError {
    pub expected: usize,
    pub found: usize,
}

/// Why [`crate::Channel::open_region`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRegionError {
    #[error(
        "rank {peer} refused the region: {reason}; descriptors are valid while their region lives"
    )]
    Refused { peer: Rank, reason: String },
    #[error("rank {peer} did not answer before the deadline; is it stopped or overloaded?")]
    TimedOut { peer: Rank },
    #[error("rank {peer} is gone: {cause}")]
    PeerLost { peer: Rank, cause: String },
    #[error(
        "cannot map the region of rank {peer}: {reason}; free memory or raise the limits (ulimit -a)"
    )]
    Map { peer: Rank, reason: String },
}

/// Why [`crate::Channel::memcpy`] failed: nothing was posted, and no completion follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    #[error(
        "the send queue is full ({depth} memcpys posted and not polled); poll completions and post again"
    )]
    Full { depth: usize },
    #[error("bytes {offset}..+{bytes} lie outside the {side} region of {region_bytes} bytes")]
    OutOfBounds { side: Side, offset: u64, bytes: u64, region_bytes: u64 },
    #[error("the remote region belongs to rank {region}, the channel leads to rank {channel}")]
    WrongPeer { channel: Rank, region: Rank },
    #[error("a region of this memcpy belongs to another fabric; use regions of this one")]
    OtherFabric,
    #[error("{bytes} bytes are more than the {bytes_max} that one memcpy moves; use several")]
    TooLarge { bytes: u64, bytes_max: u64 },
    #[error("rank {peer} has {slots} arrival slots, not slot {slot}; use a slot that it allocated")]
    NoSuchSlot { peer: Rank, slot: u32, slots: u64 },
    #[error("rank {peer} is gone: {cause}")]
    PeerLost { peer: Rank, cause: String },
}

/// One of a memcpy's two regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Local,
    Remote,
}

/// Why a posted memcpy failed. The bytes of its target are indeterminate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    #[error("rank {peer} is gone: {cause}")]
    PeerLost { peer: Rank, cause: String },
    #[error("the simulated network failed this memcpy")]
    Injected,
    /// The first cause; what was posted behind it is flushed.
    #[error("queue pair {queue_pair} to rank {peer} failed: {cause}")]
    QueuePairFailed { peer: Rank, queue_pair: usize, cause: String },
    #[error(
        "rank {peer} had no room for the signal, {attempts} times; let it poll more often or post fewer memcpys at a time"
    )]
    ReceiverNotReady { peer: Rank, attempts: u32 },
    /// Never the first cause: the completion before it has that.
    #[error("not carried out, because its queue pair to rank {peer} failed before: {cause}")]
    Flushed { peer: Rank, cause: String },
}

/// Why [`crate::Channel::send_message`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendMessageError {
    #[error(
        "a message of {bytes} bytes is over the limit of {bytes_max}; send bulk data with memcpy"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("rank {peer} takes no messages: the queue was full until the deadline; is it stopped?")]
    TimedOut { peer: Rank },
    #[error("rank {peer} is gone: {cause}")]
    PeerLost { peer: Rank, cause: String },
}

/// Why [`crate::Fabric::receive_message`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    #[error("no message came before the deadline")]
    TimedOut,
    #[error("no message, and none may come: {0}")]
    Fault(PeerFault),
}

/// Why [`crate::Fabric::close`] failed. The fabric is closed all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    #[error(
        "{missing} did not confirm the goodbye before the deadline; their last writes may be lost"
    )]
    Unconfirmed { missing: String },
}

/// The end of a peer that did not say goodbye.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lost rank {rank}: {cause}")]
pub struct PeerFault {
    pub rank: Rank,
    pub cause: FaultCause,
}

/// Why a peer was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultCause {
    #[error(
        "the process died or left without a goodbye ({detail}); look at its log and exit status"
    )]
    Died { detail: String },
    #[error("queue pair {queue_pair} failed and nothing reconnects it: {detail}")]
    QueuePair { queue_pair: usize, detail: String },
    #[error("it refused our request and hung up: {detail}")]
    Refused { detail: String },
    #[error("it broke the protocol: {detail}; do all processes run the same version?")]
    Protocol { detail: String },
    #[error("it cannot be reached any more: {detail}")]
    Unreachable { detail: String },
    #[error("this host's RDMA NIC failed: {detail}; see dmesg, and tensorwire doctor")]
    Device { detail: String },
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Local => "local",
            Side::Remote => "remote",
        })
    }
}
