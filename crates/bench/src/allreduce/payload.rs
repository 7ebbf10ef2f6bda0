//! What processes (or devices) put into a collective, and what must come out: whole numbers that every element type
//! here holds exactly, different in every step and of every contributor, repeated after a number of elements that
//! is prime, so that a piece at a wrong place is found.

use std::ops::Range;

use tensorwire_train::FloatType;

/// Elements repeat after so many.
const PERIOD: usize = 251;
/// Periods that are written at a time.
const TILE_PERIODS: usize = 16;
/// Of even and odd steps: what is left of the step before is wrong.
const FACTORS: [u32; 2] = [1, 3];
/// Up to as many contributors the sums are exact.
pub const CONTRIBUTORS_MAX: u32 = 64;
/// bf16 has 8 digits: up to as many contributors differ in it, more all put in the same.
const DIFFERENT_IN_BF16: u32 = 22;

// the largest sums are whole numbers of f32, and of bf16 but for its exponent
const _: () = assert!(
    PERIOD as u32 * 3 * CONTRIBUTORS_MAX * (CONTRIBUTORS_MAX + 1) / 2 < 1 << 24
        && DIFFERENT_IN_BF16 * (DIFFERENT_IN_BF16 + 1) / 2 < 1 << 8
        && CONTRIBUTORS_MAX < 1 << 8
);

/// The values of one measurement.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    dtype: FloatType,
    contributors: u32,
    /// Kept for its memory.
    tile: Vec<u8>,
}

impl Payload {
    pub(super) fn new(dtype: FloatType, contributors: u32) -> Payload {
        Payload { dtype, contributors, tile: Vec::new() }
    }

    /// How large the numbers of a contributor are beside those of the first. Of `None`: of all together.
    pub(super) fn weight(&self, contributor: Option<u32>) -> u32 {
        let differ = self.dtype != FloatType::Bf16 || self.contributors <= DIFFERENT_IN_BF16;
        match (contributor, differ) {
            (Some(contributor), true) => contributor + 1,
            (Some(_), false) => 1,
            (None, true) => self.contributors * (self.contributors + 1) / 2,
            (None, false) => self.contributors,
        }
    }

    /// Fills a range of bytes of a vector with the numbers of a step, so many times.
    pub(super) fn fill(&mut self, vector: &mut [u8], range: Range<usize>, weight: u32, step: u64) {
        for (at, tile) in self.tiles(range, weight, step) {
            vector[at].copy_from_slice(tile);
        }
    }

    /// The first byte of a range of a vector that is not so.
    pub(super) fn first_difference(
        &mut self,
        vector: &[u8],
        range: Range<usize>,
        weight: u32,
        step: u64,
    ) -> Option<usize> {
        let mut tiles = self.tiles(range, weight, step);
        tiles.find_map(|(at, tile)| {
            let found = &vector[at.clone()];
            // the whole at once first: that is fast
            if found == tile {
                return None;
            }
            let differs = found.iter().zip(tile).position(|(found, wanted)| found != wanted);
            differs.map(|byte| at.start + byte)
        })
    }

    /// A range in pieces of a tile, with what is in each.
    fn tiles(
        &mut self,
        range: Range<usize>,
        weight: u32,
        step: u64,
    ) -> impl Iterator<Item = (Range<usize>, &[u8])> {
        let tile_bytes = TILE_PERIODS * PERIOD * self.element_bytes();
        self.tile.clear();
        let needed = range.end.min(tile_bytes).div_ceil(self.element_bytes());
        for index in 0..needed.min(PERIOD) {
            element(self.dtype, index, weight, step, &mut self.tile);
        }
        // most of it is a repetition: what the others of a core do meanwhile is measured
        let period_bytes = self.tile.len();
        while self.tile.len() < needed * self.element_bytes() {
            let left = needed * self.element_bytes() - self.tile.len();
            self.tile.extend_from_within(..left.min(period_bytes));
        }
        let tile = &self.tile;
        let first = range.start / tile_bytes;
        (first..range.end.div_ceil(tile_bytes)).map(move |number| {
            let start = (number * tile_bytes).max(range.start);
            let end = ((number + 1) * tile_bytes).min(range.end);
            (start..end, &tile[start - number * tile_bytes..end - number * tile_bytes])
        })
    }

    fn element_bytes(&self) -> usize {
        tensorwire_tensor::DType::from(self.dtype).bytes()
    }
}

/// Appends an element's bytes.
fn element(dtype: FloatType, index: usize, weight: u32, step: u64, into: &mut Vec<u8>) {
    // fits: a remainder; so below
    let factor = FACTORS[(step % 2) as usize];
    let number = (index as u32 + 1) * weight;
    match dtype {
        FloatType::F32 => into.extend(((number * factor) as f32).to_le_bytes()),
        FloatType::F64 => into.extend(f64::from(number * factor).to_le_bytes()),
        FloatType::Bf16 => {
            // a power of two, so that all digits are the weight's
            let exponent = (index * index % PERIOD % 11) as u32 + factor;
            let value = (weight << exponent) as f32;
            // fits: the upper half, which holds all of it
            into.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [FloatType; 3] = [FloatType::F32, FloatType::F64, FloatType::Bf16];

    fn filled(payload: &mut Payload, elements: usize, weight: u32, step: u64) -> Vec<u8> {
        let mut bytes = vec![0; elements * payload.element_bytes()];
        let all = 0..bytes.len();
        payload.fill(&mut bytes, all, weight, step);
        bytes
    }

    fn numbers(dtype: FloatType, bytes: &[u8]) -> Vec<f64> {
        match dtype {
            FloatType::F32 => {
                bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four).into()).collect()
            }
            FloatType::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            FloatType::Bf16 => {
                let wide = |two: &[u8; 2]| u32::from(u16::from_le_bytes(*two)) << 16;
                bytes.as_chunks().0.iter().map(|two| f32::from_bits(wide(two)).into()).collect()
            }
        }
    }

    #[test]
    fn the_sum_of_all_contributors_is_the_weight_of_all() {
        for dtype in TYPES {
            for contributors in [1, 2, 7, 22, 23, CONTRIBUTORS_MAX] {
                let mut payload = Payload::new(dtype, contributors);
                for step in 0..2 {
                    let mut sums = vec![0.0; 5000];
                    for contributor in 0..contributors {
                        let weight = payload.weight(Some(contributor));
                        let bytes = filled(&mut payload, 5000, weight, step);
                        let add = |(sum, number): (&mut f64, f64)| *sum += number;
                        sums.iter_mut().zip(numbers(dtype, &bytes)).for_each(add);
                    }
                    let all = payload.weight(None);
                    let bytes = filled(&mut payload, 5000, all, step);
                    assert_eq!(numbers(dtype, &bytes), sums, "{dtype:?} {contributors} {step}");
                    let found = payload.first_difference(&bytes, 0..bytes.len(), all, step);
                    assert_eq!(found, None);
                }
            }
        }
    }

    #[test]
    fn what_is_missing_twice_old_displaced_or_torn_is_found() {
        for dtype in TYPES {
            let mut payload = Payload::new(dtype, 3);
            let all = payload.weight(None);
            for weight in [all - 1, all + 2, 0] {
                let bytes = filled(&mut payload, 5000, weight, 0);
                assert_eq!(
                    payload.first_difference(&bytes, 0..8, all, 0).map(|at| at < 8),
                    Some(true)
                );
            }
            let bytes = filled(&mut payload, 5000, all, 1);
            assert!(payload.first_difference(&bytes, 0..bytes.len(), all, 0).is_some());
            let displaced = &bytes[64..];
            assert!(payload.first_difference(displaced, 0..displaced.len(), all, 1).is_some());
            let mut torn = bytes.clone();
            let last = torn.len() - 1;
            torn[last] ^= 1;
            assert_eq!(payload.first_difference(&torn, 0..last, all, 1), None);
            assert_eq!(payload.first_difference(&torn, 0..last + 1, all, 1), Some(last));
        }
    }

    #[test]
    fn ranges_are_filled_by_themselves() {
        let mut payload = Payload::new(FloatType::F32, 2);
        let whole = filled(&mut payload, 40_000, 1, 0);
        let mut parts = vec![0; whole.len()];
        for range in [0..3, 3..70_001, 70_001..90_000, 90_000..160_000] {
            payload.fill(&mut parts, range, 1, 0);
        }
        assert!(parts == whole);
    }
}
