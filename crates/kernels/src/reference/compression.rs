//! Less of a gradient, and a gradient of that.

use std::cmp::Reverse;

use super::Reference;
use crate::launch::compression::{Compressions, QUANTA, magnitude};

impl Compressions for Reference {
    fn quantize(
        &self,
        block: usize,
        residual: &mut [f32],
        x: &[f32],
        q: &mut [u8],
        scales: &mut [f32],
    ) {
        for (at, scale) in scales.iter_mut().enumerate() {
            let all = at * block..x.len().min((at + 1) * block);
            all.clone().for_each(|i| residual[i] += x[i]);
            let e = &mut residual[all.clone()];
            *scale = match e.iter().all(|e| e.is_finite()) {
                true => e.iter().fold(0.0f32, |most, e| most.max(e.abs())) / QUANTA,
                false => f32::NAN,
            };
            for (e, q) in e.iter_mut().zip(&mut q[all]) {
                // the least scale is 0 where all elements are next to nothing: they wait
                let quanta = if *scale > 0.0 { *e / *scale } else { 0.0 };
                let quanta = quanta.clamp(-QUANTA, QUANTA).round_ties_even() as i8;
                *q = quanta.cast_unsigned();
                *e -= f32::from(quanta) * *scale;
            }
        }
    }

    fn dequantize(&self, block: usize, first: usize, q: &[u8], scales: &[f32], y: &mut [f32]) {
        for (i, (y, q)) in y.iter_mut().zip(q).enumerate() {
            *y = f32::from(q.cast_signed()) * scales[(first + i) / block];
        }
    }

    fn top_k(&self, residual: &mut [f32], x: &[f32], indices: &mut [i32], values: &mut [f32]) {
        residual.iter_mut().zip(x).for_each(|(e, x)| *e += x);
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by_key(|i| (Reverse(magnitude(residual[*i])), *i));
        order.truncate(indices.len());
        order.sort_unstable();
        for (at, i) in order.into_iter().enumerate() {
            // fits: checked before
            indices[at] = i as i32;
            values[at] = std::mem::take(&mut residual[i]);
        }
    }
}
