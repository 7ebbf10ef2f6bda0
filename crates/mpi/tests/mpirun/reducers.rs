//! Reduces as simple as can be, and what they make of numbers.

use half::bf16;
use tensorwire_collectives::{ElementType, Plain, ReduceOp, Reducer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F32,
    F64,
    Bf16,
}

pub(crate) const TYPES: [Type; 3] = [Type::F32, Type::F64, Type::Bf16];
pub(crate) const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max];

/// A reduction in the order of its addends; in bf16 what is added up is f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduces {
    pub(crate) of: Type,
    pub(crate) op: ReduceOp,
}

impl Type {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Type::F32 => 4,
            Type::F64 => 8,
            Type::Bf16 => 2,
        }
    }

    pub(crate) fn write(self, number: f64, into: &mut [u8]) {
        match self {
            Type::F32 => into.copy_from_slice(&(number as f32).to_le_bytes()),
            Type::F64 => into.copy_from_slice(&number.to_le_bytes()),
            Type::Bf16 => into.copy_from_slice(&bf16::from_f64(number).to_le_bytes()),
        }
    }

    pub(crate) fn read(self, from: &[u8]) -> f64 {
        match self {
            Type::F32 => f64::from(f32::from_le_bytes(from.try_into().unwrap())),
            Type::F64 => f64::from_le_bytes(from.try_into().unwrap()),
            Type::Bf16 => f64::from(bf16::from_le_bytes(from.try_into().unwrap())),
        }
    }

    /// As it is between two additions.
    fn rounded(self, number: f64) -> f64 {
        if self == Type::F64 { number } else { f64::from(number as f32) }
    }
}

impl Reduces {
    /// Of numbers in their order; `whole`: so many, of which a mean is made.
    pub(crate) fn of(self, numbers: impl Iterator<Item = f64>, whole: Option<usize>) -> f64 {
        let two = |a: f64, b: f64| match self.op {
            ReduceOp::Max => a.max(b),
            ReduceOp::Sum | ReduceOp::Mean => self.of.rounded(a + b),
        };
        let all = numbers.reduce(two).unwrap();
        match whole {
            Some(count) if self.op == ReduceOp::Mean => {
                self.of.rounded(all * self.of.rounded(1.0 / count as f64))
            }
            _ => all,
        }
    }
}

impl Reducer for Reduces {
    fn element_bytes(&self) -> usize {
        self.of.bytes()
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        let bytes = self.element_bytes();
        for (at, into) in into.chunks_exact_mut(bytes).enumerate() {
            let numbers = parts.iter().map(|part| self.of.read(&part[at * bytes..][..bytes]));
            self.of.write(self.of(numbers, whole), into);
        }
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        let own = into.to_vec();
        self.reduce(&[from, &own], into, whole);
    }

    fn plain(&self) -> Option<Plain> {
        let element = match self.of {
            Type::F32 => ElementType::F32,
            Type::F64 => ElementType::F64,
            Type::Bf16 => return None,
        };
        Some(Plain { element, op: self.op })
    }
}
