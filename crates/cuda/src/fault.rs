//! What kernels find wrong in the values that they read, and the error that it is.

use tensorwire_kernels::{KernelError, Operand};

/// In memory that the device writes: zeros before, and the first error that a kernel found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFault {
    /// 0 where nothing is wrong. Else the operator's tag · 2¹⁶ + which of its checks, counted from 1.
    pub code: u64,
    /// Of the value, in the tensor that was read.
    pub place: i64,
    pub value: i64,
}

/// What one operator's kernels hold values against.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    Label {
        op: &'static str,
        classes: usize,
        ignored: i32,
    },
    Index {
        op: &'static str,
        operand: Operand,
        rows: usize,
    },
    /// The value's lower half is what was found, its upper half the most that there may be.
    Active {
        op: &'static str,
    },
    Total {
        op: &'static str,
        total: usize,
    },
}

impl DeviceFault {
    /// The tag of the operator that found it; none where nothing is wrong.
    pub fn tag(&self) -> Option<u32> {
        // a tag has 32 bits
        (self.code != 0).then_some((self.code >> 16) as u32)
    }
}

/// The code of check `check` of the operator of this tag.
pub(crate) fn code(tag: u32, check: usize) -> i64 {
    // an operator has a check for each rank at most
    i64::from(tag) << 16 | (check as i64 + 1)
}

impl Check {
    /// The error that the same operands give on other back ends.
    pub(crate) fn error(&self, fault: &DeviceFault) -> KernelError {
        let place = usize::try_from(fault.place).unwrap_or_default();
        // labels, indices and counts are i32
        let value = fault.value as i32;
        match *self {
            Check::Label { op, classes, ignored } => {
                KernelError::Label { op, row: place, label: value, classes, ignored }
            }
            Check::Index { op, operand, rows } => {
                KernelError::Index { op, operand, place, index: value, rows }
            }
            Check::Active { op } => {
                let most = usize::try_from(fault.value >> 32).unwrap_or_default();
                KernelError::Active { op, step: place, found: value, most }
            }
            Check::Total { op, total } => {
                let active = usize::try_from(fault.value).unwrap_or_default();
                KernelError::Total { op, active, total }
            }
        }
    }
}
