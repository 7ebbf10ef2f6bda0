//! Which server holds what. Each server has a range of shard keys (ps-lite's key ranges). A value that is
//! not large lies whole on the server of its key's turn (round-robin); one of more elements than a bound is
//! cut into as many shards as there are servers (MXNet's big-array bound). Pure, and the same everywhere.

use std::ops::Range;

use crate::key::{Key, ShardKey, ValueSpec};

/// Values of more elements are split over all servers; MXNet's default.
pub const BIG_ELEMENTS: usize = 1_000_000;
/// Rows of one element are cut at multiples of this: no cache line is split between two servers.
const CUT: usize = 16;

/// How values are spread over servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    servers: u32,
    big_elements: usize,
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
    /// Values that lie here whole, and shards of others.
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
        Partition { servers, big_elements }
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
        Ok(starts
            .map(|(server, start)| shard(server, start..spec.rows.min(start + share)))
            .collect())
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
