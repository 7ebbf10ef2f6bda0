//! A member's end of a store, opened: the wire to its peers, its arithmetic, its scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Fabric, PeerAddress};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::proto::{Mode, Role};
use tensorwire_kvstore::wire::{RingOptions, Rings, Wire, WireError};
use tensorwire_kvstore::{
    Checkpoint, DeviceReach, Keep, KvServer, KvServerOptions, KvWorker, KvWorkerOptions,
    Membership, MembershipEvent as Event, Partition, ServerPorts, StoreDevice, StoreError,
};
use tensorwire_memory::Slab;

use super::{Arithmetic, DeviceOfStore, SnapshotFiles};
use crate::config::{ConfigError, Exchange};
use crate::messages::OpenMessagesError;
use crate::rates::Rates;
use tensorwire_launch::{Member, MemberError, Peers, Scheduling, StoreEvent, WireOptions};

/// How long a server that took over is waited for at a time: between two times another is, or the fabric closes.
const ONE_TRY: Duration = Duration::from_millis(200);
/// Longest that it may take from its call on to be connected.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);
/// How long nobody tries again after one that failed, which may be at once.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// What a store's messages travel over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreWire {
    /// Rings and direct writes over the fabric.
    #[default]
    ZeroCopy,
    /// ZeroMQ, as ps-lite: the baseline.
    Zmq,
}

impl StoreWire {
    /// Checks that it is built in.
    ///
    /// # Errors
    /// When it is a baseline, and this build has none.
    pub fn check_built_in(self) -> Result<(), ConfigError> {
        match self {
            StoreWire::ZeroCopy => Ok(()),
            StoreWire::Zmq => Exchange::Zmq.check_built_in(),
        }
    }
}

/// How a member's end is opened. All members are told the same.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub transport: WireOptions,
    pub over: StoreWire,
    pub mode: Mode,
    /// Values of more elements are split over all servers.
    pub big_elements: usize,
    /// And each server's share into slices of so many bytes ([`Partition::in_slices`]).
    pub slice_bytes: Option<usize>,
    /// A worker's death does not end the job.
    pub elastic: bool,
    /// Servers take snapshots, and come back from them.
    pub checkpoint: Option<Checkpoint>,
    pub kernels: Arc<Kernels>,
    /// What the rate of an update is, by its number.
    pub rates: Rates,
    /// Must be the same everywhere: the launcher compares.
    pub digest: String,
}

/// A member's end.
#[derive(Debug)]
pub enum StoreEnd {
    Worker(Box<KvWorker>),
    Server(Box<KvServer>),
}

/// Why a member's end could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error("this job has no store: its JobSpec says of none")]
    NoStore,
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Messages(#[from] OpenMessagesError),
    #[error(
        "ZeroMQ is a baseline to compare with, and this program was built without the baselines"
    )]
    NoBaselines,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenStoreError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            OpenStoreError::Wire(WireError::Lost { rank, .. }) => Some(*rank),
            OpenStoreError::Store(error) => error.lost_peer(),
            OpenStoreError::Member(error) => error.lost_peer(),
            OpenStoreError::Messages(error) => error.lost_peer(),
            _ => None,
        }
    }
}

/// Opens a member's end of the store. All members must.
///
/// # Errors
/// When memory does not suffice, or a peer is lost, late or of another mind.
pub fn open_store(member: &Member, options: StoreOptions) -> Result<StoreEnd, OpenStoreError> {
    open_store_on(member, options, (None, None), Box::new(SnapshotFiles))
}

/// As [`open_store`]; over a fabric that is connected to its peers, if one is given, and in the memory of a device, if one is
/// given with how that is reached; with `keep` for what a server writes.
pub(crate) fn open_store_on(
    member: &Member,
    options: StoreOptions,
    (fabric, device): (Option<Fabric>, Option<(Arc<DeviceOfStore>, DeviceReach)>),
    keep: Box<dyn Keep>,
) -> Result<StoreEnd, OpenStoreError> {
    let place = member.store().ok_or(OpenStoreError::NoStore)?;
    let (workers, servers) = (place.workers, place.servers);
    let all_servers: Vec<Rank> = (workers..workers + servers).map(Rank).collect();
    let peers: Vec<Rank> = match place.role {
        Role::Worker(_) => all_servers.clone(),
        Role::Server(_) => (0..workers).map(Rank).collect(),
    };
    // what is opened while training goes on holds up whoever opens it
    let patience = member.liveness() * 4;
    let is_mapped = |(_, reach): &&(Arc<DeviceOfStore>, DeviceReach)| *reach == DeviceReach::Mapped;
    let maps = device.as_ref().filter(is_mapped).map(|(device, _)| device.clone());
    let (mut wire, fabric) = open_wire(member, &options, &peers, (fabric, maps))?;
    let scheduler = StoreScheduler {
        scheduling: member.scheduling(),
        workers: member.lives(workers),
        newcomers: fabric.map(Newcomers::new),
    };
    let membership = Box::new(scheduler);
    let StoreOptions { mode, elastic, checkpoint, kernels, rates, .. } = options;
    let whole = Partition::new(servers, options.big_elements);
    let partition = options.slice_bytes.map_or(whole, |bytes| whole.in_slices(bytes));
    // of workers that each go their own way, all together make a step
    let each = if mode == Mode::Sync { 1 } else { u64::from(workers) };
    let computes = device.as_ref().map(|(device, _)| device.clone());
    let arithmetic = Arithmetic::new(kernels).at_rates(rates, each).on_device(computes);
    let device = match (device, place.role) {
        (Some((device, DeviceReach::ByNic)), Role::Server(_)) => {
            let reach = try_nic(member, wire.as_mut(), &device);
            Some((device, reach))
        }
        (device, _) => device,
    };
    let device = device.map(|(device, reach)| (device as Arc<dyn StoreDevice>, reach));
    let Role::Server(server) = place.role else {
        let servers_come_back = checkpoint.is_some();
        let options =
            KvWorkerOptions { partition, servers: all_servers, servers_come_back, patience };
        let worker = KvWorker::new(wire, membership, Box::new(arithmetic), options);
        let worker = match device {
            Some((device, reach)) => worker.with_device(device, reach),
            None => worker,
        };
        return Ok(StoreEnd::Worker(Box::new(worker)));
    };
    let options = KvServerOptions {
        mode,
        partition,
        // fits: usize is 64 bits wide
        server: server as usize,
        workers: member.lives(workers),
        elastic,
        checkpoint,
        patience,
    };
    let update = Box::new(arithmetic);
    let ports = ServerPorts { wire, membership, update, keep, device };
    let server = match place.replaces() {
        None => KvServer::new(ports, options),
        Some(_) => KvServer::restored(ports, options)?,
    };
    Ok(StoreEnd::Server(Box::new(server)))
}

/// Finds out whether the NIC reaches the memory of a server's device, and says so.
fn try_nic(member: &Member, wire: &mut dyn Wire, device: &DeviceOfStore) -> DeviceReach {
    let tried = device.alloc_unseen(1).and_then(|memory| {
        let adopted = wire.adopt_device(&memory, device.dma_buf(&memory));
        adopted.map_err(|error| error.to_string())
    });
    let (line, reach) = match tried {
        Ok((_, way)) => {
            let line = format!("GPUDirect RDMA: the NIC reaches the memory of servers' GPUs {way}");
            (line, DeviceReach::ByNic)
        }
        Err(why) => (by_host("servers", &why), DeviceReach::ByHost),
    };
    // a launcher that is gone is noticed by the thread that watches it
    let _ = member.say(&line);
    reach
}

/// Has the NIC reach memory of a worker's device, from which it pushes and into which it pulls; says, and returns, whether it
/// does.
pub(crate) fn reach_by_nic(member: &Member, store: &mut KvWorker, memory: &Slab) -> bool {
    let reached = store.reach_on_device(memory);
    let line = match &reached {
        Ok(way) => format!("GPUDirect RDMA: the NIC reaches the memory of workers' GPUs {way}"),
        Err(why) => by_host("workers", &why.to_string()),
    };
    // a launcher that is gone is noticed by the thread that watches it
    let _ = member.say(&line);
    reached.is_ok()
}

/// What is said where no NIC reaches the memory of the devices of some members.
fn by_host(whose: &str, why: &str) -> String {
    format!("at {whose} what is pushed and pulled goes by pinned memory of the host: {why}")
}

fn open_wire(
    member: &Member,
    options: &StoreOptions,
    peers: &[Rank],
    (fabric, device): (Option<Fabric>, Option<Arc<DeviceOfStore>>),
) -> Result<(Box<dyn Wire>, Option<Fabric>), OpenStoreError> {
    match options.over {
        StoreWire::ZeroCopy => {
            let these = Peers::These(peers.to_vec());
            let wire = WireOptions { peers: these, ..options.transport.clone() };
            let fabric = fabric.map_or_else(|| member.connect(&wire, &options.digest), Ok)?;
            let deadline = Deadline::after(member.setup_patience());
            let lives = |rank: &&Rank| member.lives_still(**rank);
            let peers: Vec<Rank> = peers.iter().filter(lives).copied().collect();
            let rings = Rings::open(fabric.clone(), &peers, RingOptions::default(), deadline)?;
            let rings = match device {
                Some(device) => rings.with_device(device),
                None => rings,
            };
            Ok((Box::new(rings), Some(fabric)))
        }
        StoreWire::Zmq => Ok((open_zmq(member, peers, &options.digest)?, None)),
    }
}

#[cfg(feature = "baselines")]
fn open_zmq(
    member: &Member,
    peers: &[Rank],
    digest: &str,
) -> Result<Box<dyn Wire>, OpenStoreError> {
    use tensorwire_baselines::{messages, zmq::ZmqWire};
    let node: Result<_, OpenMessagesError> = messages::open_zmq(member, peers, digest);
    let node = node?;
    member.say_connected()?;
    Ok(Box::new(ZmqWire::new(node)))
}

#[cfg(not(feature = "baselines"))]
fn open_zmq(_: &Member, _: &[Rank], _: &str) -> Result<Box<dyn Wire>, OpenStoreError> {
    Err(OpenStoreError::NoBaselines)
}

/// The launcher as the store sees it.
struct StoreScheduler {
    scheduling: Scheduling,
    workers: Vec<tensorwire_fabric::Identity>,
    /// None where messages go by no fabric.
    newcomers: Option<Newcomers>,
}

/// Servers that took over. Each is waited for by a thread: a process takes seconds to start, and whoever asks for news goes on
/// with the other servers meanwhile.
struct Newcomers {
    fabric: Fabric,
    /// By number: who took over last.
    latest: Arc<Mutex<BTreeMap<usize, Rank>>>,
    connects: Sender<Event>,
    connected: Receiver<Event>,
}

impl Newcomers {
    fn new(fabric: Fabric) -> Newcomers {
        let (connects, connected) = channel();
        Newcomers { fabric, latest: Arc::default(), connects, connected }
    }

    /// Has a server connected as soon as it calls, in place of one that died before it did.
    fn expect(&self, server: usize, peer: PeerAddress) -> Result<(), String> {
        let (fabric, latest, connects) =
            (self.fabric.clone(), self.latest.clone(), self.connects.clone());
        latest.lock().insert(server, peer.rank);
        let is_latest = move || latest.lock().get(&server) == Some(&peer.rank);
        let wait = move || {
            let rank = peer.rank;
            while is_latest() {
                let one_try = Deadline::after(ONE_TRY);
                // asked while it has not called alone: who has called is not hung up on
                let goes_on = || is_latest() && !one_try.passed();
                let (peers, deadline) =
                    (std::slice::from_ref(&peer), Deadline::after(CONNECTED_WITHIN));
                let Err(error) = fabric.connect_while(peers, deadline, &goes_on) else {
                    // nobody hears it where the worker has ended
                    let _ = connects.send(Event::ServerReplaced { server, rank });
                    return;
                };
                tracing::debug!("server {server} does not call yet: {error}");
                std::thread::sleep(TRY_AGAIN);
            }
        };
        let thread = std::thread::Builder::new().name("store-newcomer".into());
        let started = thread.spawn(wait).map(drop);
        started.map_err(|error| format!("no thread waits for server {server}: {error}"))
    }

    /// Those that have come since this was last asked.
    fn come(&self) -> impl Iterator<Item = Event> + '_ {
        self.connected.try_iter()
    }
}

impl Drop for Newcomers {
    /// Nobody is waited for any more.
    fn drop(&mut self) {
        self.latest.lock().clear();
    }
}

impl Membership for StoreScheduler {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        self.scheduling.enter_barrier().map_err(|error| error.to_string())
    }

    fn is_released(&mut self, barrier: u64) -> bool {
        self.scheduling.barrier_passed(barrier)
    }

    fn events(&mut self) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        for event in self.scheduling.store_events() {
            match event {
                StoreEvent::World { alive, .. } => {
                    let lives = |number: u32| self.workers.get(number as usize).copied();
                    let alive = alive.into_iter().filter_map(lives).collect();
                    events.push(Event::World { alive });
                }
                StoreEvent::ServerReplaced { server, peer, .. } => {
                    if let Some(newcomers) = &self.newcomers {
                        // fits: usize is 64 bits wide
                        newcomers.expect(server as usize, peer)?;
                    }
                }
            }
        }
        events.extend(self.newcomers.iter().flat_map(Newcomers::come));
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_fabric::{Backend, FabricConfig};
    use tensorwire_testkit::mesh::{address_of, job, member, open, soon};

    fn await_news(newcomers: &Newcomers) -> Vec<Event> {
        let (deadline, mut events) = (soon(), Vec::new());
        while events.is_empty() {
            assert!(!deadline.passed(), "nobody comes");
            std::thread::sleep(Duration::from_millis(1));
            events.extend(newcomers.come());
        }
        events
    }

    fn newcomer(rank: u32) -> (Fabric, PeerAddress) {
        let config = FabricConfig::new(member(rank), job());
        let fabric = Fabric::open(Backend::Shm, config).unwrap();
        let address = address_of(&fabric, member(rank));
        (fabric, address)
    }

    /// It calls until the worker expects it.
    fn call(fabric: &Fabric, worker: &PeerAddress) {
        let deadline = soon();
        while let Err(error) = fabric.connect(std::slice::from_ref(worker), soon()) {
            assert!(!deadline.passed(), "the worker does not come: {error}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_server_that_took_over_is_waited_for_behind_whoever_asks() {
        let fabric = open(&Backend::Shm, 1, |_| {}).remove(0);
        let worker = address_of(&fabric, member(0));
        let newcomers = Newcomers::new(fabric.clone());
        let (dead, living, other) = (newcomer(2), newcomer(3), newcomer(4));
        newcomers.expect(0, dead.1).unwrap();
        assert!(newcomers.come().next().is_none());
        // the one that never calls is followed by another, and keeps none waiting
        newcomers.expect(0, living.1).unwrap();
        newcomers.expect(1, other.1).unwrap();
        assert!(newcomers.come().next().is_none());
        // this, and a thread for each that is waited for: whoever asks waits for none
        assert!(Arc::strong_count(&newcomers.latest) >= 3);
        call(&other.0, &worker);
        let came = await_news(&newcomers);
        assert_eq!(came, [Event::ServerReplaced { server: 1, rank: Rank(4) }]);
        call(&living.0, &worker);
        let came = await_news(&newcomers);
        assert_eq!(came, [Event::ServerReplaced { server: 0, rank: Rank(3) }]);
    }

    #[test]
    fn who_is_not_wanted_any_more_is_not_waited_for() {
        let fabric = open(&Backend::Shm, 1, |_| {}).remove(0);
        let newcomers = Newcomers::new(fabric);
        let latest = newcomers.latest.clone();
        newcomers.expect(0, newcomer(2).1).unwrap();
        drop(newcomers);
        let deadline = soon();
        while Arc::strong_count(&latest) > 1 {
            assert!(!deadline.passed(), "a thread waits for it still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
