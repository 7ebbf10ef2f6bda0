//! Gradients by rows as a store takes them: sorted by row. Rows of one index stay in their order, so that
//! adding them gives the same bits; only where there are more rows than the value has are they added here.

use half::bf16;
use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::{DType, TensorSpec};

/// Indices and rows to push, from a batch's: `indices` are i32[k], `rows` are f[k, d].
pub(super) fn sorted_rows(
    worker: &mut KvWorker,
    key: Key,
    indices: &Buffer,
    spec: &TensorSpec,
    rows: &Buffer,
) -> Result<(Vec<i32>, Buffer), StoreError> {
    let lent =
        |source: tensorwire_memory::LoanError| StoreError::Lent { key, what: source.to_string() };
    let told: Vec<i32> = {
        let bytes = indices.read().map_err(lent)?;
        bytes.as_chunks::<4>().0.iter().map(|index| i32::from_le_bytes(*index)).collect()
    };
    let columns = spec.dims().get(1).copied().unwrap_or(1);
    let row = columns * spec.dtype.bytes();
    let mut order: Vec<usize> = (0..told.len()).collect();
    order.sort_by_key(|at| told[*at]);
    let from = rows.read().map_err(lent)?;
    let most = worker.spec(key).map_or(usize::MAX, |spec| spec.rows);
    let is_added = told.len() > most;
    let mut sorted: Vec<i32> = Vec::with_capacity(told.len());
    let mut bytes: Vec<u8> = Vec::with_capacity(told.len() * row);
    for at in order {
        let here = &from[at * row..(at + 1) * row];
        if is_added && sorted.last() == Some(&told[at]) {
            let start = bytes.len() - row;
            add(spec.dtype, &mut bytes[start..], here);
        } else {
            sorted.push(told[at]);
            bytes.extend_from_slice(here);
        }
    }
    let pushed = ValueSpec { dtype: spec.dtype, rows: sorted.len(), columns };
    let buffer = worker.alloc(&pushed)?;
    buffer.write().map_err(lent)?.copy_from_slice(&bytes);
    Ok((sorted, buffer))
}

fn add(dtype: DType, into: &mut [u8], from: &[u8]) {
    macro_rules! each {
        ($float:ty, $sum:expr) => {{
            let (into, _) = into.as_chunks_mut::<{ size_of::<$float>() }>();
            let (from, _) = from.as_chunks::<{ size_of::<$float>() }>();
            for (into, from) in into.iter_mut().zip(from) {
                let sum: $float =
                    $sum(<$float>::from_le_bytes(*into), <$float>::from_le_bytes(*from));
                *into = sum.to_le_bytes();
            }
        }};
    }
    match dtype {
        DType::F32 => each!(f32, |a: f32, b: f32| a + b),
        DType::F64 => each!(f64, |a: f64, b: f64| a + b),
        DType::BF16 => each!(bf16, |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32())),
        // the graph gives gradients of floating values alone
        DType::I32 | DType::I64 | DType::U8 => {}
    }
}
