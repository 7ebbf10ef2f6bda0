//! A server counts the shards that workers push and pull, and what these have, however it travels.

use std::sync::Mutex;

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{Key, KvProgress, KvServer, KvWorker, ServerCounters, ValueSpec};
use tensorwire_tensor::DType;

use super::rule::tensor;
use super::support::{Job, soon};

const ROUNDS: u64 = 3;
const WORKERS: u64 = 2;
const SMALL: ValueSpec = ValueSpec { dtype: DType::F32, rows: 6, columns: 1 };
const LARGE: ValueSpec = ValueSpec { dtype: DType::F32, rows: 80_000, columns: 1 };
const TABLE: ValueSpec = ValueSpec { dtype: DType::F32, rows: 50, columns: 24 };
/// Rows of the table that are pushed and pulled.
const ROWS: [i32; 3] = [0, 7, 49];

#[test]
fn a_server_counts_pushes_pulls_and_their_bytes() {
    for job in [Job::shm(2, 1, Mode::Sync), Job::tcp(2, 1, Mode::Sync)] {
        let told = Mutex::new(Vec::new());
        let (workers, servers) = job.ends();
        std::thread::scope(|scope| {
            for end in servers {
                scope.spawn(|| {
                    let mut server = end.server();
                    let mut tell = |server: &KvServer| {
                        told.lock().unwrap().push(server.counters());
                    };
                    server.serve_telling(&mut tell).unwrap();
                    tell(&server);
                    server.close(soon()).unwrap();
                });
            }
            for end in workers {
                scope.spawn(|| {
                    let (number, mut store) = (end.number, end.worker());
                    let values: Vec<_> = (0u64..).map(Key).zip([SMALL, LARGE, TABLE]).collect();
                    let first =
                        [SMALL, LARGE, TABLE].map(|spec| tensor(&mut store, &spec, |_| 0.0));
                    let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
                    store.wait(handle, soon()).unwrap();
                    for _ in 0..ROUNDS {
                        for (key, spec) in [(Key(0), SMALL), (Key(1), LARGE)] {
                            let from = tensor(&mut store, &spec, |_| 1.0);
                            store.push(&[key], &[vec![from]], 0).unwrap();
                            let into = tensor(&mut store, &spec, |_| f32::NAN);
                            store.pull(&[key], &[vec![into]], 0).unwrap();
                        }
                        let some = ValueSpec { rows: ROWS.len(), ..TABLE };
                        let rows = tensor(&mut store, &some, |_| 1.0);
                        store.push_rows(Key(2), &ROWS, &rows, 0).unwrap();
                        let into = tensor(&mut store, &some, |_| f32::NAN);
                        store.pull_rows(Key(2), &ROWS, &into, 0).unwrap();
                        store.wait_all(soon()).unwrap();
                    }
                    store.close(soon()).unwrap();
                });
            }
        });
        // fits: sizes of a test
        let whole = [SMALL, LARGE].map(|spec| spec.bytes() as u64);
        let round = whole.iter().sum::<u64>() + (ROWS.len() * TABLE.row_bytes()) as u64;
        let first = whole.iter().sum::<u64>() + TABLE.bytes() as u64;
        let told = told.into_inner().unwrap();
        let ServerCounters { pushes, pulls, bytes_pushed, bytes_pulled, .. } = told[told.len() - 1];
        assert_eq!((pushes, pulls), (3 + WORKERS * ROUNDS * 3, WORKERS * ROUNDS * 3));
        assert_eq!(bytes_pushed, first + WORKERS * ROUNDS * round);
        assert_eq!(bytes_pulled, WORKERS * ROUNDS * round);
        assert_eq!(told[0].pushes, 0, "it is told from the beginning");
        assert!(told.is_sorted_by_key(|counters| (counters.pushes, counters.pulls)));
    }
}

#[test]
fn a_worker_whose_news_nobody_takes_keeps_none() {
    let (workers, servers) = Job::shm(1, 1, Mode::Sync).ends();
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
                let mut store = end.worker();
                let first = tensor(&mut store, &SMALL, |_| 0.0);
                let handle = store.init(&[(Key(0), SMALL)], Some(&[first])).unwrap();
                store.wait(handle, soon()).unwrap();
                let push = |store: &mut KvWorker| {
                    let from = tensor(store, &SMALL, |_| 1.0);
                    let handle = store.push(&[Key(0)], &[vec![from]], 0).unwrap();
                    store.wait(handle, soon()).unwrap();
                    handle
                };
                push(&mut store);
                assert!(!store.has_news());
                store.tell_news();
                let handle = push(&mut store);
                let mut news = Vec::new();
                store.news(&mut news);
                assert_eq!(news, [KvProgress::Sent(handle), KvProgress::Done(handle)]);
                assert!(!store.has_news());
                store.close(soon()).unwrap();
            });
        }
    });
}

/// Bytes that a server of three workers has registered, once each has pushed one value of so many elements.
fn registered(job: &Job, elements: usize) -> u64 {
    let spec = ValueSpec::dense(DType::F32, elements);
    let (workers, mut servers) = job.ends();
    let server = servers.remove(0);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server = server.server();
            server.serve().unwrap();
            let bytes = server.stats().registered_bytes;
            server.close(soon()).unwrap();
            bytes
        });
        for end in workers {
            scope.spawn(move || {
                let (number, mut store) = (end.number, end.worker());
                let first = [tensor(&mut store, &spec, |_| 0.0)];
                let handle = store.init(&[(Key(0), spec)], (number == 0).then_some(&first));
                store.wait(handle.unwrap(), soon()).unwrap();
                let from = tensor(&mut store, &spec, |_| 1.0);
                store.push(&[Key(0)], &[vec![from]], 0).unwrap();
                store.wait_all(soon()).unwrap();
                store.close(soon()).unwrap();
            });
        }
        serving.join().unwrap()
    })
}

/// What workers push over shared memory is reduced where they have it: a server has the value alone, and no place for each push.
#[test]
fn over_shared_memory_a_server_has_no_slots() {
    // memory is registered in pieces of at least 1 MiB
    const BYTES: u64 = 2 << 20;
    let of_value = |job: Job| registered(&job, BYTES as usize / 4) - registered(&job, 4);
    let shm = of_value(Job::shm(3, 1, Mode::Sync));
    assert!(shm <= BYTES, "{shm}");
    let tcp = of_value(Job::tcp(3, 1, Mode::Sync));
    assert!(tcp >= 3 * BYTES, "a slot for each worker: {tcp}");
}
