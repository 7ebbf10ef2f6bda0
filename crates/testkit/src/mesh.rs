//! Fabrics that are connected to each other, and small things that tests do with them.

use std::time::Duration;

use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
use tensorwire_fabric::{
    ArrivalMode, ArrivalSlot, Backend, Channel, Completion, Direction, Fabric, FabricConfig,
    HostId, Identity, JobCredentials, LocalSlice, Memcpy, PeerAddress, PostError, Region,
    RegionDescriptor, RemoteRegion, RemoteSlice, Secret, Signal, Wake, verbs_usable,
};
use tensorwire_memory::{Arena, Buffer, Place, Slab};

/// A way to open fabrics that can reach each other: the backend, chosen anew for each mesh.
pub type MakeBackend = fn() -> Backend;

/// What a suite runs over: a backend, and how signals travel on it.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub backend: MakeBackend,
    pub arrival: Option<ArrivalMode>,
    /// Payload is encrypted.
    pub encrypt: bool,
    /// The host of each rank; none: all are reached by the backend.
    pub host: Option<fn(u32) -> u32>,
}

impl Setup {
    /// As a job has it where nothing is said.
    pub const fn new(backend: MakeBackend) -> Setup {
        Setup { backend, arrival: None, encrypt: false, host: None }
    }

    /// False, and the reason is printed, where the backend needs a device that is not there. Where one is
    /// expected its absence is a failure.
    pub fn can_run(&self) -> bool {
        let Backend::Verbs(options) = (self.backend)() else {
            return true;
        };
        match verbs_usable(&options, None) {
            Ok(_) => true,
            Err(reason) => skip(&reason),
        }
    }

    /// The configuration of a rank.
    pub fn config(&self, rank: u32) -> FabricConfig {
        let mut config = FabricConfig::new(member(rank), job());
        self.change(&mut config);
        config
    }

    fn change(&self, config: &mut FabricConfig) {
        (config.arrival, config.encrypt) = (self.arrival, self.encrypt);
        let host = self.host.map(|host| host(config.me.rank.0));
        config.host = host.map(|host| HostId::here(&format!("host {host}")));
    }

    /// [`mesh`]
    pub fn mesh(&self, n: u32) -> Vec<Fabric> {
        self.mesh_with(n, |_| {})
    }

    /// [`mesh_with`]
    pub fn mesh_with(&self, n: u32, change: impl Fn(&mut FabricConfig)) -> Vec<Fabric> {
        mesh_with(self.backend, n, |config| {
            self.change(config);
            change(config);
        })
    }

    /// [`open`]
    pub fn open(&self, n: u32) -> Vec<Fabric> {
        open(&(self.backend)(), n, |config| self.change(config))
    }
}

/// False, after saying why a test is skipped; a failure where a device is expected (TENSORWIRE_VERBS).
pub fn skip(reason: &dyn std::fmt::Display) -> bool {
    crate::skip::skip(Some("TENSORWIRE_VERBS"), reason);
    false
}

/// Long enough that only a hang exceeds it, on a loaded machine too.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// The job of all tests.
pub fn job() -> JobCredentials {
    JobCredentials { job_id: JobId(0x7e57), secret: Secret([42; 32]) }
}

/// A life of a rank.
pub fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(0x1000 + u64::from(rank)) }
}

/// Where a fabric is, for its peers.
pub fn address_of(fabric: &Fabric, member: Identity) -> PeerAddress {
    let Identity { rank, incarnation } = member;
    PeerAddress { rank, incarnation, endpoint: fabric.endpoint() }
}

/// `n` fabrics, each connected to all others, with the default configuration.
pub fn mesh(make: MakeBackend, n: u32) -> Vec<Fabric> {
    mesh_with(make, n, |_| {})
}

/// `n` connected fabrics, each with its configuration changed.
pub fn mesh_with(make: MakeBackend, n: u32, change: impl Fn(&mut FabricConfig)) -> Vec<Fabric> {
    let fabrics = open(&make(), n, change);
    connect(&fabrics);
    fabrics
}

/// `n` fabrics that are not connected yet.
pub fn open(backend: &Backend, n: u32, change: impl Fn(&mut FabricConfig)) -> Vec<Fabric> {
    let open = |rank| {
        let mut config = FabricConfig::new(member(rank), job());
        change(&mut config);
        Fabric::open(backend.clone(), config).unwrap()
    };
    (0..n).map(open).collect()
}

/// Connects fabrics of ranks `0..n` to each other, at the same time as processes would.
pub fn connect(fabrics: &[Fabric]) {
    let addresses: Vec<PeerAddress> =
        (0..).zip(fabrics).map(|(rank, fabric)| address_of(fabric, member(rank))).collect();
    std::thread::scope(|scope| {
        for (rank, fabric) in (0..).map(Rank).zip(fabrics) {
            let mut peers = addresses.clone();
            peers.retain(|peer| peer.rank != rank);
            scope.spawn(move || fabric.connect(&peers, soon()).unwrap());
        }
    });
}

/// Closes all fabrics at the same time; every one must confirm.
pub fn close(fabrics: &[Fabric]) {
    std::thread::scope(|scope| {
        for fabric in fabrics {
            scope.spawn(|| fabric.close(soon()).unwrap());
        }
    });
}

/// Everything that a one-way transfer needs: a source here, a target there, a slot there.
#[derive(Debug)]
pub struct Route {
    pub channel: Channel,
    pub source: Region,
    pub target: Region,
    pub remote: RemoteRegion,
    pub slot: ArrivalSlot,
}

/// A route from `from` to `to` (of rank `to_rank`) over one queue pair, for `bytes` bytes.
pub fn route(from: &Fabric, to: &Fabric, to_rank: u32, queue_pair: usize, bytes: u64) -> Route {
    let channel = from.channel(Rank(to_rank), queue_pair).unwrap();
    let source = from.alloc_region(bytes).unwrap();
    let target = to.alloc_region(bytes).unwrap();
    let slot = to.alloc_arrival().unwrap();
    // over the wire and back, as a peer would learn it
    let told = target.descriptor().to_bytes();
    let descriptor = RegionDescriptor::from_bytes(&told).unwrap();
    let remote = channel.open_region(&descriptor, soon()).unwrap();
    Route { channel, source, target, remote, slot }
}

impl Route {
    /// A memcpy of the first `bytes` bytes, raising the slot to `epoch` unless that is 0.
    pub fn memcpy(&self, direction: Direction, bytes: u64, epoch: u64, token: u64) -> Memcpy<'_> {
        Memcpy {
            local: LocalSlice { region: &self.source, offset: 0 },
            remote: RemoteSlice { region: &self.remote, offset: 0 },
            bytes,
            direction,
            signal: (epoch > 0).then_some(Signal { slot: self.slot, epoch }),
            token,
        }
    }

    pub fn write(&self, bytes: u64, epoch: u64, token: u64) -> Result<(), PostError> {
        self.channel.memcpy(self.memcpy(Direction::Write, bytes, epoch, token))
    }
}

/// Fills a region with a pattern that names its seed at every byte.
pub fn fill(region: &Region, seed: u64) {
    fill_range(region, 0, region.bytes(), seed);
}

/// The same for a part of it. The test writes only while no memcpy touches these bytes.
pub fn fill_range(region: &Region, offset: u64, bytes: u64, seed: u64) {
    let buffer = whole(&region.slab());
    let mut memory = buffer.write().unwrap();
    let part = &mut memory[offset as usize..][..bytes as usize];
    part.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = pattern(seed, at));
}

/// The first byte from `offset` on that is not what `fill` with that seed wrote. The test reads only
/// after the arrival of what it reads.
pub fn mismatch(region: &Region, offset: u64, bytes: u64, seed: u64) -> Option<u64> {
    mismatch_in(&region.slab(), offset, bytes, seed)
}

/// The same for memory that need not be a region of ours.
pub fn mismatch_in(slab: &Slab, offset: u64, bytes: u64, seed: u64) -> Option<u64> {
    let buffer = whole(slab);
    let memory = buffer.read().unwrap();
    let part = &memory[offset as usize..][..bytes as usize];
    let wrong = part.iter().zip(offset..).find(|(byte, at)| **byte != pattern(seed, *at));
    wrong.map(|(_, at)| at)
}

fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    Arena::new(slab, &[place]).unwrap().into_buffers().remove(0)
}

fn pattern(seed: u64, at: u64) -> u8 {
    let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    (mixed >> 56) as u8 // the top byte is meant
}

/// Waits until `count` completions have come, and returns them in their order.
pub fn completions(fabric: &Fabric, count: usize) -> Vec<Completion> {
    let mut found = Vec::new();
    wait_until(fabric, "completions", || {
        fabric.poll(&mut found);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "more completions than posts: {found:?}");
    found
}

/// Waits on the fabric until `done`.
pub fn wait_until(fabric: &Fabric, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = soon();
    loop {
        let ticket = fabric.ticket();
        if done() {
            return;
        }
        let wake = fabric.wait(ticket, deadline);
        assert!(wake == Wake::Event || done(), "waited in vain for {what}: {:?}", fabric.fault());
    }
}

/// Waits until a slot has reached an epoch.
pub fn await_arrival(fabric: &Fabric, slot: ArrivalSlot, epoch: u64) {
    wait_until(fabric, "an arrival", || fabric.arrived(slot) >= epoch);
}
