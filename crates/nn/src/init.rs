//! First values of variables, from the job's seed and the variable's name alone: the same on any
//! transport, any number of servers, and any machine (ChaCha8 is a fixed function).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tensorwire_graph::Init;

/// Fills `values`, the elements of variable `name` from its element `first` on, as `init` says.
pub fn initialise(name: &str, init: Init, seed: u64, first: usize, values: &mut [f32]) {
    // fits: fan sizes are dimensions of tensors in memory, exact in f64
    let limit = match init {
        Init::Zeros => return values.fill(0.0),
        Init::Constant { value } => return values.fill(value as f32),
        Init::Normal { deviation } => {
            return normal(generator(name, seed), deviation, first, values);
        }
        Init::Uniform { limit } => limit,
        Init::HeUniform { fan_in } => (6.0 / fan_in as f64).sqrt(),
        Init::GlorotUniform { fan_in, fan_out } => (6.0 / (fan_in + fan_out) as f64).sqrt(),
    };
    let mut random = generator(name, seed);
    // fits: a word for each element of a tensor in memory
    random.set_word_pos(first as u128);
    for value in values {
        // 24 random bits are every value that an f32 in [0, 1) can take evenly
        let unit = f64::from(random.next_u32() >> 8) / f64::from(1u32 << 24);
        *value = ((2.0 * unit - 1.0) * limit) as f32;
    }
}

/// Box and Muller 1958, of two words for each element, so that every element has its place in the stream. Logarithm and
/// cosine are `libm`'s: those of the system differ in their last bits from processor to processor.
fn normal(mut random: ChaCha8Rng, deviation: f64, first: usize, values: &mut [f32]) {
    // fits: two words for each element of a tensor in memory
    random.set_word_pos(2 * first as u128);
    let words = f64::from(u32::MAX) + 1.0;
    for value in values {
        // above 0, which has no logarithm
        let radius = (f64::from(random.next_u32()) + 1.0) / words;
        let turn = f64::from(random.next_u32()) / words;
        let unit = (-2.0 * libm::log(radius)).sqrt() * libm::cos(std::f64::consts::TAU * turn);
        // rounds to f32
        *value = (unit * deviation) as f32;
    }
}

fn generator(name: &str, seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&fnv1a(name).to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// The 64-bit FNV-1a hash of a name.
pub(crate) fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, init: Init, seed: u64) -> Vec<f32> {
        let mut values = vec![f32::NAN; 10_000];
        initialise(name, init, seed, 0, &mut values);
        values
    }

    #[test]
    fn values_depend_on_seed_and_name_alone() {
        let init = Init::HeUniform { fan_in: 6 };
        assert_eq!(values("w", init, 1), values("w", init, 1));
        assert_ne!(values("w", init, 1), values("w", init, 2));
        assert_ne!(values("w", init, 1), values("v", init, 1));
        assert!(values("w", Init::Zeros, 1).iter().all(|&v| v == 0.0));
    }

    #[test]
    fn a_piece_has_the_values_of_the_whole() {
        for init in [Init::Uniform { limit: 0.5 }, Init::Normal { deviation: 0.5 }] {
            let whole = values("w", init, 1);
            for first in [0, 1, 15, 16, 17, 4096] {
                let mut piece = vec![f32::NAN; 100];
                initialise("w", init, 1, first, &mut piece);
                assert_eq!(piece, whole[first..first + 100], "{init:?} from {first}");
            }
        }
    }

    #[test]
    fn normal_values_lie_as_they_should() {
        let values = values("w", Init::Normal { deviation: 2.0 }, 3);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
        // four standard errors of 10,000 draws: 1/100 of the deviation, and √2/100 of the variance
        assert!(mean.abs() < 0.08, "{mean}");
        let variance = square / values.len() as f64;
        assert!((variance / 4.0 - 1.0).abs() < 0.057, "{variance}");
        for (deviations, share) in [(1.0, 0.6827), (2.0, 0.9545)] {
            let inside = values.iter().filter(|v| f64::from(v.abs()) < 2.0 * deviations).count();
            assert!((inside as f64 / 10_000.0 - share).abs() < 0.02, "{inside}");
        }
    }

    #[test]
    fn values_spread_evenly_over_the_stated_range() {
        for (init, limit) in [
            (Init::HeUniform { fan_in: 6 }, 1.0),
            (Init::GlorotUniform { fan_in: 10, fan_out: 14 }, 0.5),
        ] {
            let values = values("w", init, 3);
            assert!(values.iter().all(|v| v.abs() <= limit));
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
            let variance = square / values.len() as f64;
            // four standard errors of 10,000 uniform draws
            assert!(mean.abs() < 4.0 * f64::from(limit) * (1.0f64 / 3.0).sqrt() / 100.0, "{mean}");
            let expected = f64::from(limit).powi(2) / 3.0;
            assert!((variance / expected - 1.0).abs() < 0.04, "{variance} for {expected}");
        }
    }

    #[test]
    fn the_stream_is_pinned() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        let first = &values("w", Init::HeUniform { fan_in: 6 }, 0)[..2];
        assert_eq!(first, [PINNED_0, PINNED_1]);
    }

    /// What the first release drew: a change here changes every user's results.
    const PINNED_0: f32 = 0.849_255_8;
    const PINNED_1: f32 = 0.643_469;
}
