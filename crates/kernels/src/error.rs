//! Why a kernel did not run. Each variant names the operator as [`tensorwire_graph::Op::name`] does.

use std::fmt;

use tensorwire_memory::TensorError;
use tensorwire_tensor::{DType, TensorSpec};

/// One operand of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    Input(usize),
    Output(usize),
}

/// Why an operator was not computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    #[error("{op} has no kernel: the runtime does it itself")]
    NoKernel { op: &'static str },
    #[error("{op} cannot be computed over its first input; give it an output of its own")]
    NotInPlace { op: &'static str },
    #[error("{op} takes {expected} inputs, found {found}")]
    InputCount { op: &'static str, expected: usize, found: usize },
    #[error("{op} writes {expected} outputs, found {found}")]
    OutputCount { op: &'static str, expected: usize, found: usize },
    #[error("{op} takes the gradient of at least one rank, found none")]
    NoGradients { op: &'static str },
    #[error("{op}, {operand}: expected {expected}, found {found}")]
    DType { op: &'static str, operand: Operand, expected: String, found: DType },
    #[error("{op}, {operand}: expected dimensions {expected}, found {found}")]
    Shape { op: &'static str, operand: Operand, expected: String, found: TensorSpec },
    #[error("{op}, {operand}: expected at least one element, found {found}")]
    NoElements { op: &'static str, operand: Operand, found: TensorSpec },
    #[error(
        "{op}: the label of row {row} is {label}; there are {classes} classes, 0 to {last}, and {ignored} for padding", last = classes.saturating_sub(1)
    )]
    Label { op: &'static str, row: usize, label: i32, classes: usize, ignored: i32 },
    #[error("{op}, {operand}: index {place} is {index}; expected one of 0..{rows}, the rows")]
    Index { op: &'static str, operand: Operand, place: usize, index: i32, rows: usize },
    #[error(
        "{op}: {found} sequences are active at step {step}; expected 1..={most}, since sequences are \
         sorted, longest first"
    )]
    Active { op: &'static str, step: usize, found: i32, most: usize },
    #[error("{op}: {active} steps of sequences are active, but there are {total} rows of them")]
    Total { op: &'static str, active: usize, total: usize },
    #[error("{op}: {value} is not a value of {dtype}")]
    FillValue { op: &'static str, value: f64, dtype: DType },
    #[error(
        "{op} was put into the graph without a kernel; make it with tensorwire_kernels::custom"
    )]
    WithoutKernel { op: &'static str },
    #[error("{op}, what computes it on GPUs: {why}")]
    Program { op: &'static str, why: String },
    #[error("{op} refuses: {why}")]
    Refused { op: &'static str, why: String },
    #[error("the kernel of {op} panicked: {said}")]
    Panicked { op: &'static str, said: String },
    #[error("{op}, {operand}: {source}; the plan gave a buffer that kernels cannot use")]
    Buffer { op: &'static str, operand: Operand, source: TensorError },
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Input(i) => write!(f, "input {i}"),
            Operand::Output(i) => write!(f, "output {i}"),
        }
    }
}
