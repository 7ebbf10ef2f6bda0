//! The operators: what a node computes. What is known of each is a row in `facts.rs`; shapes and gradients are
//! tables over this enum (`pass/infer.rs`, `pass/gradient/table.rs`); arithmetic lives in the kernels room.

mod attention;
mod custom;
mod facts;
mod functions;
mod parameters;

use std::borrow::Cow;

use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

use tensorwire_base::Space;

pub use attention::{Attention, AttentionMask, HeadOrder, Rotary};
pub use custom::{Backward, CustomOp, CustomOperator, Refusal};
pub use facts::{Arity, Family, Kind, OpFacts};
pub use functions::{Binary, Comparison, SampleNorm, Unary};
pub use parameters::{Cell, Init, Method, Reduction, Rule, Window, dropout_keeps, random_bits};

/// Identity of a crossing edge, the same in the sender's and in the receiver's partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(pub u32);

impl EdgeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
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
    /// (a: `f[…,m,k]`, b: `f[…,k,n]`) → `f[…,m,n]`, the products of as many matrices, each transposed first where its
    /// flag says so.
    BatchMatMul { transpose_a: bool, transpose_b: bool },
    /// (x: `f[…,n]`, b: `f[n]`) → x + b on every row, a row being what lies along the last dimension.
    BiasAdd,
    /// (x: `f[…,n]`) → `f[n]`, the sum over rows, added in row order.
    SumRows,
    /// (x) → max(x, 0).
    Relu,
    /// (dy, y) → dy where y > 0, else 0; y is the output of [`Op::Relu`].
    ReluGrad,
    /// (x) → 1/(1 + e⁻ˣ).
    Sigmoid,
    /// (dy, y) → dy·y·(1−y); y is the output of [`Op::Sigmoid`].
    SigmoidGrad,
    /// (x) → tanh x.
    Tanh,
    /// (dy, y) → dy·(1−y²); y is the output of [`Op::Tanh`].
    TanhGrad,
    /// (a, b) → a + b, same shape.
    Add,
    /// (a, b) → a − b, same shape.
    Sub,
    /// (a, b) → a·b by elements, same shape.
    Mul,
    /// (a, b) → a/b by elements, same shape.
    Div,
    /// (x of rank 0, …, of rank W−1), same shape → (Σ x, added in rank order) × (1/W), 1/W rounded once.
    Mean,
    /// (x) → x·by.
    Scale { by: f64 },
    /// (x, s: `f[]`) → x·s.
    ScaleBy,
    /// (x) → by(x), by elements.
    Unary { by: Unary },
    /// (dy, x or y) → dy·by'(x): of the function's value y if [`Unary::derives_from_value`], else of its argument x.
    UnaryGrad { by: Unary },
    /// (a, b) → by(a, b), by elements; dimensions are aligned from the last, and one of 1 or none is repeated as often as
    /// the other operand has it: NumPy's broadcasting.
    Binary { by: Binary },
    /// (a, b) → `u8`, 1 where it holds, else 0; broadcast as [`Op::Binary`]. Of any type, both of one.
    Compare { by: Comparison },
    /// (a, b, condition: `u8`) → a where the condition is not 0, else b; all of one shape.
    Select,
    /// (dy, condition: `u8`) → dy where the condition is `holds`, else 0.
    SelectGrad { holds: bool },
    /// (x) → x repeated along its dimensions of 1, and along those that `to` has before them. A dynamic dimension of `to`
    /// is x's.
    ExpandTo { to: Vec<Dim> },
    /// (x) → the sum over the dimensions that `to` has not, and over those in which it is 1; the gradient of
    /// [`Op::ExpandTo`]. A dynamic dimension of `to` is x's.
    SumTo { to: Vec<Dim> },
    /// (logits: `f[b,c]`, labels: `i32[b]`) → (loss: `f[]`, dlogits: `f[b,c]`).
    /// loss = mean over the rows of `−log softmax(logits)[label]`; dlogits is its gradient. A label of
    /// −1 is padding: its row counts for nothing. Any other label outside 0..c is an error.
    SoftmaxCrossEntropy,
    /// As [`Op::SoftmaxCrossEntropy`], with the target 1 − smoothing + smoothing/c at the label and smoothing/c at every
    /// other class (Szegedy et al. 2015, §7), and the label `ignored` for padding: PyTorch's `CrossEntropyLoss`.
    CrossEntropy { smoothing: f64, ignored: i32 },
    /// (logits: `f[b,c]`, labels: `i32[b]`) → `i64[]`, how many rows have their largest logit (the first
    /// of equals) at their label. A label of −1 never counts.
    CountCorrect,
    /// As [`Op::CountCorrect`]: how many rows have their label among their `k` largest logits, of equals the first.
    CountWithin { k: usize },
    /// (x: `f[...]`, at least one element) → `f[]`, the largest element. Xue et al. §5.1's consumer.
    ReduceMax,
    /// (x: `f[…]`) → x without dimension `axis`, which is reduced in its order. A mean or a maximum of no
    /// elements is an error.
    Reduce { by: Reduction, axis: usize },
    /// (dy, x, y) → dx; y is the output of [`Op::Reduce`] for x.
    ReduceGrad { by: Reduction, axis: usize },
    /// (x: `f[…,n]`) → softmax along the last dimension.
    Softmax,
    /// (dy, y) → dx = y∘(dy − Σ dy∘y), the sum along the last dimension; y is the output of
    /// [`Op::Softmax`].
    SoftmaxGrad,
    /// (x: `f[…]`) → the same numbers, rounded to nearest, as another floating type.
    Cast { to: DType },
    /// (x: `f[…]`, step: `i64[]`) → x/(1−rate) where an element is kept, else 0: Srivastava et al. 2014, scaled
    /// in training. Element e is kept if [`dropout_keeps`] says so for `key`, the step and e; so the
    /// same operator is its own gradient.
    Dropout { rate: f64, key: u64 },
    /// (gradient of rank 0: `f[r,…]`, …, of rank W−1) → `f64[r]`: of each row the sum of the squares of g, which is as [`Op::Apply`]
    /// has it. A scalar is a row. Where rows are told apart, a part of them gives the bits of all.
    SquareSums,
    /// (sums: `f64[…]`, …) → `f64[]`: what gradients of these sums of squares are multiplied by so that their norm is at most
    /// `norm`: min(1, norm/(√Σ + 10⁻⁶)) (Pascanu et al. 2013, as PyTorch has it), added in order.
    ClipScale { norm: f64 },
    /// (x₀, x₁, …) → the inputs one behind the other along `axis`. Where the size of one of several is dynamic, `size` is the
    /// symbol of theirs together.
    Concat { axis: usize, size: Option<Symbol> },
    /// (dy, x₀, …, xᵢ) → the part of the gradient of what [`Op::Concat`] made that is xᵢ's. What was joined
    /// is not read.
    ConcatGrad { axis: usize },
    /// (x) → elements `start..start + length` along `axis`.
    Slice { axis: usize, start: usize, length: usize },
    /// (dy, x) → zeros as x, but for dy from `start` on along `axis`; x is not read. The gradient of [`Op::Slice`] where x's
    /// size there is dynamic.
    SliceGrad { axis: usize, start: usize },
    /// (x) → x with `before` and `after` zeros along `axis`.
    Pad { axis: usize, before: usize, after: usize },
    /// (x) → y whose dimension d is x's dimension `permutation[d]`.
    Transpose { permutation: Vec<usize> },
    /// (table: `f[v,d]`, indices: `i32[k]`) → `f[k,d]`, the rows that are named. An index outside 0..v is an
    /// error. The gradient of a variable is rows and indices, see [`Op::ApplyRows`].
    Gather,
    /// (rows: `f[k,d]`, indices: `i32[k]`, like: `f[v,d]`) → `f[v,d]`, zeros with each row added at its index, in
    /// order. Of `like` the shape alone counts.
    ScatterRows,
    /// (x: `f[v,d]`, rows: `f[k,d]`, indices: `i32[k]`) → x with each row added at its index, in order: the sum of a
    /// gradient that is a tensor and one that is rows.
    AddRows,
    /// (q: `f[b,h,t,d]`, k: `f[b,g,s,d]`, v: `f[b,g,s,d]`, `[mask]`) → (y: `f[b,h,t,d]`, log-sum-exp: `f[b,h,t]`), f32 of
    /// bf16. y = softmax(scale·q·kᵀ)·v for each head, over the keys that it sees, and 0 where it sees none. Query
    /// head i has key head i/(h/g): with fewer of these it is the grouped attention of Ainslie et al. 2023. The
    /// products are never stored: Dao 2023 (FlashAttention-2).
    Attention(Attention),
    /// (dy, q, k, v, y, log-sum-exp, `[mask]`) → (dq, dk, dv).
    AttentionGrad(Attention),
    /// (x: `f[b,h,t,d]` or as [`HeadOrder`] says, d even) → x turned by its positions.
    Rotary(Rotary),
    /// (x: `f[n,…,c]`, scale: `f[c]`, `[shift: f[c]]`) → (y, `[mean,]` rstd); y = (x − mean)·rstd·scale + shift with
    /// rstd = 1/√(variance + epsilon), the variance biased. Of `SampleNorm::Rms` there is no mean and no shift. The
    /// statistics are `f[n,…]`, and `f[n,groups]` of groups; f32 of bf16.
    SampleNorm { by: SampleNorm, epsilon: f64 },
    /// (dy, x, `[mean,]` rstd, scale) → (dx, dscale, `[dshift]`).
    SampleNormGrad { by: SampleNorm },
    /// (x: `f[n,h,w,c]`, w: `f[o,c/groups,kh,kw]`) → `f[n,oh,ow,o]`. Input channels and output channels are cut
    /// into `groups`, each computed by itself.
    Conv2d { window: Window, groups: usize },
    /// (dy: `f[n,oh,ow,o]`, w) → dx: `f[n,h,w,c]` with `size` = `[h, w]`.
    Conv2dGradInput { window: Window, groups: usize, size: [usize; 2] },
    /// (dy: `f[n,oh,ow,o]`, x: `f[n,h,w,c]`) → dw: `f[o,c/groups,kh,kw]`.
    Conv2dGradWeight { window: Window, groups: usize },
    /// (x: `f[n,h,w,c]`) → (the largest of each window: `f[n,oh,ow,c]`, where it was: `u8[n,oh,ow,c]`). A place is
    /// row·kernel width + column in the window, the first of equals. Padding is never the largest.
    MaxPool { window: Window },
    /// (dy, places) → dx: `f[n,h,w,c]` with `size` = `[h, w]`.
    MaxPoolGrad { window: Window, size: [usize; 2] },
    /// (x: `f[n,h,w,c]`) → `f[n,oh,ow,c]`, the mean of what lies in each window and is no padding.
    AvgPool { window: Window },
    /// (dy) → dx: `f[n,h,w,c]` with `size` = `[h, w]`.
    AvgPoolGrad { window: Window, size: [usize; 2] },
    /// (x: `f[…,c]`, `[scale: f[c],]` shift: `f[c]`) → (y, mean: `f[c]`, variance: `f[c]`) over all dimensions but the
    /// last; y = (x − mean)/√(variance + epsilon)·scale + shift, the variance biased (Ioffe and Szegedy
    /// 2015, algorithm 1). Without `scaled` there is no scale.
    BatchNorm { epsilon: f64, scaled: bool },
    /// (dy, x, mean, variance, `[scale]`) → (dx, `[dscale,]` dshift).
    BatchNormGrad { epsilon: f64, scaled: bool },
    /// (x: `f[…,c]`, `[scale,]` shift, mean, variance) → y as [`Op::BatchNorm`]'s, with a mean and a variance that
    /// are given: `f[c]` each.
    Normalize { epsilon: f64, scaled: bool },
    /// (x: `f[…,c]`) → y = x·(bias + alpha·Σ x²)^−beta, the sum over the `size` channels around each, as far as
    /// there are such: Krizhevsky et al. 2012, §3.3. `size` is odd.
    LocalResponseNorm { size: usize, alpha: f64, beta: f64, bias: f64 },
    /// (dy, x, y) → dx; y is the output of [`Op::LocalResponseNorm`] for x.
    LocalResponseNormGrad { size: usize, alpha: f64, beta: f64, bias: f64 },
    /// Sequences of any lengths without padding. Those of a batch of b are sorted, longest first, and stored
    /// step by step: `active: i32[t]` says how many are not over at each step, and row order is step 0's
    /// rows, then step 1's, …: `total` = Σ active.
    ///
    /// (one product for each gate: `f[total,h]`; one recurrent matrix for each gate: `f[h,h]`; the states before
    /// the first step: `f[b,h]` each; active: `i32[t]`) → (y: `f[total,h]`, h after each step; each state behind
    /// its sequence's last step: `f[b,h]`; what the gradient needs: `f[total, cell.saved()·h]`).
    Recurrent { cell: Cell },
    /// ([dy if `sequence`,] [d(final state s) where `finals[s]`,] recurrent matrices, first states, active, y,
    /// saved) → (d(product) of each gate, d(recurrent matrix) of each gate, d(first state) of each state).
    RecurrentGrad { cell: Cell, sequence: bool, finals: [bool; 2] },
    /// (x) → the same elements as `to`, no byte moved: the output shares the input's memory. At most
    /// one dimension of `to` is dynamic: it takes what the others leave.
    Reshape { to: Vec<Dim> },
    /// (x) → its rows `start..start + length`, no byte moved. Put in by placement: what crosses to a server that
    /// has some of a variable's rows.
    Rows { start: usize, length: usize },
    /// (x₀, x₁, …) → the inputs' rows one behind the other, no byte moved: the inputs are received, or computed, where the
    /// whole has them. Put in by placement, where a variable comes from several servers.
    Join,
    /// (variable, its slots, gradient of rank 0, …, of rank W−1) → nothing. Changes them in place as the
    /// rule says with g = (Σ gradients, added in rank order) × (1/W), 1/W rounded once. Where it is `clipped`, a factor `f64[]`
    /// of g comes before the gradients.
    Apply { rule: Rule, clipped: bool },
    /// (variable: `f[v,d]`, its slots, indices: `i32[k]` and rows: `f[k,d]` of rank 0, …, of rank W−1) → nothing. As
    /// [`Op::Apply`], with the gradient given by its rows: a rank's rows of one index are added in their
    /// order, then the ranks' in theirs. Rows that no index names stay as they are, their slots too.
    ApplyRows { rule: Rule },
    /// (variable, value of rank 0, …, of rank W−1) → nothing. v ← v + rate·(mean of the values − v), in place:
    /// a moving average.
    ApplyAverage { rate: f64 },
    /// (residual: `f32[…]`, x: `f32[…]`) → (q: `u8[…]`, scales: `f32[⌈n/block⌉]`). Of e = residual + x each `block` elements have one
    /// scale, max|e|/127, and q is e/scale to nearest even, as two's complement; what that leaves of e is the new residual, in place:
    /// error feedback (Seide et al. 2014; Karimireddy et al. 2019). The scale of what is not all finite is NaN.
    Quantize { block: usize },
    /// (q: `u8[…]`, scales: `f32[…]`) → `f32[…]`: what [`Op::Quantize`] made, as numbers. q is all of it, or some rows of it, of which
    /// the first element is number `first` of the whole.
    Dequantize { block: usize, first: usize },
    /// (residual: `f32[…]`, x: `f32[…]`) → (indices: `i32[count]`, values: `f32[count]`): of e = residual + x the `count` elements of
    /// the largest magnitude, of equals the first, in their order. A NaN is larger than all. The others are the new residual, in
    /// place, and 0 is where those were: Stich et al. 2018.
    TopK { count: usize },
    /// (indices: `i32[k]`, values: `f32[k]`) → `f32` of the dimensions `to`: 0 but for the values at their indices. It is all of what
    /// [`Op::TopK`] had, or some rows of it, of which the first element is number `first` of the whole.
    ScatterElements { to: Vec<usize>, first: usize },
    /// (x: `f[…]` of known size) → the mean of what the members of a group of processes give, each in its own
    /// part; over x's bytes where nobody else uses them. `vector` is the same number at all of them.
    AllReduce { vector: u32 },
    /// (x) at a group's first member, () at the others → the first one's x. `vector` as above.
    Broadcast { vector: u32, spec: TensorSpec },
    /// (x) → x in memory of that space. Put in by planning, where one node computes on a device and another does not.
    CopyTo { space: Space },
    /// Computes nothing; gives other nodes something to wait for.
    NoOp,
    /// (x) → nothing. Writes x into the receiver's buffer of `edge`. Put in by the partitioner.
    Send { edge: EdgeId },
    /// → the tensor that [`Op::Send`] of the same edge wrote. Put in by the partitioner.
    Recv { edge: EdgeId, fact: Fact },
    /// (x) → nothing. Tells the receiver what x is and where it lies, and keeps it there until the
    /// receiver has read it (Xue et al. §3.3). Put in by the partitioner where a dimension is dynamic.
    SendDynamic { edge: EdgeId },
    /// → the tensor that [`Op::SendDynamic`] of the same edge announced, read into fresh memory.
    RecvDynamic { edge: EdgeId, fact: Fact },
    /// What a user brought: shapes, gradient and arithmetic are its own.
    Custom(CustomOp),
}

impl Op {
    /// It at `factor` times its rate, if it is an optimizer's.
    pub fn at_rate(&self, factor: f64) -> Cow<'_, Op> {
        match *self {
            _ if factor == 1.0 => Cow::Borrowed(self),
            Op::Apply { rule, clipped } => {
                Cow::Owned(Op::Apply { rule: rule.times(factor), clipped })
            }
            Op::ApplyRows { rule } => Cow::Owned(Op::ApplyRows { rule: rule.times(factor) }),
            _ => Cow::Borrowed(self),
        }
    }

    /// True if it makes less of a gradient, for the wire, and keeps what that leaves.
    pub fn compresses(&self) -> bool {
        matches!(self, Op::Quantize { .. } | Op::TopK { .. })
    }

    /// True if it makes a gradient of what another made less of.
    pub fn expands(&self) -> bool {
        matches!(self, Op::Dequantize { .. } | Op::ScatterElements { .. })
    }

    /// The vector that it reduces or broadcasts together with other processes.
    pub fn vector(&self) -> Option<u32> {
        match self {
            Op::AllReduce { vector } | Op::Broadcast { vector, .. } => Some(*vector),
            _ => None,
        }
    }

    /// The edge that it sends to or receives from.
    pub fn edge(&self) -> Option<EdgeId> {
        match self {
            Op::Send { edge } | Op::SendDynamic { edge } => Some(*edge),
            Op::Recv { edge, .. } | Op::RecvDynamic { edge, .. } => Some(*edge),
            _ => None,
        }
    }
}
