//! Made-up pairs: random sequences of letters, and what they read from behind. The smallest thing that a
//! translator can learn only by remembering all of a source. Knows nothing of files.

use std::collections::HashSet;
use std::sync::Arc;

use tensorwire_nn::order::{below, random};

use super::pairs::{PairSplit, Pairs};
use super::tokens::Vocabulary;

/// Words of both languages: `a`, `b`, ….
const LETTERS: usize = 20;
/// Words of the longest sequence; the shortest has one. Sequences of all lengths are as likely, so of the
/// 20^10 there are always new ones.
const WORDS_MAX: usize = 10;

impl Pairs {
    /// `pairs` to learn from and a tenth of that (at least one) to test with; the same on every machine for the
    /// same arguments. No sequence is there twice.
    pub fn reverse(pairs: usize, seed: u64) -> Pairs {
        // fits: letters
        let letters =
            || Vocabulary::new((b'a'..).take(LETTERS).map(|letter| char::from(letter).into()));
        let mut random = random(seed, 0);
        let mut seen = HashSet::new();
        let mut split = |samples: usize| {
            let mut split = PairSplit::default();
            while split.samples() < samples {
                let words = 1 + below(WORDS_MAX, &mut random);
                // fits: letters, behind the two tokens that are no words
                let source: Vec<i32> =
                    (0..words).map(|_| 2 + below(LETTERS, &mut random) as i32).collect();
                if seen.insert(source.clone()) {
                    let target: Vec<i32> = source.iter().rev().copied().collect();
                    split.push(&source, &target);
                }
            }
            split
        };
        let (train, test) = (Arc::new(split(pairs)), Arc::new(split((pairs / 10).max(1))));
        let name = "reverse".to_owned();
        Pairs { name, source: letters(), target: letters(), train, test, left_out: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_reversed_and_tests_are_new() {
        let data = Pairs::reverse(2000, 3);
        assert_eq!(
            (data.train.samples(), data.test.samples(), data.source.words()),
            (2000, 200, 22)
        );
        for split in [&data.train, &data.test] {
            for i in 0..split.samples() {
                let back: Vec<i32> = split.targets().sentence(i).iter().rev().copied().collect();
                assert_eq!(split.sources().sentence(i), back);
                assert!(back.iter().all(|token| (2..22).contains(token)));
            }
        }
        let all = (0..2000).map(|i| data.train.sources().sentence(i));
        let all: HashSet<&[i32]> = all.collect();
        assert_eq!(all.len(), 2000);
        assert!((0..200).all(|i| !all.contains(data.test.sources().sentence(i))));
        assert_eq!(
            (data.train.sources().longest(), Pairs::reverse(9, 0).test.samples()),
            (WORDS_MAX, 1)
        );
    }

    #[test]
    fn equal_seeds_give_equal_sets() {
        assert_eq!(Pairs::reverse(50, 1).train, Pairs::reverse(50, 1).train);
        assert_ne!(Pairs::reverse(50, 1).train, Pairs::reverse(50, 2).train);
    }
}
