//! Jobs of threads: each has a fabric and an end of the store, as processes have. The scheduler is a table that
//! all share, and says what a test tells it to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Backend, Fabric, FabricConfig, Identity, PeerAddress};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{RingOptions, Rings};
use tensorwire_kvstore::{
    Checkpoint, DeviceReach, KvServer, KvServerOptions, KvWorker, KvWorkerOptions, Membership,
    MembershipEvent, Partition, ServerPorts, StoreDevice, Updater,
};
use tensorwire_testkit::mesh;

use super::by_nic::{Gpu, GpuSum};
use super::late::{Late, LateSum};
use super::rule::{Journal, Shelf, Sum};

/// Values of more elements are split.
pub(crate) const BIG: usize = 100_000;
/// The function that jobs' servers have: gives back who called, and what it was given.
pub(crate) const ECHO: u32 = 5;

/// Ends a test that hangs. Far longer than any of them takes, also under a sanitizer on a machine that is busy.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(300))
}

/// A job before it runs. Ranks are those of the workers, the servers, then of servers that took over.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) backend: Backend,
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) mode: Mode,
    pub(crate) rings: RingOptions,
    pub(crate) elastic: bool,
    /// Updates of all shards between two snapshots.
    pub(crate) checkpoint: Option<u64>,
    pub(crate) shelf: Shelf,
    /// Servers have values in the memory of devices.
    pub(crate) on_device: bool,
    /// The same of the driver for tests, which the NICs of a simulated network reach.
    pub(crate) by_nic: bool,
    /// Once this is set those say that all is over, whether or not it is.
    pub(crate) is_hasty: Arc<AtomicBool>,
    /// By worker: its device, if it has one, which is reached likewise.
    pub(crate) gpus: Vec<Arc<Gpu>>,
    /// What all servers did, in order.
    pub(crate) journal: Journal,
}

impl Job {
    pub(crate) fn shm(workers: usize, servers: usize, mode: Mode) -> Job {
        Job {
            backend: Backend::Shm,
            workers,
            servers,
            mode,
            rings: RingOptions::default(),
            elastic: false,
            checkpoint: None,
            shelf: Shelf::default(),
            on_device: false,
            by_nic: false,
            is_hasty: Arc::default(),
            gpus: Vec::new(),
            journal: Journal::default(),
        }
    }

    pub(crate) fn tcp(workers: usize, servers: usize, mode: Mode) -> Job {
        Job { backend: Backend::Tcp, ..Job::shm(workers, servers, mode) }
    }

    pub(crate) fn on_device(self) -> Job {
        Job { on_device: true, ..self }
    }

    /// Runs `work` on every worker, with its number, and all servers to their end.
    pub(crate) fn run(&self, work: impl Fn(usize, &mut KvWorker) + Sync) {
        let (workers, servers) = self.ends();
        std::thread::scope(|scope| {
            for end in servers {
                scope.spawn(|| {
                    let mut server = end.server();
                    server.serve().unwrap();
                    server.close(soon()).unwrap();
                });
            }
            for end in workers {
                scope.spawn(|| {
                    let (number, mut store) = (end.number, end.worker());
                    work(number, &mut store);
                    store.close(soon()).unwrap();
                });
            }
        });
    }

    /// Connected, and not opened yet: workers and servers.
    pub(crate) fn ends(&self) -> (Vec<End>, Vec<End>) {
        // fits: a few
        let world = (self.workers + self.servers) as u32;
        let fabrics = mesh::open(&self.backend, world, |_| {});
        mesh::connect(&fabrics);
        let workers = (0..).zip(&fabrics[..self.workers]);
        let addresses = workers.map(|(rank, fabric)| mesh::address_of(fabric, mesh::member(rank)));
        let scheduler = Scheduler::new(addresses.collect());
        let end = |(rank, fabric): (usize, Fabric)| {
            let number = rank.checked_sub(self.workers).unwrap_or(rank);
            End { job: self.clone(), number, rank, fabric, scheduler: scheduler.clone() }
        };
        let mut workers: Vec<End> = fabrics.into_iter().enumerate().map(end).collect();
        let servers = workers.split_off(self.workers);
        (workers, servers)
    }

    /// A process that is to take over from a server.
    pub(crate) fn spare(&self, scheduler: &Scheduler, server: usize) -> End {
        let rank = self.workers + self.servers + scheduler.0.lock().unwrap().replaced.len();
        // fits: a few
        let config = FabricConfig::new(mesh::member(rank as u32), mesh::job());
        let fabric = Fabric::open(self.backend.clone(), config).unwrap();
        End { job: self.clone(), number: server, rank, fabric, scheduler: scheduler.clone() }
    }
}

/// A process of a job before it opens its end of the store.
pub(crate) struct End {
    job: Job,
    /// Of the worker, or of the server.
    pub(crate) number: usize,
    rank: usize,
    fabric: Fabric,
    pub(crate) scheduler: Scheduler,
}

impl End {
    pub(crate) fn worker(self) -> KvWorker {
        let Job { workers, servers, checkpoint, .. } = self.job;
        let peers = ranks(workers..workers + servers);
        let options = KvWorkerOptions {
            partition: self.partition(),
            servers: peers.clone(),
            servers_come_back: checkpoint.is_some(),
            patience: Duration::from_secs(10),
        };
        let rings = self.rings(&peers);
        let worker = KvWorker::new(rings, self.seat(), Box::new(Sum::default()), options);
        match self.job.gpus.get(self.number) {
            Some(gpu) => worker.with_device(gpu.clone(), DeviceReach::ByNic),
            None => worker,
        }
    }

    pub(crate) fn server(self) -> KvServer {
        with_echo(KvServer::new(self.ports(), self.options()))
    }

    /// Takes over with what the dead server kept.
    pub(crate) fn restored(self) -> KvServer {
        with_echo(KvServer::restored(self.ports(), self.options()).unwrap())
    }

    /// Calls the workers, whom the scheduler tells where it is; they know nothing of its wire yet.
    pub(crate) fn called(self) -> End {
        // fits: a few
        let peer = mesh::address_of(&self.fabric, mesh::member(self.rank as u32));
        let workers = {
            let mut hall = self.scheduler.0.lock().unwrap();
            hall.replaced.push((self.number, peer));
            hall.workers.clone()
        };
        let deadline = soon();
        for (worker, peer) in workers.iter().enumerate() {
            // a worker does not expect it before it has asked for news
            while self.scheduler.lives(worker)
                && let Err(error) = self.fabric.connect(std::slice::from_ref(peer), soon())
            {
                assert!(!deadline.passed(), "worker {worker} does not come: {error}");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self
    }

    /// Its end of the wire alone.
    pub(crate) fn wire(self) -> Rings {
        let Job { workers, servers, .. } = self.job;
        *self.rings(&ranks(workers..workers + servers))
    }

    fn options(&self) -> KvServerOptions {
        let Job { mode, elastic, checkpoint, workers, .. } = self.job;
        KvServerOptions {
            mode,
            partition: self.partition(),
            server: self.number,
            workers: members(workers),
            elastic,
            checkpoint: checkpoint.map(|every| Checkpoint { path: "last".to_string(), every }),
            patience: Duration::from_secs(10),
        }
    }

    fn ports(&self) -> ServerPorts {
        let mut workers = ranks(0..self.job.workers);
        workers.retain(|rank| self.scheduler.lives(rank.index()));
        let sum = Sum::new(self.job.journal.clone());
        let gpu = || Arc::new(Gpu::open(self.number, &self.job.is_hasty));
        let gpu = self.job.by_nic.then(gpu);
        let late = self.job.on_device.then(Arc::<Late>::default);
        let reached = gpu.clone().map(|gpu| (gpu as Arc<dyn StoreDevice>, DeviceReach::ByNic));
        let update: Box<dyn Updater> = match (&late, gpu) {
            (Some(late), _) => Box::new(LateSum::new(sum, late.clone())),
            (None, Some(gpu)) => Box::new(GpuSum::new(sum, gpu)),
            (None, None) => Box::new(sum),
        };
        ServerPorts {
            wire: self.rings(&workers),
            membership: self.seat(),
            update,
            keep: Box::new(self.job.shelf.clone()),
            device: late
                .map(|late| (late as Arc<dyn StoreDevice>, DeviceReach::ByHost))
                .or(reached),
        }
    }

    fn partition(&self) -> Partition {
        // fits: a few
        Partition::new(self.job.servers as u32, BIG)
    }

    fn rings(&self, peers: &[Rank]) -> Box<Rings> {
        let rings = Rings::open(self.fabric.clone(), peers, self.job.rings, soon());
        Box::new(rings.unwrap())
    }

    fn seat(&self) -> Box<Place> {
        let (scheduler, fabric) = (self.scheduler.clone(), self.fabric.clone());
        let is_worker = self.rank < self.job.workers;
        Box::new(Place { scheduler, fabric, is_worker, entered: 0, lost: 0, replaced: 0 })
    }
}

fn ranks(of: Range<usize>) -> Vec<Rank> {
    // fits: a few
    of.map(|rank| Rank(rank as u32)).collect()
}

fn members(workers: usize) -> Vec<Identity> {
    ranks(0..workers).into_iter().map(|rank| mesh::member(rank.0)).collect()
}

fn with_echo(mut server: KvServer) -> KvServer {
    // fits: a few workers
    let echo = |from: usize, body: &[u8]| match body {
        b"" => Err("there is nothing to give back".to_string()),
        body => Ok([&[from as u8], body].concat()),
    };
    server.register(ECHO, Box::new(echo));
    server
}

/// What all threads know of each other.
#[derive(Clone)]
pub(crate) struct Scheduler(Arc<Mutex<Hall>>);

struct Hall {
    workers: Vec<PeerAddress>,
    /// How many are at each barrier.
    entered: HashMap<u64, usize>,
    lost: Vec<usize>,
    replaced: Vec<(usize, PeerAddress)>,
}

impl Scheduler {
    fn new(workers: Vec<PeerAddress>) -> Scheduler {
        let (lost, replaced) = (Vec::new(), Vec::new());
        Scheduler(Arc::new(Mutex::new(Hall { workers, entered: HashMap::new(), lost, replaced })))
    }

    /// Have all workers been at this barrier?
    pub(crate) fn met(&self, barrier: u64) -> bool {
        let hall = self.0.lock().unwrap();
        hall.entered.get(&barrier).is_some_and(|entered| *entered == hall.workers.len())
    }

    fn lives(&self, worker: usize) -> bool {
        !self.0.lock().unwrap().lost.contains(&worker)
    }

    /// Says that a worker is dead.
    pub(crate) fn lose(&self, worker: usize) {
        self.0.lock().unwrap().lost.push(worker);
    }
}

/// The scheduler as one process sees it.
struct Place {
    scheduler: Scheduler,
    fabric: Fabric,
    is_worker: bool,
    entered: u64,
    /// Of those that are known, how many it has been told.
    lost: usize,
    replaced: usize,
}

impl Membership for Place {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        self.entered += 1;
        *self.scheduler.0.lock().unwrap().entered.entry(self.entered).or_default() += 1;
        Ok(self.entered)
    }

    fn is_released(&mut self, barrier: u64) -> bool {
        let hall = self.scheduler.0.lock().unwrap();
        hall.entered.get(&barrier) == Some(&(hall.workers.len() - hall.lost.len()))
    }

    fn events(&mut self) -> Result<Vec<MembershipEvent>, String> {
        let (mut events, mut new) = (Vec::new(), Vec::new());
        {
            let hall = self.scheduler.0.lock().unwrap();
            if hall.lost.len() > self.lost {
                self.lost = hall.lost.len();
                let all = members(hall.workers.len()).into_iter().enumerate();
                let alive = all.filter(|(worker, _)| !hall.lost.contains(worker));
                let alive = alive.map(|(_, member)| member).collect();
                events.push(MembershipEvent::World { alive });
            }
            if self.is_worker {
                new.extend_from_slice(&hall.replaced[self.replaced..]);
                self.replaced = hall.replaced.len();
            }
        }
        for (server, peer) in new {
            let connected = self.fabric.connect(std::slice::from_ref(&peer), soon());
            connected.map_err(|error| error.to_string())?;
            events.push(MembershipEvent::ServerReplaced { server, rank: peer.rank });
        }
        Ok(events)
    }
}

pub(crate) fn local() -> KvWorker {
    let sum = || Box::new(Sum::default());
    KvWorker::local(sum(), Box::new(Shelf::default()), sum())
}
