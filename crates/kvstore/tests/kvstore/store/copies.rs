//! What is copied from memory to memory is counted by its purpose, byte by byte.

use tensorwire_kvstore::{Key, KvWorker, ValueSpec};
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_tensor::DType;

use super::rule::tensor;
use super::support::{local, soon};

const TABLE: ValueSpec = ValueSpec { dtype: DType::F32, rows: 50, columns: 24 };
/// Bytes of a value, and of a row.
const VALUE: u64 = 50 * ROW;
const ROW: u64 = 24 * 4;
/// Beside a value, the rule of these tests keeps a count.
const STATE: u64 = 8;

/// What `ask` adds to what was copied: for the store, for rows, for snapshots.
fn added(store: &mut KvWorker, ask: impl FnOnce(&mut KvWorker)) -> [u64; 3] {
    let of = |copies: Copies| {
        let purposes = [CopyPurpose::Store, CopyPurpose::Rows, CopyPurpose::Checkpoint];
        assert_eq!(copies.bytes(), purposes.map(|purpose| copies.of(purpose)).iter().sum::<u64>());
        purposes.map(|purpose| copies.of(purpose))
    };
    let before = of(store.copies());
    ask(store);
    store.wait_all(soon()).unwrap();
    let after = of(store.copies());
    [0, 1, 2].map(|at| after[at] - before[at])
}

/// In a store of one a value goes in a message: into it here, from it into a slot there, from that into the weights.
#[test]
fn each_copy_of_a_value_is_counted_once_for_what_it_was_made() {
    let mut store = local();
    let first = tensor(&mut store, &TABLE, |at| at as f32);
    let begun = added(&mut store, |store| {
        store.init(&[(Key(0), TABLE)], Some(&[first])).unwrap();
    });
    assert_eq!(begun, [3 * VALUE, 0, 0]);
    let pushed = tensor(&mut store, &TABLE, |_| 1.0);
    let pushed = added(&mut store, |store| {
        store.push(&[Key(0)], &[vec![pushed]], 0).unwrap();
    });
    assert_eq!(pushed, [2 * VALUE, 0, 0], "the rule reads it in its slot");
    let pulled = tensor(&mut store, &TABLE, |_| 0.0);
    let pulled = added(&mut store, |store| {
        store.pull(&[Key(0)], &[vec![pulled]], 0).unwrap();
    });
    assert_eq!(pulled, [2 * VALUE, 0, 0]);
    let rows = tensor(&mut store, &ValueSpec { rows: 3, ..TABLE }, |_| 0.0);
    let rows = added(&mut store, |store| {
        store.pull_rows(Key(0), &[0, 7, 49], &rows, 0).unwrap();
    });
    // into a message, out of it; the indices go in one, too, and are kept until the rows are gathered
    let indices = 3 * 4;
    assert_eq!(rows, [2 * 3 * ROW + indices, 3 * ROW + indices, 0]);
    let saved = added(&mut store, |store| {
        store.save("here");
    });
    assert_eq!(saved, [0, 0, VALUE + STATE]);
    let loaded = added(&mut store, |store| {
        store.load("here");
    });
    assert_eq!(loaded, [0, 0, VALUE + STATE]);
}
