//! A store over a wire moves while its session does other things.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::Rank;
use tensorwire_fabric::Backend;
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{RingOptions, Rings};
use tensorwire_kvstore::{
    KvServer, KvServerOptions, KvWorkerOptions, Membership, MembershipEvent, Partition, ServerPorts,
};
use tensorwire_testkit::mesh::{member, mesh, soon};

use super::*;
use crate::store::{Arithmetic, SnapshotFiles};

/// More than may be under way to a server at a time: the last part goes once an answer has come for others.
const PIECES: u32 = 6;
const ELEMENTS: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Nobody comes or goes.
struct Alone;

impl Membership for Alone {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        Ok(0)
    }

    fn is_released(&mut self, _: u64) -> bool {
        true
    }

    fn events(&mut self) -> Result<Vec<MembershipEvent>, String> {
        Ok(Vec::new())
    }
}

fn arithmetic() -> Box<Arithmetic> {
    Box::new(Arithmetic::new(Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap())))
}

/// A worker, and a thread that serves it until it leaves.
fn store(backend: fn() -> Backend) -> (Arc<Mutex<KvWorker>>, std::thread::JoinHandle<()>) {
    let fabrics = mesh(backend, 2);
    let rings = |at: usize| {
        // fits: two
        let peer = [Rank(1 - at as u32)];
        Rings::open(fabrics[at].clone(), &peer, RingOptions::default(), soon()).unwrap()
    };
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| rings(1));
        (rings(0), theirs.join().unwrap())
    });
    let partition = Partition::new(1, usize::MAX);
    let serving = std::thread::spawn(move || {
        let options = KvServerOptions {
            mode: Mode::Sync,
            partition,
            server: 0,
            workers: vec![member(0)],
            elastic: false,
            checkpoint: None,
            patience: PATIENCE,
        };
        let ports = ServerPorts {
            wire: Box::new(theirs),
            membership: Box::new(Alone),
            update: arithmetic(),
            keep: Box::new(SnapshotFiles),
            device: None,
        };
        let mut server = KvServer::new(ports, options);
        server.serve().unwrap();
        server.close(Deadline::after(PATIENCE)).unwrap();
    });
    let options = KvWorkerOptions {
        partition,
        servers: vec![Rank(1)],
        servers_come_back: false,
        patience: PATIENCE,
    };
    let worker = KvWorker::new(Box::new(ours), Box::new(Alone), arithmetic(), options);
    (Arc::new(Mutex::new(worker)), serving)
}

/// An exchange that pushes to [`PIECES`] keys, whose values are zeros, by as many edges.
fn exchange(worker: &Arc<Mutex<KvWorker>>) -> (StoreExchange, Vec<Buffer>) {
    let spec = ValueSpec::dense(DType::F32, ELEMENTS);
    let keys = || (0..PIECES).map(|at| (EdgeId(at), Key(at.into())));
    let tensors: Vec<Buffer> = keys().map(|_| worker.lock().alloc(&spec).unwrap()).collect();
    tensors.iter().for_each(|tensor| tensor.write().unwrap().fill(0));
    let values: Vec<(Key, ValueSpec)> = keys().map(|(_, key)| (key, spec)).collect();
    let first = worker.lock().init(&values, Some(&tensors)).unwrap();
    worker.lock().wait(first, soon()).unwrap();
    let outbound = keys().map(|(edge, key)| (edge, (String::new(), key, Sent::Whole)));
    let exchange = StoreExchange::over(worker.clone(), outbound.collect(), HashMap::new());
    (exchange, tensors)
}

#[test]
fn over_a_wire_pushes_go_and_are_answered_while_the_session_does_other_things() {
    let (worker, serving) = store(|| Backend::Tcp);
    let (mut exchange, tensors) = exchange(&worker);
    assert!(exchange.moves_alone());
    for (at, tensor) in (0..).zip(&tensors) {
        tensor.write().unwrap().fill(1);
        exchange.send(EdgeId(at), 1, Some(tensor)).unwrap();
    }
    assert!(!worker.lock().is_idle());
    let late = soon();
    while !worker.lock().is_idle() {
        assert!(!late.passed(), "nobody moved the store: {}", worker.lock().missing());
        std::thread::sleep(Duration::from_millis(1));
    }
    // the session hears of it without waiting for more
    let mut finished = Vec::new();
    exchange.finished(&mut finished).unwrap();
    while finished.len() < PIECES as usize {
        assert!(!late.passed(), "of all pushes these are known to be over: {finished:?}");
        exchange.events().wait(late).unwrap();
        exchange.finished(&mut finished).unwrap();
    }
    finished.sort();
    assert_eq!(finished, (0..PIECES).map(EdgeId).collect::<Vec<_>>());
    drop(exchange);
    worker.lock().close(soon()).unwrap();
    serving.join().unwrap();
}

#[test]
fn what_shares_memory_with_its_servers_needs_no_thread() {
    let (worker, serving) = store(|| Backend::Shm);
    let (exchange, _) = exchange(&worker);
    assert!(exchange.mover.is_none());
    drop(exchange);
    worker.lock().close(soon()).unwrap();
    serving.join().unwrap();
}

/// As statistics of a batch normalisation: pushed in every step, and read by evaluations alone.
#[test]
fn what_an_evaluation_alone_reads_keeps_no_later_push_from_its_server() {
    let (worker, serving) = store(|| Backend::Shm);
    let (mut exchange, tensors) = exchange(&worker);
    let (push, pull) = (EdgeId(0), EdgeId(PIECES));
    let inbound = |is_read_where_pushed| Inbound {
        name: String::new(),
        key: Key(0),
        bytes: 4 * ELEMENTS,
        into: None,
        follows: false,
        is_read_where_pushed,
        wide: None,
    };
    exchange.inbound.insert(pull, inbound(false));
    let late = soon();
    let train = |exchange: &mut StoreExchange, epoch: u64| {
        exchange.send(push, epoch, Some(&tensors[0])).unwrap();
        let mut finished = Vec::new();
        while finished.is_empty() {
            exchange.finished(&mut finished).unwrap();
            assert!(!late.passed(), "push {epoch}: {}", worker.lock().missing());
        }
    };
    let read = |exchange: &mut StoreExchange, epoch: u64| {
        while !exchange.arrived(pull, epoch).unwrap() {
            assert!(!late.passed(), "pull {epoch}: {}", worker.lock().missing());
        }
        exchange.released(pull);
    };
    train(&mut exchange, 1);
    // each edge counts its own epochs
    (1..4).for_each(|epoch| read(&mut exchange, epoch));
    (2..6).for_each(|epoch| train(&mut exchange, epoch));
    read(&mut exchange, 4);
    (6..9).for_each(|epoch| train(&mut exchange, epoch));
    assert_eq!(exchange.pulls[&pull].epoch, 4);
    // what a step reads and pushes is asked for ahead
    exchange.inbound.insert(pull, inbound(true));
    read(&mut exchange, 5);
    train(&mut exchange, 9);
    assert_eq!(exchange.pulls[&pull].epoch, 6);
    drop(exchange);
    worker.lock().close(soon()).unwrap();
    serving.join().unwrap();
}

/// What is pulled into memory of this process is asked for while the step that pushed it goes on, once nothing reads it there.
#[test]
fn the_next_values_are_asked_for_before_the_step_is_over() {
    let (worker, serving) = store(|| Backend::Tcp);
    let (exchange, tensors) = exchange(&worker);
    let mut exchange = exchange.asking_ahead(true);
    let (push, pull, other) = (EdgeId(0), EdgeId(PIECES), EdgeId(PIECES + 1));
    let into = worker.lock().alloc(&ValueSpec::dense(DType::F32, ELEMENTS)).unwrap();
    let inbound = |into: &Buffer, follows| Inbound {
        name: String::new(),
        key: Key(0),
        bytes: 4 * ELEMENTS,
        into: Some(vec![into.clone()]),
        follows,
        is_read_where_pushed: true,
        wide: None,
    };
    exchange.inbound.insert(pull, inbound(&into, false));
    let late = soon();
    let value = |exchange: &mut StoreExchange, epoch: u64| {
        while !exchange.arrived(pull, epoch).unwrap() {
            assert!(!late.passed(), "pull {epoch}: {}", worker.lock().missing());
        }
        bytemuck::cast_slice::<u8, f32>(&into.read().unwrap())[ELEMENTS - 1]
    };
    let pushes = |exchange: &mut StoreExchange, epoch: u64, number: f32| {
        bytemuck::cast_slice_mut(&mut tensors[0].write().unwrap()).fill(number);
        exchange.send(push, epoch, Some(&tensors[0])).unwrap();
        let mut finished = Vec::new();
        while finished.is_empty() {
            exchange.finished(&mut finished).unwrap();
            assert!(!late.passed(), "push {epoch}: {}", worker.lock().missing());
        }
    };
    assert_eq!(value(&mut exchange, 1), 0.0);
    // it is read still
    pushes(&mut exchange, 1, 3.0);
    assert_eq!(exchange.pulls[&pull].epoch, 1);
    exchange.released(pull);
    assert_eq!(exchange.pulls[&pull].epoch, 2);
    assert_eq!(value(&mut exchange, 2), 3.0);
    // an evaluation reads it, and the next step asks anew
    exchange.released(pull);
    assert_eq!(exchange.pulls[&pull].epoch, 2);
    assert_eq!(value(&mut exchange, 3), 3.0);
    exchange.released(pull);
    pushes(&mut exchange, 2, 4.0);
    assert_eq!(exchange.pulls[&pull].epoch, 4);
    assert_eq!(value(&mut exchange, 4), 4.0);
    // that an evaluation is done with what it read says nothing of the step
    exchange
        .inbound
        .insert(other, Inbound { is_read_where_pushed: false, ..inbound(&into, false) });
    pushes(&mut exchange, 3, 5.0);
    exchange.released(other);
    assert_eq!(exchange.pulls[&pull].epoch, 4);
    exchange.released(pull);
    assert_eq!(value(&mut exchange, 5), 5.0);
    exchange.inbound.remove(&other);
    // what is made of the same step's pushes is not there before, and of two readers none knows of the other
    exchange.inbound.insert(pull, inbound(&into, true));
    exchange.released(pull);
    pushes(&mut exchange, 4, 6.0);
    assert_eq!(exchange.pulls[&pull].epoch, 4);
    exchange.inbound.insert(pull, inbound(&into, false));
    exchange.inbound.insert(other, inbound(&into, false));
    assert_eq!(value(&mut exchange, 6), 6.0);
    exchange.released(pull);
    pushes(&mut exchange, 5, 7.0);
    assert_eq!(exchange.pulls[&pull].epoch, 6);
    exchange.inbound.remove(&other);
    // of a push that is not over, too
    bytemuck::cast_slice_mut(&mut tensors[0].write().unwrap()).fill(8.0f32);
    exchange.send(push, 6, Some(&tensors[0])).unwrap();
    exchange.released(pull);
    assert_eq!(exchange.pulls[&pull].epoch, 7);
    assert_eq!(value(&mut exchange, 7), 8.0);
    drop(exchange);
    worker.lock().close(soon()).unwrap();
    serving.join().unwrap();
}

#[test]
fn what_the_thread_meets_is_told_to_whoever_moves_the_store_next() {
    let (worker, serving) = store(|| Backend::Tcp);
    let (mut exchange, tensors) = exchange(&worker);
    // no server knows of such a function
    worker.lock().call(0, 77, &[]);
    let told = exchange.send(EdgeId(0), 1, Some(&tensors[0])).err().map(|error| error.to_string());
    let late = soon();
    let told = told.unwrap_or_else(|| {
        loop {
            // the thread looks a hundred times meanwhile
            std::thread::sleep(Duration::from_millis(50));
            if let Err(error) = worker.lock().progress() {
                return error.to_string();
            }
            assert!(!late.passed(), "what the thread met is lost");
        }
    });
    assert!(told.contains("no function 77"), "{told}");
    drop(exchange);
    worker.lock().close(soon()).unwrap();
    serving.join().unwrap();
}
