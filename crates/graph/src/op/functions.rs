//! What is computed of one element, of two, and of the elements of a sample together.

/// A function of one number. Each is a row here and in each back end; its derivative is one more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// x·Φ(x) with Φ(x) = ½(1 + erf(x/√2)): Hendrycks and Gimpel 2016.
    Gelu,
    /// ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))): the same authors' approximation, which GPT-2 was trained with.
    GeluTanh,
    /// x·σ(x): Elfwing et al. 2017, also called swish.
    Silu,
    /// log(1 + eˣ).
    Softplus,
    Exp,
    /// The natural logarithm.
    Log,
    Sqrt,
    /// 1/√x.
    Rsqrt,
    /// x to the power of `exponent`.
    Pow {
        exponent: f64,
    },
    Abs,
    Neg,
    /// x, but `least` where it is less and `most` where it is more. A NaN stays.
    Clamp {
        least: f64,
        most: f64,
    },
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The larger, NaN where one is. Its gradient goes to the first of equals.
    Max,
    /// The smaller, NaN where one is. Its gradient goes to the first of equals.
    Min,
}

/// What two numbers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// Whose mean and variance normalise an element, of `f[n, …, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleNorm {
    /// Those of the last dimension: Ba et al. 2016.
    Layer,
    /// As `Layer`, but the mean is taken for 0, and there is no shift: Zhang and Sennrich 2019.
    Rms,
    /// Those of all positions of a sample, in one of `groups` equal groups of channels: Wu and He 2018.
    Group { groups: usize },
}

impl Unary {
    /// True if the derivative is computed of the function's value, else of its argument.
    pub fn derives_from_value(self) -> bool {
        matches!(self, Unary::Exp | Unary::Sqrt | Unary::Rsqrt)
    }

    pub(super) fn names(self) -> [&'static str; 2] {
        match self {
            Unary::Gelu => ["Gelu", "GeluGrad"],
            Unary::GeluTanh => ["GeluTanh", "GeluTanhGrad"],
            Unary::Silu => ["Silu", "SiluGrad"],
            Unary::Softplus => ["Softplus", "SoftplusGrad"],
            Unary::Exp => ["Exp", "ExpGrad"],
            Unary::Log => ["Log", "LogGrad"],
            Unary::Sqrt => ["Sqrt", "SqrtGrad"],
            Unary::Rsqrt => ["Rsqrt", "RsqrtGrad"],
            Unary::Pow { .. } => ["Pow", "PowGrad"],
            Unary::Abs => ["Abs", "AbsGrad"],
            Unary::Neg => ["Neg", "NegGrad"],
            Unary::Clamp { .. } => ["Clamp", "ClampGrad"],
        }
    }
}

impl Binary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Binary::Add => "BroadcastAdd",
            Binary::Sub => "BroadcastSub",
            Binary::Mul => "BroadcastMul",
            Binary::Div => "BroadcastDiv",
            Binary::Max => "Maximum",
            Binary::Min => "Minimum",
        }
    }
}

impl Comparison {
    pub(super) fn name(self) -> &'static str {
        match self {
            Comparison::Equal => "Equal",
            Comparison::NotEqual => "NotEqual",
            Comparison::Less => "Less",
            Comparison::LessEqual => "LessEqual",
            Comparison::Greater => "Greater",
            Comparison::GreaterEqual => "GreaterEqual",
        }
    }
}

impl SampleNorm {
    /// True if there are a mean and a shift.
    pub fn is_centred(self) -> bool {
        self != SampleNorm::Rms
    }

    pub(super) fn names(self) -> [&'static str; 2] {
        match self {
            SampleNorm::Layer => ["LayerNorm", "LayerNormGrad"],
            SampleNorm::Rms => ["RmsNorm", "RmsNormGrad"],
            SampleNorm::Group { .. } => ["GroupNorm", "GroupNormGrad"],
        }
    }
}
