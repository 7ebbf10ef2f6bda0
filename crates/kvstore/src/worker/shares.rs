//! What a user gave for a value: whether it fits, and what of it belongs to which shard.

use std::ops::Range;

use tensorwire_memory::Buffer;

use crate::error::StoreError;
use crate::key::{Key, ValueSpec};
use crate::partition::Shard;

pub(super) fn check_sizes(
    key: Key,
    devices: &[Buffer],
    bytes: usize,
    may_be_larger: bool,
) -> Result<(), StoreError> {
    let fits = |found: usize| if may_be_larger { found >= bytes } else { found == bytes };
    match devices.iter().map(Buffer::bytes).find(|found| !fits(*found)) {
        Some(found) => Err(StoreError::Size { key, bytes, found }),
        None => Ok(()),
    }
}

/// How many rows; they must be sorted and there.
pub(super) fn check_rows(key: Key, spec: &ValueSpec, indices: &[i32]) -> Result<usize, StoreError> {
    let wrong = |what: &str| StoreError::Rows { key, what: what.to_string() };
    if spec.columns < 2 {
        return Err(wrong("its rows have one element; only values of wider rows go by rows"));
    }
    if !indices.is_sorted() {
        return Err(wrong("row indices are to be sorted"));
    }
    let is_there = |index: &i32| usize::try_from(*index).is_ok_and(|index| index < spec.rows);
    match indices.iter().find(|index| !is_there(index)) {
        Some(index) => Err(wrong(&format!("row {index} of {}", spec.rows))),
        None => Ok(indices.len()),
    }
}

/// True if there are shards with fewer rows than are pushed to them.
pub(super) fn overflow(shards: &[Shard], spec: &ValueSpec, indices: &[i32]) -> bool {
    let row = spec.row_bytes();
    shards.iter().any(|shard| share(shard, spec, Some(indices)).0.len() > shard.rows.len() * row)
}

/// A shard's share of a tensor: the bytes, and the indices counted from the shard's first row.
pub(super) fn share(
    shard: &Shard,
    spec: &ValueSpec,
    indices: Option<&[i32]>,
) -> (Range<usize>, Option<Vec<u8>>) {
    let row = spec.row_bytes();
    let Some(indices) = indices else {
        return (shard.rows.start * row..shard.rows.end * row, None);
    };
    // fits: indices were checked against the rows
    let below = |end: usize| indices.partition_point(|index| (*index as usize) < end);
    let (start, end) = (below(shard.rows.start), below(shard.rows.end));
    let first = shard.rows.start as i32;
    let own = indices[start..end].iter().flat_map(|index| (index - first).to_le_bytes());
    (start * row..end * row, Some(own.collect()))
}

/// A pull by rows in portions whose indices fit a message.
pub(super) fn portions(
    direct_from: Option<usize>,
    spec: &ValueSpec,
    bytes: Range<usize>,
    indices: Option<Vec<u8>>,
) -> Vec<(Range<usize>, Option<Vec<u8>>)> {
    let (Some(direct_from), Some(indices)) = (direct_from, &indices) else {
        return vec![(bytes, indices)];
    };
    let index = size_of::<i32>();
    let rows_max = (direct_from / index).max(1);
    let row = spec.row_bytes();
    let portion = |(number, indices): (usize, &[u8])| {
        let start = bytes.start + number * rows_max * row;
        (start..start + indices.len() / index * row, Some(indices.to_vec()))
    };
    match indices.is_empty() {
        true => vec![(bytes, Some(Vec::new()))],
        false => indices.chunks(rows_max * index).enumerate().map(portion).collect(),
    }
}
