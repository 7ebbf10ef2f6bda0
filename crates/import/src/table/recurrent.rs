//! Recurrent layers over sequences of one length, layer over layer, in one direction or both.

use std::ops::Range;

use tensorwire_nn::{Cell, Op, Output, Scope};

use crate::call::Call;
use crate::error::Result;
use crate::order::Tensor;
use crate::table::moves::from_last;

type Made = Result<Vec<Tensor>>;

pub(super) fn lstm(call: &mut Call<'_, '_>) -> Made {
    let states = call.tensors("hx")?;
    let y = layers(call, Cell::Lstm, &states)?;
    Ok(y)
}

pub(super) fn rnn(call: &mut Call<'_, '_>) -> Made {
    let state = call.tensor("hx")?;
    layers(call, Cell::Rnn, &[state])
}

pub(super) fn gru(call: &mut Call<'_, '_>) -> Made {
    let state = call.tensor("hx")?;
    layers(call, Cell::Gru, &[state])
}

/// Steps, samples and hidden units of a layer.
#[derive(Clone, Copy)]
struct Size {
    steps: usize,
    batch: usize,
    hidden: usize,
}

/// y with all directions side by side, and each state behind the last step of all layers.
fn layers(call: &mut Call<'_, '_>, cell: Cell, states: &[Tensor]) -> Made {
    let input = call.tensor("input")?;
    if input.rank() != 3 {
        return call.refuse("a batch of sequences is needed; give them three dimensions");
    }
    let input = if call.is("batch_first") { input.permuted(&[1, 0, 2]) } else { input };
    let dims = call.dims(&input)?;
    let hidden = call.dims(&states[0])?[2];
    let size = Size { steps: dims[0], batch: dims[1], hidden };
    let mut x = call.as_plain(&input, "input")?;
    let has_biases = call.is("has_biases");
    let each = if has_biases { 4 } else { 2 };
    let params = call.tensors("params")?;
    // fits: layers are few
    let count = call.int("num_layers")? as usize;
    let directions = if call.is("bidirectional") { 2 } else { 1 };
    if params.len() != each * count * directions {
        return call.refuse("projections (proj_size) are not known; put a linear layer behind it");
    }
    let mut last = vec![Vec::new(); states.len()];
    for layer in 0..count {
        let mut sides = Vec::new();
        for direction in 0..directions {
            let at = layer * directions + direction;
            let what = format!("layer_{layer}_{direction}");
            let from =
                if direction == 1 { reversed(call, &format!("{what}/turn"), x, size)? } else { x };
            let of_layer = &params[at * each..][..each];
            let firsts = first_states(call, &what, states, at, size)?;
            let (y, finals) = one(call, &what, cell, from, of_layer, &firsts, size)?;
            sides.push(if direction == 1 {
                reversed(call, &format!("{what}/back"), y, size)?
            } else {
                y
            });
            last.iter_mut().zip(finals).for_each(|(all, state)| all.push(state));
        }
        x = match sides[..] {
            [one] => one,
            _ => call.layer(&format!("layer_{layer}"), |s, name| s.concat(name, 2, &sides))?,
        };
        let rate = call.number_or("dropout", 0.0)?;
        if call.is("train") && rate > 0.0 && layer + 1 < count {
            x = call.layer(&format!("layer_{layer}/kept"), |s, name| s.dropout(name, x, rate))?;
        }
    }
    let y = Tensor::plain(x, 3);
    let mut made = vec![if call.is("batch_first") { y.permuted(&[1, 0, 2]) } else { y }];
    for (state, all) in last.into_iter().enumerate() {
        let dims = [all.len(), size.batch, hidden];
        let rows = call.layer(&format!("last_{state}"), |s, name| s.concat(name, 0, &all))?;
        let rows =
            call.layer(&format!("last_{state}/all"), |s, name| s.reshape(name, rows, &dims))?;
        made.push(Tensor::plain(rows, 3));
    }
    Ok(made)
}

/// The states before the first step of one layer, `f[batch, hidden]` each.
fn first_states(
    call: &mut Call<'_, '_>,
    what: &str,
    states: &[Tensor],
    at: usize,
    size: Size,
) -> Result<Vec<Output>> {
    let mut firsts = Vec::new();
    for (index, state) in states.iter().enumerate() {
        let all = call.as_plain(state, &format!("{what}/state_{index}"))?;
        firsts.push(call.layer(&format!("{what}/first_{index}"), |s, name| {
            let one = s.slice(&format!("{name}/one"), all, 0, at..at + 1)?;
            s.reshape(name, one, &[size.batch, size.hidden])
        })?);
    }
    Ok(firsts)
}

/// What a unit's update gate is given so that the unit never changes: its sigmoid is 1.
const NEVER: f64 = 64.0;

/// One layer in one direction, x: `f[steps, batch, inputs]`: h after each step, `f[steps, batch, hidden]`, and the last states.
/// PyTorch has the gates' matrices one below the other, in our order, and two biases where ours is their sum. A GRU resets the
/// second bias of its new state too: there it is a column of the matrix, for one more unit that is always 1.
fn one(
    call: &mut Call<'_, '_>,
    what: &str,
    cell: Cell,
    x: Output,
    params: &[Tensor],
    states: &[Output],
    size: Size,
) -> Result<(Output, Vec<Output>)> {
    let mut plain = Vec::new();
    for (index, tensor) in params.iter().enumerate() {
        plain.push(call.as_plain(tensor, &format!("{what}/parameter_{index}"))?);
    }
    let inputs = call.ok(call.s.size(x, 2))?;
    let Size { steps, batch, hidden } = size;
    call.layer(what, |s, name| {
        let rows = s.reshape(&format!("{name}/rows"), x, &[steps * batch, inputs])?;
        let bias = match plain[2..] {
            [of_input, of_state] => Some(s.add(&format!("{name}/bias"), of_input, of_state)?),
            _ => None,
        };
        let has_unit = cell == Cell::Gru && bias.is_some();
        let (mut products, mut matrices) = (Vec::new(), Vec::new());
        for gate in 0..cell.gates() {
            let of = |part: &str| format!("{name}/gate_{gate}/{part}");
            let range = gate * hidden..(gate + 1) * hidden;
            let weight = s.slice(&of("input"), plain[0], 0, range.clone())?;
            let mut product = s.matmul_transposed(&of("product"), rows, weight)?;
            let is_new = has_unit && gate == 2;
            if let Some(bias) = bias.map(|sum| if is_new { plain[2] } else { sum }) {
                let bias = s.slice(&of("bias"), bias, 0, range.clone())?;
                product = s.op(&of("biased"), Op::BiasAdd, &[product, bias])?;
            }
            let mut matrix = s.slice(&of("recurrent"), plain[1], 0, range.clone())?;
            if has_unit {
                let stays = if gate == 1 { NEVER } else { 0.0 };
                product = with_column(s, &of("unit"), product, stays)?;
                let resets = is_new.then_some((plain[3], range));
                matrix = with_unit(s, &of("reset"), matrix, resets, hidden)?;
            }
            products.push(product);
            matrices.push(matrix);
        }
        let mut firsts = states.to_vec();
        if has_unit {
            firsts = vec![with_column(s, &format!("{name}/first"), states[0], 1.0)?];
        }
        let active = s.equal_lengths(&format!("{name}/active"), batch, steps)?;
        let operands = [&products[..], &matrices, &firsts, &[active]].concat();
        let mut y = s.op(&format!("{name}/cell"), Op::Recurrent { cell }, &operands)?;
        // fits: a cell has two states at most
        let mut last: Vec<Output> =
            (0..states.len()).map(|state| Output { index: 1 + state as u32, ..y }).collect();
        if has_unit {
            y = s.slice(&format!("{name}/units"), y, 1, 0..hidden)?;
            last = vec![s.slice(&format!("{name}/last"), last[0], 1, 0..hidden)?];
        }
        let all = s.reshape(name, y, &[steps, batch, hidden])?;
        Ok((all, last))
    })
}

/// A recurrent matrix with one more unit, which changes nobody but by its column: a part of a bias, or zeros.
fn with_unit(
    s: &mut Scope<'_>,
    name: &str,
    matrix: Output,
    bias: Option<(Output, Range<usize>)>,
    hidden: usize,
) -> tensorwire_nn::Result<Output> {
    let of = |part: &str| format!("{name}/{part}");
    let column = match bias {
        Some((bias, range)) => s.slice(&of("bias"), bias, 0, range)?,
        None => s.zeros(&of("none"), &[hidden])?,
    };
    let column = s.reshape(&of("column"), column, &[hidden, 1])?;
    let wide = s.concat(&of("wide"), 1, &[matrix, column])?;
    let row = s.zeros(&of("row"), &[1, hidden + 1])?;
    s.concat(name, 0, &[wide, row])
}

/// x: `f[rows, c]` with one more column, of this value.
fn with_column(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    value: f64,
) -> tensorwire_nn::Result<Output> {
    let rows = s.size(x, 0)?;
    let column = s.constant(&format!("{name}/column"), value, &[rows, 1])?;
    s.concat(name, 1, &[x, column])
}

/// x: `f[steps, batch, c]` with its last step first.
fn reversed(call: &mut Call<'_, '_>, what: &str, x: Output, size: Size) -> Result<Output> {
    let width = call.ok(call.s.size(x, 2))?;
    let Size { steps, batch, .. } = size;
    let places = from_last(call, what, steps)?;
    call.layer(what, |s, name| {
        let rows = s.reshape(&format!("{name}/rows"), x, &[steps, batch * width])?;
        let turned = s.gather(&format!("{name}/gather"), rows, places)?;
        s.reshape(name, turned, &[steps, batch, width])
    })
}
