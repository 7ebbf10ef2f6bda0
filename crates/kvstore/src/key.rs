//! What is stored: keys of the user, shards of their values, and what a value is.

use std::fmt;

use serde::{Deserialize, Serialize};
use tensorwire_memory::ALIGNMENT;
use tensorwire_tensor::DType;

/// The user's name for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub u64);

impl Key {
    /// Keys from here to twice as far are those of names; a user's own numbers lie below.
    pub const NAMED_FROM: u64 = 1 << 47;

    /// The key of a name, the same everywhere. Two of 10,000 names have one key with a chance of 1 in 3 million: whoever
    /// takes names keeps them, and compares.
    pub fn named(name: &str) -> Key {
        // FNV-1a, whose low bits vary most
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Key(Key::NAMED_FROM + (hash ^ hash >> 47) % Key::NAMED_FROM)
    }
}

/// The name of a shard of a value on the wire: a number in the range of the server that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardKey(pub u64);

/// What a value or a shard of one is: rows of as many columns, one behind the other. Rows are what sparse
/// pushes and pulls name, and a value is cut between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Told", into = "Told")]
pub struct ValueSpec {
    pub dtype: DType,
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}

impl ValueSpec {
    /// A value of `elements` elements; each is a row.
    pub fn dense(dtype: DType, elements: usize) -> ValueSpec {
        ValueSpec { dtype, rows: elements, columns: 1 }
    }

    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns * self.dtype.bytes()
    }

    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Where in a worker's slot the indices of a sparse push start: behind the shard's bytes.
    pub fn slot_indices(&self) -> usize {
        self.bytes().next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a slot: a push of the whole shard, or of all its rows with their indices.
    pub fn slot_bytes(&self) -> usize {
        match self.columns {
            // the rows of a dense value are not pushed one by one
            1 => self.bytes(),
            _ => self.slot_indices() + self.rows * size_of::<i32>(),
        }
    }

    /// The spec that these numbers of a wire or a file mean; none: no such type, or more bytes than memory has.
    pub fn told(dtype: u8, rows: u64, columns: u64) -> Option<ValueSpec> {
        let dtype = DType::from_code(dtype)?;
        let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
        let spec = ValueSpec { dtype, rows, columns };
        spec.fits_memory().then_some(spec)
    }

    /// Can an address space hold a push of all its rows with their indices? Of those that it can, no size
    /// overflows.
    pub fn fits_memory(&self) -> bool {
        let ValueSpec { dtype, rows, columns } = self;
        let indices = rows.checked_mul(size_of::<i32>());
        let bytes = columns.checked_mul(dtype.bytes()).and_then(|row| row.checked_mul(*rows));
        let slot = bytes.and_then(|bytes| bytes.checked_add(ALIGNMENT)?.checked_add(indices?));
        slot.is_some_and(|slot| isize::try_from(slot).is_ok())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", self.0)
    }
}

impl fmt::Display for ValueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValueSpec { dtype, rows, columns } = self;
        write!(f, "{dtype}[{rows}×{columns}]")
    }
}

/// A [`ValueSpec`] as it is written.
#[derive(Serialize, Deserialize)]
struct Told {
    dtype: u8,
    rows: u64,
    columns: u64,
}

impl From<ValueSpec> for Told {
    fn from(spec: ValueSpec) -> Told {
        // fits: a type's code is its discriminant, and a size has at most 64 bits
        Told { dtype: spec.dtype as u8, rows: spec.rows as u64, columns: spec.columns as u64 }
    }
}

impl TryFrom<Told> for ValueSpec {
    type Error = &'static str;

    fn try_from(told: Told) -> Result<ValueSpec, &'static str> {
        ValueSpec::told(told.dtype, told.rows, told.columns)
            .ok_or("no type, or no size, of a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_keys_of_their_own() {
        let keys: std::collections::HashSet<Key> =
            (0..10_000).map(|number| Key::named(&format!("layer{number}.weight"))).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| (Key::NAMED_FROM..2 * Key::NAMED_FROM).contains(&key.0)));
        assert_eq!(Key::named("bias"), Key::named("bias"));
    }
}
