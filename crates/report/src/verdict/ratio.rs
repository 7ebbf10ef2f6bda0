//! What was measured of ours beside what was measured of another: ratios, and what their spreads allow.

use std::cmp::Ordering;

use super::{Found, State};
use crate::figure::{Better, Wants};
use crate::measure::Measure;
use crate::plots::{Dot, Series};

/// How far a ratio of what was measured once may be off, either way: nothing says how far its repetitions would lie apart.
const ONCE: f64 = 0.1;

/// Who finds fewer of the labels has not learned yet: which of two is there first is chance.
const LEARNED: f64 = 0.5;

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

/// A ratio at a place, or a number of ours alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) at: f64,
    pub(super) figure: f64,
    /// The least and the greatest that the spreads of both sides allow; none where one has none.
    pub(super) spread: Option<[f64; 2]>,
    /// Such a one; what is simulated is always the same.
    pub(super) is_once: bool,
}

impl Ratio {
    pub(super) fn of(
        better: Better,
        ours: &Series,
        other: &Series,
        (at, figure): (f64, f64),
    ) -> Ratio {
        let spread = spread(better, ours, other, at, |_| None);
        let there =
            |series: &Series| series.dots.iter().any(|dot| dot.key == at && dot.is_simulated());
        Ratio {
            at,
            figure,
            spread,
            is_once: spread.is_none() && ![ours, other].into_iter().all(there),
        }
    }

    pub(super) fn by_figure(a: &Ratio, b: &Ratio) -> Ordering {
        a.figure.total_cmp(&b.figure)
    }

    pub(super) fn low(&self) -> f64 {
        self.spread.map_or(self.figure, |[low, _]| low)
    }

    pub(super) fn high(&self) -> f64 {
        self.spread.map_or(self.figure, |[_, high]| high)
    }

    /// Met or short where the whole spread is, and unclear where the bound is in it, or near to what was measured once.
    pub(super) fn state(&self, bound: f64) -> State {
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

    pub(super) fn found(self, wants: Wants) -> Found {
        let Ratio { at, figure, spread, .. } = self;
        let state = self.state(wants.bound());
        Found { figure, at: Some(at), spread, state, is_alone: false, wants }
    }
}

/// The least and the greatest ratio that the spreads of two series at a place allow; `without` says what stands for one that has
/// no spread.
pub(crate) fn spread(
    better: Better,
    ours: &Series,
    other: &Series,
    at: f64,
    without: fn(Measure) -> Option<(f64, f64)>,
) -> Option<[f64; 2]> {
    let there = |series: &Series| series.dots.iter().find(|dot| dot.key == at).map(|dot| dot.y);
    let ends =
        |measure: Measure| measure.spread.map(|it| (it.low, it.high)).or_else(|| without(measure));
    let ((our_low, our_high), (low, high)) = ends(there(ours)?).zip(ends(there(other)?))?;
    let ratios = match better {
        Better::Lower => [low / our_high, high / our_low],
        Better::Higher => [our_low / high, our_high / low],
    };
    // a single repetition has no spread
    (ratios.iter().all(|ratio| ratio.is_finite()) && ratios[0] < ratios[1]).then_some(ratios)
}

/// The other's time over ours until each had first what the worse of the two had at its best; none where that is an accuracy that
/// says nothing of who learned.
pub(super) fn time_ratio(better: Better, ours: &Series, other: &Series) -> Option<Ratio> {
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
        |series: &Series| series.dots.iter().find(|dot| is_there(dot.y.median, goal)).cloned();
    let (ours, other) = (first(ours)?, first(other)?);
    let ends = |dot: &Dot| dot.x_ends.unwrap_or([dot.x; 2]);
    let (mine, theirs) = (ends(&ours), ends(&other));
    let spread = [theirs[0] / mine[1], theirs[1] / mine[0]];
    let spread = (spread[0] < spread[1]).then_some(spread);
    let is_once = spread.is_none();
    let ratio = Ratio { at: 0.0, figure: other.x / ours.x, spread, is_once };
    ratio.figure.is_finite().then_some(ratio)
}
