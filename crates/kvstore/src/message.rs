//! What workers and servers say to each other: the metadata of a message. Values ride beside it, see
//! [`crate::wire`]. Every request can be sent again and again and is done once: what a request does is named
//! by itself (a push by its round, a call by its number), not by when it came.

use serde::{Deserialize, Serialize};

use crate::key::ShardKey;
use crate::wire::RemotePlace;

/// Numbers the requests of one worker's life; a reply names the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Where the bytes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carried {
    /// Block of this index of the same message.
    Block(u32),
    /// Written before the message, to where both ends know that it belongs.
    InPlace,
    /// Where the sender keeps it, in memory that both share; it stays as it is until the receiver is done with
    /// it: a push until it is applied, an answer until [`Ask::Taken`].
    There(RemotePlace),
}

/// The rows that a sparse push or pull is about: i32 indices into the shard's rows, sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub count: u64,
    /// In place, they lie behind the shard's bytes ([`crate::ValueSpec::slot_indices`]).
    pub indices: Carried,
}

/// A worker to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: RequestId,
    pub what: Ask,
}

/// What a worker asks of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// "I shall push and pull this shard." Answered by [`Answer::Placed`].
    Init {
        shard: ShardKey,
        dtype: u8,
        rows: u64,
        columns: u64,
    },
    /// This worker's push number `round` of a shard, from 1; round 0 is its first value, which one worker
    /// gives. Answered by [`Answer::Applied`] once it is in the shard and its place may be written again.
    Push {
        shard: ShardKey,
        round: u64,
        value: Carried,
        rows: Option<Rows>,
    },
    /// The shard, once it holds at least this worker's `round`s (and, in sync mode, everybody's), written to
    /// `into` or carried. With `rows` only these; `wide`: what it is rounded from ([`crate::Updater::wide`]). Answered by
    /// [`Answer::Value`]; of answers that wait, that of a larger `priority` goes first.
    Pull {
        shard: ShardKey,
        round: u64,
        priority: i32,
        into: Option<RemotePlace>,
        rows: Option<Rows>,
        wide: bool,
    },
    /// The value that answered pull `of` has been read where it was. Not answered.
    Taken {
        of: RequestId,
    },
    /// How servers update from now on; opaque here. The same again changes nothing.
    SetOptimizer {
        bytes: Vec<u8>,
    },
    /// A user's own function (ps-lite's request/response); done once per number. Answered by
    /// [`Answer::Returned`].
    Call {
        head: u32,
        body: Vec<u8>,
    },
    /// Writes the state of this server to a file of its own; [`Ask::Load`] reads it.
    Save {
        path: String,
    },
    Load {
        path: String,
    },
    /// As [`Ask::Push`] of a whole shard, from round 1 on, of which `value` is so many bytes that the update rule makes it of
    /// ([`crate::Updater::apply_encoded`]): no more than a slot has.
    PushEncoded {
        shard: ShardKey,
        round: u64,
        value: Carried,
        bytes: u64,
    },
}

/// A server to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub id: RequestId,
    pub what: Answer,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Where this worker writes what it pushes (none: it sends values in messages alone), and how many of its
    /// rounds the shard holds already: more than 0 where the server took over from a snapshot.
    Placed {
        place: Option<RemotePlace>,
        rounds: u64,
    },
    /// The push is in version `version`; of this worker's rounds the first `durable` survive the server.
    Applied {
        version: u64,
        durable: u64,
    },
    Value {
        version: u64,
        value: Carried,
    },
    Returned {
        body: Vec<u8>,
    },
    Done,
    Refused {
        why: RequestRefusal,
    },
}

/// Why a server does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RequestRefusal {
    #[error("the sender is no worker of this job, or a former life of one")]
    Foreign,
    #[error("shard {} belongs to another server", .shard.0)]
    NotMine { shard: ShardKey },
    #[error("shard {} was never initialised", .shard.0)]
    Unknown { shard: ShardKey },
    #[error("shard {} is {here}, not {told}; all workers must give a key the same type and size", .shard.0)]
    OtherSpec { shard: ShardKey, here: String, told: String },
    #[error("shard {} waits for this worker's push {expected}, not {found}", .shard.0)]
    OutOfTurn { shard: ShardKey, expected: u64, found: u64 },
    #[error("shard {}: what this worker asked of it before is not done yet; one thing at a time", .shard.0)]
    TooSoon { shard: ShardKey },
    #[error("shard {}: in one round, all workers push rows of it or all push the whole; others began otherwise", .shard.0)]
    Mixed { shard: ShardKey },
    #[error("{0}")]
    Failed(String),
}
