//! The operators: what a node computes. Shapes and gradients are tables over this enum
//! (`pass/infer.rs`, `pass/gradient.rs`); arithmetic lives in the kernels room.

use tensorwire_tensor::{Dim, Fact, TensorSpec};

/// Identity of a crossing edge, the same in the sender's and in the receiver's partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(pub u32);

impl EdgeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a variable's first value is made. Random values depend on the job's seed and the variable's
/// name alone, so that they are the same on any transport and any number of servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Zeros,
    /// Uniform in ±√(6/fan_in): He et al. 2015, eq. 10 for a layer before a ReLU, uniform form.
    HeUniform {
        fan_in: usize,
    },
    /// Uniform in ±√(6/(fan_in+fan_out)): Glorot and Bengio 2010, eq. 16.
    GlorotUniform {
        fan_in: usize,
        fan_out: usize,
    },
}

/// What a node computes. Dimensions are written outermost first; `f` is f32 or f64, the same for all
/// floating operands of one node.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Fed by the caller before each run. → the fed tensor.
    Input { fact: Fact },
    /// State that outlives a run. → its present value.
    Variable { spec: TensorSpec, init: Init },
    /// → a tensor of `spec` with every element `value`.
    Fill { value: f64, spec: TensorSpec },
    /// (a, b) → a·b, two matrices, each transposed first where its flag says so.
    MatMul { transpose_a: bool, transpose_b: bool },
    /// (x: f[m,n], b: f[n]) → x + b on every row.
    BiasAdd,
    /// (x: f[m,n]) → f[n], the sum over rows, added in row order.
    SumRows,
    /// (x) → max(x, 0).
    Relu,
    /// (dy, y) → dy where y > 0, else 0; y is the output of [`Op::Relu`].
    ReluGrad,
    /// (a, b) → a + b, same shape.
    Add,
    /// (x, s: f[]) → x·s.
    ScaleBy,
    /// (logits: f[b,c], labels: i32[b]) → (loss: f[], dlogits: f[b,c]).
    /// loss = mean over the rows of −log softmax(logits)[label]; dlogits is its gradient. A label of
    /// −1 is padding: its row counts for nothing. Any other label outside 0..c is an error.
    SoftmaxCrossEntropy,
    /// (logits: f[b,c], labels: i32[b]) → i64[], how many rows have their largest logit (the first
    /// of equals) at their label. A label of −1 never counts.
    CountCorrect,
    /// (x: f[...], at least one element) → f[], the largest element. Xue et al. §5.1's consumer.
    ReduceMax,
    /// (x) → the same elements as `to`, no byte moved: the output shares the input's memory. At most
    /// one dimension of `to` is dynamic: it takes what the others leave.
    Reshape { to: Vec<Dim> },
    /// (variable, gradient of rank 0, …, of rank W−1): v ← v − rate·g, in place, no output, where
    /// g = (Σ gradients, added in rank order) × (1/W), 1/W rounded once.
    ApplySgd { rate: f64 },
    /// (variable, velocity, gradients as above): u ← momentum·u + g; v ← v − rate·u. In place.
    ApplyMomentum { rate: f64, momentum: f64 },
    /// Computes nothing; gives other nodes something to wait for.
    NoOp,
    /// (x) → nothing. Writes x into the receiver's buffer of `edge`. Put in by the partitioner.
    Send { edge: EdgeId },
    /// → the tensor that [`Op::Send`] of the same edge wrote. Put in by the partitioner.
    Recv { edge: EdgeId, fact: Fact },
    /// (x) → nothing. Tells the receiver what x is and where it lies, and keeps it there until the
    /// receiver has read it (Xue et al. §3.3). Put in by the partitioner where a dimension is dynamic.
    SendDyn { edge: EdgeId },
    /// → the tensor that [`Op::SendDyn`] of the same edge announced, read into fresh memory.
    RecvDyn { edge: EdgeId, fact: Fact },
}

impl Op {
    /// The operator's name as diagrams and traces show it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "Input",
            Op::Variable { .. } => "Variable",
            Op::Fill { .. } => "Fill",
            Op::MatMul { .. } => "MatMul",
            Op::BiasAdd => "BiasAdd",
            Op::SumRows => "SumRows",
            Op::Relu => "Relu",
            Op::ReluGrad => "ReluGrad",
            Op::Add => "Add",
            Op::ScaleBy => "ScaleBy",
            Op::SoftmaxCrossEntropy => "SoftmaxCrossEntropy",
            Op::CountCorrect => "CountCorrect",
            Op::ReduceMax => "ReduceMax",
            Op::Reshape { .. } => "Reshape",
            Op::ApplySgd { .. } => "ApplySgd",
            Op::ApplyMomentum { .. } => "ApplyMomentum",
            Op::NoOp => "NoOp",
            Op::Send { .. } => "RdmaSend",
            Op::Recv { .. } => "RdmaRecv",
            Op::SendDyn { .. } => "RdmaSendDyn",
            Op::RecvDyn { .. } => "RdmaRecvDyn",
        }
    }

    /// How many of the first inputs are variables that the operator changes in place. A kernel gets
    /// these as its outputs, and the rest as its inputs.
    pub fn mutated_inputs(&self) -> usize {
        match self {
            Op::ApplySgd { .. } => 1,
            Op::ApplyMomentum { .. } => 2,
            _ => 0,
        }
    }

    /// True if the first output may be computed over the first input's bytes: element by element, shapes
    /// equal.
    pub fn works_in_place(&self) -> bool {
        matches!(self, Op::Relu | Op::ReluGrad | Op::Add | Op::ScaleBy | Op::BiasAdd)
    }

    /// Does it send along an edge?
    pub fn is_send(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::SendDyn { .. })
    }

    /// The edge that it sends to or receives from.
    pub fn edge(&self) -> Option<EdgeId> {
        match self {
            Op::Send { edge } | Op::SendDyn { edge } => Some(*edge),
            Op::Recv { edge, .. } | Op::RecvDyn { edge, .. } => Some(*edge),
            _ => None,
        }
    }
}
