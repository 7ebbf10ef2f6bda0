//! Which algorithm is taken for a vector: data, measured by `tensorwire bench allreduce --tune`. Without such data
//! [`crate::LinkCost`] chooses.

use serde::{Deserialize, Serialize};

use crate::schedule::Algorithm;

/// From so many members and bytes on, this is fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub world: usize,
    /// Members of so many hosts, where those of one share memory; none: wherever no two share memory, or all do.
    #[serde(default)]
    pub hosts: Option<usize>,
    pub from_bytes: usize,
    pub algorithm: Algorithm,
}

/// What is fastest, by the number of members and the bytes of a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub rows: Vec<Row>,
}

impl Table {
    /// The row of the most members that are not more, and of these of the most bytes that are not more. `hosts`: on how many
    /// hosts they are, where some share memory and some do not.
    pub fn choose(&self, world: usize, hosts: Option<usize>, bytes: usize) -> Option<Algorithm> {
        let fits = |row: &&Row| row.world <= world && row.hosts == hosts && row.from_bytes <= bytes;
        let fitting = self.rows.iter().filter(fits);
        fitting.max_by_key(|row| (row.world, row.from_bytes)).map(|row| row.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_below_counts() {
        let of = |world, hosts, from_bytes, algorithm| Row { world, hosts, from_bytes, algorithm };
        let row = |world, from_bytes, algorithm| of(world, None, from_bytes, algorithm);
        let rows = vec![
            row(2, 0, Algorithm::Exchange),
            row(2, 100, Algorithm::Direct),
            row(4, 50, Algorithm::Ring),
            of(4, Some(2), 0, Algorithm::Hierarchical),
        ];
        let table = Table { rows };
        assert_eq!(table.choose(1, None, 10), None);
        assert_eq!(table.choose(2, None, 99), Some(Algorithm::Exchange));
        assert_eq!(table.choose(3, None, 100), Some(Algorithm::Direct));
        assert_eq!(table.choose(8, None, 100), Some(Algorithm::Ring));
        assert_eq!(table.choose(8, None, 49), Some(Algorithm::Exchange));
        // what is fastest on two hosts says nothing of three
        assert_eq!(table.choose(8, Some(2), 100), Some(Algorithm::Hierarchical));
        assert_eq!(table.choose(8, Some(3), 100), None);
    }
}
