//! The registered memory of rings: a region that peers write into and a mirror of it that is sent from, in
//! equal shares. The paper's buffers are four a connection, so that a job of n processes has O(n²) of them;
//! here a process has two regions of one size, however many peers share them, and a job O(n).

use tensorwire_fabric::{ArrivalSlot, Fabric, Region, RegionError};
use tensorwire_memory::{ALIGNMENT, ArenaError, Window};

use super::introduction::Introduction;
use crate::wire::WireError;

/// A peer gets at least this: a few of the largest messages.
pub(super) const SHARE_BYTES_MIN: usize = 64 << 10;

/// What each of `peers` gets of `ring_bytes`.
pub(super) fn share_bytes(ring_bytes: usize, peers: usize) -> usize {
    let share = (ring_bytes / peers.max(1)).max(SHARE_BYTES_MIN);
    share / ALIGNMENT * ALIGNMENT
}

/// Memory of some peers.
#[derive(Debug)]
pub(super) struct Shares {
    share_bytes: usize,
    ring: Region,
    mirror: Region,
    /// What came.
    pub(super) received: Window,
    /// What goes.
    pub(super) sending: Window,
}

impl Shares {
    /// Registers `count` shares.
    pub(super) fn new(
        fabric: &Fabric,
        share_bytes: usize,
        count: usize,
    ) -> Result<Shares, WireError> {
        // fits: usize is 64 bits wide; over the address space it is refused
        let bytes = (share_bytes as u64).saturating_mul(count as u64);
        let alloc = || fabric.alloc_region(bytes).map_err(no_memory);
        let (ring, mirror) = (alloc()?, alloc()?);
        let window = |region: &Region| Window::new(&region.slab()).map_err(cut_before);
        let (received, sending) = (window(&ring)?, window(&mirror)?);
        Ok(Shares { share_bytes, ring, mirror, received, sending })
    }

    /// What the peer of share `index` must know of it.
    pub(super) fn introduction(
        &self,
        index: usize,
        arrival: ArrivalSlot,
        credit: ArrivalSlot,
    ) -> Introduction {
        let descriptor = self.ring.descriptor();
        Introduction {
            region: (descriptor.key, descriptor.bytes),
            // fits: inside the region
            offset: (index * self.share_bytes) as u64,
            bytes: self.share_bytes as u64,
            arrival: arrival.0,
            credit: credit.0,
        }
    }

    pub(super) fn mirror(&self) -> &Region {
        &self.mirror
    }

    pub(super) fn registered_bytes(&self) -> u64 {
        self.ring.bytes() + self.mirror.bytes()
    }
}

fn no_memory(error: RegionError) -> WireError {
    WireError::Failed(error.to_string())
}

fn cut_before(error: ArenaError) -> WireError {
    WireError::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a job of so many processes registers, each with all on the other side as peers.
    fn job_bytes(servers: usize, workers: usize) -> usize {
        let of = |peers: usize| 2 * peers * share_bytes(4 << 20, peers);
        servers * of(workers) + workers * of(servers)
    }

    #[test]
    fn a_process_registers_the_same_for_any_number_of_peers() {
        for peers in [1, 2, 8, 32, 64] {
            assert_eq!(peers * share_bytes(4 << 20, peers), 4 << 20);
        }
        for peers in [3, 5, 7, 63] {
            let all = peers * share_bytes(4 << 20, peers);
            assert!(all <= 4 << 20 && all > (4 << 20) - peers * ALIGNMENT);
        }
    }

    #[test]
    fn a_job_registers_in_proportion_to_its_processes_and_not_to_its_connections() {
        let one = job_bytes(1, 1) / 2;
        for (servers, workers) in [(1, 8), (8, 8), (32, 32), (2, 64)] {
            assert_eq!(job_bytes(servers, workers), (servers + workers) * one);
        }
    }

    #[test]
    fn a_share_has_a_least_size_and_is_aligned() {
        assert_eq!(share_bytes(4 << 20, 65), SHARE_BYTES_MIN);
        assert_eq!(share_bytes(0, 0), SHARE_BYTES_MIN);
        assert_eq!(share_bytes(1_000_001, 7) % ALIGNMENT, 0);
    }
}
