//! Why the store did not do what it was asked.

use std::time::Duration;

use tensorwire_base::Rank;

use crate::key::{Key, ValueSpec};
use crate::message::RequestRefusal;
use crate::partition::KeyError;
use crate::wire::WireError;

/// Why a call of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{key} was never initialised here; call init first, on every worker")]
    NotInitialised { key: Key },
    #[error("{key} is {here}, not {told}")]
    OtherSpec { key: Key, here: ValueSpec, told: ValueSpec },
    #[error("{spec} is more than any memory holds")]
    Absurd { spec: ValueSpec },
    #[error("{key} of {bytes} bytes was given a tensor of {found} bytes")]
    Size { key: Key, bytes: usize, found: usize },
    #[error("{key} cannot be read where its server has it; pull it")]
    NotMapped { key: Key },
    #[error("{keys} keys, but tensors for {found}")]
    Count { keys: usize, found: usize },
    #[error("{key}: {what}")]
    Rows { key: Key, what: String },
    #[error("there is no server {server}; this store has {servers}, which are counted from 0")]
    NoServer { server: usize, servers: usize },
    #[error(
        "server {server} is asked something of {bytes} bytes, and a message has room for {room}; ask for less at a time"
    )]
    AskTooLarge { server: usize, bytes: usize, room: usize },
    #[error("server {server} (rank {rank}) refuses: {why}")]
    Refused { server: usize, rank: Rank, why: RequestRefusal },
    #[error("server {server} (rank {rank}) is lost: {reason}")]
    ServerLost { server: usize, rank: Rank, reason: String },
    #[error("rank {rank} sent nonsense: {what}")]
    Nonsense { rank: Rank, what: String },
    #[error("waited {} s for {what}", .waited.as_secs())]
    TimedOut { waited: Duration, what: String },
    #[error("{bytes} bytes of registered memory: {what}")]
    Memory { bytes: usize, what: String },
    #[error("{key}: its tensor is in use: {what}")]
    Lent { key: Key, what: String },
    #[error("the scheduler: {0}")]
    Membership(String),
    #[error("updating: {0}")]
    Update(String),
    #[error("a store in a device's memory: {what}")]
    Device { what: String },
    #[error("the snapshot: {0}")]
    Snapshot(String),
}

impl StoreError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            StoreError::Wire(WireError::Lost { rank, .. })
            | StoreError::ServerLost { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}
