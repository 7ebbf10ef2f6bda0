//! Medians: a figure that one slow repetition does not move.

use serde::{Deserialize, Serialize};

/// What repetitions of one measurement say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: usize,
    /// One of ten was at most this.
    pub p10: f64,
    pub median: f64,
    /// Nine of ten were at most this.
    pub p90: f64,
}

impl Quantiles {
    /// Of at least one sample; none of none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Quantiles> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // the mean of the two in the middle, which are one where the count is odd
        let median = f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]);
        // nearest rank: the smallest that at least so many of 10 do not exceed
        let tenths = |count: usize| sorted[(sorted.len() * count).div_ceil(10) - 1];
        Some(Quantiles { count: sorted.len(), p10: tenths(1), median, p90: tenths(9) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(samples: &[f64]) -> (f64, f64) {
        let found = Quantiles::of(samples.iter().copied()).unwrap();
        assert_eq!(found.count, samples.len());
        (found.median, found.p90)
    }

    #[test]
    fn the_median_of_an_odd_count_is_the_middle_one() {
        assert_eq!(summary(&[7.0]), (7.0, 7.0));
        assert_eq!(summary(&[9.0, 1.0, 5.0]), (5.0, 9.0));
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(summary(&[4.0, 1.0, 2.0, 100.0]), (3.0, 100.0));
    }

    #[test]
    fn one_of_ten_is_at_most_p10_and_nine_are_at_most_p90() {
        let samples: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(summary(&samples), (10.5, 18.0));
        assert_eq!(Quantiles::of(samples).map(|found| found.p10), Some(2.0));
        assert_eq!(Quantiles::of([3.0, 1.0, 2.0]).map(|found| found.p10), Some(1.0));
    }

    #[test]
    fn of_nothing_there_is_no_median() {
        assert_eq!(Quantiles::of([]), None);
    }
}
