//! What transformers are made of, with parameters named and laid out as those of other programs: `<name>.weight` and
//! `<name>.bias`. Knows no family of models.

use tensorwire_nn::{HeadOrder, Init, Mask, Op, Output, Result, Scope};

/// First values of matrices and embeddings in GPT-2, BERT and ViT.
pub(super) const NORMAL: Init = Init::Normal { deviation: 0.02 };

/// How the matrix of a linear layer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[inputs, outputs]`: GPT-2's `Conv1D`.
    InputsFirst,
    /// `[outputs, inputs]`: PyTorch's `Linear`.
    OutputsFirst,
}

/// The sizes of attention: batch, length, heads, and the width of all heads together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) heads: usize,
    pub(super) width: usize,
}

/// A linear layer with a bias, x: `f[rows, inputs]` → `f[rows, outputs]`.
pub(super) fn linear(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    outputs: usize,
    (layout, init): (Layout, Init),
) -> Result<Output> {
    let inputs = s.size(x, 1)?;
    let dims = match layout {
        Layout::InputsFirst => [inputs, outputs],
        Layout::OutputsFirst => [outputs, inputs],
    };
    let weight = s.parameter(&format!("{name}.weight"), &dims, init)?;
    let product = format!("{name}/product");
    let y = match layout {
        Layout::InputsFirst => s.matmul(&product, x, weight)?,
        Layout::OutputsFirst => s.matmul_transposed(&product, x, weight)?,
    };
    bias(s, name, y, &format!("{name}.bias"))
}

/// Adds the parameter `parameter`, `[columns]`, to each row.
pub(super) fn bias(s: &mut Scope<'_>, name: &str, x: Output, parameter: &str) -> Result<Output> {
    let columns = s.size(x, 1)?;
    let bias = s.parameter(parameter, &[columns], Init::Zeros)?;
    s.op(name, Op::BiasAdd, &[x, bias])
}

/// Layer normalisation of each row, x: `f[rows, width]`.
pub(super) fn norm(s: &mut Scope<'_>, name: &str, x: Output, epsilon: f64) -> Result<Output> {
    let width = s.size(x, 1)?;
    let one = Init::Constant { value: 1.0 };
    let scale = s.parameter(&format!("{name}.weight"), &[width], one)?;
    let shift = s.parameter(&format!("{name}.bias"), &[width], Init::Zeros)?;
    s.layer_norm_by(name, x, [scale, shift], epsilon)
}

/// Queries, keys and values that one layer made side by side, x: `f[rows, 3·width]` → three of `f[rows, width]`.
pub(super) fn thirds(s: &mut Scope<'_>, name: &str, x: Output) -> Result<[Output; 3]> {
    let width = s.size(x, 1)? / 3;
    let mut third = |part: usize, what: &str| {
        s.slice(&format!("{name}/{what}"), x, 1, part * width..(part + 1) * width)
    };
    Ok([third(0, "query")?, third(1, "key")?, third(2, "value")?])
}

/// Attention of some heads over rows, each of q, k and v: `f[batch·length, width]` → the same.
pub(super) fn attend(
    s: &mut Scope<'_>,
    name: &str,
    rows: [Output; 3],
    heads: Heads,
    mask: Mask,
) -> Result<Output> {
    let Heads { batch, length, heads, width } = heads;
    let dims = [batch, length, heads, width / heads];
    let mut split = |x, what: &str| s.reshape(&format!("{name}/{what}/heads"), x, &dims);
    let [q, k, v] = rows;
    let heads = [split(q, "query")?, split(k, "key")?, split(v, "value")?];
    let y = s.attention(name, heads, mask, HeadOrder::Inner)?;
    s.reshape(&format!("{name}/joined"), y, &[batch * length, width])
}

/// The first `length` rows of a table of places, `[places, width]`.
pub(super) fn places(
    s: &mut Scope<'_>,
    name: &str,
    [places, width]: [usize; 2],
    length: usize,
) -> Result<Output> {
    let table = s.parameter(&format!("{name}.weight"), &[places, width], NORMAL)?;
    s.slice(name, table, 0, 0..length)
}
