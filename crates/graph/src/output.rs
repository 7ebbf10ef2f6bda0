//! What names a node and a tensor of a graph, and the gradient of one.

/// A node of one graph; an index, valid in that graph only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Output {
    pub node: NodeId,
    pub index: u32,
}

/// The gradient of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// A tensor of the same shape.
    Dense(Output),
    /// What [`Op::Gather`](crate::Op::Gather) leaves of a table: rows `f[k,d]`, each to be added at its index,
    /// `i32[k]`; all other rows are zeros.
    Rows { indices: Output, rows: Output },
}

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<NodeId> for Output {
    /// The first output of a node.
    fn from(node: NodeId) -> Output {
        Output { node, index: 0 }
    }
}

impl Gradient {
    /// The tensor, if it is one.
    pub fn dense(self) -> Option<Output> {
        match self {
            Gradient::Dense(output) => Some(output),
            Gradient::Rows { .. } => None,
        }
    }

    /// The node that makes the numbers.
    pub(crate) fn node(self) -> NodeId {
        match self {
            Gradient::Dense(output) | Gradient::Rows { rows: output, .. } => output.node,
        }
    }
}

impl From<Output> for Gradient {
    fn from(output: Output) -> Gradient {
        Gradient::Dense(output)
    }
}
