//! The operators: what a node computes. Shapes and gradients are tables over this enum
//! (`pass/infer.rs`, `pass/gradient.rs`); arithmetic lives in the kernels room.

use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

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
    /// Uniform in ±limit.
    Uniform {
        limit: f64,
    },
    /// Every element is `value`.
    Constant {
        value: f64,
    },
}

/// Where the windows of a convolution or a pooling lie, height first. Output row r looks at input rows
/// r·stride − before + dilation·(0..kernel); rows outside the input are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Rows and columns of padding before the first.
    pub before: [usize; 2],
    /// Rows and columns of padding behind the last.
    pub after: [usize; 2],
}

/// What becomes of the elements along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    Sum,
    Mean,
    /// The largest; its gradient goes to the first of equals.
    Max,
}

/// The recurrent cells. σ is the logistic function, ∘ the product by elements. Gates are in the order
/// of the formulas, states too. `xg` is the input's product of gate g with its bias, `Ug` its recurrent
/// matrix, [hidden, hidden].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// h ← tanh(x + U·h) (Elman 1990).
    Rnn,
    /// r = σ(xr + Ur·h), z = σ(xz + Uz·h), n = tanh(xn + r∘(Un·h)), h ← (1−z)∘n + z∘h: Cho et al. 2014
    /// with the reset gate behind the product, as cuDNN and PyTorch have it.
    Gru,
    /// i = σ(xi + Ui·h), f = σ(xf + Uf·h), g = tanh(xg + Ug·h), o = σ(xo + Uo·h), c ← f∘c + i∘g,
    /// h ← o∘tanh(c): Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000.
    Lstm,
}

/// How a variable v changes, given the mean gradient g. What else it keeps, its slots, comes between
/// the variable and the gradients, and starts as zeros. Slots are of the variable's type, and f32 where that
/// is bf16.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// v ← v − rate·g.
    Sgd { rate: f64 },
    /// u ← momentum·u + g; v ← v − rate·u. Slot: u.
    Momentum { rate: f64, momentum: f64 },
    /// a ← a + g²; v ← v − rate·g/(√a + epsilon) (Duchi et al. 2011). Slot: a.
    AdaGrad { rate: f64, epsilon: f64 },
    /// t ← t+1; m ← β₁m + (1−β₁)g; s ← β₂s + (1−β₂)g²;
    /// v ← v − rate·m̂/(√ŝ + epsilon) with m̂ = m/(1−β₁ᵗ), ŝ = s/(1−β₂ᵗ) (Kingma and Ba 2015).
    /// Slots: m, s, and t: i64[].
    Adam { rate: f64, beta1: f64, beta2: f64, epsilon: f64 },
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
    /// (x: f[…,n], b: f[n]) → x + b on every row, a row being what lies along the last dimension.
    BiasAdd,
    /// (x: f[…,n]) → f[n], the sum over rows, added in row order.
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
    /// (x) → x·by.
    Scale { by: f64 },
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
    /// (x: f[…]) → x without dimension `axis`, which is reduced in its order. A mean or a maximum of no
    /// elements is an error.
    Reduce { by: Reduction, axis: usize },
    /// (dy, x, y) → dx; y is the output of [`Op::Reduce`] for x.
    ReduceGrad { by: Reduction, axis: usize },
    /// (x: f[…,n]) → softmax along the last dimension.
    Softmax,
    /// (dy, y) → dx = y∘(dy − Σ dy∘y), the sum along the last dimension; y is the output of
    /// [`Op::Softmax`].
    SoftmaxGrad,
    /// (x: f[…]) → the same numbers, rounded to nearest, as another floating type.
    Cast { to: DType },
    /// (x: f[…], step: i64[]) → x/(1−rate) where an element is kept, else 0: Srivastava et al. 2014, scaled
    /// in training. Element e is kept if [`dropout_keeps`] says so for `key`, the step and e; so the
    /// same operator is its own gradient.
    Dropout { rate: f64, key: u64 },
    /// (x₀, x₁, …) → the inputs one behind the other along `axis`.
    Concat { axis: usize },
    /// (x) → elements `start..start + length` along `axis`.
    Slice { axis: usize, start: usize, length: usize },
    /// (x) → x with `before` and `after` zeros along `axis`.
    Pad { axis: usize, before: usize, after: usize },
    /// (x) → y whose dimension d is x's dimension `permutation[d]`.
    Transpose { permutation: Vec<usize> },
    /// (table: f[v,d], indices: i32[k]) → f[k,d], the rows that are named. An index outside 0..v is an
    /// error. The gradient of a variable is rows and indices, see [`Op::ApplyRows`].
    Gather,
    /// (rows: f[k,d], indices: i32[k], like: f[v,d]) → f[v,d], zeros with each row added at its index, in
    /// order. Of `like` the shape alone counts.
    ScatterRows,
    /// (x: f[n,h,w,c], w: f[o,c/groups,kh,kw]) → f[n,oh,ow,o]. Input channels and output channels are cut
    /// into `groups`, each computed by itself.
    Conv2d { window: Window, groups: usize },
    /// (dy: f[n,oh,ow,o], w) → dx: f[n,h,w,c] with `size` = [h, w].
    Conv2dGradInput { window: Window, groups: usize, size: [usize; 2] },
    /// (dy: f[n,oh,ow,o], x: f[n,h,w,c]) → dw: f[o,c/groups,kh,kw].
    Conv2dGradWeight { window: Window, groups: usize },
    /// (x: f[n,h,w,c]) → (the largest of each window: f[n,oh,ow,c], where it was: u8[n,oh,ow,c]). A place is
    /// row·kernel width + column in the window, the first of equals. Padding is never the largest.
    MaxPool { window: Window },
    /// (dy, places) → dx: f[n,h,w,c] with `size` = [h, w].
    MaxPoolGrad { window: Window, size: [usize; 2] },
    /// (x: f[n,h,w,c]) → f[n,oh,ow,c], the mean of what lies in each window and is no padding.
    AvgPool { window: Window },
    /// (dy) → dx: f[n,h,w,c] with `size` = [h, w].
    AvgPoolGrad { window: Window, size: [usize; 2] },
    /// (x: f[…,c], [scale: f[c],] shift: f[c]) → (y, mean: f[c], variance: f[c]) over all dimensions but the
    /// last; y = (x − mean)/√(variance + epsilon)·scale + shift, the variance biased (Ioffe and Szegedy
    /// 2015, algorithm 1). Without `scaled` there is no scale.
    BatchNorm { epsilon: f64, scaled: bool },
    /// (dy, x, mean, variance, [scale]) → (dx, [dscale,] dshift).
    BatchNormGrad { epsilon: f64, scaled: bool },
    /// (x: f[…,c], [scale,] shift, mean, variance) → y as [`Op::BatchNorm`]'s, with a mean and a variance that
    /// are given: f[c] each.
    Normalize { epsilon: f64, scaled: bool },
    /// (x: f[…,c]) → y = x·(bias + alpha·Σ x²)^−beta, the sum over the `size` channels around each, as far as
    /// there are such: Krizhevsky et al. 2012, §3.3. `size` is odd.
    LocalResponseNorm { size: usize, alpha: f64, beta: f64, bias: f64 },
    /// (dy, x, y) → dx; y is the output of [`Op::LocalResponseNorm`] for x.
    LocalResponseNormGrad { size: usize, alpha: f64, beta: f64, bias: f64 },
    /// Sequences of any lengths without padding. Those of a batch of b are sorted, longest first, and stored
    /// step by step: `active: i32[t]` says how many are not over at each step, and row order is step 0's
    /// rows, then step 1's, …: `total` = Σ active.
    ///
    /// (one product for each gate: f[total,h]; one recurrent matrix for each gate: f[h,h]; the states before
    /// the first step: f[b,h] each; active: i32[t]) → (y: f[total,h], h after each step; each state behind
    /// its sequence's last step: f[b,h]; what the gradient needs: f[total, `cell.saved()`·h]).
    Recurrent { cell: Cell },
    /// ([dy if `sequence`,] [d(final state s) where `finals[s]`,] recurrent matrices, first states, active, y,
    /// saved) → (d(product) of each gate, d(recurrent matrix) of each gate, d(first state) of each state).
    RecurrentGrad { cell: Cell, sequence: bool, finals: [bool; 2] },
    /// (x) → the same elements as `to`, no byte moved: the output shares the input's memory. At most
    /// one dimension of `to` is dynamic: it takes what the others leave.
    Reshape { to: Vec<Dim> },
    /// (variable, its slots, gradient of rank 0, …, of rank W−1) → nothing. Changes them in place as the
    /// rule says with g = (Σ gradients, added in rank order) × (1/W), 1/W rounded once.
    Apply { rule: Rule },
    /// (variable: f[v,d], its slots, indices: i32[k] and rows: f[k,d] of rank 0, …, of rank W−1) → nothing. As
    /// [`Op::Apply`], with the gradient given by its rows: a rank's rows of one index are added in their
    /// order, then the ranks' in theirs. Rows that no index names stay as they are, their slots too.
    ApplyRows { rule: Rule },
    /// (variable, value of rank 0, …, of rank W−1) → nothing. v ← v + rate·(mean of the values − v), in place:
    /// a moving average.
    ApplyAverage { rate: f64 },
    /// (x: f[…] of known size) → the mean of what the members of a group of processes give, each in its own
    /// part; over x's bytes where nobody else uses them. `vector` is the same number at all of them.
    AllReduce { vector: u32 },
    /// (x) at a group's first member, () at the others → the first one's x. `vector` as above.
    Broadcast { vector: u32, spec: TensorSpec },
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
            Op::Sigmoid => "Sigmoid",
            Op::SigmoidGrad => "SigmoidGrad",
            Op::Tanh => "Tanh",
            Op::TanhGrad => "TanhGrad",
            Op::Add => "Add",
            Op::Sub => "Sub",
            Op::Mul => "Mul",
            Op::Div => "Div",
            Op::Scale { .. } => "Scale",
            Op::ScaleBy => "ScaleBy",
            Op::SoftmaxCrossEntropy => "SoftmaxCrossEntropy",
            Op::CountCorrect => "CountCorrect",
            Op::ReduceMax => "ReduceMax",
            Op::Reduce { .. } => "Reduce",
            Op::ReduceGrad { .. } => "ReduceGrad",
            Op::Softmax => "Softmax",
            Op::SoftmaxGrad => "SoftmaxGrad",
            Op::Cast { .. } => "Cast",
            Op::Dropout { .. } => "Dropout",
            Op::Concat { .. } => "Concat",
            Op::Slice { .. } => "Slice",
            Op::Pad { .. } => "Pad",
            Op::Transpose { .. } => "Transpose",
            Op::Gather => "Gather",
            Op::ScatterRows => "ScatterRows",
            Op::Conv2d { .. } => "Conv2d",
            Op::Conv2dGradInput { .. } => "Conv2dGradInput",
            Op::Conv2dGradWeight { .. } => "Conv2dGradWeight",
            Op::MaxPool { .. } => "MaxPool",
            Op::MaxPoolGrad { .. } => "MaxPoolGrad",
            Op::AvgPool { .. } => "AvgPool",
            Op::AvgPoolGrad { .. } => "AvgPoolGrad",
            Op::BatchNorm { .. } => "BatchNorm",
            Op::BatchNormGrad { .. } => "BatchNormGrad",
            Op::Normalize { .. } => "Normalize",
            Op::LocalResponseNorm { .. } => "LocalResponseNorm",
            Op::LocalResponseNormGrad { .. } => "LocalResponseNormGrad",
            Op::Recurrent { cell } => cell.name(),
            Op::RecurrentGrad { cell, .. } => cell.name_of_grad(),
            Op::Reshape { .. } => "Reshape",
            Op::Apply { rule } => rule.name(),
            Op::ApplyRows { rule } => rule.name_for_rows(),
            Op::ApplyAverage { .. } => "ApplyAverage",
            Op::AllReduce { .. } => "AllReduce",
            Op::Broadcast { .. } => "Broadcast",
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
            Op::Apply { rule } | Op::ApplyRows { rule } => 1 + rule.slots(),
            Op::ApplyAverage { .. } => 1,
            _ => 0,
        }
    }

    /// True if the first output may be computed over the first input's bytes: element by element, shapes
    /// equal.
    pub fn works_in_place(&self) -> bool {
        matches!(
            self,
            Op::Relu
                | Op::ReluGrad
                | Op::Sigmoid
                | Op::SigmoidGrad
                | Op::Tanh
                | Op::TanhGrad
                | Op::Add
                | Op::Sub
                | Op::Mul
                | Op::Div
                | Op::Scale { .. }
                | Op::ScaleBy
                | Op::BiasAdd
                | Op::Dropout { .. }
                | Op::AllReduce { .. }
        )
    }

    /// Does it send along an edge?
    pub fn is_send(&self) -> bool {
        matches!(self, Op::Send { .. } | Op::SendDyn { .. })
    }

    /// The vector that it folds or spreads together with other processes.
    pub fn vector(&self) -> Option<u32> {
        match self {
            Op::AllReduce { vector } | Op::Broadcast { vector, .. } => Some(*vector),
            _ => None,
        }
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

impl Window {
    /// Windows of `kernel` at every `stride`-th place, without padding.
    pub fn valid(kernel: [usize; 2], stride: [usize; 2]) -> Window {
        Window { kernel, stride, dilation: [1, 1], before: [0, 0], after: [0, 0] }
    }

    /// Windows of `kernel` with `padding` on all sides.
    pub fn padded(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Window {
        Window { before: padding, after: padding, ..Window::valid(kernel, stride) }
    }

    /// Windows of which there are ⌈size/stride⌉ over an input of `size`, padded as evenly as can be, the
    /// odd one behind: TensorFlow's SAME.
    pub fn same(kernel: [usize; 2], stride: [usize; 2], size: [usize; 2]) -> Window {
        let mut window = Window::valid(kernel, stride);
        for side in 0..2 {
            let windows = size[side].div_ceil(stride[side].max(1));
            let covered = windows.saturating_sub(1) * stride[side] + kernel[side];
            let padding = covered.saturating_sub(size[side]);
            (window.before[side], window.after[side]) = (padding / 2, padding.div_ceil(2));
        }
        window
    }

    /// How many windows an input of `size` has, none where one does not fit or the window makes no sense.
    pub fn output(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        let side = |s: usize| {
            let reach =
                self.kernel[s].checked_sub(1)?.checked_mul(self.dilation[s])?.checked_add(1)?;
            let room = size[s].checked_add(self.before[s])?.checked_add(self.after[s])?;
            // more would be windows of nothing but padding; dilated ones may still miss a small image
            let sensible = self.dilation[s] > 0 && self.before[s] < reach && self.after[s] < reach;
            let windows = room.checked_sub(reach)?.checked_div(self.stride[s])?;
            sensible.then_some(windows + 1)
        };
        Some([side(0)?, side(1)?])
    }
}

impl Cell {
    /// Gates: products, recurrent matrices.
    pub fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// States that go from step to step: h, and c of an LSTM.
    pub fn states(self) -> usize {
        match self {
            Cell::Rnn | Cell::Gru => 1,
            Cell::Lstm => 2,
        }
    }

    /// What a step keeps for the gradient, in rows of h side by side: of a GRU r, z, n and Un·h, of an LSTM i,
    /// f, g, o and c.
    pub fn saved(self) -> usize {
        match self {
            Cell::Rnn => 0,
            Cell::Gru => 4,
            Cell::Lstm => 5,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Cell::Rnn => "Rnn",
            Cell::Gru => "Gru",
            Cell::Lstm => "Lstm",
        }
    }

    fn name_of_grad(self) -> &'static str {
        match self {
            Cell::Rnn => "RnnGrad",
            Cell::Gru => "GruGrad",
            Cell::Lstm => "LstmGrad",
        }
    }
}

impl Rule {
    /// How many tensors it keeps for a variable besides.
    pub fn slots(self) -> usize {
        match self {
            Rule::Sgd { .. } => 0,
            Rule::Momentum { .. } | Rule::AdaGrad { .. } => 1,
            Rule::Adam { .. } => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Rule::Sgd { .. } => "ApplySgd",
            Rule::Momentum { .. } => "ApplyMomentum",
            Rule::AdaGrad { .. } => "ApplyAdaGrad",
            Rule::Adam { .. } => "ApplyAdam",
        }
    }

    fn name_for_rows(self) -> &'static str {
        match self {
            Rule::Sgd { .. } => "ApplySgdRows",
            Rule::Momentum { .. } => "ApplyMomentumRows",
            Rule::AdaGrad { .. } => "ApplyAdaGradRows",
            Rule::Adam { .. } => "ApplyAdamRows",
        }
    }
}

/// Does [`Op::Dropout`] keep element `element` in step `step`? A hash (SplitMix64's output function, twice) of
/// key, step and element against the rate: no state, so that gradient and forward pass agree, on any
/// number of threads and in any other implementation.
#[inline(always)]
pub fn dropout_keeps(key: u64, step: u64, element: u64, rate: f64) -> bool {
    // 2⁶⁴·rate, rounded down; a rate is in 0..1
    let threshold = (rate * 18_446_744_073_709_551_616.0) as u64;
    mix(mix(key ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(element)) >= threshold
}

#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
