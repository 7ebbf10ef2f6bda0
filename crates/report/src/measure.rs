//! A measured number, with how far its repetitions lay apart. Knows no lines and no axes.

/// The median of repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) median: f64,
    /// None where the line does not say.
    pub(crate) spread: Option<Spread>,
    /// How many repetitions. None where the line does not say.
    pub(crate) count: Option<f64>,
}

/// Around a median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) between: Between,
}

/// What a spread reaches from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Between {
    /// From the 10th to the 90th percentile.
    Percentiles,
    /// From the least to the greatest round of a comparison.
    Rounds,
    /// One standard deviation to either side of a mean, which stands in the median's place.
    Deviation,
}

impl From<f64> for Measure {
    fn from(median: f64) -> Measure {
        Measure { median, spread: None, count: None }
    }
}

impl Measure {
    /// Leaves a spread out that the median is not in.
    pub(crate) fn new(median: f64, spread: Option<Spread>, count: Option<f64>) -> Measure {
        let holds = |it: &Spread| it.low.is_finite() && it.high.is_finite() && it.has(median);
        Measure { median, spread: spread.filter(holds), count: count.filter(|count| *count >= 1.0) }
    }

    /// The mean of runs, with the standard deviation of a sample around it. None where there are no runs.
    pub(crate) fn mean_of(runs: &[f64]) -> Option<Measure> {
        // fits: they have files
        let count = runs.len() as f64;
        let first = *runs.first()?;
        if runs.iter().all(|run| *run == first) {
            return Some(Measure::new(first, None, Some(count)));
        }
        let mean = runs.iter().sum::<f64>() / count;
        let squares: f64 = runs.iter().map(|run| (run - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0)).sqrt();
        let (low, high) = (mean - deviation, mean + deviation);
        let spread = Spread { low, high, between: Between::Deviation };
        Some(Measure::new(mean, Some(spread), Some(count)))
    }

    /// The mean and the standard deviation around it, if that is what it is.
    pub(crate) fn mean_and_deviation(&self) -> Option<(f64, f64)> {
        let spread = self.spread.filter(|it| it.between == Between::Deviation)?;
        Some((self.median, (spread.high - spread.low) / 2.0))
    }

    /// The same in another unit.
    pub(crate) fn scaled(self, by: f64) -> Measure {
        let scale = |it: Spread| Spread { low: it.low * by, high: it.high * by, ..it };
        Measure::new(self.median * by, self.spread.map(scale), self.count)
    }

    /// So much in the time that was measured.
    pub(crate) fn rate_of(self, amount: f64) -> Measure {
        let rate = |it: Spread| Spread { low: amount / it.high, high: amount / it.low, ..it };
        Measure::new(amount / self.median, self.spread.map(rate), self.count)
    }

    /// Of several lines about the same: the median of their medians. Its spread holds all of theirs; where a line has none, it
    /// is that of the medians.
    pub(crate) fn pooled(all: &[Measure]) -> Measure {
        let &[first, ref others @ ..] = all else { return Measure::from(f64::NAN) };
        if others.is_empty() {
            return first;
        }
        let mut medians: Vec<f64> = all.iter().map(|one| one.median).collect();
        medians.sort_unstable_by(f64::total_cmp);
        let spreads: Option<Vec<Spread>> = all.iter().map(|one| one.spread).collect();
        let spread = match spreads.into_iter().flatten().reduce(|a, b| Spread {
            low: a.low.min(b.low),
            high: a.high.max(b.high),
            between: a.between.max(b.between),
        }) {
            Some(spread) => Some(spread),
            None => of_medians(&medians),
        };
        let count = all.iter().map(|one| one.count.unwrap_or(1.0)).sum();
        Measure::new(middle(&medians), spread, Some(count))
    }
}

impl Spread {
    pub(crate) fn has(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// None where all are the same.
fn of_medians(sorted: &[f64]) -> Option<Spread> {
    // nearest rank, as benchmarks take it
    let tenths = |count: usize| sorted[(sorted.len() * count).div_ceil(10) - 1];
    let (low, high) = (tenths(1), tenths(9));
    (low < high).then_some(Spread { low, high, between: Between::Percentiles })
}

/// Of at least one.
pub(crate) fn middle(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(low: f64, median: f64, high: f64) -> Measure {
        let spread = Spread { low, high, between: Between::Percentiles };
        Measure::new(median, Some(spread), Some(5.0))
    }

    #[test]
    fn a_rate_turns_its_spread_around() {
        let rate = measure(1.0, 2.0, 4.0).rate_of(8.0);
        assert_eq!(rate, measure(2.0, 4.0, 8.0));
        assert_eq!(measure(0.0, 2.0, 4.0).rate_of(8.0).spread, None, "no end above");
    }

    #[test]
    fn runs_have_a_mean_and_the_deviation_of_a_sample() {
        let of = |runs: &[f64]| Measure::mean_of(runs).unwrap();
        // squares 1 + 1 + 4 + 4, of four degrees of freedom
        let five = of(&[2.0, 4.0, 3.0, 1.0, 5.0]);
        assert_eq!((five.median, five.count), (3.0, Some(5.0)));
        let (mean, deviation) = five.mean_and_deviation().unwrap();
        assert!(mean == 3.0 && (deviation - 2.5_f64.sqrt()).abs() < 1e-12, "{deviation}");
        let alike = of(&[0.1; 5]);
        assert_eq!((alike.median, alike.spread, alike.count), (0.1, None, Some(5.0)));
        assert_eq!(Measure::mean_of(&[]), None);
    }

    #[test]
    fn a_spread_without_its_median_is_none() {
        assert_eq!(measure(3.0, 2.0, 4.0).spread, None);
        assert_eq!(measure(1.0, 2.0, f64::NAN).spread, None);
    }

    #[test]
    fn lines_of_the_same_are_one_measure_that_holds_all() {
        let pooled = Measure::pooled(&[measure(1.0, 3.0, 4.0), measure(2.0, 5.0, 9.0)]);
        assert_eq!(pooled, Measure { count: Some(10.0), ..measure(1.0, 4.0, 9.0) });
        let plain = [1.0, 9.0, 3.0].map(Measure::from);
        assert_eq!(Measure::pooled(&plain), Measure { count: Some(3.0), ..measure(1.0, 3.0, 9.0) });
        assert_eq!(Measure::pooled(&plain[..1]), plain[0]);
        assert_eq!(Measure::pooled(&[plain[0]; 2]).spread, None, "they do not differ");
    }
}
