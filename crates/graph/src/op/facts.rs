//! What is known of every operator, one row each. The passes, the runtime and the kernels ask the row; only what
//! an operator means (its shapes, its gradient, its arithmetic) stands elsewhere.

use std::fmt;

use super::Op;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpFacts {
    /// As diagrams, traces and errors show it.
    pub name: &'static str,
    pub kind: Kind,
    /// How many inputs it takes.
    pub arity: Arity,
    /// How many of the first inputs are variables that it changes in place. A kernel gets these as its outputs,
    /// and the rest as its inputs.
    pub mutated_inputs: usize,
    /// True if the first output may be computed over the first input's bytes: element by element, shapes
    /// equal.
    pub works_in_place: bool,
}

/// Who does what an operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nobody: the value is there when a run begins, fed by the caller or left by earlier runs.
    State,
    /// A kernel computes it.
    Kernel(Family),
    /// Nobody: the output is the input's bytes under another shape, or some of them, or those of several inputs that
    /// lie behind each other.
    View,
    /// The device copies it between its memory and the host's.
    Copy,
    /// Nobody: it only orders other nodes.
    Order,
    /// The exchange sends its input along an edge.
    Send,
    /// The exchange brings its output along an edge.
    Recv,
    /// The exchange does it together with other processes.
    Group,
}

/// Kernels that are told apart together: they take operands of the same kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Each output element is made of the input elements of its place.
    ElementWise,
    Product,
    /// Few elements are made of many, or rows are added.
    Reduction,
    /// Elements of any type are moved, none is computed.
    Movement,
    /// Convolution, pooling and normalisation of images.
    Image,
    /// Attention, and the positions that it sees.
    Attention,
    /// Normalisation of each sample by itself.
    Norm,
    Recurrence,
    /// Variables are changed in place.
    Update,
    /// Less is made of a gradient before it crosses, and a gradient of that.
    Compression,
    /// The user's own.
    Custom,
}

/// How many inputs an operator takes, at least and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arity {
    pub least: usize,
    pub most: usize,
}

/// The rows as an exhaustive match, and the operators that it names.
macro_rules! table {
    ($op:expr; $($pattern:pat => $row:expr,)+) => {
        /// The operators, as their rows write them.
        const PATTERNS: &[&str] = &[$(stringify!($pattern)),+];

        fn row(op: &Op) -> OpFacts {
            match op { $($pattern => $row,)+ }
        }
    };
}

use Family::*;

#[rustfmt::skip]
table! {
    op;
    Op::Input { .. } => new("Input", Kind::State, 0),
    Op::Variable { .. } => new("Variable", Kind::State, 0),
    Op::Fill { .. } => kernel("Fill", ElementWise, 0),
    Op::MatMul { .. } => kernel("MatMul", Product, 2),
    Op::BatchMatMul { .. } => kernel("BatchMatMul", Product, 2),
    Op::BiasAdd => kernel("BiasAdd", ElementWise, 2).in_place(),
    Op::SumRows => kernel("SumRows", Reduction, 1),
    Op::Relu => kernel("Relu", ElementWise, 1).in_place(),
    Op::ReluGrad => kernel("ReluGrad", ElementWise, 2).in_place(),
    Op::Sigmoid => kernel("Sigmoid", ElementWise, 1).in_place(),
    Op::SigmoidGrad => kernel("SigmoidGrad", ElementWise, 2).in_place(),
    Op::Tanh => kernel("Tanh", ElementWise, 1).in_place(),
    Op::TanhGrad => kernel("TanhGrad", ElementWise, 2).in_place(),
    Op::Add => kernel("Add", ElementWise, 2).in_place(),
    Op::Sub => kernel("Sub", ElementWise, 2).in_place(),
    Op::Mul => kernel("Mul", ElementWise, 2).in_place(),
    Op::Div => kernel("Div", ElementWise, 2).in_place(),
    Op::Mean => kernel("Mean", ElementWise, 1).or_more(),
    Op::Scale { .. } => kernel("Scale", ElementWise, 1).in_place(),
    Op::ScaleBy => kernel("ScaleBy", ElementWise, 2).in_place(),
    Op::Unary { by } => kernel(by.names()[0], ElementWise, 1).in_place(),
    Op::UnaryGrad { by } => kernel(by.names()[1], ElementWise, 2).in_place(),
    // shapes may differ
    Op::Binary { by } => kernel(by.name(), ElementWise, 2),
    Op::Compare { by } => kernel(by.name(), ElementWise, 2),
    Op::Select => kernel("Select", ElementWise, 3).in_place(),
    Op::SelectGrad { .. } => kernel("SelectGrad", ElementWise, 2).in_place(),
    Op::ExpandTo { .. } => kernel("ExpandTo", Movement, 1),
    Op::SumTo { .. } => kernel("SumTo", Reduction, 1),
    Op::SoftmaxCrossEntropy => kernel("SoftmaxCrossEntropy", Reduction, 2),
    Op::CountCorrect => kernel("CountCorrect", Reduction, 2),
    Op::CrossEntropy { .. } => kernel("CrossEntropy", Reduction, 2),
    Op::CountWithin { .. } => kernel("CountWithin", Reduction, 2),
    Op::ReduceMax => kernel("ReduceMax", Reduction, 1),
    Op::Reduce { .. } => kernel("Reduce", Reduction, 1),
    Op::ReduceGrad { .. } => kernel("ReduceGrad", Reduction, 3),
    Op::Softmax => kernel("Softmax", Reduction, 1),
    Op::SoftmaxGrad => kernel("SoftmaxGrad", Reduction, 2),
    Op::SquareSums => kernel("SquareSums", Reduction, 1).or_more(),
    Op::ClipScale { .. } => kernel("ClipScale", Reduction, 1).or_more(),
    Op::Cast { .. } => kernel("Cast", ElementWise, 1),
    Op::Dropout { .. } => kernel("Dropout", ElementWise, 2).in_place(),
    Op::Concat { .. } => kernel("Concat", Movement, 1).or_more(),
    Op::ConcatGrad { .. } => kernel("ConcatGrad", Movement, 2).or_more(),
    Op::SliceGrad { .. } => kernel("SliceGrad", Movement, 2),
    Op::Slice { .. } => kernel("Slice", Movement, 1),
    Op::Pad { .. } => kernel("Pad", Movement, 1),
    Op::Transpose { .. } => kernel("Transpose", Movement, 1),
    Op::Gather => kernel("Gather", Movement, 2),
    Op::ScatterRows => kernel("ScatterRows", Reduction, 3),
    Op::AddRows => kernel("AddRows", Reduction, 3).in_place(),
    Op::Attention(by) => kernel("Attention", Attention, 3 + by.mask.operands()),
    Op::AttentionGrad(by) => kernel("AttentionGrad", Attention, 6 + by.mask.operands()),
    Op::Rotary(..) => kernel("Rotary", Attention, 1),
    Op::SampleNorm { by, .. } => kernel(by.names()[0], Norm, 2 + usize::from(by.is_centred())),
    Op::SampleNormGrad { by } => kernel(by.names()[1], Norm, 4 + usize::from(by.is_centred())),
    Op::Conv2d { .. } => kernel("Conv2d", Image, 2),
    Op::Conv2dGradInput { .. } => kernel("Conv2dGradInput", Image, 2),
    Op::Conv2dGradWeight { .. } => kernel("Conv2dGradWeight", Image, 2),
    Op::MaxPool { .. } => kernel("MaxPool", Image, 1),
    Op::MaxPoolGrad { .. } => kernel("MaxPoolGrad", Image, 2),
    Op::AvgPool { .. } => kernel("AvgPool", Image, 1),
    Op::AvgPoolGrad { .. } => kernel("AvgPoolGrad", Image, 1),
    Op::BatchNorm { scaled, .. } => kernel("BatchNorm", Image, 2 + usize::from(*scaled)),
    Op::BatchNormGrad { scaled, .. } => kernel("BatchNormGrad", Image, 4 + usize::from(*scaled)),
    Op::Normalize { scaled, .. } => kernel("Normalize", Image, 4 + usize::from(*scaled)),
    Op::LocalResponseNorm { .. } => kernel("LocalResponseNorm", Image, 1),
    Op::LocalResponseNormGrad { .. } => kernel("LocalResponseNormGrad", Image, 3),
    Op::Recurrent { cell } =>
        kernel(cell.name(), Recurrence, 2 * cell.gates() + cell.states() + 1),
    Op::RecurrentGrad { cell, sequence, finals } => kernel(
        cell.name_of_grad(),
        Recurrence,
        flowing(*sequence, *finals) + cell.gates() + cell.states() + 3,
    ),
    Op::Reshape { .. } => new("Reshape", Kind::View, 1),
    Op::Rows { .. } => new("Rows", Kind::View, 1),
    Op::Join => new("Join", Kind::View, 1).or_more(),
    Op::Apply { rule, clipped } =>
        update(rule.method.names()[0], 1 + rule.slots(), 1 + usize::from(*clipped)),
    Op::ApplyRows { rule } => update(rule.method.names()[1], 1 + rule.slots(), 2),
    Op::ApplyAverage { .. } => update("ApplyAverage", 1, 1),
    Op::Quantize { .. } => compresses("Quantize"),
    Op::Dequantize { .. } => kernel("Dequantize", Compression, 2),
    Op::TopK { .. } => compresses("TopK"),
    Op::ScatterElements { .. } => kernel("ScatterElements", Compression, 2),
    Op::AllReduce { .. } => new("AllReduce", Kind::Group, 1).in_place(),
    // the first member has what the others get
    Op::Broadcast { .. } => new("Broadcast", Kind::Group, 0).to(1),
    Op::CopyTo { .. } => new("CopyTo", Kind::Copy, 1),
    Op::NoOp => new("NoOp", Kind::Order, 0),
    // a control edge crosses as a send of nothing
    Op::Send { .. } => new("Send", Kind::Send, 0).to(1),
    Op::Recv { .. } => new("Recv", Kind::Recv, 0),
    Op::SendDynamic { .. } => new("SendDynamic", Kind::Send, 1),
    Op::RecvDynamic { .. } => new("RecvDynamic", Kind::Recv, 0),
    Op::Custom(op) => OpFacts {
        works_in_place: op.works_in_place(),
        // its shape rule says how many it takes
        ..kernel(op.name(), Custom, 0).or_more()
    },
}

const fn new(name: &'static str, kind: Kind, inputs: usize) -> OpFacts {
    let arity = Arity { least: inputs, most: inputs };
    OpFacts { name, kind, arity, mutated_inputs: 0, works_in_place: false }
}

const fn kernel(name: &'static str, family: Family, inputs: usize) -> OpFacts {
    new(name, Kind::Kernel(family), inputs)
}

/// Changes `mutated` variables by `operands` inputs of each rank, of which there is at least one.
const fn update(name: &'static str, mutated: usize, operands: usize) -> OpFacts {
    let row = kernel(name, Update, mutated + operands).or_more();
    OpFacts { mutated_inputs: mutated, ..row }
}

/// Makes less of a gradient, and changes the variable that has what that leaves.
const fn compresses(name: &'static str) -> OpFacts {
    OpFacts { mutated_inputs: 1, ..kernel(name, Compression, 2) }
}

fn flowing(sequence: bool, finals: [bool; 2]) -> usize {
    [sequence, finals[0], finals[1]].into_iter().filter(|flows| *flows).count()
}

impl OpFacts {
    const fn in_place(self) -> OpFacts {
        OpFacts { works_in_place: true, ..self }
    }

    const fn or_more(self) -> OpFacts {
        self.to(usize::MAX)
    }

    const fn to(self, most: usize) -> OpFacts {
        OpFacts { arity: Arity { most, ..self.arity }, ..self }
    }
}

impl Op {
    /// The operator's row.
    pub fn facts(&self) -> OpFacts {
        row(self)
    }

    /// The names of all variants of this enum that kernels compute, in its order: what a suite must cover.
    pub fn variants() -> impl Iterator<Item = &'static str> {
        let variant = |pattern: &'static str| {
            let name = pattern.trim_start_matches("Op").trim_start().trim_start_matches("::");
            let name = name.trim_start();
            name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(name)
        };
        PATTERNS.iter().copied().map(variant)
    }

    /// The operator's name as diagrams and traces show it.
    pub fn name(&self) -> &'static str {
        self.facts().name
    }

    /// How many of the first inputs are variables that the operator changes in place.
    pub fn mutated_inputs(&self) -> usize {
        self.facts().mutated_inputs
    }

    /// True if the first output may be computed over the first input's bytes.
    pub fn works_in_place(&self) -> bool {
        self.facts().works_in_place
    }

    /// True if a kernel computes it, so that it takes a process's time.
    pub fn is_computed(&self) -> bool {
        matches!(self.facts().kind, Kind::Kernel(_))
    }

    /// True if it changes variables, and makes nothing else.
    pub fn is_update(&self) -> bool {
        self.facts().kind == Kind::Kernel(Family::Update)
    }

    /// True if its value is there when a run begins: fed by the caller, or left by earlier runs.
    pub fn is_state(&self) -> bool {
        self.facts().kind == Kind::State
    }

    /// True if its output is bytes of its inputs, where they are.
    pub fn is_view(&self) -> bool {
        self.facts().kind == Kind::View
    }

    /// True if it sends along an edge.
    pub fn is_send(&self) -> bool {
        self.facts().kind == Kind::Send
    }

    /// True if it receives along an edge.
    pub fn is_recv(&self) -> bool {
        self.facts().kind == Kind::Recv
    }
}

impl Arity {
    /// True if an operator may take `count` inputs.
    pub fn fits(self, count: usize) -> bool {
        (self.least..=self.most).contains(&count)
    }
}

impl fmt::Display for Arity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Arity { least, most } if most == least => write!(f, "{least}"),
            Arity { least, most: usize::MAX } => write!(f, "at least {least}"),
            Arity { least, most } => write!(f, "{least} to {most}"),
        }
    }
}
