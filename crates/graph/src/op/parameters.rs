//! What operators are parametrised by: first values, windows, reductions, cells and update rules.

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
    /// Of a normal distribution around 0.
    Normal {
        deviation: f64,
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

/// How a variable v changes, given the mean gradient g: a method, at a rate, with a weight decay. Slots are of the
/// variable's type, and f32 where that is bf16; all start as zeros.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rule {
    pub method: Method,
    /// The learning rate. A schedule gives each step its own, as a factor of this one.
    pub rate: f64,
    /// λ, which draws v to 0. [`Method::AdamW`] and [`Method::Lamb`] say what they make of it (decoupled: Loshchilov and Hutter
    /// 2019); of all others it is that of an L2 norm: g ← g + λ·v before anything else.
    #[serde(default)]
    pub decay: f64,
}

/// What a [`Rule`] computes. What it keeps beside a variable, its slots, comes between the variable and the gradients.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// v ← v − rate·g.
    Sgd,
    /// u ← momentum·u + g; v ← v − rate·u. Slot: u.
    Momentum { momentum: f64 },
    /// u ← momentum·u + g; v ← v − rate·(g + momentum·u) (Sutskever et al. 2013, as PyTorch has it). Slot: u.
    Nesterov { momentum: f64 },
    /// a ← a + g²; v ← v − rate·g/(√a + epsilon) (Duchi et al. 2011). Slot: a.
    AdaGrad { epsilon: f64 },
    /// a ← alpha·a + (1−alpha)·g²; v ← v − rate·g/(√a + epsilon) (Tieleman and Hinton 2012). Slot: a.
    RmsProp { alpha: f64, epsilon: f64 },
    /// t ← t+1; m ← β₁m + (1−β₁)g; s ← β₂s + (1−β₂)g²;
    /// v ← v − rate·m̂/(√ŝ + epsilon) with m̂ = m/(1−β₁ᵗ), ŝ = s/(1−β₂ᵗ) (Kingma and Ba 2015).
    /// Slots: m, s, and t: i64[].
    Adam { beta1: f64, beta2: f64, epsilon: f64 },
    /// v ← v·(1 − rate·λ), then as [`Method::Adam`] with the gradient alone (Loshchilov and Hutter 2019).
    AdamW { beta1: f64, beta2: f64, epsilon: f64 },
    /// r = m̂/(√ŝ + epsilon) + λ·v with the slots of [`Method::Adam`]; v ← v − rate·(‖v‖/‖r‖)·r over the whole variable, the ratio 1
    /// where a norm is 0 (You et al. 2020).
    Lamb { beta1: f64, beta2: f64, epsilon: f64 },
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

    pub(super) fn name(self) -> &'static str {
        match self {
            Cell::Rnn => "Rnn",
            Cell::Gru => "Gru",
            Cell::Lstm => "Lstm",
        }
    }

    pub(super) fn name_of_grad(self) -> &'static str {
        match self {
            Cell::Rnn => "RnnGrad",
            Cell::Gru => "GruGrad",
            Cell::Lstm => "LstmGrad",
        }
    }
}

impl Method {
    /// It as a rule at a rate, without decay.
    pub const fn at(self, rate: f64) -> Rule {
        Rule { method: self, rate, decay: 0.0 }
    }

    /// Returns how many tensors it keeps for a variable besides.
    pub fn slots(self) -> usize {
        match self {
            Method::Sgd => 0,
            Method::Momentum { .. } | Method::Nesterov { .. } => 1,
            Method::AdaGrad { .. } | Method::RmsProp { .. } => 1,
            Method::Adam { .. } | Method::AdamW { .. } | Method::Lamb { .. } => 3,
        }
    }

    /// True if it counts steps in its last slot, `i64[]`.
    pub fn counts_steps(self) -> bool {
        self.slots() == 3
    }

    /// True if an element's change depends on the whole variable: a part of one cannot be updated by itself.
    pub fn needs_whole(self) -> bool {
        matches!(self, Method::Lamb { .. })
    }

    /// What the operators are called that apply it: to gradients of the variable's shape, and to rows of it.
    pub(super) fn names(self) -> [&'static str; 2] {
        match self {
            Method::Sgd => ["ApplySgd", "ApplySgdRows"],
            Method::Momentum { .. } => ["ApplyMomentum", "ApplyMomentumRows"],
            Method::Nesterov { .. } => ["ApplyNesterov", "ApplyNesterovRows"],
            Method::AdaGrad { .. } => ["ApplyAdaGrad", "ApplyAdaGradRows"],
            Method::RmsProp { .. } => ["ApplyRmsProp", "ApplyRmsPropRows"],
            Method::Adam { .. } => ["ApplyAdam", "ApplyAdamRows"],
            Method::AdamW { .. } => ["ApplyAdamW", "ApplyAdamWRows"],
            Method::Lamb { .. } => ["ApplyLamb", "ApplyLambRows"],
        }
    }
}

/// True if [`Op::Dropout`](crate::Op::Dropout) keeps element `element` in step `step`: a hash (SplitMix64's
/// output function, twice) of key, step and element against the rate. It has no state, so that gradient and
/// forward pass agree, on any number of threads and in any other implementation.
#[inline(always)]
pub fn dropout_keeps(key: u64, step: u64, element: u64, rate: f64) -> bool {
    // 2⁶⁴·rate, rounded down; a rate is in 0..1
    let threshold = (rate * 18_446_744_073_709_551_616.0) as u64;
    random_bits(key, step, element) >= threshold
}

/// What an operator that draws has for an element in a step: 64 bits, all values as likely.
#[inline(always)]
pub fn random_bits(key: u64, step: u64, element: u64) -> u64 {
    mix(mix(key ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(element))
}

#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
