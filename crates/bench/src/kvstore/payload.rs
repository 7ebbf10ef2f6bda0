//! What workers push, and what their sum is: whole numbers that f32 holds exactly, different in every step
//! and of every worker.

use super::WORKERS_MAX;

/// Elements repeat after so many.
const PERIOD: usize = 251;
/// Of even and odd steps: a sum of the step before is wrong.
const FACTORS: [u32; 2] = [1, 3];

// the largest sum is a whole number of f32
const _: () = assert!(PERIOD as u32 * 3 * WORKERS_MAX * (WORKERS_MAX + 1) / 2 < 1 << 24);

/// Fills memory with what worker `number` pushes in a step: of element i, factor·(number + 1)·(i mod 251 + 1).
pub(super) fn fill(bytes: &mut [u8], number: u32, step: u64) {
    write(bytes, factor(step) * (number + 1));
}

/// The first element that is not the sum of what so many workers pushed in a step.
pub(super) fn first_difference(bytes: &[u8], workers: u32, step: u64) -> Option<usize> {
    let scale = factor(step) * (workers * (workers + 1) / 2);
    let elements = bytes.as_chunks::<4>().0.iter().enumerate();
    let mut wrong =
        elements.filter(|(index, word)| f32::from_le_bytes(**word) != element(*index, scale));
    wrong.next().map(|(index, _)| index)
}

fn write(bytes: &mut [u8], scale: u32) {
    for (index, word) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = element(index, scale).to_le_bytes();
    }
}

fn element(index: usize, scale: u32) -> f32 {
    // fits: below 2^24, see above
    ((index % PERIOD) as u32 + 1).wrapping_mul(scale) as f32
}

fn factor(step: u64) -> u32 {
    // fits: a remainder
    FACTORS[(step % 2) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(number: u32, step: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4 * 1000];
        fill(&mut bytes, number, step);
        bytes
    }

    fn sum(pushes: &[Vec<u8>]) -> Vec<u8> {
        let f32s = |bytes: &Vec<u8>| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        let all: Vec<Vec<f32>> = pushes.iter().map(f32s).collect();
        (0..1000).flat_map(|at| all.iter().map(|one| one[at]).sum::<f32>().to_le_bytes()).collect()
    }

    #[test]
    fn the_sum_is_in_closed_form() {
        for workers in [1, 2, 7, WORKERS_MAX] {
            for step in 0..3 {
                let pushes: Vec<_> = (0..workers).map(|number| pushed(number, step)).collect();
                assert_eq!(first_difference(&sum(&pushes), workers, step), None);
            }
        }
    }

    #[test]
    fn what_is_missing_twice_or_old_is_found() {
        let all: Vec<_> = (0..3).map(|number| pushed(number, 4)).collect();
        assert_eq!(first_difference(&sum(&all[1..]), 3, 4), Some(0));
        assert_eq!(first_difference(&sum(&[&all[..], &all[..1]].concat()), 3, 4), Some(0));
        assert_eq!(first_difference(&sum(&all), 3, 5), Some(0));
        let mut torn = sum(&all);
        torn[4 * 999 + 2] ^= 1;
        assert_eq!(first_difference(&torn, 3, 4), Some(999));
    }
}
