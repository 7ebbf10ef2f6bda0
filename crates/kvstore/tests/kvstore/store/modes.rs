//! When a push is in and when a pull is answered, and in which order things go. Nothing here looks at a clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{Key, KvHandle, KvProgress, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use super::rule::{f32s, tensor};
use super::support::{ECHO, Job, soon};

const SPEC: ValueSpec = ValueSpec { dtype: DType::F32, rows: 6, columns: 1 };
const ANY: Mode = Mode::Async { max_delay: None };
const LARGE: ValueSpec = ValueSpec { dtype: DType::F32, rows: 20_000, columns: 1 };

/// Every worker knows these keys; the first one gives zeros, and has pushes added.
fn begin(store: &mut KvWorker, number: usize, specs: &[ValueSpec]) {
    let values: Vec<_> = (0u64..).map(Key).zip(specs.iter().copied()).collect();
    if number == 0 {
        let handle = store.set_optimizer(b"add");
        store.wait(handle, soon()).unwrap();
    }
    let first: Vec<Buffer> = specs.iter().map(|spec| tensor(store, spec, |_| 0.0)).collect();
    let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
    store.wait(handle, soon()).unwrap();
}

fn push(store: &mut KvWorker, key: Key, value: f32, priority: i32) -> KvHandle {
    let spec = store.spec(key).unwrap();
    let from = tensor(store, &spec, |_| value);
    store.push(&[key], &[vec![from]], priority).unwrap()
}

fn pull(store: &mut KvWorker, key: Key, priority: i32) -> (KvHandle, Buffer) {
    let spec = store.spec(key).unwrap();
    let into = tensor(store, &spec, |_| f32::NAN);
    (store.pull(&[key], &[vec![into.clone()]], priority).unwrap(), into)
}

/// The value of a key, the same in all its elements.
fn pulled(store: &mut KvWorker, key: Key) -> f32 {
    let (handle, into) = pull(store, key, 0);
    store.wait(handle, soon()).unwrap();
    let all = f32s(&into);
    assert!(all.iter().all(|value| *value == all[0]), "a value of several versions");
    all[0]
}

/// All that was sent to server 0 before has been looked at there when this returns.
fn await_server(store: &mut KvWorker) {
    store.progress().unwrap();
    let handle = store.call(0, ECHO, b"there?");
    store.wait(handle, soon()).unwrap();
}

/// Who does not wait until all are there waits for the same barrier the next time, and not for one to which nobody comes.
#[test]
fn a_barrier_that_is_left_too_early_is_passed_later() {
    let (passes, has_passed) = channel();
    let (passes, has_passed) = (Mutex::new(passes), Mutex::new(has_passed));
    let is_left = AtomicBool::new(false);
    Job::shm(2, 1, ANY).run(|number, store| {
        if number == 0 {
            let early = store.barrier(Deadline::after(Duration::ZERO)).unwrap_err();
            assert!(matches!(early, StoreError::TimedOut { .. }), "{early}");
            is_left.store(true, Ordering::SeqCst);
            has_passed.lock().unwrap().recv().unwrap();
            store.barrier(Deadline::after(Duration::ZERO)).unwrap();
        } else {
            while !is_left.load(Ordering::SeqCst) {
                store.progress().unwrap();
            }
            store.barrier(soon()).unwrap();
            passes.lock().unwrap().send(()).unwrap();
        }
        store.barrier(soon()).unwrap();
    });
}

#[test]
fn an_asynchronous_pull_waits_for_nobody() {
    Job::shm(2, 2, Mode::Async { max_delay: None }).run(|number, store| {
        begin(store, number, &[SPEC, LARGE]);
        for key in [Key(0), Key(1)] {
            for round in 1..=20 {
                if number == 0 {
                    push(store, key, 1.0, 0);
                    // the other worker pushes nothing
                    assert_eq!(pulled(store, key), round as f32);
                }
            }
        }
        store.barrier(soon()).unwrap();
    });
}

#[test]
fn asynchronous_pushes_are_all_in_once() {
    all_pushes_are_in_once(&Job::tcp(3, 2, ANY));
    all_pushes_are_in_once(&Job::tcp(3, 2, ANY).on_device());
}

fn all_pushes_are_in_once(job: &Job) {
    job.run(|number, store| {
        begin(store, number, &[SPEC, LARGE]);
        let mut before = [0.0; 2];
        for _ in 0..30 {
            for (key, before) in (0u64..).map(Key).zip(&mut before) {
                push(store, key, (number + 1) as f32, 0);
                let now = pulled(store, key);
                assert!(now >= *before + (number + 1) as f32, "{now} after {before}");
                *before = now;
            }
        }
        store.wait_all(soon()).unwrap();
        store.barrier(soon()).unwrap();
        let all = 30.0 * (1.0 + 2.0 + 3.0);
        assert_eq!([Key(0), Key(1)].map(|key| pulled(store, key)), [all, all]);
    });
}

#[test]
fn a_worker_that_is_too_far_ahead_waits_for_the_slow_one() {
    const DELAY: usize = 2;
    let is_released = AtomicBool::new(false);
    let mode = Mode::Async { max_delay: Some(DELAY as u64) };
    Job::shm(2, 1, mode).run(|number, store| {
        begin(store, number, &[SPEC]);
        store.barrier(soon()).unwrap();
        if number == 0 {
            for round in 1..=DELAY {
                push(store, Key(0), 1.0, 0);
                assert_eq!(pulled(store, Key(0)), round as f32);
            }
            let pushing = push(store, Key(0), 1.0, 0);
            store.wait(pushing, soon()).unwrap();
            let (pulling, into) = pull(store, Key(0), 0);
            await_server(store);
            await_server(store);
            assert!(!store.is_done(pulling), "{} rounds ahead", DELAY + 1);
            is_released.store(true, Ordering::SeqCst);
            store.wait(pulling, soon()).unwrap();
            // the slow one's first push is what it waited for
            assert!(f32s(&into).iter().all(|value| *value == (DELAY + 1) as f32 + 100.0));
        } else {
            while !is_released.load(Ordering::SeqCst) {
                store.progress().unwrap();
                std::thread::yield_now();
            }
            let pushing = push(store, Key(0), 100.0, 0);
            store.wait(pushing, soon()).unwrap();
        }
        store.barrier(soon()).unwrap();
    });
}

#[test]
fn a_synchronous_pull_waits_for_everybodys_push() {
    let is_released = AtomicBool::new(false);
    Job::shm(2, 1, Mode::Sync).run(|number, store| {
        begin(store, number, &[SPEC]);
        store.barrier(soon()).unwrap();
        if number == 0 {
            let pushing = push(store, Key(0), 1.0, 0);
            let (pulling, into) = pull(store, Key(0), 0);
            await_server(store);
            await_server(store);
            assert!(!store.is_done(pushing) && !store.is_done(pulling));
            is_released.store(true, Ordering::SeqCst);
            store.wait(pulling, soon()).unwrap();
            assert!(f32s(&into).iter().all(|value| *value == 101.0));
        } else {
            while !is_released.load(Ordering::SeqCst) {
                store.progress().unwrap();
                std::thread::yield_now();
            }
            let pushing = push(store, Key(0), 100.0, 0);
            store.wait(pushing, soon()).unwrap();
        }
    });
}

/// Keys in the order of their priorities.
const BY_PRIORITY: [u64; 6] = [3, 1, 5, 0, 4, 2];

fn priority(key: u64) -> i32 {
    -(BY_PRIORITY.iter().position(|other| *other == key).unwrap() as i32)
}

#[test]
fn what_has_more_priority_goes_first() {
    for spec in [SPEC, LARGE] {
        let job = Job::shm(1, 1, Mode::Sync);
        let done = Mutex::new(Vec::new());
        job.run(|number, store| {
            begin(store, number, &[spec; 6]);
            // all wait before the first can go
            for key in 0..6 {
                push(store, Key(key), 1.0, priority(key));
            }
            push(store, Key(BY_PRIORITY[0]), 1.0, 0);
            store.wait_all(soon()).unwrap();
            let pulls: Vec<(KvHandle, Buffer)> =
                (0..6).map(|key| pull(store, Key(key), priority(key))).collect();
            let mut news = Vec::new();
            store.tell_news();
            store.wait_all(soon()).unwrap();
            store.news(&mut news);
            let number = |news: &KvProgress| match news {
                KvProgress::Done(handle) => pulls.iter().position(|(other, _)| other == handle),
                KvProgress::Sent(_) => None,
            };
            *done.lock().unwrap() = news.iter().filter_map(number).map(|key| key as u64).collect();
        });
        let folds: Vec<String> = job.journal.lock().unwrap().clone();
        let expected = BY_PRIORITY.map(|key| format!("fold {key}"));
        assert_eq!(folds[0], "set add");
        assert_eq!(folds[1..7], expected, "{spec}");
        // the second push of a key comes behind its first, whatever its priority
        assert_eq!(folds[7], format!("fold {}", BY_PRIORITY[0]));
        assert_eq!(done.into_inner().unwrap(), BY_PRIORITY, "{spec}");
    }
}
