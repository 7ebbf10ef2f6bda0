//! ZeroMQ under the seam: a content is a block. The caller's thread takes what comes.

use std::sync::Arc;

use bytes::Bytes;
use tensorwire_base::{Deadline, Rank};

use super::{ZmqError, ZmqNode};
use crate::transport::{MessageError, MessageSink, MessageTransport};

/// A [`MessageTransport`] over a node that is connected to all peers.
pub struct ZmqTransport {
    node: Option<ZmqNode>,
    sink: Arc<dyn MessageSink>,
    bytes_copied: u64,
}

impl ZmqTransport {
    pub fn new(node: ZmqNode, sink: Arc<dyn MessageSink>) -> ZmqTransport {
        ZmqTransport { node: Some(node), sink, bytes_copied: 0 }
    }

    fn node(&mut self) -> Result<&mut ZmqNode, MessageError> {
        let closed = || MessageError { peer: None, what: "this end is closed".to_string() };
        self.node.as_mut().ok_or_else(closed)
    }
}

impl MessageTransport for ZmqTransport {
    fn send(&mut self, to: Rank, head: &[u8], content: Bytes) -> Result<(), MessageError> {
        self.node()?.send(to, head, &[&content]).map_err(failed)?;
        self.bytes_copied += content.len() as u64;
        Ok(())
    }

    fn observe(&mut self) -> Result<(), MessageError> {
        let sink = self.sink.clone();
        let node = self.node()?;
        while let Some(message) = node.try_receive().map_err(failed)? {
            let from = message.from();
            let bytes = message.blocks().map(<[u8]>::len).sum();
            let sink = sink.open(from, message.meta(), bytes);
            let mut sink = sink.map_err(|what| MessageError::with(from, what))?;
            message.blocks().for_each(|block| sink.write(block));
            sink.done();
        }
        Ok(())
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        self.node()?.wait(deadline).map(drop).map_err(failed)
    }

    fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        self.node.take().map_or(Ok(()), |node| node.close(deadline).map_err(failed))
    }
}

impl std::fmt::Debug for ZmqTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZmqTransport").field("node", &self.node).finish_non_exhaustive()
    }
}

fn failed(error: ZmqError) -> MessageError {
    MessageError { peer: None, what: error.to_string() }
}
