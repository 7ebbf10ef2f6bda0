//! Servers that die, and others that take over from what they kept: no push is lost, none counted twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{
    Key, KvHandle, KvProgress, KvServer, KvWorker, ServerCounters, ValueSpec,
};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use super::rule::{Shelf, f32s, fill, tensor};
use super::support::{ECHO, End, Job, Scheduler, soon};

const SIZES: [usize; 4] = [7, 11, 20_000, 120_000];

fn specs() -> [ValueSpec; 4] {
    SIZES.map(|elements| ValueSpec::dense(DType::F32, elements))
}

fn keys() -> [Key; 4] {
    [0, 1, 2, 3].map(Key)
}

fn begin(store: &mut KvWorker, number: usize) {
    if number == 0 {
        let handle = store.set_optimizer(b"add");
        store.wait(handle, soon()).unwrap();
    }
    let values: Vec<_> = keys().into_iter().zip(specs()).collect();
    let first = specs().map(|spec| tensor(store, &spec, |_| 1000.0));
    let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
    store.wait(handle, soon()).unwrap();
}

fn pull(store: &mut KvWorker) -> [f32; 4] {
    let into = specs().map(|spec| vec![tensor(store, &spec, |_| f32::NAN)]);
    let handle = store.pull(&keys(), &into, 0).unwrap();
    store.wait(handle, soon()).unwrap();
    into.map(|into| {
        let all = f32s(&into[0]);
        assert!(all.iter().all(|value| *value == all[0]), "a value of several versions");
        all[0]
    })
}

/// Waits until a push has left: from then on its tensors may be written again.
fn await_sent(store: &mut KvWorker, handle: KvHandle) {
    let (deadline, mut news) = (soon(), Vec::new());
    loop {
        assert!(!deadline.passed(), "a push has not left");
        store.observe();
        store.news(&mut news);
        if news.contains(&KvProgress::Sent(handle)) {
            return;
        }
        if !store.progress().unwrap() {
            store.wait_for_news(deadline);
        }
    }
}

/// Pushes round after round from the same tensors, each as soon as the last has left them.
fn push_all(store: &mut KvWorker, number: usize, rounds: usize) {
    store.tell_news();
    let from: [Buffer; 4] = specs().map(|spec| store.alloc(&spec).unwrap());
    for round in 0..rounds {
        from.iter().for_each(|tensor| fill(tensor, |_| (round * (number + 1)) as f32));
        let tensors: Vec<_> = from.iter().map(|tensor| vec![tensor.clone()]).collect();
        let handle = store.push(&keys(), &tensors, 0).unwrap();
        await_sent(store, handle);
    }
    store.wait_all(soon()).unwrap();
}

/// Serves until all workers are there and this server has made so many updates, and dies.
fn serve_until(mut server: KvServer, scheduler: &Scheduler, folds: u64) {
    while server.counters().updates < folds || !scheduler.met(1) {
        server.progress().unwrap();
    }
}

fn serve(mut server: KvServer) -> u64 {
    server.serve().unwrap();
    server.close(soon()).unwrap();
    server.counters().snapshots
}

/// Server 1 dies after so many updates, the one that takes over from it after so many, and so on.
fn nothing_is_lost_or_doubled(job: &Job, deaths: &[u64]) {
    const ROUNDS: usize = 24;
    let (workers, servers) = job.ends();
    let count = job.workers;
    std::thread::scope(|scope| {
        for end in servers {
            scope.spawn(move || {
                if end.number == 0 {
                    return assert!(serve(end.server()) > 0);
                }
                let scheduler = end.scheduler.clone();
                serve_until(end.server(), &scheduler, deaths[0]);
                for folds in &deaths[1..] {
                    serve_until(job.spare(&scheduler, 1).called().restored(), &scheduler, *folds);
                }
                serve(job.spare(&scheduler, 1).called().restored());
            });
        }
        for end in workers {
            scope.spawn(move || {
                let (number, mut store) = (end.number, end.worker());
                store.barrier(soon()).unwrap();
                begin(&mut store, number);
                push_all(&mut store, number, ROUNDS);
                store.barrier(soon()).unwrap();
                let sum: usize = (1..=count).sum();
                let all = 1000 + ROUNDS * (ROUNDS - 1) / 2 * sum;
                assert_eq!(pull(&mut store), [all as f32; 4], "worker {number}");
                store.barrier(soon()).unwrap();
                store.close(soon()).unwrap();
            });
        }
    });
}

#[test]
fn a_server_that_dies_early_is_replaced() {
    let job = Job { checkpoint: Some(2), ..Job::shm(2, 2, Mode::Sync) };
    nothing_is_lost_or_doubled(&job, &[0]);
    nothing_is_lost_or_doubled(&job_again(&job), &[1]);
}

/// Each server keeps an optimizer and first values, and one of them what was pushed, once; then there is no room.
#[test]
fn a_snapshot_that_finds_no_room_stops_nobody_and_the_last_whole_one_serves() {
    let shelf = Shelf::with_room(5);
    let job = Job { checkpoint: Some(2), shelf: shelf.clone(), ..Job::shm(2, 2, Mode::Sync) };
    nothing_is_lost_or_doubled(&job, &[23, 9]);
    assert!(shelf.kept(1, "last").is_some());
}

#[test]
fn a_server_says_of_which_step_its_last_snapshot_is() {
    let job = Job { checkpoint: Some(2), shelf: Shelf::with_room(3), ..Job::shm(1, 1, Mode::Sync) };
    let (workers, servers) = job.ends();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server = servers.into_iter().next().unwrap().server();
            server.serve().unwrap();
            server.close(soon()).unwrap();
            server.counters()
        });
        let mut store = workers.into_iter().next().unwrap().worker();
        begin(&mut store, 0);
        for _ in 0..6 {
            push_all(&mut store, 0, 1);
        }
        store.close(soon()).unwrap();
        let counters = serving.join().unwrap();
        // of the optimizer, of first values, of step 2; and then of 4 and 6
        let ServerCounters { snapshots, snapshots_failed, step_kept, .. } = counters;
        assert_eq!((snapshots, step_kept, snapshots_failed), (3, 2, 2));
    });
}

/// The same with nothing kept yet.
fn job_again(job: &Job) -> Job {
    let Job { checkpoint, mode, .. } = *job;
    let fresh = Job::shm(job.workers, job.servers, mode);
    Job { checkpoint, backend: job.backend.clone(), ..fresh }
}

#[test]
fn a_server_that_dies_in_the_middle_is_replaced_over_shared_memory() {
    for every in [1, 5] {
        let job = Job { checkpoint: Some(every), ..Job::shm(3, 2, Mode::Sync) };
        nothing_is_lost_or_doubled(&job, &[23]);
    }
}

#[test]
fn a_server_that_dies_in_the_middle_is_replaced_over_tcp() {
    let job = Job { checkpoint: Some(3), ..Job::tcp(2, 2, Mode::Sync) };
    nothing_is_lost_or_doubled(&job, &[31]);
}

#[test]
fn a_server_that_dies_with_its_device_is_replaced() {
    for job in [Job::shm(2, 2, Mode::Sync), Job::tcp(2, 2, Mode::Async { max_delay: Some(1) })] {
        nothing_is_lost_or_doubled(&Job { checkpoint: Some(3), ..job }.on_device(), &[31]);
    }
}

#[test]
fn a_server_that_dies_again_and_again_is_replaced_each_time() {
    let job = Job { checkpoint: Some(4), ..Job::shm(2, 2, Mode::Async { max_delay: None }) };
    nothing_is_lost_or_doubled(&job, &[17, 9, 20]);
}

#[test]
fn a_server_that_dies_under_bounded_delay_is_replaced() {
    let job = Job { checkpoint: Some(2), ..Job::tcp(2, 2, Mode::Async { max_delay: Some(1) }) };
    nothing_is_lost_or_doubled(&job, &[12]);
}

/// One server; `serve` gets it and says when another is to take over.
fn replaced(job: &Job, first: impl FnOnce(End) + Send, work: impl Fn(End) + Sync) {
    let (workers, mut servers) = job.ends();
    let end = servers.pop().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let scheduler: Scheduler = end.scheduler.clone();
            first(end);
            serve(job.spare(&scheduler, 0).called().restored());
        });
        for end in workers {
            scope.spawn(|| work(end));
        }
    });
}

#[test]
fn a_key_without_a_value_is_known_to_the_server_that_takes_over() {
    let (is_known, is_kept) = (AtomicBool::new(false), AtomicBool::new(false));
    let job = Job { checkpoint: Some(1000), ..Job::shm(2, 1, Mode::Sync) };
    let first = |end: End| {
        let mut server = end.server();
        while !is_kept.load(Ordering::SeqCst) {
            server.progress().unwrap();
        }
        assert_eq!(server.counters().snapshots, 1);
    };
    replaced(&job, first, |end| {
        let (number, mut store) = (end.number, end.worker());
        if number == 1 {
            begin(&mut store, number);
            is_known.store(true, Ordering::SeqCst);
        } else {
            while !is_known.load(Ordering::SeqCst) {
                store.progress().unwrap();
            }
            // an optimizer is kept at once, with the keys that have no value yet
            let handle = store.set_optimizer(b"add");
            store.wait(handle, soon()).unwrap();
            is_kept.store(true, Ordering::SeqCst);
            begin(&mut store, number);
        }
        push_all(&mut store, number, 3);
        assert_eq!(pull(&mut store), [1009.0; 4]);
        store.barrier(soon()).unwrap();
        store.close(soon()).unwrap();
    });
}

#[test]
fn first_values_outlive_the_worker_that_gave_them_and_their_server() {
    let [is_worker_dead, is_server_dead] = [(); 2].map(|()| AtomicBool::new(false));
    let job = Job { checkpoint: Some(1000), elastic: true, ..Job::shm(2, 1, Mode::Sync) };
    let first = |end: End| {
        let mut server = end.server();
        while !is_worker_dead.load(Ordering::SeqCst) {
            server.progress().unwrap();
        }
        assert_eq!(server.counters().updates, 0);
        drop(server);
        is_server_dead.store(true, Ordering::SeqCst);
    };
    replaced(&job, first, |end| {
        let (number, scheduler) = (end.number, end.scheduler.clone());
        let mut store = end.worker();
        begin(&mut store, number);
        if number == 0 {
            drop(store);
            scheduler.lose(0);
            return is_worker_dead.store(true, Ordering::SeqCst);
        }
        assert_eq!(pull(&mut store), [1000.0; 4]);
        // the first server would take a push of the only worker that is left
        while !is_server_dead.load(Ordering::SeqCst) {
            store.progress().unwrap();
        }
        push_all(&mut store, number, 3);
        // the scheduler said who is dead; nobody waits for its pushes
        assert_eq!(pull(&mut store), [1006.0; 4]);
        store.close(soon()).unwrap();
    });
}

#[test]
fn calls_and_pushes_go_on_with_the_server_that_takes_over() {
    let is_answered = AtomicBool::new(false);
    let job = Job { checkpoint: Some(1), ..Job::shm(1, 1, Mode::Sync) };
    let first = |end: End| {
        let mut server = end.server();
        while !is_answered.load(Ordering::SeqCst) {
            server.progress().unwrap();
        }
    };
    replaced(&job, first, |end| {
        let mut store = end.worker();
        begin(&mut store, 0);
        let handle = store.call(0, ECHO, b"one");
        store.wait(handle, soon()).unwrap();
        is_answered.store(true, Ordering::SeqCst);
        let handle = store.call(0, ECHO, b"two");
        store.wait(handle, soon()).unwrap();
        assert_eq!(store.returned(handle).unwrap(), b"\0two");
        push_all(&mut store, 0, 2);
        assert_eq!(pull(&mut store), [1001.0; 4]);
        store.close(soon()).unwrap();
    });
}

#[test]
fn a_worker_goes_on_with_the_others_until_the_server_that_takes_over_is_there() {
    let [is_begun, is_called] = [(); 2].map(|()| AtomicBool::new(false));
    let (goes_on, has_gone_on) = mpsc::channel();
    let job = Job { checkpoint: Some(1), ..Job::shm(1, 2, Mode::Sync) };
    let (mut workers, mut servers) = job.ends();
    let (job, is_begun, is_called) = (&job, &is_begun, &is_called);
    std::thread::scope(|scope| {
        let (second, first) = (servers.pop().unwrap(), servers.pop().unwrap());
        scope.spawn(|| serve(first.server()));
        scope.spawn(move || {
            let scheduler = second.scheduler.clone();
            let mut server = second.server();
            while !is_begun.load(Ordering::SeqCst) {
                server.progress().unwrap();
            }
            drop(server);
            let next = job.spare(&scheduler, 1).called();
            is_called.store(true, Ordering::SeqCst);
            // fails if the worker did
            has_gone_on.recv().unwrap();
            serve(next.restored());
        });
        let mut store = workers.pop().unwrap().worker();
        let goes_on = goes_on;
        begin(&mut store, 0);
        is_begun.store(true, Ordering::SeqCst);
        while !is_called.load(Ordering::SeqCst) {
            store.progress().unwrap();
        }
        // of the first server
        let nothing = tensor(&mut store, &specs()[0], |_| 0.0);
        let handle = store.push(&[Key(0)], &[vec![nothing]], 0).unwrap();
        store.wait(handle, soon()).unwrap();
        goes_on.send(()).unwrap();
        push_all(&mut store, 0, 2);
        assert_eq!(pull(&mut store), [1001.0; 4]);
        store.close(soon()).unwrap();
    });
}

/// It answered and died before the worker looked: both come to the worker at once.
#[test]
fn a_value_that_died_with_its_server_is_pulled_from_the_one_that_takes_over() {
    let [is_asked, is_dead, has_looked] = [(); 3].map(|()| AtomicBool::new(false));
    let job = Job { checkpoint: Some(1), ..Job::shm(1, 1, Mode::Sync) };
    let first = |end: End| {
        let mut server = end.server();
        while !is_asked.load(Ordering::SeqCst) {
            server.progress().unwrap();
        }
        // it answers, and ends without a goodbye
        let enough = Instant::now() + Duration::from_millis(100);
        while Instant::now() < enough {
            server.progress().unwrap();
        }
        drop(server);
        is_dead.store(true, Ordering::SeqCst);
        // nobody takes over before the worker has seen both
        while !has_looked.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    replaced(&job, first, |end| {
        let mut store = end.worker();
        begin(&mut store, 0);
        push_all(&mut store, 0, 2);
        // its memory is known from here on
        assert_eq!(pull(&mut store), [1001.0; 4]);
        let into = specs().map(|spec| vec![tensor(&mut store, &spec, |_| f32::NAN)]);
        let handle = store.pull(&keys(), &into, 0).unwrap();
        store.progress().unwrap();
        is_asked.store(true, Ordering::SeqCst);
        while !is_dead.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // the fabric's own thread has seen the end by now
        std::thread::sleep(Duration::from_millis(100));
        store.progress().unwrap();
        has_looked.store(true, Ordering::SeqCst);
        store.wait(handle, soon()).unwrap();
        for into in &into {
            assert!(f32s(&into[0]).iter().all(|value| *value == 1001.0));
        }
        store.close(soon()).unwrap();
    });
}
