//! A message that has come, where it lies.

use ::zmq::Message;
use tensorwire_base::Rank;

/// A message: metadata and blocks, in ZeroMQ's memory until it is dropped.
#[derive(Debug)]
pub struct ZmqMessage {
    from: Rank,
    meta: Message,
    blocks: Vec<Message>,
}

impl ZmqMessage {
    /// The first frame is metadata; none without it.
    pub(super) fn new(from: Rank, frames: Vec<Message>) -> Option<ZmqMessage> {
        let mut frames = frames.into_iter();
        let meta = frames.next()?;
        Some(ZmqMessage { from, meta, blocks: frames.collect() })
    }

    /// Who sent it: a peer that proved to be of this job.
    pub fn from(&self) -> Rank {
        self.from
    }

    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// In the order in which they were sent.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.blocks.iter().map(|block| &block[..])
    }
}
