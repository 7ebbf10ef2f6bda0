//! What attention and positions are parametrised by.

/// Scaled dot-product attention: Vaswani et al. 2017, eq. 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub mask: AttentionMask,
    pub heads: HeadOrder,
    /// Of the products of queries and keys: 1/√d in the paper. More than 0.
    pub scale: f64,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// All.
    None,
    /// Those at its place and before; there are as many keys as queries.
    Causal,
    /// What one more operand says, `[b|1, h|1, t|1, s]`: added to the scaled products where it is `f`; of `u8`, a key is
    /// seen where it is not 0.
    Given,
}

/// Where the heads of queries, keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadOrder {
    /// `f[b,h,t,d]`.
    Outer,
    /// `f[b,t,h,d]`: a view of what a linear layer makes, `f[b·t, h·d]`.
    Inner,
}

/// Rotary positions: Su et al. 2021, eq. 34, with element i turned together with element i + d/2, as Llama and
/// GPT-NeoX have it. Position t turns by (t + offset)·base^(−2i/d).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    pub base: f64,
    pub offset: usize,
    pub heads: HeadOrder,
    /// Turns back: what the gradient does.
    pub inverse: bool,
}

impl AttentionMask {
    /// How many operands it takes.
    pub fn operands(self) -> usize {
        usize::from(self == AttentionMask::Given)
    }
}

impl HeadOrder {
    /// Which dimension heads are along, and which positions.
    pub fn axes(self) -> [usize; 2] {
        match self {
            HeadOrder::Outer => [1, 2],
            HeadOrder::Inner => [2, 1],
        }
    }
}
