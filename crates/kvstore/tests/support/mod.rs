//! Jobs of threads: each has a fabric and an end of the store, as processes have.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Backend, Fabric};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{RingOptions, Rings};
use tensorwire_kvstore::{
    Keep, Key, KvServer, KvServerOptions, KvWorker, KvWorkerOptions, Membership, PartKey,
    Partition, PushedRows, Reduce, ServerPorts, Snapshot, StateTensor, StoreEvent, Update,
    ValueSpec,
};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;
use tensorwire_testkit::mesh;

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn fill(buffer: &Buffer, by: impl Fn(usize) -> f32) {
    let mut bytes = buffer.write().unwrap();
    for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
        chunk.copy_from_slice(&by(at).to_le_bytes());
    }
}

pub(crate) fn f32s(buffer: &Buffer) -> Vec<f32> {
    of(&buffer.read().unwrap())
}

fn of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// The rule of a store without an optimizer: the weights are the sum of a round; rows are added.
#[derive(Default)]
pub(crate) struct Sum {
    specs: HashMap<PartKey, ValueSpec>,
}

impl Reduce for Sum {
    fn add(&mut self, _dtype: DType, into: &mut [u8], from: &[u8]) -> Result<(), String> {
        for (into, from) in into.chunks_exact_mut(4).zip(from.chunks_exact(4)) {
            let sum = of(into)[0] + of(from)[0];
            into.copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }
}

impl Update for Sum {
    fn create(&mut self, part: PartKey, _key: Key, spec: &ValueSpec) -> Result<(), String> {
        self.specs.insert(part, *spec);
        Ok(())
    }

    fn fold(&mut self, _part: PartKey, weights: &mut [u8], pushes: &[&[u8]]) -> Result<(), String> {
        weights.copy_from_slice(pushes[0]);
        pushes[1..].iter().try_for_each(|push| self.add(DType::F32, weights, push))
    }

    fn fold_rows(
        &mut self,
        part: PartKey,
        weights: &mut [u8],
        pushes: &[PushedRows<'_>],
    ) -> Result<(), String> {
        let row = self.specs[&part].row_bytes();
        for PushedRows { indices, rows } in pushes {
            for (index, from) in indices.chunks_exact(4).zip(rows.chunks_exact(row)) {
                let at = i32::from_le_bytes(index.try_into().unwrap()) as usize * row;
                self.add(DType::F32, &mut weights[at..at + row], from)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn state(&self, _part: PartKey) -> Vec<StateTensor> {
        Vec::new()
    }

    fn restore(&mut self, _part: PartKey, _state: Vec<StateTensor>) -> Result<(), String> {
        Ok(())
    }
}

/// Snapshots in memory.
#[derive(Clone, Default)]
pub(crate) struct Shelf(Arc<Mutex<HashMap<(usize, String), Snapshot>>>);

impl Keep for Shelf {
    fn save(&mut self, server: usize, to: &str, snapshot: &Snapshot) -> Result<(), String> {
        self.0.lock().unwrap().insert((server, to.to_string()), snapshot.clone());
        Ok(())
    }

    fn load(&mut self, server: usize, from: &str) -> Result<Option<Snapshot>, String> {
        Ok(self.0.lock().unwrap().get(&(server, from.to_string())).cloned())
    }
}

/// A scheduler that all threads share: counts who is at which barrier.
#[derive(Clone)]
struct Hall {
    workers: usize,
    entered: Arc<(Mutex<HashMap<u64, usize>>, Condvar)>,
    mine: u64,
}

impl Membership for Hall {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        self.mine += 1;
        *self.entered.0.lock().unwrap().entry(self.mine).or_default() += 1;
        Ok(self.mine)
    }

    fn is_released(&mut self, barrier: u64) -> bool {
        self.entered.0.lock().unwrap().get(&barrier) == Some(&self.workers)
    }

    fn events(&mut self) -> Result<Vec<StoreEvent>, String> {
        Ok(Vec::new())
    }
}

pub(crate) struct Job {
    backend: Backend,
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    mode: Mode,
    pub(crate) shelf: Shelf,
}

impl Job {
    pub(crate) fn shm(workers: usize, servers: usize, mode: Mode) -> Job {
        Job { backend: Backend::Shm, workers, servers, mode, shelf: Shelf::default() }
    }

    pub(crate) fn tcp(workers: usize, servers: usize, mode: Mode) -> Job {
        Job { backend: Backend::Tcp, ..Job::shm(workers, servers, mode) }
    }

    /// Runs `work` on every worker, with its number.
    pub(crate) fn run(&self, work: impl Fn(usize, &mut KvWorker) + Sync) {
        let (workers, servers) = (self.workers as u32, self.servers as u32);
        let fabrics = mesh::open(&self.backend, workers + servers, |_| {});
        mesh::connect(&fabrics);
        let hall = Hall { workers: self.workers, entered: Arc::default(), mine: 0 };
        let partition = Partition::new(servers, 100_000);
        std::thread::scope(|scope| {
            for (number, fabric) in fabrics.iter().enumerate() {
                let (hall, work) = (hall.clone(), &work);
                scope.spawn(move || match number.checked_sub(self.workers) {
                    None => {
                        let peers: Vec<Rank> = (workers..workers + servers).map(Rank).collect();
                        let options = KvWorkerOptions {
                            partition,
                            servers: peers.clone(),
                            servers_come_back: false,
                            patience: Duration::from_secs(10),
                        };
                        let wire = rings(fabric, &peers);
                        let reduce = Box::new(Sum::default());
                        let mut store = KvWorker::new(wire, Box::new(hall), reduce, options);
                        work(number, &mut store);
                        store.close(soon()).unwrap();
                    }
                    Some(server) => {
                        let peers: Vec<Rank> = (0..workers).map(Rank).collect();
                        let options = KvServerOptions {
                            mode: self.mode,
                            partition,
                            server,
                            workers: peers.iter().map(|rank| mesh::member(rank.0)).collect(),
                            elastic: false,
                            checkpoint: None,
                            patience: Duration::from_secs(10),
                        };
                        let ports = ServerPorts {
                            wire: rings(fabric, &peers),
                            membership: Box::new(hall),
                            update: Box::new(Sum::default()),
                            keep: Box::new(self.shelf.clone()),
                        };
                        let mut server = KvServer::new(ports, options);
                        server
                            .register(5, Box::new(|from, body| Ok([&[from as u8], body].concat())));
                        server.serve().unwrap();
                        server.close(soon()).unwrap();
                    }
                });
            }
        });
    }
}

fn rings(fabric: &Fabric, peers: &[Rank]) -> Box<Rings> {
    Box::new(Rings::open(fabric.clone(), peers, RingOptions::default(), soon()).unwrap())
}

pub(crate) fn local() -> KvWorker {
    let sum = || Box::new(Sum::default());
    KvWorker::local(sum(), Box::new(Shelf::default()), sum())
}
