//! Less of a gradient, and a gradient of that: blocks of elements on all threads; the largest elements by counting magnitudes.

use pulp::NullaryFnOnce;

use super::Cpu;
use super::pool::CHUNK;
use crate::launch::compression::{Compressions, QUANTA, magnitude};

/// 1.5·2²³: what is added to it and taken off again is rounded to a whole number, to nearest even, and the lowest byte of the sum is
/// that number's as two's complement.
const WHOLE: f32 = 12_582_912.0;

/// The bits of a magnitude that are counted first, and those that are counted of what is left.
const COUNTED: [u32; 2] = [15, 16];

impl Compressions for Cpu {
    fn quantize(
        &self,
        block: usize,
        residual: &mut [f32],
        x: &[f32],
        q: &mut [u8],
        scales: &mut [f32],
    ) {
        let blocks = (CHUNK / block).max(1);
        let elements = blocks.saturating_mul(block);
        let inputs = residual.chunks_mut(elements).zip(x.chunks(elements));
        let outputs = q.chunks_mut(elements).zip(scales.chunks_mut(blocks));
        self.pool.each_of(inputs.zip(outputs).collect(), |((e, x), (q, scales))| {
            self.simd.run(Quantized { block, e, x, q, scales });
        });
    }

    fn dequantize(&self, block: usize, first: usize, q: &[u8], scales: &[f32], y: &mut [f32]) {
        self.pool.each_chunk(y, |start, y| {
            let q = &q[start..][..y.len()];
            self.simd.run(Dequantized { block, first: first + start, q, scales, y });
        });
    }

    /// The least magnitude that is chosen is found by counting: those of each of the upper bits, then of the lower ones of the
    /// value in which the last one is. So elements are passed over three times, whatever they are, and none is moved.
    fn top_k(&self, residual: &mut [f32], x: &[f32], indices: &mut [i32], values: &mut [f32]) {
        self.pool.each_chunk(residual, |start, e| {
            e.iter_mut().zip(&x[start..]).for_each(|(e, x)| *e += x);
        });
        let [upper, lower] = COUNTED;
        let mut counts = vec![0usize; 1 << upper];
        residual.iter().for_each(|e| counts[(magnitude(*e) >> lower) as usize] += 1);
        let (high, wanted) = last_of(&counts, indices.len());
        let mut counts = vec![0usize; 1 << lower];
        let low = |e: &f32| magnitude(*e) & ((1 << lower) - 1);
        let is_there = |e: &&f32| (magnitude(**e) >> lower) as usize == high;
        residual.iter().filter(is_there).for_each(|e| counts[low(e) as usize] += 1);
        let (low, mut equals) = last_of(&counts, wanted);
        // fits: of 15 and 16 bits
        let least = ((high << lower) | low) as u32;
        let mut at = 0;
        for (i, e) in residual.iter_mut().enumerate() {
            let of_e = magnitude(*e);
            if of_e < least || (of_e == least && equals == 0) || at == indices.len() {
                continue;
            }
            equals -= usize::from(of_e == least);
            // fits: checked before
            indices[at] = i as i32;
            values[at] = std::mem::take(e);
            at += 1;
        }
    }
}

/// Where the last of the `wanted` largest is, and how many of those that are there are wanted.
fn last_of(counts: &[usize], wanted: usize) -> (usize, usize) {
    let mut left = wanted;
    for (at, &count) in counts.iter().enumerate().rev() {
        if count >= left {
            return (at, left);
        }
        left -= count;
    }
    (0, left)
}

/// Blocks with a scale each.
struct Quantized<'a> {
    block: usize,
    /// What was left, and then is.
    e: &'a mut [f32],
    x: &'a [f32],
    q: &'a mut [u8],
    scales: &'a mut [f32],
}

impl NullaryFnOnce for Quantized<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Quantized { block, e, x, q, scales } = self;
        let blocks = e.chunks_mut(block).zip(x.chunks(block));
        for ((e, x), (q, scale)) in blocks.zip(q.chunks_mut(block).zip(scales)) {
            let mut most = 0;
            for (e, x) in e.iter_mut().zip(x) {
                *e += x;
                most = magnitude(*e).max(most);
            }
            let most = f32::from_bits(most);
            *scale = if most.is_finite() { most / QUANTA } else { f32::NAN };
            if *scale > 0.0 {
                let by = *scale;
                for (e, q) in e.iter_mut().zip(q) {
                    let quanta = (*e / by).clamp(-QUANTA, QUANTA) + WHOLE;
                    // the lowest byte
                    *q = quanta.to_bits() as u8;
                    *e -= (quanta - WHOLE) * by;
                }
            } else {
                // nothing, or no number, crosses: the residual is what it is, or no number either
                q.fill(0);
                e.iter_mut().for_each(|e| *e -= 0.0 * *scale);
            }
        }
    }
}

/// Elements from `first` on of a whole.
struct Dequantized<'a> {
    block: usize,
    first: usize,
    q: &'a [u8],
    scales: &'a [f32],
    y: &'a mut [f32],
}

impl NullaryFnOnce for Dequantized<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Dequantized { block, mut first, mut q, scales, mut y } = self;
        while !y.is_empty() {
            let len = (block - first % block).min(y.len());
            let scale = scales[first / block];
            let (now, later) = std::mem::take(&mut y).split_at_mut(len);
            let (bytes, rest) = q.split_at(len);
            for (y, q) in now.iter_mut().zip(bytes) {
                *y = f32::from(q.cast_signed()) * scale;
            }
            (y, q, first) = (later, rest, first + len);
        }
    }
}
