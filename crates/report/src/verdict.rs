//! Claims held against what was measured: met, or short by how much.

mod ratio;

use std::fmt;

use crate::figure::{Axis, Better, Claim, Figure, Shape, Unit, Wants};
use crate::measure::Measure;
use crate::numbers::{percent, plain, times};
use crate::plot::label;
use crate::plots::{Dot, Plot, Series};

use ratio::{Ratio, time_ratio};
pub(crate) use ratio::{ratios, spread};

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
    /// The claim is of every place or the best, and no other was measured.
    is_alone: bool,
    wants: Wants,
}

/// From the worst to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Not measured where the claim is about, but elsewhere.
    Elsewhere,
    Short,
    /// What is wanted lies within the spread of what was measured, or near to what was measured once.
    Unclear,
    Met,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            State::Met => f.write_str("met: ")?,
            State::Short => write!(f, "short{}: ", self.short_by())?,
            State::Unclear => f.write_str("unclear: ")?,
            State::Elsewhere => f.write_str("not measured there: ")?,
        }
        match self.wants {
            Wants::Reaches(_) | Wants::ReachesAt(..) if self.state == State::Elsewhere => {
                f.write_str(&plain(self.figure))
            }
            _ if self.state == State::Elsewhere => f.write_str(&self.times_and_spread()),
            Wants::Within(most) => {
                write!(f, "{} % off", percent(self.figure))?;
                if let Some([low, high]) = self.spread {
                    write!(f, " [{} % to {} %]", percent(low), percent(high))?;
                }
                write!(f, ", at most {} %", percent(most))
            }
            Wants::Reaches(bound) | Wants::ReachesAt(_, bound) => {
                write!(f, "{} of {bound}", plain(self.figure))
            }
            wants => {
                write!(f, "{} of {}", self.times_and_spread(), times(wants.bound()))?;
                match self.state {
                    State::Unclear if self.spread.is_none() => f.write_str(", measured once"),
                    _ => Ok(()),
                }
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
            | Wants::ReachesAt(_, bound)
            | Wants::Gains(_, _, bound)
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
            Wants::Reaches(bound) | Wants::ReachesAt(_, bound) => format!("at least {bound}"),
            Wants::Gains(from, to, _) => format!("{bound} from {from} to {to}"),
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
    fn times_and_spread(&self) -> String {
        let figure = times(self.figure);
        let ends =
            self.spread.map(|[low, high]| format!("{figure} [{} to {}]", times(low), times(high)));
        ends.unwrap_or(figure)
    }

    /// ` by 1.5×`: how many times as much is wanted; ` by 5 points`: how many percentage points less. Nothing where that says
    /// nothing, as of a figure that is 0, or as good as what is wanted.
    fn short_by(&self) -> String {
        let by = match self.wants {
            Wants::Within(most) => format!("{} points", percent(self.figure - most)),
            wants => times(wants.bound() / self.figure),
        };
        match self.figure > 0.0 && by != "1×" && by != "0 points" {
            true => format!(" by {by}"),
            false => String::new(),
        }
    }

    /// Where along x, in words: `4 KiB`, `workers: 2`.
    pub(crate) fn place(&self, figure: &Figure) -> Option<String> {
        let Shape::Lines(x) = figure.shape else { return None };
        let alone = if self.is_alone { ", the only one" } else { "" };
        self.at.map(|at| along(x, at) + alone)
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
        Some(Verdict { title: plot.title.clone(), found })
    });
    match claim.wants {
        Wants::BestOfAll(_) => {
            let worse = |a: &Verdict, b: &Verdict| {
                let by_state = a.found.state.cmp(&b.found.state);
                by_state.then(a.found.figure.total_cmp(&b.found.figure))
            };
            judged.max_by(worse).into_iter().collect()
        }
        _ => judged.collect(),
    }
}

/// The series that a claim compares in a plot.
pub(crate) fn compared<'a>(claim: &Claim, plot: &'a Plot) -> Option<(&'a Series, &'a Series)> {
    let first = |names: &[&str]| names.iter().find_map(|name| plot.series(name));
    Some((first(claim.ours)?, first(claim.against)?))
}

fn judge(better: Better, claim: &Claim, plot: &Plot) -> Option<Found> {
    let (found, places) = found(better, claim, plot)?;
    let is_of_several = matches!(
        claim.wants,
        Wants::Least(_) | Wants::Best(_) | Wants::BestOfAll(_) | Wants::Within(_)
    );
    Some(Found { is_alone: is_of_several && places == 1, ..found })
}

/// The verdict, and how many places it is of.
fn found(better: Better, claim: &Claim, plot: &Plot) -> Option<(Found, usize)> {
    let wants = claim.wants;
    let all: Vec<Ratio> = if claim.against.is_empty() {
        let ours = claim.ours.iter().find_map(|name| plot.series(name))?;
        let alone =
            |dot: &Dot| Ratio { at: dot.key, figure: dot.y.median, spread: None, is_once: false };
        ours.dots.iter().map(alone).collect()
    } else {
        let (ours, other) = compared(claim, plot)?;
        if let Wants::TimeTo(_) = wants {
            let ratio = time_ratio(better, ours, other)?;
            return Some((Found { at: None, ..ratio.found(wants) }, 1));
        }
        let of = |ratio| Ratio::of(better, ours, other, ratio);
        ratios(better, ours, other).into_iter().map(of).collect()
    };
    let least = |those: &[Ratio]| those.iter().copied().min_by(Ratio::by_figure);
    let most = |those: &[Ratio]| those.iter().copied().max_by(Ratio::by_figure);
    let that_are = |state: State| {
        let those = all.iter().copied().filter(|one| one.state(wants.bound()) == state);
        those.collect::<Vec<Ratio>>()
    };
    let found = match wants {
        // everywhere: what is short anywhere is the figure, then what may be
        Wants::Least(_) => [State::Short, State::Unclear, State::Met]
            .into_iter()
            .find_map(|state| least(&that_are(state)))
            .map(|one| one.found(wants)),
        // somewhere: where it is met for sure, else the best, and no other whose repetitions lie further apart
        Wants::Best(_) | Wants::BestOfAll(_) | Wants::Reaches(_) => {
            let best = most(&that_are(State::Met)).or_else(|| most(&all))?;
            let found = best.found(wants);
            // of several models that were measured once, the luckiest is the best
            let is_luck = matches!(wants, Wants::BestOfAll(_)) && best.is_once;
            let state = match found.state {
                State::Met if is_luck => State::Unclear,
                state => state,
            };
            Some(Found { state, ..found })
        }
        Wants::Mean(_) => {
            // fits: sizes and batches are few
            let mean = |of: fn(&Ratio) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            let figure = mean(|one| one.figure);
            let spread = all.iter().any(|one| one.spread.is_some());
            let spread = spread.then(|| [mean(Ratio::low), mean(Ratio::high)]);
            let is_once = spread.is_none() && all.iter().any(|one| one.is_once);
            let mean = Ratio { at: 0.0, figure, spread, is_once };
            (!all.is_empty()).then(|| Found { at: None, ..mean.found(wants) })
        }
        Wants::At(x, _) | Wants::ReachesAt(x, _) => match all.iter().find(|one| one.at == x) {
            Some(one) => Some(one.found(wants)),
            None => {
                let furthest = all.iter().max_by(|a, b| a.at.total_cmp(&b.at))?;
                Some(Found { state: State::Elsewhere, ..furthest.found(wants) })
            }
        },
        Wants::Gains(from, to, _) => {
            let figure = |x: f64| Some(all.iter().find(|one| one.at == x)?.figure);
            let (start, end) = (figure(from)?, figure(to)?);
            let figure = if better == Better::Lower { start / end } else { end / start };
            let gain = Ratio { at: to, figure, spread: None, is_once: false };
            Some(gain.found(wants))
        }
        Wants::Within(most) => {
            // of the other, whichever is better
            let off = |ratio: f64| match better {
                Better::Lower => 1.0 / ratio - 1.0,
                Better::Higher => ratio - 1.0,
            };
            let (ours, other) = compared(claim, plot)?;
            // a simulated step is a point
            let point = |measure: Measure| Some((measure.median, measure.median));
            let places = all.iter().map(|&Ratio { at, figure, .. }| {
                let spread = spread(better, ours, other, at, point).map(|ends| {
                    let [a, b] = ends.map(off);
                    let least = if a.signum() == b.signum() { a.abs().min(b.abs()) } else { 0.0 };
                    [least, a.abs().max(b.abs())]
                });
                let figure = off(figure).abs();
                let [low, high] = spread.unwrap_or([figure; 2]);
                let state = if high <= most {
                    State::Met
                } else if low > most {
                    State::Short
                } else {
                    State::Unclear
                };
                Found { figure, at: Some(at), spread, state, is_alone: false, wants }
            });
            // at no place further off: what is short anywhere, then what may be
            places.min_by(|a, b| a.state.cmp(&b.state).then(b.figure.total_cmp(&a.figure)))
        }
        Wants::TimeTo(_) => None,
    };
    found.map(|found| (found, all.len()))
}

#[cfg(test)]
mod tests;
