//! Processes of several hosts, some of which share one: peers of this host are reached through shared memory, all others by
//! TCP or a NIC. Both ways work on one core: one board, one table of regions, one queue of completions, one inbox. Regions
//! lie in memory that peers of this host map and the other way serves, so that whoever allocates one need not know who
//! will ask for it. Memory of a GPU they get as a file, and all others by the NIC.
//!
//! Arrival rule: that of the way by which a peer is reached.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tensorwire_base::{Deadline, Rank};
use tensorwire_memory::{DmaBuf, Slab};

use crate::api::{ArrivalSlot, Posted, Signal};
use crate::common::Core;
use crate::config::{Backend, Endpoint, FabricConfig, PeerAddress};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, OpenFabricError, OpenRegionError, PostError, RegionError,
    SendMessageError,
};
use crate::region::{Region, RegionDescriptor, RegionMemory, RemoteRegion};
use crate::shm::ShmDevice;
use crate::sim::SimDevice;
use crate::tcp::TcpDevice;
use crate::verbs::VerbsDevice;

/// A host, as its processes name it: those that name the same one reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(u64);

impl HostId {
    /// Returns the host on which this process runs, and which its job calls `name`: of two names on one machine each is
    /// a host of its own. Processes of another user, or of a container with a network of its own, are on another host:
    /// they do not reach this one's sockets.
    pub fn here(name: &str) -> HostId {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link(Path::new("/proc/self/ns/net")).unwrap_or_default();
        let user = rustix::process::geteuid().as_raw();
        let mut hash = Sha256::new();
        for part in [name.as_bytes(), &boot, network.as_os_str().as_encoded_bytes()] {
            // fits: usize is 64 bits wide
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(user.to_le_bytes());
        let digest = hash.finalize();
        HostId(u64::from_le_bytes(std::array::from_fn(|i| digest[i])))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for HostId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<HostId, Self::Err> {
        u64::from_str_radix(text, 16).map(HostId)
    }
}

#[derive(Debug)]
struct Neighbours {
    host: HostId,
    near: ShmDevice,
    far: Arc<dyn Device>,
    /// The connected peers of this host.
    near_ranks: RwLock<HashSet<Rank>>,
}

/// `far`: TCP, a NIC or a simulated network.
pub(crate) fn open(
    host: HostId,
    far: &Backend,
    config: FabricConfig,
) -> Result<(Arc<Core>, Arc<dyn Device>), OpenFabricError> {
    let (core, board) = Core::shared(config)?;
    let far: Arc<dyn Device> = match far {
        Backend::Verbs(options) => Arc::new(VerbsDevice::open(options, core.clone())?),
        Backend::Sim(network) => Arc::new(SimDevice::open(network.clone(), core.clone())?),
        _ => Arc::new(TcpDevice::open(core.clone())?),
    };
    let near = ShmDevice::open(core.clone(), board)?;
    let near_ranks = RwLock::default();
    Ok((core, Arc::new(Neighbours { host, near, far, near_ranks })))
}

impl Neighbours {
    fn is_near(&self, peer: Rank) -> bool {
        self.near_ranks.read().contains(&peer)
    }

    fn way_to(&self, peer: Rank) -> &dyn Device {
        if self.is_near(peer) { &self.near } else { &*self.far }
    }

    /// How a peer is reached: true if through shared memory, and at which address.
    fn address(&self, peer: &PeerAddress) -> (bool, PeerAddress) {
        let (is_near, endpoint) = match &peer.endpoint {
            Endpoint::Near { host, name, .. } if *host == self.host => {
                (true, Endpoint::Shm(name.clone()))
            }
            endpoint => (false, endpoint.far().clone()),
        };
        (is_near, PeerAddress { endpoint, ..*peer })
    }
}

impl Device for Neighbours {
    fn endpoint(&self) -> Endpoint {
        let (host, name) = (self.host, self.near.name().to_string());
        Endpoint::Near { host, name, far: Box::new(self.far.endpoint()) }
    }

    /// First with those of this host: all do it in that order, so that nobody waits in a circle.
    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let (near, far): (Vec<_>, Vec<_>) =
            peers.iter().map(|peer| self.address(peer)).partition(|(is_near, _)| *is_near);
        let addresses = |of: Vec<(bool, PeerAddress)>| of.into_iter().map(|(_, address)| address);
        let (near, far): (Vec<_>, Vec<_>) = (addresses(near).collect(), addresses(far).collect());
        // before anybody can post to them
        let mut near_ranks = self.near_ranks.write();
        near_ranks.retain(|rank| !far.iter().any(|peer| peer.rank == *rank));
        near_ranks.extend(near.iter().map(|peer| peer.rank));
        drop(near_ranks);
        self.near.connect(&near, deadline, go_on)?;
        self.far.connect(&far, deadline, go_on)
    }

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        self.far.alloc_region(bytes)
    }

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        self.far.adopt_region(file, bytes)
    }

    fn adopt_device(
        &self,
        memory: &Slab,
        shown: Result<DmaBuf, String>,
    ) -> Result<(Region, String), RegionError> {
        // for peers of other hosts: those of this one map the GPU's memory by its file
        self.far.adopt_device(memory, shown)
    }

    fn offer_file(&self, file: OwnedFd) -> Result<Region, RegionError> {
        self.near.offer_file(file)
    }

    fn take_file(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<OwnedFd, OpenRegionError> {
        self.way_to(peer).take_file(peer, descriptor, deadline)
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        self.way_to(peer).open_region(peer, descriptor, deadline)
    }

    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError> {
        self.way_to(peer).post(peer, queue_pair, work)
    }

    fn post_now(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<Posted, PostError> {
        self.way_to(peer).post_now(peer, queue_pair, work)
    }

    fn raise(&self, peer: Rank, signal: Signal) -> bool {
        self.way_to(peer).raise(peer, signal)
    }

    fn progress(&self) {
        self.far.progress();
    }

    fn watch_tail(&self, slot: ArrivalSlot, region: &Arc<RegionMemory>, end: u64) -> ArrivalSlot {
        self.far.watch_tail(slot, region, end)
    }

    fn look(&self, slot: ArrivalSlot) {
        self.far.look(slot);
    }

    /// Peers of this host ring the same doorbell.
    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        self.far.wait(ticket, deadline)
    }

    fn send_message(
        &self,
        peer: Rank,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError> {
        self.way_to(peer).send_message(peer, body, deadline)
    }

    fn shares_memory(&self, peer: Rank) -> bool {
        self.is_near(peer)
    }

    fn choices(&self) -> Vec<String> {
        let mut ranks: Vec<Rank> = self.near_ranks.read().iter().copied().collect();
        ranks.sort_unstable();
        let near = (!ranks.is_empty())
            .then(|| format!("{} on this host: shared memory", crate::control::rank_list(&ranks)));
        near.into_iter().chain(self.far.choices()).collect()
    }

    fn close(&self, deadline: Deadline) -> Result<(), CloseError> {
        // at the same time: a peer that does not confirm costs the others nothing
        let (near, far) = std::thread::scope(|scope| {
            let near = std::thread::Builder::new()
                .name("fabric-close".into())
                .spawn_scoped(scope, || self.near.close(deadline));
            let far = self.far.close(deadline);
            let near = match near {
                Ok(near) => near.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // no thread is to be had: one after the other
                Err(_) => self.near.close(deadline),
            };
            (near, far)
        });
        match (near, far) {
            (Err(near), Err(far)) => {
                let (
                    CloseError::Unconfirmed { missing: near },
                    CloseError::Unconfirmed { missing: far },
                ) = (near, far);
                Err(CloseError::Unconfirmed { missing: format!("{near}; {far}") })
            }
            (near, far) => near.and(far),
        }
    }
}
