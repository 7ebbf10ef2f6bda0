//! Why an operator cannot be lowered.

use tensorwire_graph::GraphError;
use tensorwire_kernels::KernelError;

/// Why there are no commands for an operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The inputs do not fit the operator.
    #[error(transparent)]
    Shape(#[from] GraphError),
    #[error("{op}: {what} are {found}; a launch takes at most {most}")]
    TooLarge { op: &'static str, what: &'static str, found: usize, most: usize },
    #[error("{op}: its workspace is larger than an address space")]
    Workspace { op: &'static str },
}
