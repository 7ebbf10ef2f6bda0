//! Element types and the Rust types that hold them.

use std::fmt;

/// Element type of a tensor. The discriminant is the code used on the wire and in files.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    F32 = 1,
    F64 = 2,
    I32 = 3,
    I64 = 4,
    U8 = 5,
    /// The upper half of an f32: 8 bits of exponent, 7 of fraction. For storage; sums are made in f32.
    BF16 = 6,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
            DType::BF16 => 2,
            DType::U8 => 1,
        }
    }

    /// f32, f64 or bf16?
    pub const fn is_floating(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16)
    }

    /// The type with this wire code, if there is one.
    pub const fn from_code(code: u8) -> Option<DType> {
        match code {
            1 => Some(DType::F32),
            2 => Some(DType::F64),
            3 => Some(DType::I32),
            4 => Some(DType::I64),
            5 => Some(DType::U8),
            6 => Some(DType::BF16),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::BF16 => "bf16",
        })
    }
}

/// A Rust type that is the element of some [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialOrd {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f64 {
    const DTYPE: DType = DType::F64;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_foreign_codes_are_refused() {
        for code in 0..=u8::MAX {
            if let Some(dtype) = DType::from_code(code) {
                assert_eq!(dtype as u8, code);
            }
        }
        assert_eq!(DType::from_code(0), None);
        assert_eq!(DType::from_code(7), None);
    }
}
