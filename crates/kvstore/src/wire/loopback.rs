//! A wire between a worker and a server of one thread: the store without a network. Messages are queued,
//! values are blocks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::RegionDescriptor;
use tensorwire_memory::Slab;

use super::{Incoming, Outgoing, SendStatus, Wire, WireError, WireStats};

/// A message: metadata and blocks.
type Queued = (Vec<u8>, Vec<Vec<u8>>);
type Queue = Arc<Mutex<VecDeque<Queued>>>;

/// One of two ends.
#[derive(Debug)]
pub struct Loopback {
    peer: Rank,
    outbound: Queue,
    inbound: Queue,
    stats: WireStats,
}

impl Loopback {
    /// Both ends of a wire between two ranks, in their order.
    pub fn pair(ranks: [Rank; 2]) -> [Loopback; 2] {
        let queues: [Queue; 2] = Default::default();
        let end = |at: usize| Loopback {
            peer: ranks[1 - at],
            outbound: queues[at].clone(),
            inbound: queues[1 - at].clone(),
            stats: WireStats::default(),
        };
        [end(0), end(1)]
    }
}

impl Wire for Loopback {
    fn send(&mut self, to: Rank, message: &Outgoing<'_>) -> Result<SendStatus, WireError> {
        if to != self.peer || !message.direct.is_empty() {
            return Err(WireError::NoPeer { rank: to });
        }
        let blocks: Vec<Vec<u8>> = message.blocks.iter().map(|block| block.to_vec()).collect();
        // fits: sizes in memory
        self.stats.bytes_copied += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        self.stats.messages += 1;
        self.stats.transfers += 1;
        let queued = (message.meta.to_vec(), blocks);
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner).push_back(queued);
        Ok(SendStatus::Started)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Incoming<'_>)) -> Result<usize, WireError> {
        let queued =
            std::mem::take(&mut *self.inbound.lock().unwrap_or_else(PoisonError::into_inner));
        for (meta, blocks) in &queued {
            let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
            take(Incoming { from: self.peer, meta, blocks: &blocks });
        }
        Ok(queued.len())
    }

    fn finished(&mut self, _tokens: &mut Vec<u64>) -> Result<(), WireError> {
        Ok(())
    }

    fn lost(&mut self, _lost: &mut Vec<(Rank, String)>) {}

    fn direct_from(&self) -> Option<usize> {
        None
    }

    fn message_bytes_max(&self, _to: Rank) -> usize {
        usize::MAX
    }

    fn alloc(&mut self, bytes: usize) -> Result<(Slab, RegionDescriptor), WireError> {
        let slab = Slab::anonymous(bytes).map_err(|error| WireError::Failed(error.to_string()))?;
        // fits: an address and a size of this process
        let region = RegionDescriptor { key: slab.address() as u64, bytes: bytes as u64 };
        Ok((slab, region))
    }

    fn connect(&mut self, peer: Rank, _deadline: Deadline) -> Result<(), WireError> {
        Err(WireError::NoPeer { rank: peer })
    }

    fn open_region(
        &mut self,
        _peer: Rank,
        _region: RegionDescriptor,
        _deadline: Deadline,
    ) -> Result<(), WireError> {
        Ok(())
    }

    fn observe(&mut self) {}

    /// Nothing comes while the only thread waits.
    fn wait(&mut self, _deadline: Deadline) {}

    fn stats(&self) -> WireStats {
        self.stats
    }

    fn close(&mut self, _deadline: Deadline) -> Result<(), WireError> {
        Ok(())
    }
}
