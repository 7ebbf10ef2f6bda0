//! Pushes and pulls by row ids, of values that lie on one server and on all.

use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::RingOptions;
use tensorwire_kvstore::{Key, KvWorker, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use super::rule::{f32s, numbers, tensor};
use super::support::{Job, soon};

const COLUMNS: usize = 24;
/// On one server, and split: more rows than a ring holds, with more indices than go in a message.
const SPECS: [ValueSpec; 2] = [table(50), table(12_000)];

const fn table(rows: usize) -> ValueSpec {
    ValueSpec { dtype: DType::F32, rows, columns: COLUMNS }
}

/// Sorted indices: none, one, every row, the last ones again and again, more than the first server's shard has.
fn indices(kind: usize, rows: usize) -> Vec<i32> {
    let last = rows as i32 - 1;
    match kind {
        0 => Vec::new(),
        1 => vec![last / 2],
        2 => (0..=last).collect(),
        3 => vec![0, 0, last, last, last],
        _ => (0..rows as i32 * 3 / 2).map(|at| at / 9 * 2).collect(),
    }
}

/// What a push of some rows holds: whole numbers, so that no order of adding rounds.
fn pushed(number: usize, round: usize, at: usize, column: usize) -> f32 {
    (1 + number + 2 * round + at % 5 + column % 3) as f32
}

fn rows_of(store: &mut KvWorker, count: usize, by: impl Fn(usize, usize) -> f32) -> Buffer {
    tensor(store, &table(count), |at| by(at / COLUMNS, at % COLUMNS))
}

/// All workers push rows of many kinds; what is pulled, whole and by rows, is what they make together.
fn rows_are_added_where_they_belong(job: &Job) {
    const ROUNDS: usize = 5;
    let workers = job.workers;
    job.run(|number, store| {
        let values: Vec<_> = (0u64..).map(Key).zip(SPECS).collect();
        let first = SPECS.map(|spec| tensor(store, &spec, |at| (at % 9) as f32));
        let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        let kind = |number: usize, round: usize| (number + round) % 5;
        let mut expected: Vec<Vec<f32>> = first.iter().map(f32s).collect();
        for round in 0..ROUNDS {
            for ((key, spec), expected) in values.iter().zip(&mut expected) {
                let own = indices(kind(number, round), spec.rows);
                let rows = rows_of(store, own.len(), |at, c| pushed(number, round, at, c));
                store.push_rows(*key, &own, &rows, 0).unwrap();
                let wanted = indices(kind(number, round + 2), spec.rows);
                let some = rows_of(store, wanted.len(), |_, _| f32::NAN);
                store.pull_rows(*key, &wanted, &some, 0).unwrap();
                let all = tensor(store, spec, |_| f32::NAN);
                store.pull(&[*key], &[vec![all.clone()]], 0).unwrap();
                store.wait_all(soon()).unwrap();
                for number in 0..workers {
                    let told = indices(kind(number, round), spec.rows);
                    for (at, row) in told.iter().map(|row| *row as usize).enumerate() {
                        let start = row * COLUMNS;
                        let here = expected[start..start + COLUMNS].iter_mut().enumerate();
                        here.for_each(|(c, sum)| *sum += pushed(number, round, at, c));
                    }
                }
                assert!(f32s(&all) == *expected, "round {round}, {spec}");
                let row = |row: &i32| &expected[*row as usize * COLUMNS..][..COLUMNS];
                let wanted: Vec<f32> = wanted.iter().flat_map(row).copied().collect();
                assert!(f32s(&some) == wanted, "round {round}, some rows of {spec}");
            }
        }
    });
}

#[test]
fn rows_over_shared_memory() {
    rows_are_added_where_they_belong(&Job::shm(2, 2, Mode::Sync));
}

#[test]
fn rows_over_tcp_and_small_rings() {
    let rings = RingOptions { ring_bytes: 64 << 10, direct_from: 4 << 10 };
    rows_are_added_where_they_belong(&Job { rings, ..Job::tcp(3, 3, Mode::Sync) });
}

#[test]
fn rows_in_the_memory_of_devices() {
    rows_are_added_where_they_belong(&Job::shm(2, 2, Mode::Sync).on_device());
    rows_are_added_where_they_belong(&Job::tcp(2, 3, Mode::Sync).on_device());
}

#[test]
fn rows_that_are_none_are_refused_with_what_to_do() {
    Job::shm(1, 2, Mode::Sync).run(|_, store| {
        let dense = ValueSpec::dense(DType::F32, 10);
        let values = [(Key(0), table(4)), (Key(1), dense)];
        let first = [table(4), dense].map(|spec| tensor(store, &spec, |_| 1.0));
        let handle = store.init(&values, Some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        let rows = tensor(store, &table(5), |_| 1.0);
        let wrong: [(u64, &[i32], &str); 4] = [
            (0, &[2, 1], "to be sorted"),
            (0, &[0, 4], "row 4 of 4"),
            (0, &[-1, 0], "row -1 of 4"),
            (1, &[0], "only values of wider rows go by rows"),
        ];
        for (key, indices, why) in wrong {
            let refused = store.push_rows(Key(key), indices, &rows, 0).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
            let refused = store.pull_rows(Key(key), indices, &rows, 0).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let short = tensor(store, &table(1), |_| 1.0);
        let refused = store.push_rows(Key(0), &[0, 1], &short, 0).unwrap_err().to_string();
        assert_eq!(refused, "key 0 of 192 bytes was given a tensor of 96 bytes");
        // a tensor may have room for more rows than are pushed
        store.push_rows(Key(0), &[3], &rows, 0).unwrap();
        store.pull_rows(Key(0), &[2, 3], &rows, 0).unwrap();
        store.wait_all(soon()).unwrap();
        assert_eq!(f32s(&rows)[COLUMNS - 1..COLUMNS + 1], [1.0, 2.0]);
    });
}

/// What a value is rounded from is pulled as a tensor of the wider type, behind what was pushed before, from one server and from
/// all; a server that keeps none says so.
fn wide_values_are_pulled(job: &Job) {
    let specs = [ValueSpec::dense(DType::F32, 100), ValueSpec::dense(DType::F32, 300_000)];
    let whole = ValueSpec::dense(DType::I32, 10);
    job.run(|number, store| {
        let values: Vec<_> = (0u64..).map(Key).zip(specs.into_iter().chain([whole])).collect();
        let first: Vec<Buffer> =
            values.iter().map(|(_, spec)| tensor(store, spec, |_| 0.0)).collect();
        let handle = store.init(&values, (number == 0).then_some(&first[..])).unwrap();
        store.wait(handle, soon()).unwrap();
        for (key, spec) in &values[..2] {
            let pushed = tensor(store, spec, |at| (at % 7) as f32);
            store.push(&[*key], &[vec![pushed]], 0).unwrap();
            let wide = ValueSpec { dtype: DType::F64, ..*spec };
            let into = store.alloc(&wide).unwrap();
            store.pull_wide(*key, DType::F64, &into, 0).unwrap();
            store.wait_all(soon()).unwrap();
            let found = numbers(DType::F64, &into.read().unwrap());
            let expected = |at: usize| (at % 7 * job.workers) as f64 + 0.5;
            assert!(
                found.into_iter().enumerate().all(|(at, value)| value == expected(at)),
                "{spec}"
            );
            let short = tensor(store, spec, |_| 0.0);
            let refused = store.pull_wide(*key, DType::F64, &short, 0).unwrap_err().to_string();
            assert!(refused.contains("was given a tensor of"), "{refused}");
        }
        if number == 0 {
            let into = store.alloc(&ValueSpec { dtype: DType::F64, ..whole }).unwrap();
            let handle = store.pull_wide(Key(2), DType::F64, &into, 0).unwrap();
            let refused = store.wait(handle, soon()).unwrap_err().to_string();
            assert!(refused.contains("not rounded from anything"), "{refused}");
        }
    });
}

#[test]
fn wide_values_over_shared_memory() {
    wide_values_are_pulled(&Job::shm(2, 2, Mode::Sync));
}

#[test]
fn wide_values_over_tcp() {
    wide_values_are_pulled(&Job::tcp(2, 3, Mode::Sync));
    wide_values_are_pulled(&Job::tcp(2, 3, Mode::Sync).on_device());
}
