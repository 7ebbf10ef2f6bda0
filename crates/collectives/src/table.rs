//! Which algorithm is taken for a vector: data, measured by `tensorwire bench allreduce --tune`. Without such data
//! [`crate::LinkCost`] chooses.

use serde::{Deserialize, Serialize};

use crate::schedule::Algorithm;

/// From so many members and bytes on, this is fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub world: usize,
    pub from_bytes: usize,
    pub algorithm: Algorithm,
}

/// What is fastest, by the number of members and the bytes of a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub rows: Vec<Row>,
}

impl Table {
    /// The row of the most members that are not more, and of these of the most bytes that are not more.
    pub fn choose(&self, world: usize, bytes: usize) -> Option<Algorithm> {
        let fits = self.rows.iter().filter(|row| row.world <= world && row.from_bytes <= bytes);
        fits.max_by_key(|row| (row.world, row.from_bytes)).map(|row| row.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_below_counts() {
        let row = |world, from_bytes, algorithm| Row { world, from_bytes, algorithm };
        let rows = vec![
            row(2, 0, Algorithm::Exchange),
            row(2, 100, Algorithm::Direct),
            row(4, 50, Algorithm::Ring),
        ];
        let table = Table { rows };
        assert_eq!(table.choose(1, 10), None);
        assert_eq!(table.choose(2, 99), Some(Algorithm::Exchange));
        assert_eq!(table.choose(3, 100), Some(Algorithm::Direct));
        assert_eq!(table.choose(8, 100), Some(Algorithm::Ring));
        assert_eq!(table.choose(8, 49), Some(Algorithm::Exchange));
    }
}
