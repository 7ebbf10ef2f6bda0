//! The store over real rings in shared memory and over TCP: workers and servers as threads, closed forms.
#![allow(clippy::unwrap_used)]

mod support;

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{Key, KvWorker, Progress, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use support::{Job, f32s, fill, local, soon};

fn dense(elements: usize) -> ValueSpec {
    ValueSpec::dense(DType::F32, elements)
}

/// Sizes below and above what is written directly, none, and one that is cut over all servers.
const SIZES: [usize; 5] = [0, 3, 1000, 70_000, 300_000];

fn values() -> Vec<(Key, ValueSpec)> {
    (0u64..).map(Key).zip(SIZES.map(dense)).collect()
}

fn tensors(store: &mut KvWorker, by: impl Fn(usize, usize) -> f32) -> Vec<Buffer> {
    let all = SIZES.iter().enumerate().map(|(index, elements)| {
        let buffer = store.alloc(&dense(*elements)).unwrap();
        fill(&buffer, |at| by(index, at));
        buffer
    });
    all.collect()
}

fn each(buffers: &[Buffer]) -> Vec<Vec<Buffer>> {
    buffers.iter().map(|buffer| vec![buffer.clone()]).collect()
}

/// MXNet's test of `dist_sync`: what is pulled after n rounds is what all workers pushed in them.
fn sums_are_those_of_all_workers(job: &Job) {
    const ROUNDS: usize = 5;
    let workers = job.workers;
    job.run(|number, store| {
        let keys: Vec<Key> = values().iter().map(|(key, _)| *key).collect();
        let first = tensors(store, |index, at| (index + at % 7) as f32);
        let first = (number == 0).then_some(first);
        let ticket = store.init(&values(), first.as_deref()).unwrap();
        store.wait(ticket, soon()).unwrap();
        for round in 0..ROUNDS {
            let pushed = |number: usize| {
                move |index: usize, at: usize| ((number + 1) * (round + 1) + index + at % 5) as f32
            };
            let from = each(&tensors(store, pushed(number)));
            let into = tensors(store, |_, _| f32::NAN);
            let ticket = store.pushpull(&keys, &from, &each(&into), 0).unwrap();
            store.wait(ticket, soon()).unwrap();
            for (index, buffer) in into.iter().enumerate() {
                for (at, found) in f32s(buffer).into_iter().enumerate() {
                    let all: f32 = (0..workers).map(|number| pushed(number)(index, at)).sum();
                    assert_eq!(found, all, "worker {number}, round {round}, key {index}, {at}");
                }
            }
        }
    });
}

#[test]
fn sums_over_shared_memory() {
    sums_are_those_of_all_workers(&Job::shm(3, 2, Mode::Sync));
}

#[test]
fn sums_over_tcp() {
    sums_are_those_of_all_workers(&Job::tcp(2, 3, Mode::Sync));
}

#[test]
fn one_worker_and_one_server() {
    sums_are_those_of_all_workers(&Job::shm(1, 1, Mode::Sync));
}

#[test]
fn a_local_store_does_the_same() {
    let mut store = local();
    let spec = dense(20_000);
    let [from, into, other] = [1.0, f32::NAN, f32::NAN].map(|value| {
        let buffer = store.alloc(&spec).unwrap();
        fill(&buffer, |_| value);
        buffer
    });
    let ticket = store.init(&[(Key(7), spec)], Some(std::slice::from_ref(&from))).unwrap();
    store.wait(ticket, soon()).unwrap();
    // two devices: reduced before, and filled after
    let (devices, filled) =
        (vec![vec![from.clone(), from]], vec![vec![into.clone(), other.clone()]]);
    let ticket = store.pushpull(&[Key(7)], &devices, &filled, 0).unwrap();
    store.wait(ticket, soon()).unwrap();
    assert!(f32s(&into).iter().chain(&f32s(&other)).all(|value| *value == 2.0));
    let mut news = Vec::new();
    store.news(&mut news);
    assert!(news.contains(&Progress::Sent(ticket)) && news.contains(&Progress::Done(ticket)));
}
