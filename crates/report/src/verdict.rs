//! Claims held against what was measured: met, or short by how much.

use std::cmp::Ordering;
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

/// How far a ratio of what was measured once may be off, either way: nothing says how far its repetitions would lie apart.
const ONCE: f64 = 0.1;

/// Who finds fewer of the labels has not learned yet: which of two is there first is chance.
const LEARNED: f64 = 0.5;

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
            State::Short => f.write_str("short: ")?,
            State::Unclear => f.write_str("unclear: ")?,
            State::Elsewhere => f.write_str("not measured there: ")?,
        }
        match self.wants {
            Wants::Reaches(_) | Wants::ReachesAt(..) if self.state == State::Elsewhere => {
                f.write_str(&plain(self.figure))
            }
            _ if self.state == State::Elsewhere => f.write_str(&times(self.figure)),
            Wants::Within(most) => {
                write!(f, "{} % off, at most {} %", percent(self.figure), percent(most))
            }
            Wants::Reaches(bound) | Wants::ReachesAt(_, bound) => {
                write!(f, "{} of {bound}", plain(self.figure))
            }
            wants => {
                f.write_str(&times(self.figure))?;
                if let Some([low, high]) = self.spread {
                    write!(f, " [{} to {}]", times(low), times(high))?;
                }
                write!(f, " of {}", times(wants.bound()))?;
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

/// A ratio at a place, or a number of ours alone.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    at: f64,
    figure: f64,
    /// The least and the greatest that the spreads of both sides allow; none where each was measured once.
    spread: Option<[f64; 2]>,
    /// Such a one; what is simulated is always the same.
    is_once: bool,
}

impl Ratio {
    fn of(better: Better, ours: &Series, other: &Series, (at, figure): (f64, f64)) -> Ratio {
        let spread = spread(better, ours, other, at);
        let there =
            |series: &Series| series.dots.iter().any(|dot| dot.key == at && dot.is_simulated());
        Ratio {
            at,
            figure,
            spread,
            is_once: spread.is_none() && ![ours, other].into_iter().all(there),
        }
    }

    fn by_figure(a: &Ratio, b: &Ratio) -> Ordering {
        a.figure.total_cmp(&b.figure)
    }

    fn low(&self) -> f64 {
        self.spread.map_or(self.figure, |[low, _]| low)
    }

    fn high(&self) -> f64 {
        self.spread.map_or(self.figure, |[_, high]| high)
    }

    /// Met or short where the whole spread is, and unclear where the bound is in it, or near to what was measured once.
    fn state(&self, bound: f64) -> State {
        if self.is_once && (self.figure / bound - 1.0).abs() <= ONCE {
            State::Unclear
        } else if self.low() >= bound {
            State::Met
        } else if self.high() < bound {
            State::Short
        } else {
            State::Unclear
        }
    }

    fn found(self, wants: Wants) -> Found {
        let Ratio { at, figure, spread, .. } = self;
        let state = self.state(wants.bound());
        Found { figure, at: Some(at), spread, state, is_alone: false, wants }
    }
}

/// The least and the greatest ratio that the spreads of two series at a place allow.
fn spread(better: Better, ours: &Series, other: &Series, at: f64) -> Option<[f64; 2]> {
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
            return Some((Found::plain(wants, ratio, None), 1));
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
        // somewhere: where it is met for sure, then where it may be
        Wants::Best(_) | Wants::BestOfAll(_) | Wants::Reaches(_) => {
            let best = [State::Met, State::Unclear, State::Short]
                .into_iter()
                .find_map(|state| most(&that_are(state)))?;
            let found = best.found(wants);
            // of several models that were measured once, the luckiest is the best
            let is_luck = matches!(wants, Wants::BestOfAll(_)) && found.spread.is_none();
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
        Wants::Within(_) => {
            // of the other, whichever is better
            let of_other = |ratio: f64| match better {
                Better::Lower => 1.0 / ratio,
                Better::Higher => ratio,
            };
            let off = all.iter().map(|one| (one.at, (of_other(one.figure) - 1.0).abs()));
            let (at, figure) = off.max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(Found::plain(wants, figure, Some(at)))
        }
        Wants::TimeTo(_) => None,
    };
    found.map(|found| (found, all.len()))
}

impl Found {
    /// Of what has no spread.
    fn plain(wants: Wants, figure: f64, at: Option<f64>) -> Found {
        let is_met = match wants {
            Wants::Within(most) => figure <= most,
            wants => figure >= wants.bound(),
        };
        let state = if is_met { State::Met } else { State::Short };
        Found { figure, at, spread: None, state, is_alone: false, wants }
    }
}

/// The other's time over ours until each had first what the worse of the two had at its best; none where that is an accuracy that
/// says nothing of who learned.
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
    if better == Better::Higher && goal < LEARNED {
        return None;
    }
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
    use crate::line::Line;
    use crate::measure::{Between, Spread};
    use crate::origin::Origin;

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
            (Wants::Best(3.5), "met: 4× of 3.5×"),
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
    fn what_was_measured_once_is_unclear_near_to_the_bound() {
        let other = [(1.0, 10.0), (2.0, 10.0)];
        for (ours, wants, says) in [
            (9.6, Wants::At(1.0, 1.0), "unclear: 1.04× of 1×, measured once"),
            (10.4, Wants::At(1.0, 1.0), "unclear: 0.96× of 1×, measured once"),
            (8.0, Wants::At(1.0, 1.0), "met: 1.25× of 1×"),
            (12.0, Wants::At(1.0, 1.0), "short: 0.83× of 1×"),
            (9.6, Wants::Mean(1.0), "unclear: 1.04× of 1×, measured once"),
            (9.6, Wants::Least(1.0), "unclear: 1.04× of 1×, measured once"),
            (9.6, Wants::Best(1.0), "unclear: 1.04× of 1×, measured once"),
        ] {
            let ours = [(1.0, ours), (2.0, ours)];
            assert_eq!(judged(Better::Lower, wants, &ours, &other), says);
        }
        // what is simulated comes out the same each time
        let line = Line::read_all("a", r#"{"bench":"simulate","cluster":"c"}"#).unwrap().remove(0);
        let origins: BTreeSet<_> = Origin::of(&line).into_iter().collect();
        let simulated = |name, y: f64| {
            let mut series = series(name, &[(8.0, y)]);
            series.dots[0].origins.clone_from(&origins);
            series
        };
        let wants = Wants::At(8.0, 1.98);
        let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
        let plot = plot(vec![simulated("a", 2.0), simulated("b", 1.0)]);
        assert_eq!(judge(Better::Higher, &claim, &plot).unwrap().to_string(), "met: 2× of 1.98×");
        // and what was measured once does not, whatever is beside it
        let beside = self::plot(vec![series("a", &[(8.0, 2.0)]), simulated("b", 1.0)]);
        let says = judge(Better::Higher, &claim, &beside).unwrap().to_string();
        assert_eq!(says, "unclear: 2× of 1.98×, measured once");
    }

    #[test]
    fn a_figure_of_its_own_is_held_against_its_bound_where_that_is_said() {
        let (only, ours, against): (&[&str], &[&str], &[&str]) = (&[], &["a"], &[]);
        let claim = Claim { says: "", only, ours, against, wants: Wants::ReachesAt(8.0, 0.5) };
        let says = |dots: &[(f64, f64)]| {
            judge(Better::Higher, &claim, &plot(vec![series("a", dots)])).unwrap().to_string()
        };
        assert_eq!(says(&[(4.0, 0.9), (8.0, 0.52)]), "met: 0.52 of 0.5");
        assert_eq!(says(&[(4.0, 0.9), (8.0, 0.48)]), "short: 0.48 of 0.5");
        assert_eq!(says(&[(4.0, 0.9)]), "not measured there: 0.9");
    }

    #[test]
    fn a_claim_of_every_size_says_where_there_is_only_one() {
        let figure = crate::figures::FIGURES.iter().find(|figure| figure.id == "xue-8").unwrap();
        let place = |wants, ours: &[(f64, f64)], other: &[(f64, f64)]| {
            let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
            let plot = plot(vec![series("a", ours), series("b", other)]);
            judge(Better::Lower, &claim, &plot).unwrap().place(figure).unwrap()
        };
        let (one, two) = ([(4096.0, 1.0)], [(4096.0, 1.0), (8192.0, 2.0)]);
        let other = [(4096.0, 2.0), (8192.0, 9.0)];
        for wants in [Wants::Least(1.0), Wants::Best(1.0), Wants::Within(0.1)] {
            assert_eq!(place(wants, &one, &other), "4 KiB, the only one", "{wants:?}");
        }
        assert_eq!(place(Wants::Least(1.0), &two, &other), "4 KiB");
        assert_eq!(place(Wants::At(4096.0, 1.0), &one, &other), "4 KiB");
    }

    /// A place, a median, and from where to where it may be.
    fn spread_series(name: &str, dots: &[(f64, f64, [f64; 2])]) -> Series {
        let dot = |&(x, median, [low, high]): &(f64, f64, [f64; 2])| {
            let spread = Spread { low, high, between: Between::Percentiles };
            let y = Measure::new(median, Some(spread), Some(3.0));
            Dot { key: x, x, y, origins: BTreeSet::new() }
        };
        Series { name: name.to_string(), role: Role::Ours, dots: dots.iter().map(dot).collect() }
    }

    #[test]
    fn what_is_within_the_noise_of_the_bound_is_unclear() {
        let other = [(1.0, 10.0, [10.0, 10.0]), (2.0, 10.0, [10.0, 10.0])];
        let says = |wants, ours: &[(f64, f64, [f64; 2])]| {
            let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
            let plot = plot(vec![spread_series("a", ours), spread_series("b", &other)]);
            judge(Better::Lower, &claim, &plot).unwrap().to_string()
        };
        let noisy = (1.0, 5.0, [1.0, 20.0]);
        let sure = (2.0, 8.0, [7.5, 8.5]);
        let wants = Wants::At(1.0, 1.9);
        assert_eq!(says(wants, &[noisy]), "unclear: 2× [0.5× to 10×] of 1.9×");
        let wants = Wants::At(1.0, 2.1);
        assert_eq!(says(wants, &[noisy]), "unclear: 2× [0.5× to 10×] of 2.1×");
        // every size: one for which it is not sure is enough, though another has the least median
        let wants = Wants::Least(1.1);
        assert_eq!(says(wants, &[noisy, sure]), "unclear: 2× [0.5× to 10×] of 1.1×");
        let wants = Wants::Least(1.4);
        assert_eq!(says(wants, &[noisy, sure]), "short: 1.25× [1.18× to 1.33×] of 1.4×");
        // the best size: one for which it is sure is enough, and what is noise does not hide it
        let wants = Wants::Best(1.1);
        assert_eq!(says(wants, &[noisy, sure]), "met: 1.25× [1.18× to 1.33×] of 1.1×");
        let wants = Wants::Best(1.4);
        assert_eq!(says(wants, &[noisy, sure]), "unclear: 2× [0.5× to 10×] of 1.4×");
        let wants = Wants::Mean(1.6);
        assert_eq!(says(wants, &[noisy, sure]), "unclear: 1.62× [0.84× to 5.67×] of 1.6×");
    }

    #[test]
    fn one_lucky_pair_of_several_does_not_meet_a_claim() {
        let wants = Wants::BestOfAll(1.2);
        let figure = Figure { claims: &[], better: Better::Lower, ..*crate::figures::FIGURES[0] };
        let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
        let other = (0.0, 10.0, [9.9, 10.1]);
        let of = |title: &str, ours| Plot {
            title: title.to_string(),
            ..plot(vec![spread_series("a", &[ours]), spread_series("b", &[other])])
        };
        let lucky = of("lucky", (0.0, 4.0, [3.0, 30.0]));
        let sure = of("sure", (0.0, 8.0, [7.9, 8.1]));
        let says = |plots: &[Plot]| {
            let verdict = verdicts(&figure, &claim, plots).remove(0);
            format!("{}: {}", verdict.title, verdict.found)
        };
        assert!(says(&[lucky, sure]).starts_with("sure: met: 1.25×"));
        let lucky = of("lucky", (0.0, 4.0, [3.0, 30.0]));
        let sure = of("sure", (0.0, 9.0, [8.9, 9.1]));
        assert!(says(&[lucky, sure]).starts_with("lucky: unclear: 2.5×"));
        let once = vec![series("a", &[(0.0, 4.0)]), series("b", &[(0.0, 10.0)])];
        assert_eq!(says(&[plot(once)]), ": unclear: 2.5× of 1.2×, measured once");
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
    fn accuracies_near_chance_say_nothing_of_who_is_there_first() {
        let claim =
            Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::TimeTo(1.0) };
        let (ours, other) = ([(1.0, 0.1), (2.0, 0.9)], [(1.0, 0.1), (9.0, 0.14)]);
        let curves = plot(vec![series("a", &ours), series("b", &other)]);
        assert_eq!(judge(Better::Higher, &claim, &curves), None);
    }

    #[test]
    fn series_that_were_not_measured_together_have_no_verdict() {
        let claim =
            Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::Least(1.0) };
        let apart = vec![series("a", &[(1.0, 1.0)]), series("b", &[(2.0, 1.0)])];
        assert_eq!(judge(Better::Lower, &claim, &plot(apart)), None);
    }
}
