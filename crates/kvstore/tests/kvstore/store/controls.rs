//! What is asked of whole servers: functions of users, optimizers, saving and loading.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tensorwire_kvstore::proto::{Mode, ServerState};
use tensorwire_kvstore::wire::RingOptions;
use tensorwire_kvstore::{Key, KvHandle, KvWorker, Snapshot, StoreError, ValueSpec};
use tensorwire_tensor::DType;

use super::rule::{Shelf, f32s, numbers, tensor};
use super::support::{ECHO, Job, soon};

fn dense(elements: usize) -> ValueSpec {
    ValueSpec::dense(DType::F32, elements)
}

fn specs() -> [ValueSpec; 4] {
    [dense(5), dense(3), dense(30_000), dense(150_000)]
}

fn keys() -> [Key; 4] {
    [0, 1, 2, 3].map(Key)
}

fn begin(store: &mut KvWorker, number: usize) {
    let values: Vec<_> = keys().into_iter().zip(specs()).collect();
    let first = specs().map(|spec| tensor(store, &spec, |_| 0.0));
    let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
    store.wait(handle, soon()).unwrap();
}

fn push(store: &mut KvWorker, value: f32) -> KvHandle {
    let from = specs().map(|spec| vec![tensor(store, &spec, |_| value)]);
    store.push(&keys(), &from, 0).unwrap()
}

fn are(store: &mut KvWorker, expected: f32) {
    let into = specs().map(|spec| vec![tensor(store, &spec, |_| f32::NAN)]);
    let handle = store.pull(&keys(), &into, 0).unwrap();
    store.wait(handle, soon()).unwrap();
    for (key, into) in into.iter().enumerate() {
        let found = f32s(&into[0]);
        assert!(found.iter().all(|found| *found == expected), "key {key}: {}", found[0]);
    }
}

fn optimizer(store: &mut KvWorker, name: &str) {
    let handle = store.set_optimizer(name.as_bytes());
    store.wait(handle, soon()).unwrap();
}

fn refused(store: &mut KvWorker, handle: KvHandle) -> String {
    store.wait(handle, soon()).unwrap_err().to_string()
}

#[test]
fn a_users_function_is_called_once_and_returns() {
    Job::tcp(3, 2, Mode::Sync).run(|number, store| {
        let calls: Vec<(KvHandle, Vec<u8>)> = (0..20u8)
            .map(|call| {
                (store.call(usize::from(call) % 2, ECHO, &[call]), vec![number as u8, call])
            })
            .collect();
        store.wait_all(soon()).unwrap();
        for (handle, expected) in calls {
            assert_eq!(store.returned(handle), Some(expected));
            assert_eq!(store.returned(handle), None);
        }
    });
}

#[test]
fn a_call_that_is_refused_leaves_the_store_as_it_was() {
    Job::shm(1, 2, Mode::Sync).run(|number, store| {
        begin(store, number);
        let handle = store.call(1, 77, b"?");
        let unknown = refused(store, handle);
        assert!(unknown.contains("server 1") && unknown.contains("no function 77"), "{unknown}");
        let handle = store.call(0, ECHO, b"");
        assert!(refused(store, handle).contains("there is nothing to give back"));
        let handle = store.call(1, ECHO, b"now");
        store.wait(handle, soon()).unwrap();
        assert_eq!(store.returned(handle).unwrap(), b"\0now");
        push(store, 3.0);
        are(store, 3.0);
    });
}

#[test]
fn what_is_asked_of_a_server_that_is_not_there_is_refused() {
    Job::shm(1, 2, Mode::Sync).run(|number, store| {
        begin(store, number);
        for server in [2, usize::MAX] {
            let (handle, next) = (store.call(server, ECHO, b"?"), store.call(server, ECHO, b"?"));
            let none = store.wait(handle, soon()).unwrap_err();
            let is_told = matches!(none, StoreError::NoServer { servers: 2, .. });
            assert!(is_told, "{none}");
            // each fails of its own
            assert!(refused(store, next).contains("there is no server"));
        }
        push(store, 3.0);
        are(store, 3.0);
    });
}

/// Else it would be sent, and fail, before whatever comes behind it.
#[test]
fn what_no_message_has_room_for_is_refused_and_holds_up_nothing() {
    let rings = RingOptions { ring_bytes: 64 << 10, direct_from: 1 << 10 };
    Job { rings, ..Job::tcp(1, 2, Mode::Sync) }.run(|number, store| {
        begin(store, number);
        let large = "x".repeat(64 << 10);
        let asks = [
            store.call(1, ECHO, large.as_bytes()),
            store.set_optimizer(large.as_bytes()),
            store.save(&large),
            store.load(&large),
        ];
        let behind = store.call(1, ECHO, b"behind");
        for ask in asks {
            let refused = store.wait(ask, soon()).unwrap_err();
            let StoreError::AskTooLarge { bytes, room, .. } = refused else { panic!("{refused}") };
            assert!(bytes == 64 << 10 && room < bytes, "{room}");
        }
        store.wait(behind, soon()).unwrap();
        assert_eq!(store.returned(behind).unwrap(), b"\0behind");
        push(store, 3.0);
        are(store, 3.0);
    });
}

/// A message that has begun to fill has no room for it: it goes in one of its own.
#[test]
fn a_call_that_fills_a_message_goes_beside_what_else_is_said() {
    const COUNT: u64 = 500;
    let job = Job::shm(1, 1, Mode::Sync);
    job.run(|_, store| {
        let keys: Vec<Key> = (0..COUNT).map(Key).collect();
        let spec = dense(2000);
        let values: Vec<_> = keys.iter().map(|key| (*key, spec)).collect();
        let first: Vec<_> = keys.iter().map(|_| tensor(store, &spec, |_| 1.0)).collect();
        let handle = store.init(&values, Some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        let refused = store.call(0, ECHO, &vec![1; 4 << 20]);
        let refused = store.wait(refused, soon()).unwrap_err();
        let StoreError::AskTooLarge { room, .. } = refused else { panic!("{refused}") };
        // what a server showed is said to be read: 500 times, in a message with nothing else
        let into: Vec<_> = first.into_iter().map(|into| vec![into]).collect();
        store.pull(&keys, &into, 0).unwrap();
        store.progress().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let handle = store.call(0, 77, &vec![1; room]);
        assert!(store.wait(handle, soon()).unwrap_err().to_string().contains("no function 77"));
        store.wait_all(soon()).unwrap();
        assert!(into.iter().all(|into| f32s(&into[0]) == [1.0; 2000]));
    });
}

#[test]
fn an_optimizer_is_set_once_however_often_it_is_told() {
    let job = Job::shm(2, 1, Mode::Sync);
    job.run(|number, store| {
        if number == 0 {
            optimizer(store, "add");
            optimizer(store, "add");
            let handle = store.set_optimizer(b"magic");
            assert!(refused(store, handle).contains("'magic' is no rule here"));
        }
        begin(store, number);
        // the rule before is still there
        let handles = [push(store, 1.0), push(store, 1.0)];
        handles.into_iter().for_each(|handle| store.wait(handle, soon()).unwrap());
        are(store, 4.0);
        store.barrier(soon()).unwrap();
        if number == 1 {
            optimizer(store, "replace");
        }
        store.barrier(soon()).unwrap();
        push(store, 1.0);
        are(store, 2.0);
    });
    let journal = job.journal.lock().unwrap();
    let sets: Vec<&String> = journal.iter().filter(|line| line.starts_with("set")).collect();
    assert_eq!(sets, ["set add", "set replace"]);
}

#[test]
fn what_was_saved_is_loaded_with_the_state_beside_it() {
    let job = Job::shm(2, 2, Mode::Sync);
    job.run(|number, store| {
        if number == 0 {
            optimizer(store, "add");
        }
        store.barrier(soon()).unwrap();
        begin(store, number);
        push(store, 1.0);
        push(store, 1.0);
        are(store, 4.0);
        store.barrier(soon()).unwrap();
        if number == 0 {
            let handle = store.save("here");
            store.wait(handle, soon()).unwrap();
        }
        store.barrier(soon()).unwrap();
        push(store, 10.0);
        are(store, 24.0);
        store.barrier(soon()).unwrap();
        if number == 1 {
            let handle = store.load("nowhere");
            assert!(refused(store, handle).contains("there is nothing at nowhere"));
            // the other server's refusal comes in its own time
            let _ = store.wait_all(soon());
            let handle = store.load("here");
            store.wait(handle, soon()).unwrap();
        }
        store.barrier(soon()).unwrap();
        are(store, 4.0);
        store.barrier(soon()).unwrap();
        push(store, 1.0);
        are(store, 6.0);
    });
    let journal = job.journal.lock().unwrap();
    for key in 0..4 {
        assert!(journal.contains(&format!("restore {key} after 2")), "{journal:?}");
    }
}

#[test]
fn what_other_servers_saved_is_refused_whole() {
    let shelf = Shelf::default();
    let two = Job { shelf: shelf.clone(), ..Job::shm(1, 2, Mode::Sync) };
    two.run(|number, store| {
        begin(store, number);
        let handle = push(store, 1.0);
        store.wait(handle, soon()).unwrap();
        let handle = store.save("two");
        store.wait(handle, soon()).unwrap();
    });
    for servers in [1, 3] {
        let other = Job { shelf: shelf.clone(), ..Job::shm(1, servers, Mode::Sync) };
        other.run(|number, store| {
            begin(store, number);
            let handle = store.load("two");
            let why = refused(store, handle);
            let is_told = why.contains("as many servers") || why.contains("there is nothing");
            assert!(is_told, "{why}");
            while store.wait_all(soon()).is_err() {}
            are(store, 0.0);
        });
    }
}

/// The weights of each shard, which are ones, and how many pushes a snapshot says that they hold.
fn is_whole(snapshot: &Snapshot) -> u64 {
    let state: ServerState = postcard::from_bytes(&snapshot.protocol).unwrap();
    let mut all = 0;
    for shard in &state.shards {
        let rounds: u64 = shard.rounds.iter().sum();
        let kept = snapshot.shards.iter().find(|kept| kept.key == shard.shard).unwrap();
        let weights = numbers(DType::F32, &kept.weights);
        assert!(weights.iter().all(|weight| *weight == rounds as f64), "{rounds}");
        all += rounds;
    }
    all
}

#[test]
fn what_is_saved_while_others_push_is_of_one_moment() {
    let (saved, pushed, shelf) = (AtomicUsize::new(0), AtomicUsize::new(0), Shelf::default());
    let job = Job { shelf: shelf.clone(), ..Job::shm(3, 1, Mode::Async { max_delay: None }) };
    job.run(|number, store| {
        if number == 0 {
            optimizer(store, "add");
        }
        store.barrier(soon()).unwrap();
        begin(store, number);
        store.barrier(soon()).unwrap();
        if number == 0 {
            for at in 0..20 {
                let deadline = soon();
                // others have pushed since the first one, on whatever machine
                while at == 19 && pushed.load(Ordering::SeqCst) < 4 {
                    assert!(!deadline.passed(), "nobody pushes");
                    std::thread::yield_now();
                }
                let handle = store.save(&format!("at {at}"));
                store.wait(handle, soon()).unwrap();
            }
            saved.store(1, Ordering::SeqCst);
        } else {
            let from: Vec<_> =
                specs()[..3].iter().map(|s| vec![tensor(store, s, |_| 1.0)]).collect();
            while saved.load(Ordering::SeqCst) == 0 {
                let handle = store.push(&keys()[..3], &from, 0).unwrap();
                store.wait(handle, soon()).unwrap();
                // only what comes behind the first one counts
                let begun = shelf.kept(0, "at 0").is_some();
                pushed.fetch_add(usize::from(begun), Ordering::SeqCst);
            }
        }
    });
    let rounds: Vec<u64> =
        (0..20).map(|at| is_whole(&shelf.kept(0, &format!("at {at}")).unwrap())).collect();
    assert!(rounds.is_sorted() && rounds[19] > rounds[0], "{rounds:?}");
}
