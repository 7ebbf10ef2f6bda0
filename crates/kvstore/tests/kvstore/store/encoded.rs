//! Pushes that are less than a value, of which the servers' rule makes one.

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{Key, KvHandle, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use super::rule::{f32s, fill, tensor};
use super::support::{Job, local, soon};

/// In a message, shown or written as a whole, and cut over all servers.
const SIZES: [usize; 3] = [7, 20_000, 300_000];

fn spec(elements: usize) -> ValueSpec {
    ValueSpec::dense(DType::F32, elements)
}

fn begin(store: &mut KvWorker, number: usize) {
    let values: Vec<_> = (0u64..).map(Key).zip(SIZES.map(spec)).collect();
    let first = SIZES.map(|elements| tensor(store, &spec(elements), |_| 1000.0));
    let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
    store.wait(handle, soon()).unwrap();
}

/// One number for each server that has some of a value.
fn push(store: &mut KvWorker, key: u64, number: f32) -> KvHandle {
    let shards = store.shards(Key(key)).unwrap();
    let each = shards.iter().map(|_| tensor(store, &spec(1), |_| number));
    let each: Vec<Buffer> = each.collect();
    store.push_encoded(Key(key), &each, 0).unwrap()
}

fn pulled(store: &mut KvWorker, key: u64) -> Vec<f32> {
    let into = tensor(store, &spec(SIZES[key as usize]), |_| f32::NAN);
    let handle = store.pull(&[Key(key)], &[vec![into.clone()]], 0).unwrap();
    store.wait(handle, soon()).unwrap();
    f32s(&into)
}

#[test]
fn less_than_a_value_is_made_one_where_it_comes() {
    let jobs = [Job::shm(3, 2, Mode::Sync), Job::tcp(2, 3, Mode::Sync), Job::shm(1, 1, Mode::Sync)];
    for job in jobs {
        let workers = job.workers;
        job.run(|number, store| {
            begin(store, number);
            for round in 1..4 {
                let of = |number: usize| (round * (number + 1)) as f32;
                let all: f32 = (0..workers).map(of).sum();
                for key in 0..3 {
                    push(store, key, of(number));
                    let found = pulled(store, key);
                    assert!(found.iter().all(|at| *at == all), "{round} {key}: {}", found[0]);
                }
                // and whole values in the next round
                for key in 0..3 {
                    let from = tensor(store, &spec(SIZES[key as usize]), |_| of(number) + 1.0);
                    store.push(&[Key(key)], &[vec![from]], 0).unwrap();
                    let found = pulled(store, key);
                    let all = all + workers as f32;
                    assert!(found.iter().all(|at| *at == all), "{round} {key}: {}", found[0]);
                }
            }
        });
    }
}

#[test]
fn memory_that_servers_do_not_reach_is_copied() {
    let job = Job::shm(1, 1, Mode::Sync);
    job.run(|number, store| {
        begin(store, number);
        let slab = tensorwire_memory::Slab::anonymous(4).unwrap();
        let place = [tensorwire_memory::Place { offset: 0, bytes: 4 }];
        let elsewhere = tensorwire_memory::Arena::new(&slab, &place).unwrap().into_buffers();
        fill(&elsewhere[0], |_| 5.0);
        for key in 0..3 {
            store.push_encoded(Key(key), &elsewhere, 0).unwrap();
            assert!(pulled(store, key).iter().all(|at| *at == 5.0), "{key}");
        }
    });
}

#[test]
fn what_cannot_be_made_a_value_is_refused() {
    let mut store = local();
    begin(&mut store, 0);
    let number = tensor(&mut store, &spec(1), |_| 1.0);
    let wrong = |error: StoreError| error.to_string();
    assert!(store.push_encoded(Key(9), std::slice::from_ref(&number), 0).is_err());
    let two = [number.clone(), number.clone()];
    assert!(matches!(store.push_encoded(Key(0), &two, 0), Err(StoreError::Count { .. })));
    let more = tensor(&mut store, &spec(8), |_| 1.0);
    assert!(matches!(
        store.push_encoded(Key(0), &[more], 0),
        Err(StoreError::Size { bytes: 28, found: 32, .. })
    ));
    // what the rule does not take: the worker is told
    let strange = tensor(&mut store, &spec(2), |_| 1.0);
    let handle = store.push_encoded(Key(0), &[strange], 0).unwrap();
    let said = wrong(store.wait(handle, soon()).unwrap_err());
    assert!(said.contains("one number"), "{said}");
}

/// In one round some push whole values and some less: nobody can tell what the sum is.
#[test]
fn a_round_of_both_is_refused() {
    Job::shm(2, 1, Mode::Sync).run(|number, store| {
        begin(store, number);
        let handle = match number {
            0 => push(store, 0, 1.0),
            _ => {
                let from = tensor(store, &spec(SIZES[0]), |_| 1.0);
                store.push(&[Key(0)], &[vec![from]], 0).unwrap()
            }
        };
        let said = store.wait(handle, soon()).unwrap_err().to_string();
        assert!(said.contains("all workers push encoded values or none"), "{said}");
    });
}
