//! Which server holds what. Each server has a range of shard keys (ps-lite's key ranges). A value that is
//! not large lies whole on the server of its key's turn (round-robin); one of more elements than a bound is
//! cut into as many shards as there are servers (MXNet's big-array bound), or each server's into slices (P3: Jayarajan et al. 2019), so
//! that a slice comes back while others are on their way. Pure, and the same everywhere.

use std::ops::Range;

use crate::key::{Key, ShardKey, ValueSpec};

/// Values of more elements are split over all servers; MXNet's default.
pub const BIG_ELEMENTS: usize = 1_000_000;
/// Rows of one element are cut at multiples of this: no cache line is split between two servers.
const CUT: usize = 16;

/// Slices of a value on one server have keys so far apart. Keys of sliced values are below that.
const SLICE_KEYS: u64 = 1 << 48;

/// How values are spread over servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    servers: u32,
    big_elements: usize,
    /// None: a server has its share of a large value in one piece.
    slice_bytes: Option<usize>,
}

/// A shard of a value: some of its rows, on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub server: usize,
    pub key: ShardKey,
    pub rows: Range<usize>,
}

/// What one server holds: a line of the table that is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLoad {
    pub server: usize,
    pub range: Range<u64>,
    /// Values that lie here whole, and shards of others: each slice is one.
    pub whole: usize,
    pub shards: usize,
    pub bytes: u64,
}

/// A key that has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is too large: with {servers} servers keys are below {end}")]
pub struct KeyError {
    pub key: Key,
    pub servers: u32,
    pub end: u64,
}

impl Partition {
    /// # Panics
    /// Without servers.
    pub fn new(servers: u32, big_elements: usize) -> Partition {
        assert!(servers > 0, "a store has a server");
        Partition { servers, big_elements, slice_bytes: None }
    }

    /// Returns it with shares of large values in slices of at most about so many bytes. Values with longer rows are not sliced.
    pub fn in_slices(self, bytes: usize) -> Partition {
        Partition { slice_bytes: Some(bytes), ..self }
    }

    pub fn servers(&self) -> usize {
        // fits: usize is 64 bits wide
        self.servers as usize
    }

    /// The shard keys of a server.
    pub fn range(&self, server: usize) -> Range<u64> {
        let width = self.width();
        // fits: a server's number is below their count, which times the width is below 2^64
        let start = server as u64 * width;
        start..start + width
    }

    /// The shards of a value, in the order of its rows. One of no rows has one shard.
    ///
    /// # Errors
    /// When the key does not fit the servers' ranges.
    pub fn shards(&self, key: Key, spec: &ValueSpec) -> Result<Vec<Shard>, KeyError> {
        let (servers, end) = (self.servers, self.width());
        if key.0 >= end {
            return Err(KeyError { key, servers, end });
        }
        let shard = |server: usize, rows: Range<usize>| Shard {
            server,
            key: ShardKey(self.range(server).start + key.0),
            rows,
        };
        let is_big = spec.elements() > self.big_elements && spec.rows > 1;
        if !is_big {
            // fits: below the count of servers
            return Ok(vec![shard((key.0 % u64::from(servers)) as usize, 0..spec.rows)]);
        }
        let share = spec.rows.div_ceil(self.servers());
        let share = if spec.columns == 1 { share.next_multiple_of(CUT) } else { share };
        let starts = (0..spec.rows).step_by(share).enumerate();
        let shares =
            starts.map(|(server, start)| shard(server, start..spec.rows.min(start + share)));
        let cut = |whole: Shard| {
            let slice = self.slice_rows(key, spec, whole.rows.len());
            let Shard { server, key, rows } = whole;
            let end = rows.end;
            // fits: fewer than there are keys, as slices are long enough
            (0..).zip(rows.step_by(slice)).map(move |(number, start)| Shard {
                server,
                key: ShardKey(key.0 + number * SLICE_KEYS),
                rows: start..end.min(start + slice),
            })
        };
        Ok(shares.flat_map(cut).collect())
    }

    /// Rows of a slice of a server's share of a large value.
    fn slice_rows(&self, key: Key, spec: &ValueSpec, share: usize) -> usize {
        let is_cut = spec.columns == 1 && key.0 < SLICE_KEYS;
        let Some(bytes) = self.slice_bytes.filter(|_| is_cut) else { return share.max(1) };
        // fits: usize is 64 bits wide
        let most = (self.width() / SLICE_KEYS).max(1) as usize;
        let rows = (bytes / spec.row_bytes().max(1)).max(share.div_ceil(most)).max(1);
        // of about one length: the last one is no small rest
        share.div_ceil(share.div_ceil(rows).max(1)).next_multiple_of(CUT)
    }

    /// What each server holds of these values.
    ///
    /// # Errors
    /// When a key does not fit.
    pub fn table(&self, values: &[(Key, ValueSpec)]) -> Result<Vec<ServerLoad>, KeyError> {
        let load = |server| ServerLoad {
            server,
            range: self.range(server),
            whole: 0,
            shards: 0,
            bytes: 0,
        };
        let mut loads: Vec<ServerLoad> = (0..self.servers()).map(load).collect();
        for (key, spec) in values {
            let shards = self.shards(*key, spec)?;
            let is_whole = shards.len() == 1;
            for shard in shards {
                let load = &mut loads[shard.server];
                *(if is_whole { &mut load.whole } else { &mut load.shards }) += 1;
                // fits: sizes of tensors that are in memory
                load.bytes += (shard.rows.len() * spec.row_bytes()) as u64;
            }
        }
        Ok(loads)
    }

    fn width(&self) -> u64 {
        u64::MAX / u64::from(self.servers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorwire_tensor::DType;

    use super::*;

    fn f32s(rows: usize, columns: usize) -> ValueSpec {
        ValueSpec { dtype: DType::F32, rows, columns }
    }

    #[test]
    fn small_values_take_turns_and_big_ones_are_shared_out() {
        let partition = Partition::new(3, 1000);
        let values: Vec<(Key, ValueSpec)> =
            (0..6).map(|key| (Key(key), f32s(100, 1))).chain([(Key(6), f32s(3000, 1))]).collect();
        let table = partition.table(&values).unwrap();
        let seen: Vec<_> = table.iter().map(|load| (load.whole, load.shards, load.bytes)).collect();
        assert_eq!(seen, [(2, 1, 4832), (2, 1, 4832), (2, 1, 4736)]);
        assert_eq!(table[1].range.start, table[0].range.end);
    }

    #[test]
    fn a_key_that_leaves_its_range_is_refused() {
        let partition = Partition::new(2, 1000);
        assert!(partition.shards(Key(u64::MAX / 2 - 1), &f32s(1, 1)).is_ok());
        let error = partition.shards(Key(u64::MAX / 2), &f32s(1, 1)).unwrap_err();
        assert!(error.to_string().contains("below"), "{error}");
    }

    proptest! {
        #[test]
        fn slices_cover_each_servers_share_once_by_keys_of_its_range(
            servers in 1u32..40, key in 0u64..1000, rows in 0usize..50_000, bytes in 1usize..9000,
        ) {
            let whole = Partition::new(servers, 700);
            let sliced = whole.in_slices(bytes);
            let spec = f32s(rows, 1);
            let shares = whole.shards(Key(key), &spec).unwrap();
            let slices = sliced.shards(Key(key), &spec).unwrap();
            let mut keys = std::collections::HashSet::new();
            for share in &shares {
                let mut next = share.rows.start;
                for slice in slices.iter().filter(|slice| slice.server == share.server) {
                    prop_assert_eq!(slice.rows.start, next);
                    prop_assert!(sliced.range(slice.server).contains(&slice.key.0));
                    prop_assert!(keys.insert(slice.key) && (shares.len() == 1 || slice.rows.len() * 4 <= bytes.max(64) + 64));
                    next = slice.rows.end;
                }
                prop_assert_eq!(next, share.rows.end);
                // but for rounding to cache lines none is a small rest
                let lengths = slices.iter().filter(|slice| slice.server == share.server);
                let lengths: Vec<usize> = lengths.map(|slice| slice.rows.len()).collect();
                let (most, count) = (lengths.iter().max().copied().unwrap_or(0), lengths.len());
                let spare = CUT * count;
                prop_assert!(lengths.iter().all(|rows| rows + spare >= most), "{lengths:?}");
            }
            // values of rows, which are pushed one by one, are cut for servers alone
            let by_rows = f32s(rows, 3);
            let both = [whole, sliced].map(|partition| partition.shards(Key(key), &by_rows).unwrap());
            prop_assert_eq!(&both[0], &both[1]);
        }

        #[test]
        fn shards_cover_a_value_once_and_lie_in_their_servers_range(
            servers in 1u32..40, key in 0u64..1000, rows in 0usize..5000, columns in 1usize..9,
        ) {
            let partition = Partition::new(servers, 700);
            let spec = f32s(rows, columns);
            let shards = partition.shards(Key(key), &spec).unwrap();
            let mut next = 0;
            for shard in &shards {
                prop_assert_eq!(shard.rows.start, next);
                prop_assert!(partition.range(shard.server).contains(&shard.key.0));
                next = shard.rows.end;
            }
            prop_assert_eq!(next, rows);
            prop_assert!(shards.len() <= servers as usize && !shards.is_empty());
            let mut servers_of: Vec<usize> = shards.iter().map(|shard| shard.server).collect();
            servers_of.dedup();
            prop_assert_eq!(servers_of.len(), shards.len());
        }
    }
}
