//! The baseline under the same store: messages over ZeroMQ, as ps-lite sends them. Every value is a block,
//! every request a message of its own.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::RegionDescriptor;
use tensorwire_kvstore::wire::{Incoming, Outgoing, SendStatus, Wire, WireError, WireStats};
use tensorwire_memory::Slab;

use super::{ZmqError, ZmqNode};

/// How long what was sent last may take to leave: everything was answered, so that only a peer that died can
/// still have to take it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A wire over ZeroMQ.
pub struct ZmqWire {
    node: Option<ZmqNode>,
    stats: WireStats,
    /// Something came since the last look: a wait from there has nothing to wait for.
    has_received: bool,
}

impl ZmqWire {
    /// Returns a wire over a node that is connected to all peers.
    pub fn new(node: ZmqNode) -> ZmqWire {
        ZmqWire { node: Some(node), stats: WireStats::default(), has_received: false }
    }

    fn node(&mut self) -> Result<&mut ZmqNode, WireError> {
        self.node.as_mut().ok_or_else(|| WireError::Failed("this end is closed".to_string()))
    }
}

impl std::fmt::Debug for ZmqWire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZmqWire").field("stats", &self.stats).finish_non_exhaustive()
    }
}

fn failed(error: ZmqError) -> WireError {
    WireError::Failed(error.to_string())
}

impl Wire for ZmqWire {
    fn send(&mut self, to: Rank, message: &Outgoing<'_>) -> Result<SendStatus, WireError> {
        self.node()?.send(to, message.meta, message.blocks).map_err(failed)?;
        Ok(SendStatus::Started)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Incoming<'_>)) -> Result<usize, WireError> {
        let node = self.node()?;
        let mut count = 0;
        while let Some(message) = node.try_receive().map_err(failed)? {
            let blocks: Vec<&[u8]> = message.blocks().collect();
            take(Incoming { from: message.from(), meta: message.meta(), blocks: &blocks });
            count += 1;
        }
        self.has_received |= count > 0;
        Ok(count)
    }

    fn finished(&mut self, _tokens: &mut Vec<u64>) -> Result<(), WireError> {
        Ok(())
    }

    /// ZeroMQ does not notice; the launcher does.
    fn lost(&mut self, _lost: &mut Vec<(Rank, String)>) {}

    fn direct_from(&self) -> Option<usize> {
        None
    }

    /// ps-lite sends one message for each request.
    fn message_bytes_max(&self, _to: Rank) -> usize {
        0
    }

    fn alloc(&mut self, bytes: usize) -> Result<(Slab, RegionDescriptor), WireError> {
        let slab = Slab::anonymous(bytes).map_err(|error| WireError::Failed(error.to_string()))?;
        // fits: an address and a size of this process
        let region = RegionDescriptor { key: slab.address() as u64, bytes: bytes as u64 };
        Ok((slab, region))
    }

    fn connect(&mut self, peer: Rank, _deadline: Deadline) -> Result<(), WireError> {
        let what =
            format!("rank {peer} came later, and --exchange zmq knows the first members only");
        Err(WireError::Failed(what))
    }

    fn open_region(
        &mut self,
        _peer: Rank,
        _region: RegionDescriptor,
        _deadline: Deadline,
    ) -> Result<(), WireError> {
        Ok(())
    }

    fn observe(&mut self) {
        self.has_received = false;
    }

    fn wait(&mut self, deadline: Deadline) {
        if self.has_received {
            return;
        }
        // what fails here fails in receive, too
        if let Some(node) = &self.node {
            let _ = node.wait(deadline);
        }
    }

    fn stats(&self) -> WireStats {
        let Some(node) = &self.node else { return self.stats };
        let stats = node.stats();
        WireStats {
            registered_bytes: 0,
            messages: stats.messages,
            transfers: stats.frames,
            bytes_copied: stats.bytes_copied,
            bytes_direct: 0,
        }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), WireError> {
        self.stats = self.stats();
        let soon = deadline.min(Deadline::after(LAST_WORDS));
        self.node.take().map_or(Ok(()), |node| node.close(soon).map_err(failed))
    }
}
