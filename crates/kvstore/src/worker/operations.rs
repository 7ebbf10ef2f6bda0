//! What a worker's end has under way, as data: values and shards, pushes and pulls of shards, and what is read where a
//! server has it.

use std::ops::Range;

use tensorwire_memory::{Buffer, DeviceLoan};
use tensorwire_tensor::DType;

use super::KvHandle;
use crate::batch::Bytes;
use crate::key::{Key, ValueSpec};
use crate::message::RequestId;
use crate::partition::Shard;
use crate::wire::RemotePlace;

/// How a push goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pushing<'a> {
    pub(super) priority: i32,
    pub(super) rows: Option<&'a [i32]>,
    /// It is the first value.
    pub(super) is_first: bool,
    /// Servers make the value of it.
    pub(super) is_encoded: bool,
}

/// How a pull goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulling<'a> {
    pub(super) priority: i32,
    pub(super) rows: Option<&'a [i32]>,
    /// What the value is rounded from is wanted, which is of this type.
    pub(super) wide: Option<DType>,
}

/// A value that was initialised here.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) spec: ValueSpec,
    pub(super) shards: Vec<Shard>,
}

/// A shard of one.
#[derive(Clone, Debug)]
pub(super) struct ShardHere {
    pub(super) spec: ValueSpec,
    pub(super) server: usize,
    /// Where this worker's pushes are written.
    pub(super) slot: Option<RemotePlace>,
}

/// Something to send or to fill.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) handle: KvHandle,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// Nothing to carry.
    Plain,
    Push(Pushed),
    Pull(Pulled),
    /// A pull that moves nothing.
    Show(Key),
}

/// The bytes of a push of one shard.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) from: Buffer,
    pub(super) bytes: Range<usize>,
    /// The rows that it is about, i32.
    pub(super) indices: Option<Bytes>,
    /// Its server makes the shard of it.
    pub(super) is_encoded: bool,
    /// Taken back when the value has left; by address, for it may lie on a device.
    pub(super) loan: Option<DeviceLoan>,
    /// Direct writes that are under way.
    pub(super) leaving: usize,
}

/// The bytes that a pull of one shard fills.
#[derive(Debug)]
pub(super) struct Pulled {
    /// Not lent while a server writes there: of a value on several servers one shard may be on its way in while
    /// another, in the same loan, is still being pushed from here. So whoever pulls keeps readers out.
    pub(super) into: Buffer,
    pub(super) bytes: Range<usize>,
    /// Registered memory to stand in for `into`, which is none.
    pub(super) staging: Option<Buffer>,
    /// Other devices' tensors, filled from it.
    pub(super) also: Vec<Buffer>,
    pub(super) indices: Option<Bytes>,
    /// What the value is rounded from.
    pub(super) wide: bool,
}

/// A push that no snapshot is known to hold.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) from: Buffer,
    pub(super) indices: Option<Bytes>,
    pub(super) is_encoded: bool,
}

/// A value that is read where its server has it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) server: usize,
    pub(super) id: RequestId,
    pub(super) value: Buffer,
}

/// A value that a server shows.
#[derive(Debug)]
pub(super) struct ToRead {
    pub(super) server: usize,
    pub(super) op: u64,
    pub(super) id: RequestId,
    pub(super) place: RemotePlace,
}
