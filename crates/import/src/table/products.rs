//! Products of matrices, and rows of tables.

use tensorwire_nn::{Comparison, DType, Op, Output};

use crate::call::Call;
use crate::error::Result;
use crate::module::Argument;
use crate::operators::{Gate, Integers};
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

/// A matrix whose dimensions may be the other way round, and whether they are.
fn matrix(tensor: &Tensor) -> (Output, bool) {
    (tensor.output, !tensor.is_plain())
}

/// x·Wᵀ + b along the last dimension.
pub(super) fn linear(call: &mut Call<'_, '_>) -> Made {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let rank = x.rank();
    // rows may be in any order, as long as each is a row
    let order: Vec<usize> = match x.order.last() {
        Some(last) if last + 1 == rank => x.order.clone(),
        _ => (0..rank).collect(),
    };
    let x = call.laid(&x, "input", &order)?;
    let (weight, is_turned) = matrix(&weight);
    let [outputs, inputs] = [0, 1].map(|axis| call.s.size(weight, usize::from(is_turned) ^ axis));
    let (outputs, inputs) = (call.ok(outputs)?, call.ok(inputs)?);
    let leading: Result<Vec<usize>> =
        (0..rank.saturating_sub(1)).map(|axis| call.ok(call.s.size(x, axis))).collect();
    let mut dims = leading?;
    let rows = [dims.iter().product(), inputs];
    let x = match rank {
        2 => x,
        _ => call.layer("rows", |s, name| s.reshape(name, x, &rows))?,
    };
    let product = Op::MatMul { transpose_a: false, transpose_b: !is_turned };
    let mut y = call.op("product", product, &[x, weight])?;
    if call.tensor_or_none("bias")?.is_some() {
        let bias = call.plain("bias")?;
        y = call.op("biased", Op::BiasAdd, &[y, bias])?;
    }
    dims.push(outputs);
    let output = match rank {
        2 => y,
        _ => call.layer("y", |s, name| s.reshape(name, y, &dims))?,
    };
    Ok(vec![Tensor { output, order }])
}

/// beta·self + alpha·(a·b).
pub(super) fn addmm(call: &mut Call<'_, '_>) -> Made {
    let names = if call.given("mat1").is_some() { ["mat1", "mat2"] } else { ["batch1", "batch2"] };
    let [a, b] = names.map(|name| call.tensor(name));
    let (alpha, beta) = (call.number_or("alpha", 1.0)?, call.number_or("beta", 1.0)?);
    let mut y = product(call, &a?, &b?)?;
    let mut bias = call.plain("self")?;
    if alpha != 1.0 {
        y = call.layer("alpha", |s, name| s.scale(name, y, alpha))?;
    }
    if beta != 1.0 {
        bias = call.layer("beta", |s, name| s.scale(name, bias, beta))?;
    }
    let is_vector = call.ok(call.s.fact(bias))?.dims.len() == 1;
    let output = match is_vector {
        true => call.op("y", Op::BiasAdd, &[y, bias])?,
        false => call.layer("y", |s, name| s.add(name, bias, y))?,
    };
    let rank = call.wanted(0)?.len();
    Ok(vec![Tensor::plain(output, rank)])
}

pub(super) fn matmul(call: &mut Call<'_, '_>) -> Made {
    let second = if call.given("mat2").is_some() { "mat2" } else { "other" };
    let (a, b) = (call.tensor("self")?, call.tensor(second)?);
    let y = product(call, &a, &b)?;
    Ok(vec![call.reshaped("y", y)?])
}

/// The products of matrices along the last two dimensions of both, as many of each; a vector is one row or one column.
fn product(call: &mut Call<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Output> {
    match (a.rank(), b.rank()) {
        (2, 2) => {
            let ((a, transpose_a), (b, transpose_b)) = (matrix(a), matrix(b));
            call.op("product", Op::MatMul { transpose_a, transpose_b }, &[a, b])
        }
        (3.., 2) => {
            let x = call.as_plain(a, "self")?;
            let dims = call.dims(a)?;
            let (width, leading) = dims.split_last().unwrap_or((&1, &[]));
            let rows = [leading.iter().product(), *width];
            let x = call.layer("rows", |s, name| s.reshape(name, x, &rows))?;
            let (b, transpose_b) = matrix(b);
            call.op("product", Op::MatMul { transpose_a: false, transpose_b }, &[x, b])
        }
        (1.., 1) | (1, 2..) => {
            let [mut x, mut y] = [call.as_plain(a, "self")?, call.as_plain(b, "other")?];
            let (mut of_a, mut of_b) = (call.dims(a)?, call.dims(b)?);
            if a.rank() == 1 {
                of_a.insert(0, 1);
                x = call.layer("row", |s, name| s.reshape(name, x, &of_a))?;
            }
            if b.rank() == 1 {
                of_b.push(1);
                y = call.layer("column", |s, name| s.reshape(name, y, &of_b))?;
            }
            let [x, y] = [Tensor::plain(x, of_a.len()), Tensor::plain(y, of_b.len())];
            product(call, &x, &y)
        }
        _ => many_products(call, a, b),
    }
}

fn many_products(call: &mut Call<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Output> {
    let rank = a.rank().max(b.rank());
    let (of_a, of_b) = (call.dims(a)?, call.dims(b)?);
    // of the dimensions before the last two, aligned from the last
    let size = |dims: &[usize], axis: usize| {
        (axis + dims.len()).checked_sub(rank).map_or(1, |at| dims[at])
    };
    let many: Vec<usize> =
        (0..rank - 2).map(|axis| size(&of_a, axis).max(size(&of_b, axis))).collect();
    let mut factor = |tensor: &Tensor, dims: &[usize], what: &str| -> Result<(Output, bool)> {
        let last_two: Vec<usize> = (0..tensor.rank()).collect();
        let mut turned = last_two.clone();
        turned.swap(tensor.rank() - 2, tensor.rank() - 1);
        let is_turned = tensor.order == turned;
        let mut x = call.laid(tensor, what, if is_turned { &turned } else { &last_two })?;
        let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        let last = if is_turned { [columns, rows] } else { [rows, columns] };
        let all = [&many[..], &last].concat();
        if dims[..dims.len() - 2] != many[..] {
            x = call.layer(&format!("{what}/repeated"), |s, name| s.expand(name, x, &all))?;
        }
        Ok((x, is_turned))
    };
    let (a, transpose_a) = factor(a, &of_a, "self")?;
    let (b, transpose_b) = factor(b, &of_b, "other")?;
    call.op("product", Op::BatchMatMul { transpose_a, transpose_b }, &[a, b])
}

/// What integers name along the first dimension.
pub(super) fn index(call: &mut Call<'_, '_>) -> Made {
    let Some(Argument::List(indices)) = call.given("indices") else {
        return call.refuse("a list of indices is needed");
    };
    let [Argument::Tensor(indices)] = &indices[..] else {
        return call.refuse("only integers are known as indices; multiply by what says yes or no, or choose by where");
    };
    let indices = call.found(indices)?;
    let table = call.tensor("self")?;
    let dims = call.dims(&table)?;
    let rows = call.as_plain(&indices, "indices")?;
    if call.dtype(rows)? != DType::I32 || dims.is_empty() {
        return call.refuse("only integers are known as indices; multiply by what says yes or no, or choose by where");
    }
    let table = call.as_plain(&table, "self")?;
    let flat = [dims[0], dims[1..].iter().product()];
    let table = call.layer("table", |s, name| s.reshape(name, table, &flat))?;
    let y = match call.dtype(table)? {
        DType::I32 | DType::U8 => {
            let count = call.dims(&indices)?.iter().product();
            let flat = call.layer("places", |s, name| s.reshape(name, rows, &[count]))?;
            call.op("rows", Integers::Gather.op(), &[table, flat])?
        }
        _ => call.layer("rows", |s, name| s.gather(name, table, rows))?,
    };
    Ok(vec![call.reshaped("y", y)?])
}

/// Rows of a table. Its gradient is of the rows alone if it is `sparse`; otherwise of all, most of them zeros, so that a momentum
/// moves the rows, too, that a batch does not name. The row of `padding_idx` has none. So has PyTorch it.
pub(super) fn embedding(call: &mut Call<'_, '_>) -> Made {
    if call.is("scale_grad_by_freq") {
        return call.refuse("scale_grad_by_freq is not known; leave it out");
    }
    let (mut table, rows) = (call.plain("weight")?, call.plain("indices")?);
    if !call.is("sparse") {
        // a gradient that passes a view is a tensor
        let dims = call.dims(&call.tensor("weight")?)?;
        table = call.layer("table", |s, name| s.reshape(name, table, &dims))?;
    }
    let mut y = call.layer("y", |s, name| s.gather(name, table, rows))?;
    let padding = call.number_or("padding_idx", -1.0)?;
    let dims = call.wanted(0)?;
    if padding >= 0.0 {
        let padding = call.filled("padding", padding, rows, &[])?;
        let open =
            call.layer("open", |s, name| s.compare(name, Comparison::NotEqual, rows, padding))?;
        let mut ones = dims.clone();
        if let Some(last) = ones.last_mut() {
            *last = 1;
        }
        let open = call.layer("open/column", |s, name| s.reshape(name, open, &ones))?;
        let open = call.layer("open/rows", |s, name| s.expand(name, open, &dims))?;
        y = call.op("gated", Gate::op(), &[y, open])?;
    }
    Ok(vec![Tensor::plain(y, dims.len())])
}
