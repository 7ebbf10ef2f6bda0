//! What the tensor holds: a fixed pattern below 1, and in each step one element that is the largest,
//! with a value and at a place that only this step has. So a tensor that did not arrive, or arrived of
//! another step, gives another maximum; and one that arrived in part differs from the pattern.

/// Steps that can be told apart: beyond it, f32 has no room for the next integer.
pub(super) const STEPS_MAX: u64 = (1 << 24) - 2;

/// The largest element of a step (from 1).
pub(super) fn maximum(step: u64) -> f32 {
    // fits: exact up to STEPS_MAX
    (step + 1) as f32
}

/// Fills a tensor with the pattern, as it is before the first step.
pub(super) fn fill(tensor: &mut [f32]) {
    for (index, element) in tensor.iter_mut().enumerate() {
        *element = pattern(index);
    }
}

/// Makes a tensor of the step before this step's: two elements change.
pub(super) fn advance(tensor: &mut [f32], step: u64) {
    if step > 1 {
        let before = position(step - 1, tensor.len());
        tensor[before] = pattern(before);
    }
    tensor[position(step, tensor.len())] = maximum(step);
}

/// The first element that is not this step's.
pub(super) fn first_difference(tensor: &[f32], step: u64) -> Option<usize> {
    let top = position(step, tensor.len());
    tensor.iter().enumerate().position(|(index, &found)| {
        let expected = if index == top { maximum(step) } else { pattern(index) };
        found.to_bits() != expected.to_bits()
    })
}

/// From 0 to below 1, a multiple of 2^-16.
fn pattern(index: usize) -> f32 {
    // fits: 16 bits are exact in f32
    (scatter(index as u64) >> 48) as f32 / 65536.0
}

fn position(step: u64, elements: usize) -> usize {
    // fits: below the number of elements
    (scatter(step.wrapping_add(elements as u64)) % elements as u64) as usize
}

/// Spreads neighbours over all bits (Fibonacci hashing, Knuth TAOCP 6.4, folded once).
fn scatter(number: u64) -> u64 {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_own_maximum_and_nothing_else_changes() {
        for elements in [1, 2, 1000] {
            let mut tensor = vec![0.0; elements];
            fill(&mut tensor);
            for step in 1..50 {
                advance(&mut tensor, step);
                assert_eq!(tensor.iter().copied().fold(0.0, f32::max), maximum(step));
                assert_eq!(first_difference(&tensor, step), None, "{elements} elements");
                assert!(first_difference(&tensor, step + 1).is_some(), "a stale tensor is found");
            }
        }
    }

    #[test]
    fn one_wrong_element_is_found() {
        let mut tensor = vec![0.0; 4096];
        fill(&mut tensor);
        advance(&mut tensor, 1);
        tensor[4095] += 0.5;
        assert_eq!(first_difference(&tensor, 1), Some(4095));
    }

    #[test]
    fn the_last_step_can_still_be_told_from_the_one_before() {
        assert!(maximum(STEPS_MAX) > maximum(STEPS_MAX - 1));
    }
}
