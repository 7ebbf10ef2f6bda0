//! The average of a parameter as it is evaluated, from what a checkpoint holds: the same roundings as those of the graph.

use half::bf16;
use safetensors::Dtype;

/// Puts average + (1 − decay)·(weight − average) in the place of a weight. Averages of bf16 are kept in f32.
pub(super) fn with_average(
    (dtype, weight): (Dtype, &mut [u8]),
    (kept_as, average): (Dtype, &[u8]),
    decay: f64,
) {
    let rate = 1.0 - decay;
    // narrowed as the graph's factor is
    let now = |w: f32, a: f32| a + (w - a) * rate as f32;
    let f32s = || average.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    match (dtype, kept_as) {
        (Dtype::F32, Dtype::F32) => {
            for (w, a) in weight.as_chunks_mut::<4>().0.iter_mut().zip(f32s()) {
                *w = now(f32::from_le_bytes(*w), a).to_le_bytes();
            }
        }
        (Dtype::BF16, Dtype::F32) => {
            for (w, a) in weight.as_chunks_mut::<2>().0.iter_mut().zip(f32s()) {
                *w = bf16::from_f32(now(bf16::from_le_bytes(*w).to_f32(), a)).to_le_bytes();
            }
        }
        (Dtype::F64, Dtype::F64) => {
            for (w, a) in weight.as_chunks_mut::<8>().0.iter_mut().zip(average.as_chunks::<8>().0) {
                let (of, a) = (f64::from_le_bytes(*w), f64::from_le_bytes(*a));
                *w = (a + (of - a) * rate).to_le_bytes();
            }
        }
        // nothing else is learned
        _ => {}
    }
}
