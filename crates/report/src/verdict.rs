//! Claims held against what was measured: met, or short by how much.

use std::fmt;

use crate::figure::{Axis, Better, Claim, Figure, Shape, Unit, Wants};
use crate::measure::Measure;
use crate::plot::label;
use crate::plots::{Dot, Plot, Series};

/// What became of a claim in one plot.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Of the plot.
    pub(crate) title: String,
    pub(crate) found: Found,
}

/// The figure that was found, and where along x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) figure: f64,
    pub(crate) at: Option<f64>,
    /// From where to where it may be, by the spreads of what it is made of; where it is of one place, and both are known.
    pub(crate) spread: Option<[f64; 2]>,
    pub(crate) state: State,
    wants: Wants,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Met,
    Short,
    /// Not measured where the claim is about, but elsewhere.
    Elsewhere,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            State::Met => f.write_str("met: ")?,
            State::Short => f.write_str("short: ")?,
            State::Elsewhere => return write!(f, "not measured there: {}", times(self.figure)),
        }
        match self.wants {
            Wants::Within(most) => {
                write!(f, "{} % off, at most {} %", percent(self.figure), percent(most))
            }
            Wants::Reaches(bound) => write!(f, "{} of {bound}", plain(self.figure)),
            wants => {
                f.write_str(&times(self.figure))?;
                if let Some([low, high]) = self.spread {
                    write!(f, " [{} to {}]", times(low), times(high))?;
                }
                write!(f, " of {}", times(wants.bound()))
            }
        }
    }
}

impl Wants {
    /// What the figure is compared with.
    pub(crate) fn bound(self) -> f64 {
        match self {
            Wants::Least(bound)
            | Wants::Best(bound)
            | Wants::BestOfAll(bound)
            | Wants::Mean(bound)
            | Wants::At(_, bound)
            | Wants::TimeTo(bound)
            | Wants::Reaches(bound)
            | Wants::Within(bound) => bound,
        }
    }

    /// What the paper says, in words for a table.
    pub(crate) fn says(self) -> String {
        let bound = times(self.bound());
        match self {
            Wants::Least(_) => format!("at least {bound}"),
            Wants::Best(_) | Wants::BestOfAll(_) => format!("up to {bound}"),
            Wants::Mean(_) => format!("{bound} on average"),
            Wants::At(x, _) => format!("{bound} at {x}"),
            Wants::TimeTo(_) => format!("{bound} as soon"),
            Wants::Reaches(bound) => format!("at least {bound}"),
            Wants::Within(most) => format!("within {} %", percent(most)),
        }
    }
}

impl Claim {
    /// What is claimed, and in which plot.
    pub(crate) fn place(&self, title: &str) -> String {
        match title {
            "" => self.says.to_string(),
            title => format!("{} ({title})", self.says),
        }
    }
}

impl Found {
    /// Where along x, in words: `4 KiB`, `workers: 2`.
    pub(crate) fn place(&self, figure: &Figure) -> Option<String> {
        match figure.shape {
            Shape::Lines(x) => self.at.map(|at| along(x, at)),
            Shape::Curves(..) | Shape::Bars => None,
        }
    }
}

fn along(axis: Axis, at: f64) -> String {
    match axis.unit {
        Unit::Plain => format!("{}: {}", axis.title, label(axis.unit, at)),
        Unit::Bytes | Unit::Seconds => label(axis.unit, at),
    }
}

/// What becomes of a claim: a verdict a plot, or one for all; none if the claim's series were not measured together.
pub(crate) fn verdicts(figure: &Figure, claim: &Claim, plots: &[Plot]) -> Vec<Verdict> {
    let meant = plots.iter().filter(|plot| claim.only.iter().all(|word| plot.is_about(word)));
    let judged = meant.filter_map(|plot| {
        let found = judge(figure.better, claim, plot)?;
        let spread = found.at.and_then(|at| spread(figure.better, claim, plot, at));
        let found = Found { spread, ..found };
        Some(Verdict { title: plot.title.clone(), found })
    });
    match claim.wants {
        Wants::BestOfAll(_) => {
            judged.max_by(|a, b| a.found.figure.total_cmp(&b.found.figure)).into_iter().collect()
        }
        _ => judged.collect(),
    }
}

/// The ratios of ours to the other by x; empty if a claim compares nothing.
pub(crate) fn ratios(better: Better, ours: &Series, other: &Series) -> Vec<(f64, f64)> {
    let same = |dot: &Dot| other.dots.iter().find(|theirs| theirs.key == dot.key);
    let ratio = |dot: &Dot| {
        let theirs = same(dot)?;
        let ratio = match better {
            Better::Lower => theirs.y.median / dot.y.median,
            Better::Higher => dot.y.median / theirs.y.median,
        };
        ratio.is_finite().then_some((dot.key, ratio))
    };
    ours.dots.iter().filter_map(ratio).collect()
}

/// The series that a claim compares in a plot.
pub(crate) fn compared<'a>(claim: &Claim, plot: &'a Plot) -> Option<(&'a Series, &'a Series)> {
    let first = |names: &[&str]| names.iter().find_map(|name| plot.series(name));
    Some((first(claim.ours)?, first(claim.against)?))
}

/// The least and the greatest ratio that the spreads of two series at a place allow.
fn spread(better: Better, claim: &Claim, plot: &Plot, at: f64) -> Option<[f64; 2]> {
    let (ours, other) = compared(claim, plot)?;
    let there = |series: &Series| series.dots.iter().find(|dot| dot.key == at).map(|dot| dot.y);
    let ends = |measure: Measure| measure.spread.map(|it| (it.low, it.high));
    let ((our_low, our_high), (low, high)) = ends(there(ours)?).zip(ends(there(other)?))?;
    let ratios = match better {
        Better::Lower => [low / our_high, high / our_low],
        Better::Higher => [our_low / high, our_high / low],
    };
    // a single repetition has no spread
    (ratios.iter().all(|ratio| ratio.is_finite()) && ratios[0] < ratios[1]).then_some(ratios)
}

fn judge(better: Better, claim: &Claim, plot: &Plot) -> Option<Found> {
    let wants = claim.wants;
    let ratios: Vec<(f64, f64)> = if claim.against.is_empty() {
        let ours = claim.ours.iter().find_map(|name| plot.series(name))?;
        ours.dots.iter().map(|dot| (dot.key, dot.y.median)).collect()
    } else {
        let (ours, other) = compared(claim, plot)?;
        match wants {
            Wants::TimeTo(_) => {
                return time_ratio(better, ours, other).map(|it| Found::new(wants, it, None));
            }
            _ => ratios(better, ours, other),
        }
    };
    let least = || ratios.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let most = || ratios.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    match wants {
        Wants::Least(_) => least().map(|(at, figure)| Found::new(wants, figure, Some(at))),
        Wants::Best(_) | Wants::BestOfAll(_) | Wants::Reaches(_) => {
            most().map(|(at, figure)| Found::new(wants, figure, Some(at)))
        }
        Wants::Mean(_) if ratios.is_empty() => None,
        Wants::Mean(_) => {
            let sum: f64 = ratios.iter().map(|(_, ratio)| ratio).sum();
            Some(Found::new(wants, sum / ratios.len() as f64, None))
        }
        Wants::At(x, _) => match ratios.iter().find(|(at, _)| *at == x) {
            Some(&(at, figure)) => Some(Found::new(wants, figure, Some(at))),
            None => {
                let &(at, figure) = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
                Some(Found { state: State::Elsewhere, ..Found::new(wants, figure, Some(at)) })
            }
        },
        Wants::Within(_) => {
            // of the other, whichever is better
            let of_other = |ratio: f64| match better {
                Better::Lower => 1.0 / ratio,
                Better::Higher => ratio,
            };
            let worst = ratios.iter().map(|&(at, ratio)| (at, (of_other(ratio) - 1.0).abs()));
            let (at, figure) = worst.max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(Found::new(wants, figure, Some(at)))
        }
        Wants::TimeTo(_) => None,
    }
}

impl Found {
    fn new(wants: Wants, figure: f64, at: Option<f64>) -> Found {
        let is_met = match wants {
            Wants::Within(most) => figure <= most,
            wants => figure >= wants.bound(),
        };
        let state = if is_met { State::Met } else { State::Short };
        Found { figure, at, spread: None, state, wants }
    }
}

/// The other's time over ours until each had first what the worse of the two had at its best.
fn time_ratio(better: Better, ours: &Series, other: &Series) -> Option<f64> {
    let is_there = |y: f64, goal: f64| match better {
        Better::Lower => y <= goal,
        Better::Higher => y >= goal,
    };
    let best = |series: &Series| {
        series.dots.iter().map(|dot| dot.y.median).reduce(|a, b| if is_there(a, b) { a } else { b })
    };
    let (a, b) = (best(ours)?, best(other)?);
    let goal = if is_there(a, b) { b } else { a };
    let first =
        |series: &Series| series.dots.iter().find(|dot| is_there(dot.y.median, goal)).map(|d| d.x);
    let ratio = first(other)? / first(ours)?;
    ratio.is_finite().then_some(ratio)
}

/// `1.7×`, `0.24×`, `61×`.
pub(crate) fn times(ratio: f64) -> String {
    let digits = match ratio.abs() {
        r if r > 0.0 && r < 0.1 => format!("{ratio:.4}"),
        // more than 1, if not by much
        r if r > 1.0 && r < 1.005 => format!("{ratio:.3}"),
        r if r < 10.0 => format!("{ratio:.2}"),
        r if r < 100.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    };
    format!("{}×", without_zeros(&digits))
}

fn plain(figure: f64) -> String {
    without_zeros(&format!("{figure:.4}")).to_string()
}

/// `0.170` to `0.17`, `2.0` to `2`.
pub(crate) fn without_zeros(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

fn percent(share: f64) -> String {
    without_zeros(&format!("{:.1}", share * 100.0)).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figure::Role;

    fn series(name: &str, dots: &[(f64, f64)]) -> Series {
        let dots = dots
            .iter()
            .map(|&(x, y)| Dot { key: x, x, y: y.into(), origins: BTreeSet::new() })
            .collect();
        Series { name: name.to_string(), role: Role::Ours, dots }
    }

    fn plot(series: Vec<Series>) -> Plot {
        Plot { name: String::new(), title: String::new(), series }
    }

    fn judged(better: Better, wants: Wants, ours: &[(f64, f64)], other: &[(f64, f64)]) -> String {
        let claim = Claim { says: "", only: &[], ours: &["absent", "a"], against: &["b"], wants };
        let plot = plot(vec![series("a", ours), series("b", other)]);
        judge(better, &claim, &plot).unwrap().to_string()
    }

    #[test]
    fn each_way_to_take_ratios() {
        let ours = [(1.0, 1.0), (2.0, 2.0), (8.0, 4.0)];
        let other = [(1.0, 2.0), (2.0, 8.0), (8.0, 4.0), (16.0, 99.0)];
        for (wants, says) in [
            (Wants::Least(1.7), "short: 1× of 1.7×"),
            (Wants::Best(4.0), "met: 4× of 4×"),
            (Wants::Mean(2.0), "met: 2.33× of 2×"),
            (Wants::At(2.0, 4.5), "short: 4× of 4.5×"),
            (Wants::At(7.0, 1.0), "not measured there: 1×"),
            (Wants::Within(0.15), "short: 75 % off, at most 15 %"),
            (Wants::Reaches(0.72), "met: 4 of 0.72"),
        ] {
            assert_eq!(judged(Better::Lower, wants, &ours, &other), says);
        }
        let near = judged(Better::Lower, Wants::Within(0.15), &[(1.0, 0.86)], &[(1.0, 1.0)]);
        assert_eq!(near, "met: 14 % off, at most 15 %");
        let higher = judged(Better::Higher, Wants::Best(0.5), &ours, &other);
        assert_eq!(higher, "met: 1× of 0.5×");
    }

    #[test]
    fn who_is_there_first() {
        // the other's best is 0.9, which ours has after 2 s, and it after 6 s
        let ours = [(1.0, 0.5), (2.0, 0.92), (3.0, 0.95)];
        let other = [(3.0, 0.6), (6.0, 0.9), (9.0, 0.8)];
        let said = judged(Better::Higher, Wants::TimeTo(3.0), &ours, &other);
        assert_eq!(said, "met: 3× of 3×");
        let losses = [(1.0, 3.0), (4.0, 1.0)];
        let slower = [(2.0, 2.0), (3.0, 1.5)];
        let said = judged(Better::Lower, Wants::TimeTo(1.0), &losses, &slower);
        assert_eq!(said, "short: 0.75× of 1×");
    }

    #[test]
    fn series_that_were_not_measured_together_have_no_verdict() {
        let claim =
            Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::Least(1.0) };
        let apart = vec![series("a", &[(1.0, 1.0)]), series("b", &[(2.0, 1.0)])];
        assert_eq!(judge(Better::Lower, &claim, &plot(apart)), None);
    }
}
