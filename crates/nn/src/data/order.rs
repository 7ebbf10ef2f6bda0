//! The order in which an epoch reads its samples: pure functions of seed and epoch, from which a
//! [`BatchSource`](crate::BatchSource) makes its own. Knows how long samples are, not what they say.

use rand_chacha::rand_core::SeedableRng;

pub use rand_chacha::ChaCha8Rng;
pub use rand_chacha::rand_core::RngCore;

/// Steps whose samples are sorted by length together. More save more of the short tails, and leave less
/// to chance of what meets in a step.
const WINDOW_STEPS: usize = 32;
/// The random streams that put steps in order are numbered from here on, epoch by epoch; those that put
/// samples in order from 0.
const STEP_STREAMS: u64 = 1 << 60;

/// A generator of random bits for `seed`: stream `stream` of ChaCha8. A published algorithm fixes its bits, so every machine
/// and every later version draws the same. The order of epoch `e` uses stream `e`.
pub fn random(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    random.set_stream(stream);
    random
}

/// A random order of `0..samples`. Each epoch has a random stream of its own, so its order does not depend on those before
/// it.
pub fn permutation(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    shuffle(&mut order, &mut random(seed, epoch));
    order
}

/// Shuffles `order` (Fisher–Yates).
pub fn shuffle<T>(order: &mut [T], random: &mut impl RngCore) {
    for last in (1..order.len()).rev() {
        order.swap(last, below(last + 1, random));
    }
}

/// A random number below `bound`, which is at least 1.
pub fn below(bound: usize, random: &mut impl RngCore) -> usize {
    // its bias of at most bound / 2^64 cannot be seen
    ((u128::from(random.next_u64()) * bound as u128) >> 64) as usize
}

/// A random order in which samples of similar length share a step. The permutation is cut into windows; each window is sorted
/// and cut into steps of `workers × batch`; the steps are shuffled. Within a step, worker `r` gets the `r`-th shortest sample
/// and every `workers`-th after it, so that no worker gets all the long ones. Samples that fill no step are left out.
pub fn by_length(
    samples: usize,
    [workers, batch]: [usize; 2],
    seed: u64,
    epoch: u64,
    lengths: impl Fn(usize) -> [usize; 2],
) -> Vec<usize> {
    let step = workers * batch;
    let mut order = permutation(samples, seed, epoch);
    order.truncate(samples / step * step);
    for window in order.chunks_mut(WINDOW_STEPS.saturating_mul(step)) {
        // stable: those of equal lengths stay in random order
        window.sort_by_key(|&sample| {
            let [source, target] = lengths(sample);
            (source + target, source)
        });
    }
    let steps = permutation(samples / step, seed, STEP_STREAMS.wrapping_add(epoch));
    let mut dealt = Vec::with_capacity(order.len());
    for index in steps {
        let samples = &order[index * step..][..step];
        for worker in 0..workers {
            dealt.extend(samples.iter().skip(worker).step_by(workers));
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_pinned() {
        // by a second implementation of ChaCha8, in Python; pinned because equal seeds must go on
        // to mean equal results
        assert_eq!(permutation(8, 1, 0), [6, 1, 0, 7, 5, 4, 2, 3]);
        assert_eq!(permutation(8, 1, 1), [7, 6, 2, 4, 1, 3, 5, 0]);
    }

    #[test]
    fn every_place_is_as_likely() {
        let mut seen = [[0u32; 4]; 4];
        for epoch in 0..4000 {
            for (place, &sample) in permutation(4, 9, epoch).iter().enumerate() {
                seen[place][sample] += 1;
            }
        }
        // 1000 expected; five standard deviations of a binomial are 137
        assert!(seen.iter().flatten().all(|count| count.abs_diff(1000) < 137), "{seen:?}");
    }

    #[test]
    fn a_window_of_lengths_is_sorted_into_steps() {
        // one window: 24 samples of lengths 0 to 23 in four steps of two workers of batch 3
        let order = by_length(26, [2, 3], 5, 0, |sample| [sample, 0]);
        assert_eq!(order.len(), 24);
        for step in order.chunks(6) {
            let shortest = *step.iter().min().unwrap();
            // at most the two that were left out lie between
            assert!(step.iter().all(|&sample| sample <= shortest + 7), "{step:?}");
            // dealt out: shortest to the one worker, next to the other, and so on
            let dealt: Vec<usize> = (0..3).flat_map(|row| [step[row], step[3 + row]]).collect();
            assert!(dealt.is_sorted(), "{step:?}");
        }
        assert_ne!(order, by_length(26, [2, 3], 5, 1, |sample| [sample, 0]));
        assert_eq!(order, by_length(26, [2, 3], 5, 0, |sample| [sample, 0]));
    }
}
