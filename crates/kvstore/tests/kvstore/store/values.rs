//! Values of any size and type: sums, order, tensors of several devices, tensors from elsewhere, and what is
//! refused.

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::RingOptions;
use tensorwire_kvstore::{Key, KvProgress, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_tensor::DType;

use super::rule::{TYPES, bytes, f32s, fill, numbers, tensor};
use super::support::{Job, local, soon};

fn dense(elements: usize) -> ValueSpec {
    ValueSpec::dense(DType::F32, elements)
}

/// Sizes below and above what is written directly, none, and one that is cut over all servers.
const SIZES: [usize; 5] = [0, 3, 1000, 70_000, 300_000];

fn values() -> Vec<(Key, ValueSpec)> {
    (0u64..).map(Key).zip(SIZES.map(dense)).collect()
}

fn tensors(store: &mut KvWorker, by: impl Fn(usize, usize) -> f32) -> Vec<Buffer> {
    let all = SIZES.iter().enumerate();
    all.map(|(index, elements)| tensor(store, &dense(*elements), |at| by(index, at))).collect()
}

fn each(buffers: &[Buffer]) -> Vec<Vec<Buffer>> {
    buffers.iter().map(|buffer| vec![buffer.clone()]).collect()
}

fn sums_are_those_of_all_workers(job: &Job) {
    job.run(sums(job.workers));
}

/// MXNet's test of `dist_sync`: what is pulled after n rounds is what all workers pushed in them.
pub(super) fn sums(workers: usize) -> impl Fn(usize, &mut KvWorker) + Sync {
    const ROUNDS: usize = 4;
    move |number, store| {
        let keys: Vec<Key> = values().iter().map(|(key, _)| *key).collect();
        let first = tensors(store, |index, at| (index + at % 7) as f32);
        let first = (number == 0).then_some(first);
        let handle = store.init(&values(), first.as_deref()).unwrap();
        store.wait(handle, soon()).unwrap();
        for round in 0..ROUNDS {
            let pushed = |number: usize| {
                move |index: usize, at: usize| ((number + 1) * (round + 1) + index + at % 5) as f32
            };
            let from = each(&tensors(store, pushed(number)));
            let into = tensors(store, |_, _| f32::NAN);
            let handle = store.pushpull(&keys, &from, &each(&into), 0).unwrap();
            store.wait(handle, soon()).unwrap();
            for (index, buffer) in into.iter().enumerate() {
                for (at, found) in f32s(buffer).into_iter().enumerate() {
                    let all: f32 = (0..workers).map(|number| pushed(number)(index, at)).sum();
                    assert_eq!(found, all, "worker {number}, round {round}, key {index}, {at}");
                }
            }
        }
    }
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
fn sums_in_the_memory_of_devices() {
    sums_are_those_of_all_workers(&Job::shm(3, 2, Mode::Sync).on_device());
    sums_are_those_of_all_workers(&Job::tcp(2, 3, Mode::Sync).on_device());
}

#[test]
fn one_worker_and_one_server() {
    sums_are_those_of_all_workers(&Job::shm(1, 1, Mode::Sync));
}

/// All types, as a block and written directly, with numbers that each holds without rounding.
#[test]
fn every_type_is_summed() {
    let elements = [5usize, 40_000];
    let values = || {
        let all = TYPES.iter().flat_map(|dtype| elements.map(|n| ValueSpec::dense(*dtype, n)));
        (0u64..).map(Key).zip(all).collect::<Vec<_>>()
    };
    Job::shm(2, 2, Mode::Sync).run(|number, store| {
        let keys: Vec<Key> = values().iter().map(|(key, _)| *key).collect();
        let tensors = |store: &mut KvWorker, of: fn(usize, usize) -> usize| {
            let all = values().into_iter().map(|(_, spec)| {
                let buffer = store.alloc(&spec).unwrap();
                let numbers = (0..spec.elements()).map(|at| of(number, at) as f64);
                buffer.write().unwrap().copy_from_slice(&bytes(spec.dtype, numbers));
                buffer
            });
            all.collect::<Vec<Buffer>>()
        };
        let first = tensors(store, |_, at| at % 50);
        let first = (number == 0).then_some(first.as_slice());
        let handle = store.init(&values(), first).unwrap();
        store.wait(handle, soon()).unwrap();
        let into = tensors(store, |_, _| 7);
        let handle = store.pull(&keys, &each(&into), 0).unwrap();
        store.wait(handle, soon()).unwrap();
        let is = |into: &[Buffer], expected: fn(usize) -> usize| {
            for ((_, spec), buffer) in values().iter().zip(into) {
                let found = numbers(spec.dtype, &buffer.read().unwrap());
                let all: Vec<f64> = (0..spec.elements()).map(|at| expected(at) as f64).collect();
                assert!(found == all, "{spec}");
            }
        };
        is(&into, |at| at % 50);
        store.barrier(soon()).unwrap();
        let from = tensors(store, |number, at| (number + 1) * (at % 20));
        let handle = store.pushpull(&keys, &each(&from), &each(&into), 0).unwrap();
        store.wait(handle, soon()).unwrap();
        is(&into, |at| 3 * (at % 20));
    });
}

#[test]
fn tensors_of_several_devices_are_added_before_and_filled_after() {
    let elements = [6usize, 150_000];
    Job::shm(2, 2, Mode::Sync).run(|number, store| {
        let values: Vec<_> = (0u64..).map(Key).zip(elements.map(dense)).collect();
        let keys = [Key(0), Key(1)];
        let first = elements.map(|elements| tensor(store, &dense(elements), |_| 0.0));
        let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        let devices = |store: &mut KvWorker, by: &dyn Fn(usize, usize) -> f32| {
            elements.map(|elements| {
                let one = |device| tensor(store, &dense(elements), |at| by(device, at));
                (0..3).map(one).collect::<Vec<Buffer>>()
            })
        };
        let from = devices(store, &|device, at| (10 * number + device + at % 3) as f32);
        let into = devices(store, &|_, _| f32::NAN);
        let handle = store.pushpull(&keys, &from, &into, 0).unwrap();
        store.wait(handle, soon()).unwrap();
        for buffer in into.iter().flatten() {
            // devices 0 + 1 + 2 of both workers, ten more each at the second's three
            let expected = |at: usize| (2 * 3 + 30 + 6 * (at % 3)) as f32;
            assert!(f32s(buffer).iter().enumerate().all(|(at, found)| *found == expected(at)));
        }
    });
}

/// Memory that no server reaches.
fn elsewhere(elements: usize) -> Buffer {
    let bytes = elements * 4;
    let slab = Slab::anonymous(bytes).unwrap();
    Arena::new(&slab, &[Place { offset: 0, bytes }]).unwrap().into_buffers().remove(0)
}

#[test]
fn tensors_from_elsewhere_are_copied_on_their_way() {
    // once out and once in; what both share is read by whoever wants it, into any memory
    tensors_from_elsewhere_are_copied(&Job::tcp(2, 2, Mode::Sync), 2);
    tensors_from_elsewhere_are_copied(&Job::shm(2, 2, Mode::Sync), 1);
}

fn tensors_from_elsewhere_are_copied(job: &Job, times: usize) {
    job.run(|number, store| {
        for (key, elements) in (0u64..).map(Key).zip([3usize, 70_000, 300_000]) {
            let (from, into) = (elsewhere(elements), elsewhere(elements));
            fill(&from, |at| (at % 11) as f32);
            let values = [(key, dense(elements))];
            let handle =
                store.init(&values, (number == 0).then_some(std::slice::from_ref(&from))).unwrap();
            store.wait(handle, soon()).unwrap();
            let before = store.stats().bytes_copied;
            let (from, into) = ([vec![from]], [vec![into]]);
            let handle = store.pushpull(&[key], &from, &into, 0).unwrap();
            store.wait(handle, soon()).unwrap();
            let found = f32s(&into[0][0]);
            assert!(found.iter().enumerate().all(|(at, found)| *found == 2.0 * (at % 11) as f32));
            let copied = (store.stats().bytes_copied - before) as usize;
            // small values go in messages
            let times = if elements < 1024 { 2 } else { times };
            let expected = times * 4 * elements;
            assert!((expected..expected + 1000).contains(&copied), "{copied}, not {expected}");
        }
    });
}

#[test]
fn what_a_user_pushes_and_pulls_of_a_key_is_in_that_order() {
    Job::shm(2, 2, Mode::Sync).run(|number, store| {
        let specs = [dense(4), dense(150_000)];
        for (key, spec) in (0u64..).map(Key).zip(specs) {
            let first = [tensor(store, &spec, |_| 0.5)];
            store.init(&[(key, spec)], (number == 0).then_some(&first)).unwrap();
            let mut pulled = Vec::new();
            // nothing is waited for
            for round in 1..=6 {
                let from = tensor(store, &spec, |_| (round * (number + 1)) as f32);
                store.push(&[key], &[vec![from]], 0).unwrap();
                if round % 2 == 0 {
                    let into = tensor(store, &spec, |_| f32::NAN);
                    store.pull(&[key], &[vec![into.clone()]], 0).unwrap();
                    pulled.push((round, into));
                }
            }
            store.wait_all(soon()).unwrap();
            for (round, into) in pulled {
                assert!(f32s(&into).iter().all(|found| *found == (round * 3) as f32), "{round}");
            }
        }
    });
}

#[test]
fn many_small_values_go_through_a_small_ring() {
    let rings = RingOptions { ring_bytes: 64 << 10, direct_from: 16 << 10 };
    let job = Job { rings, ..Job::shm(2, 1, Mode::Sync) };
    const KEYS: u64 = 300;
    job.run(|number, store| {
        // all together a dozen times what a ring holds
        let spec = dense(1000);
        let values: Vec<(Key, ValueSpec)> = (0..KEYS).map(|key| (Key(key), spec)).collect();
        let keys: Vec<Key> = (0..KEYS).map(Key).collect();
        let tensors = |store: &mut KvWorker, by: &dyn Fn(u64) -> f32| {
            (0..KEYS).map(|key| tensor(store, &spec, |_| by(key))).collect::<Vec<_>>()
        };
        let first = tensors(store, &|_| 0.0);
        let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        for round in 0..3 {
            let from = tensors(store, &|key| (key + round + number as u64) as f32);
            let into = tensors(store, &|_| f32::NAN);
            let handle = store.pushpull(&keys, &each(&from), &each(&into), 0).unwrap();
            store.wait(handle, soon()).unwrap();
            for (key, into) in into.iter().enumerate() {
                let expected = (2 * (key + round as usize) + 1) as f32;
                assert!(f32s(into).iter().all(|found| *found == expected), "key {key}");
            }
        }
        assert!(store.stats().transfers < store.stats().messages + 40, "{:?}", store.stats());
    });
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_left_of_it() {
    Job::shm(1, 2, Mode::Sync).run(|_, store| {
        let spec = dense(8);
        let good = tensor(store, &spec, |_| 1.0);
        let small = tensor(store, &dense(7), |_| 1.0);
        let handle = store.init(&[(Key(0), spec)], Some(std::slice::from_ref(&good))).unwrap();
        store.wait(handle, soon()).unwrap();
        let (one, other) = (vec![good.clone()], vec![small]);
        // the first of a list is not pushed where the second cannot be
        let unknown = store.push(&[Key(0), Key(9)], &[one.clone(), one.clone()], 0).unwrap_err();
        assert!(matches!(unknown, StoreError::NotInitialised { key: Key(9) }));
        assert!(unknown.to_string().contains("call init first"), "{unknown}");
        let unknown = store.pull(&[Key(9)], std::slice::from_ref(&one), 0).unwrap_err();
        assert!(matches!(unknown, StoreError::NotInitialised { key: Key(9) }));
        let size = store.push(&[Key(0)], std::slice::from_ref(&other), 0).unwrap_err();
        assert!(matches!(size, StoreError::Size { bytes: 32, found: 28, .. }), "{size}");
        let both = [vec![good.clone(), other[0].clone()]];
        let size = store.pushpull(&[Key(0)], std::slice::from_ref(&one), &both, 0).unwrap_err();
        assert!(matches!(size, StoreError::Size { bytes: 32, found: 28, .. }), "{size}");
        let count = store.push(&[Key(0)], &[], 0).unwrap_err();
        assert!(matches!(count, StoreError::Count { keys: 1, found: 0 }), "{count}");
        let count = store.push(&[Key(0)], &[vec![]], 0).unwrap_err();
        assert!(matches!(count, StoreError::Count { .. }), "{count}");
        let spec = store.init(&[(Key(0), dense(9))], None).unwrap_err();
        assert!(matches!(spec, StoreError::OtherSpec { .. }), "{spec}");
        assert_eq!(spec.to_string(), "key 0 is f32[8×1], not f32[9×1]");
        let key = store.init(&[(Key(u64::MAX), dense(1))], None).unwrap_err();
        assert!(key.to_string().contains("keys are below"), "{key}");
        let absurd = ValueSpec { rows: 1 << 62, columns: 2, ..dense(1) };
        let error = store.init(&[(Key(7), absurd)], None).unwrap_err();
        assert!(matches!(error, StoreError::Absurd { .. }), "{error}");
        assert!(matches!(store.alloc(&absurd), Err(StoreError::Absurd { .. })));
        let writing = good.write().unwrap();
        let lent = store.push(&[Key(0)], std::slice::from_ref(&one), 0).unwrap_err();
        assert!(matches!(lent, StoreError::Lent { key: Key(0), .. }), "{lent}");
        drop(writing);
        // nothing waits for an answer, and no push was made
        assert!(
            store.missing().starts_with("0 pushes, 0 pulls and 0 other"),
            "{}",
            store.missing()
        );
        store.wait_all(soon()).unwrap();
        let handle = store.pull(&[Key(0)], &[one], 0).unwrap();
        store.wait(handle, soon()).unwrap();
        assert!(f32s(&good).iter().all(|value| *value == 1.0));
    });
}

#[test]
fn workers_of_two_minds_about_a_key_are_told() {
    Job::shm(2, 1, Mode::Sync).run(|number, store| {
        if number == 0 {
            let handle = store.init(&[(Key(0), dense(8))], None).unwrap();
            store.wait(handle, soon()).unwrap();
        }
        store.barrier(soon()).unwrap();
        if number == 1 {
            let handle = store.init(&[(Key(0), dense(9))], None).unwrap();
            let refused = store.wait(handle, soon()).unwrap_err().to_string();
            assert!(refused.contains("all workers must give a key the same type"), "{refused}");
        }
    });
}

#[test]
fn a_local_store_does_the_same() {
    let mut store = local();
    store.tell_news();
    let spec = dense(20_000);
    let [from, into, other] =
        [1.0, f32::NAN, f32::NAN].map(|value| tensor(&mut store, &spec, |_| value));
    let handle = store.init(&[(Key(7), spec)], Some(std::slice::from_ref(&from))).unwrap();
    store.wait(handle, soon()).unwrap();
    // two devices: reduced before, and filled after
    let (devices, filled) =
        (vec![vec![from.clone(), from]], vec![vec![into.clone(), other.clone()]]);
    let handle = store.pushpull(&[Key(7)], &devices, &filled, 0).unwrap();
    store.wait(handle, soon()).unwrap();
    assert!(f32s(&into).iter().chain(&f32s(&other)).all(|value| *value == 2.0));
    let mut news = Vec::new();
    store.news(&mut news);
    assert!(news.contains(&KvProgress::Sent(handle)) && news.contains(&KvProgress::Done(handle)));
}
