//! Attention: in one operator where it can be, and else as products.

use tensorwire_graph::{Attention, AttentionMask, HeadOrder};
use tensorwire_nn::{DType, Op, Output};

use crate::call::Call;
use crate::error::Result;
use crate::module::Argument;
use crate::order::Tensor;

type Made = Result<Vec<Tensor>>;

/// How positions and heads lie where a view of what a linear layer makes is turned.
const INNER: [usize; 4] = [0, 2, 1, 3];
const OUTER: [usize; 4] = [0, 1, 2, 3];

pub(super) fn attention(call: &mut Call<'_, '_>) -> Made {
    let [query, key, value] = ["query", "key", "value"].map(|name| call.tensor(name));
    let (query, key, value) = (query?, key?, value?);
    if [&query, &key, &value].iter().any(|tensor| tensor.rank() != 4) {
        return call.refuse("queries, keys and values [batch, heads, length, width] are needed; give them four dimensions");
    }
    let dims = call.dims(&query)?;
    // fits: exact in f64
    let scale = call.number_or("scale", 1.0 / (dims[3] as f64).sqrt())?;
    let same_width = call.dims(&value)?[3] == dims[3];
    let is_alone =
        matches!(call.given("attn_mask"), Some(Argument::Tensor(mask)) if !call.is_constant(mask));
    let drops = call.number_or("dropout_p", 0.0)? > 0.0;
    if drops || is_alone || !same_width {
        return by_products(call, [query, key, value], scale);
    }
    let is_inner = [&query, &key, &value].iter().all(|tensor| tensor.order == INNER);
    let (heads, order) =
        if is_inner { (HeadOrder::Inner, INNER) } else { (HeadOrder::Outer, OUTER) };
    let mut inputs = vec![
        call.laid(&query, "query", &order)?,
        call.laid(&key, "key", &order)?,
        call.laid(&value, "value", &order)?,
    ];
    let mask = match call.tensor_or_none("attn_mask")? {
        _ if call.is("is_causal") => AttentionMask::Causal,
        None => AttentionMask::None,
        Some(mask) => {
            inputs.push(four(call, &mask)?);
            AttentionMask::Given
        }
    };
    let output = call.op("y", Op::Attention(Attention { mask, heads, scale }), &inputs)?;
    Ok(vec![Tensor { output, order: order.to_vec() }])
}

/// A mask with dimensions of batch and heads.
fn four(call: &mut Call<'_, '_>, mask: &Tensor) -> Result<Output> {
    let mut dims = call.dims(mask)?;
    let plain = call.as_plain(mask, "attn_mask")?;
    if dims.len() == 4 {
        return Ok(plain);
    }
    while dims.len() < 4 {
        dims.insert(0, 1);
    }
    call.layer("attn_mask/four", |s, name| s.reshape(name, plain, &dims))
}

/// softmax(scale·q·kᵀ + mask)·v, with what is dropped of the softmax.
fn by_products(call: &mut Call<'_, '_>, all: [Tensor; 3], scale: f64) -> Made {
    let dims = call.dims(&all[0])?;
    let [query, key, value] = &all;
    let (length, keys) = (dims[2], call.dims(key)?[2]);
    let query = call.laid(query, "query", &OUTER)?;
    let key = repeated(call, key, "key", dims[1])?;
    let value = repeated(call, value, "value", dims[1])?;
    let mut scores =
        call.layer("products", |s, name| s.batch_matmul_transposed(name, query, key))?;
    scores = call.layer("scaled", |s, name| s.scale(name, scores, scale))?;
    let mask = match call.tensor_or_none("attn_mask")? {
        _ if call.is("is_causal") => Some(causal(call, length, keys)?),
        None => None,
        Some(mask) => Some(four(call, &mask)?),
    };
    if let Some(mask) = mask {
        let is_bool = call.dtype(mask)? == DType::U8;
        scores = match is_bool {
            true => {
                let never = call.filled("never", f64::NEG_INFINITY, scores, &[])?;
                call.layer("seen", |s, name| s.select(name, mask, scores, never))?
            }
            false => call.layer("masked", |s, name| s.add(name, scores, mask))?,
        };
    }
    let mut shares = call.layer("shares", |s, name| s.softmax(name, scores))?;
    let rate = call.number_or("dropout_p", 0.0)?;
    if rate > 0.0 {
        shares = call.layer("kept", |s, name| s.dropout(name, shares, rate))?;
    }
    let output = call.layer("y", |s, name| s.batch_matmul(name, shares, value))?;
    Ok(vec![Tensor { output, order: OUTER.to_vec() }])
}

/// Keys or values with as many heads as there are of queries.
fn repeated(call: &mut Call<'_, '_>, x: &Tensor, what: &str, heads: usize) -> Result<Output> {
    let dims = call.dims(x)?;
    let output = call.laid(x, what, &OUTER)?;
    if dims[1] == heads {
        return Ok(output);
    }
    let [batch, groups, length, width] = [dims[0], dims[1], dims[2], dims[3]];
    let each = heads / groups;
    call.layer(&format!("{what}/repeated"), |s, name| {
        let x = s.reshape(&format!("{name}/one"), output, &[batch, groups, 1, length, width])?;
        let x = s.expand(&format!("{name}/each"), x, &[batch, groups, each, length, width])?;
        s.reshape(name, x, &[batch, heads, length, width])
    })
}

/// 1 where a key is at the query's place or before it.
fn causal(call: &mut Call<'_, '_>, length: usize, keys: usize) -> Result<Output> {
    let bytes: Vec<u8> =
        (0..length).flat_map(|t| (0..keys).map(move |s| u8::from(s <= t))).collect();
    let spec = tensorwire_tensor::TensorSpec::new(DType::U8, &[1, 1, length, keys]);
    let spec = spec.or_else(|error| call.refuse(error.to_string()))?;
    call.op("causal", crate::operators::Constant::op(spec, bytes.into()), &[])
}
