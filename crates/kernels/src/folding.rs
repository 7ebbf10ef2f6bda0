//! Folds of vectors that several members of a group hold: what a message-passing library reduces by, of the element
//! types that programs send, in one thread and in a fixed order. What has 16 bits and a point is computed in f32 and
//! rounded once a call. It does not know who holds what.

mod loops;
mod stored;
#[cfg(test)]
mod tests;

use std::fmt;

use half::{bf16, f16};
use num_traits::{PrimInt, WrappingAdd, WrappingMul};
use tensorwire_tensor::DType;

use crate::cpu::{SimdLevel, SimdProof};
use crate::real::Real;
use loops::{Addends, fold};
use stored::Stored;

/// What a fold makes of its addends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FoldKind {
    /// Of integers, modulo their range.
    Sum,
    /// The sum times the share of one in all; of floats alone.
    Mean,
    /// As [`FoldKind::Sum`].
    Product,
    /// Not a number where any is not.
    Min,
    /// Not a number where any is not.
    Max,
    /// Of integers and bools alone; so below.
    BitAnd,
    BitOr,
    BitXor,
}

/// The elements that can be folded: more than a graph has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FoldElement {
    F32,
    F64,
    /// IEEE 754's binary16.
    F16,
    BF16,
    I8,
    U8,
    I16,
    I32,
    I64,
    /// Bytes of 0 and 1. Their sum and maximum is "any", their product and minimum "all".
    Bool,
}

/// There is no such fold of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vectors of {element} have no {kind}; floats have no bitwise folds, all others no mean")]
pub struct NoFold {
    pub element: FoldElement,
    pub kind: FoldKind,
}

/// A fold of one kind and type.
#[derive(Clone, Copy, Debug)]
pub struct Folding {
    element: FoldElement,
    kind: FoldKind,
    simd: SimdProof,
}

impl FoldKind {
    pub const ALL: [FoldKind; 8] = [
        FoldKind::Sum,
        FoldKind::Mean,
        FoldKind::Product,
        FoldKind::Min,
        FoldKind::Max,
        FoldKind::BitAnd,
        FoldKind::BitOr,
        FoldKind::BitXor,
    ];
}

impl FoldElement {
    pub const ALL: [FoldElement; 10] = [
        FoldElement::F32,
        FoldElement::F64,
        FoldElement::F16,
        FoldElement::BF16,
        FoldElement::I8,
        FoldElement::U8,
        FoldElement::I16,
        FoldElement::I32,
        FoldElement::I64,
        FoldElement::Bool,
    ];

    /// Bytes of one element; it is aligned to as many.
    pub const fn bytes(self) -> usize {
        match self {
            FoldElement::I8 | FoldElement::U8 | FoldElement::Bool => 1,
            FoldElement::F16 | FoldElement::BF16 | FoldElement::I16 => 2,
            FoldElement::F32 | FoldElement::I32 => 4,
            FoldElement::F64 | FoldElement::I64 => 8,
        }
    }

    /// True if it has a point.
    pub const fn is_floating(self) -> bool {
        use FoldElement::{BF16, F16, F32, F64};
        matches!(self, F32 | F64 | F16 | BF16)
    }
}

impl From<DType> for FoldElement {
    fn from(dtype: DType) -> FoldElement {
        match dtype {
            DType::F32 => FoldElement::F32,
            DType::F64 => FoldElement::F64,
            DType::I32 => FoldElement::I32,
            DType::I64 => FoldElement::I64,
            DType::U8 => FoldElement::U8,
            DType::BF16 => FoldElement::BF16,
        }
    }
}

impl Folding {
    /// # Errors
    /// For means of what has no point, and bitwise folds of what has one.
    pub fn new(element: impl Into<FoldElement>, kind: FoldKind) -> Result<Folding, NoFold> {
        let element = element.into();
        let exists = match kind {
            FoldKind::Sum | FoldKind::Product | FoldKind::Min | FoldKind::Max => true,
            FoldKind::Mean => element.is_floating(),
            FoldKind::BitAnd | FoldKind::BitOr | FoldKind::BitXor => !element.is_floating(),
        };
        if !exists {
            return Err(NoFold { element, kind });
        }
        Ok(Folding { element, kind, simd: SimdProof::up_to(SimdLevel::detect()) })
    }

    pub fn element(&self) -> FoldElement {
        self.element
    }

    pub fn kind(&self) -> FoldKind {
        self.kind
    }

    /// into ← parts\[0\] ∘ parts\[1\] ∘ …; `whole`: with these, so many addends are folded, and a mean is made.
    ///
    /// # Panics
    /// If lengths differ, or memory is not aligned as the type is.
    pub fn fold(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        self.run(Addends::All(parts), into, whole);
    }

    /// into ← from ∘ into.
    ///
    /// # Panics
    /// As [`Folding::fold`].
    pub fn fold_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        self.run(Addends::Before(from), into, whole);
    }

    fn run(&self, addends: Addends<'_>, into: &mut [u8], whole: Option<usize>) {
        let whole = whole.filter(|_| self.kind == FoldKind::Mean);
        match self.element {
            FoldElement::F32 => self.floats::<f32, f32>(addends, into, whole),
            FoldElement::F64 => self.floats::<f64, f64>(addends, into, whole),
            FoldElement::F16 => self.floats::<f16, f32>(addends, into, whole),
            FoldElement::BF16 => self.floats::<bf16, f32>(addends, into, whole),
            FoldElement::I8 => self.integers::<i8>(addends, into),
            FoldElement::U8 => self.integers::<u8>(addends, into),
            FoldElement::I16 => self.integers::<i16>(addends, into),
            FoldElement::I32 => self.integers::<i32>(addends, into),
            FoldElement::I64 => self.integers::<i64>(addends, into),
            FoldElement::Bool => self.bits(addends, into),
        }
    }

    fn floats<S: Stored<Wide = T>, T: Real>(
        &self,
        addends: Addends<'_>,
        into: &mut [u8],
        whole: Option<usize>,
    ) {
        let same = |x: T| x;
        match self.kind {
            FoldKind::Max => fold::<S>(self.simd, addends, into, larger, same),
            FoldKind::Min => fold::<S>(self.simd, addends, into, smaller, same),
            FoldKind::Product => fold::<S>(self.simd, addends, into, |a, b| a * b, same),
            _ => {
                let share = whole.map_or(T::one(), |count| T::one() / T::from_count(count));
                fold::<S>(self.simd, addends, into, |a, b| a + b, |sum| sum * share);
            }
        }
    }

    fn integers<S>(&self, addends: Addends<'_>, into: &mut [u8])
    where
        S: Stored<Wide = S> + PrimInt + WrappingAdd + WrappingMul,
    {
        let same = |x: S| x;
        match self.kind {
            FoldKind::Sum => {
                fold::<S>(self.simd, addends, into, |a, b| a.wrapping_add(&b), same);
            }
            FoldKind::Product => {
                fold::<S>(self.simd, addends, into, |a, b| a.wrapping_mul(&b), same);
            }
            FoldKind::Min => fold::<S>(self.simd, addends, into, |a, b| a.min(b), same),
            FoldKind::Max => fold::<S>(self.simd, addends, into, |a, b| a.max(b), same),
            _ => self.bits(addends, into),
        }
    }

    /// Bit by bit, whatever the element; of bools that is all there is.
    fn bits(&self, addends: Addends<'_>, into: &mut [u8]) {
        let same = |x: u8| x;
        match self.kind {
            FoldKind::BitXor => fold::<u8>(self.simd, addends, into, |a, b| a ^ b, same),
            FoldKind::BitAnd | FoldKind::Product | FoldKind::Min => {
                fold::<u8>(self.simd, addends, into, |a, b| a & b, same);
            }
            _ => fold::<u8>(self.simd, addends, into, |a, b| a | b, same),
        }
    }
}

/// The larger of two, whatever their order: of two zeros that without a sign. Not a number if one is not.
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    let is_first = a > b || a.is_nan() || (a == b && !a.is_sign_negative());
    if is_first { a } else { b }
}

/// The smaller of two, whatever their order: of two zeros that with a sign. Not a number if one is not.
#[inline(always)]
fn smaller<T: Real>(a: T, b: T) -> T {
    let is_first = a < b || a.is_nan() || (a == b && a.is_sign_negative());
    if is_first { a } else { b }
}

impl fmt::Display for FoldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FoldKind::Sum => "sum",
            FoldKind::Mean => "mean",
            FoldKind::Product => "product",
            FoldKind::Min => "minimum",
            FoldKind::Max => "maximum",
            FoldKind::BitAnd => "bitwise and",
            FoldKind::BitOr => "bitwise or",
            FoldKind::BitXor => "bitwise xor",
        })
    }
}

impl fmt::Display for FoldElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FoldElement::F32 => "f32",
            FoldElement::F64 => "f64",
            FoldElement::F16 => "f16",
            FoldElement::BF16 => "bf16",
            FoldElement::I8 => "i8",
            FoldElement::U8 => "u8",
            FoldElement::I16 => "i16",
            FoldElement::I32 => "i32",
            FoldElement::I64 => "i64",
            FoldElement::Bool => "bool",
        })
    }
}
