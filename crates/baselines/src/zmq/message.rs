//! A message that has come, where it lies.

use std::ops::Range;

use ::zmq::Message;
use tensorwire_base::Rank;

/// A message: metadata and blocks, in ZeroMQ's memory until it is dropped.
#[derive(Debug)]
pub struct ZmqMessage {
    pub(super) from: Rank,
    /// The last frame, and where in it the metadata lies.
    pub(super) sealed: Message,
    pub(super) meta: Range<usize>,
    pub(super) blocks: Vec<Message>,
}

impl ZmqMessage {
    /// Who sent it: a peer that proved to be of this job.
    pub fn from(&self) -> Rank {
        self.from
    }

    pub fn meta(&self) -> &[u8] {
        &self.sealed[self.meta.clone()]
    }

    /// In the order in which they were sent.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.blocks.iter().map(|block| &block[..])
    }
}
