//! Layers of transformers.

use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Init, Op, Output, Rotary, SampleNorm};
use tensorwire_tensor::Dim;

use super::Scope;
use crate::error::{Error, Result};

/// Which keys a query of [`Scope::attention`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All.
    None,
    /// Those at its place and before; there are as many keys as queries.
    Causal,
    /// What a tensor `[b|1, h|1, t|1, s]` says: of floating point, it is added to the scaled products; of `u8`, a key is seen
    /// where it is not 0. It has no gradient.
    Given(Output),
}

impl Scope<'_> {
    /// Scaled dot-product attention, `softmax(q·kᵀ/√d)·v` of each head (Vaswani et al. 2017, eq. 1); q: `f[b, h, t, d]`,
    /// k and v: `f[b, g, s, d]` → `f[b, h, t, d]`. With [`HeadOrder::Inner`] dimensions are `[b, t, h, d]`, which is a view of
    /// what a linear layer makes. h is a multiple of g: h/g heads share one of k and v (Ainslie et al. 2023).
    ///
    /// The products q·kᵀ are never stored (FlashAttention-2, Dao 2023): memory grows with t, not with t·s. A query that sees
    /// no key gets 0.
    ///
    /// ```
    /// # use tensorwire_nn::{HeadOrder, Mask, Output, Result, Scope};
    /// /// Self-attention of 12 heads, x: `f[b, t, 768]`.
    /// fn attend(s: &mut Scope<'_>, x: Output, [b, t]: [usize; 2]) -> Result<Output> {
    ///     let heads = |s: &mut Scope<'_>, name: &str| {
    ///         let y = s.linear_each(name, x, 768)?;
    ///         s.reshape(&format!("{name}/heads"), y, &[b, t, 12, 64])
    ///     };
    ///     let [q, k, v] = [heads(s, "query")?, heads(s, "key")?, heads(s, "value")?];
    ///     let y = s.attention("attention", [q, k, v], Mask::Causal, HeadOrder::Inner)?;
    ///     let y = s.reshape("joined", y, &[b, t, 768])?;
    ///     s.linear_each("output", y, 768)
    /// }
    /// ```
    ///
    /// # Errors
    /// When the tensors or the mask do not fit each other, or d is not known.
    pub fn attention(
        &mut self,
        name: &str,
        [q, k, v]: [Output; 3],
        mask: Mask,
        heads: HeadOrder,
    ) -> Result<Output> {
        let wanted = "queries [b, h, t, d] with d known are needed";
        // fits: exact in f64
        let depth = self.known(name, ("q", q), 3, wanted)? as f64;
        let mut inputs = vec![q, k, v];
        let mask = match mask {
            Mask::None => AttentionMask::None,
            Mask::Causal => AttentionMask::Causal,
            Mask::Given(mask) => {
                inputs.push(mask);
                AttentionMask::Given
            }
        };
        let by = Attention { mask, heads, scale: 1.0 / depth.sqrt() };
        self.op(&format!("{name}/attention"), Op::Attention(by), &inputs)
    }

    /// Rotary positions (Su et al. 2021, eq. 34), x: `f[b, h, t, d]`, or `f[b, t, h, d]` with [`HeadOrder::Inner`], d even → the
    /// same dimensions. Elements i and i + d/2 are turned together by (t + offset)·base^(−2i/d), as Llama and GPT-NeoX have
    /// it; `base` is 10000 in the paper. What was made by other programs with pairs (2i, 2i + 1) does not fit.
    ///
    /// # Errors
    /// When `x` has other dimensions.
    pub fn rotary(
        &mut self,
        name: &str,
        x: Output,
        base: f64,
        offset: usize,
        heads: HeadOrder,
    ) -> Result<Output> {
        let by = Rotary { base, offset, heads, inverse: false };
        self.op(&format!("{name}/rotary"), Op::Rotary(by), &[x])
    }

    /// (x − mean)/√(variance + epsilon)·scale + shift over the last dimension, x: `f[…, c]` → `f[…, c]` (Ba et al. 2016).
    /// Parameters `<name>/scale`, `[c]`, first ones, and `<name>/shift`, `[c]`, first zeros. PyTorch's epsilon is 1e-5.
    ///
    /// # Errors
    /// When the last dimension of `x` is not known, or the only one.
    pub fn layer_norm(&mut self, name: &str, x: Output, epsilon: f64) -> Result<Output> {
        self.sample_norm(name, x, SampleNorm::Layer, epsilon)
    }

    /// As [`Scope::layer_norm`], with a scale and a shift that are given, `f[c]` each: parameters by any names.
    ///
    /// # Errors
    /// As there, or when they do not fit.
    pub fn layer_norm_by(
        &mut self,
        name: &str,
        x: Output,
        [scale, shift]: [Output; 2],
        epsilon: f64,
    ) -> Result<Output> {
        let norm = Op::SampleNorm { by: SampleNorm::Layer, epsilon };
        self.op(&format!("{name}/norm"), norm, &[x, scale, shift])
    }

    /// x/√(mean(x²) + epsilon)·scale over the last dimension, x: `f[…, c]` → `f[…, c]` (Zhang and Sennrich 2019). Parameter
    /// `<name>/scale`, `[c]`, first ones.
    ///
    /// # Errors
    /// As [`Scope::layer_norm`].
    pub fn rms_norm(&mut self, name: &str, x: Output, epsilon: f64) -> Result<Output> {
        self.sample_norm(name, x, SampleNorm::Rms, epsilon)
    }

    /// As [`Scope::layer_norm`], with the mean and the variance of all positions of a sample in one of `groups` groups of
    /// channels, x: `f[b, …, c]` → `f[b, …, c]` (Wu and He 2018).
    ///
    /// # Errors
    /// When the channels are not known, or cannot be cut into so many groups.
    pub fn group_norm(
        &mut self,
        name: &str,
        x: Output,
        groups: usize,
        epsilon: f64,
    ) -> Result<Output> {
        self.sample_norm(name, x, SampleNorm::Group { groups }, epsilon)
    }

    fn sample_norm(
        &mut self,
        name: &str,
        x: Output,
        by: SampleNorm,
        epsilon: f64,
    ) -> Result<Output> {
        let last = self.fact(x)?.dims.len().saturating_sub(1);
        let wanted = "a tensor of floating point with a known number of channels is needed";
        let channels = self.known(name, ("x", x), last, wanted)?;
        let one = Init::Constant { value: 1.0 };
        let mut inputs = vec![x, self.parameter(&format!("{name}/scale"), &[channels], one)?];
        if by.is_centred() {
            inputs.push(self.parameter(&format!("{name}/shift"), &[channels], Init::Zeros)?);
        }
        self.op(&format!("{name}/norm"), Op::SampleNorm { by, epsilon }, &inputs)
    }

    /// As [`Scope::linear`], of each row along the last dimension, x: `f[…, inputs]` → `f[…, outputs]`.
    ///
    /// # Errors
    /// When `x` has no known last dimension.
    pub fn linear_each(&mut self, name: &str, x: Output, outputs: usize) -> Result<Output> {
        let (rows, leading) = self.rows(name, x)?;
        let y = self.linear(name, rows, outputs)?;
        self.unrolled(name, y, leading, Some(outputs))
    }

    /// As [`Scope::linear_each`], without a bias.
    ///
    /// # Errors
    /// As there.
    pub fn projection(&mut self, name: &str, x: Output, outputs: usize) -> Result<Output> {
        let (rows, leading) = self.rows(name, x)?;
        let inputs = self.size(rows, 1)?;
        let init = Init::GlorotUniform { fan_in: inputs, fan_out: outputs };
        let weight = self.parameter(&format!("{name}/weight"), &[outputs, inputs], init)?;
        let y = self.matmul_transposed(&format!("{name}/product"), rows, weight)?;
        self.unrolled(name, y, leading, Some(outputs))
    }

    /// `f[…, c]` as `f[rows, c]`, and the dimensions before the last. No byte is moved.
    pub(super) fn rows(&mut self, name: &str, x: Output) -> Result<(Output, Vec<Dim>)> {
        let fact = self.fact(x)?.clone();
        let Some((&last, leading)) = fact.dims.split_last() else {
            return Err(Error::layer(name, format!("x is {fact}; a last dimension is needed")));
        };
        let to = vec![self.product(name, leading)?, last];
        let rows = match leading {
            [_] => x,
            _ => self.op(&format!("{name}/rows"), Op::Reshape { to }, &[x])?,
        };
        Ok((rows, leading.to_vec()))
    }

    /// All elements behind each other. No byte is moved.
    pub(super) fn flat(&mut self, name: &str, x: Output) -> Result<(Output, Vec<Dim>)> {
        let dims = self.fact(x)?.dims.clone();
        let to = vec![self.product(name, &dims)?];
        let flat = match dims[..] {
            [_] => x,
            _ => self.op(&format!("{name}/flat"), Op::Reshape { to }, &[x])?,
        };
        Ok((flat, dims))
    }

    /// Rows, or elements where there is no `last`, with the dimensions that they had.
    pub(super) fn unrolled(
        &mut self,
        name: &str,
        rows: Output,
        leading: Vec<Dim>,
        last: Option<usize>,
    ) -> Result<Output> {
        if leading.len() == 1 {
            return Ok(rows);
        }
        let mut to = leading;
        to.extend(last.map(Dim::Known));
        self.op(&format!("{name}/unrolled"), Op::Reshape { to }, &[rows])
    }

    fn product(&mut self, name: &str, dims: &[Dim]) -> Result<Dim> {
        let mut known = 1usize;
        for dim in dims {
            match dim {
                Dim::Known(size) => {
                    let too_many = || Error::layer(name, "x has more rows than fit any memory");
                    known = known.checked_mul(*size).ok_or_else(too_many)?;
                }
                Dim::Dynamic(_) => return Ok(Dim::Dynamic(self.graph().symbol())),
            }
        }
        Ok(Dim::Known(known))
    }
}
