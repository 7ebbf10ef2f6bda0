//! Which case of which figure is next. Knows no clock: whoever asks says how long it has been.

use std::ops::Range;
use std::time::Duration;

/// The order in which cases of figures are done. With limits, each figure has its time in a first round; what is left of all
/// of it then goes to the cases that were not begun, one of each figure after the other, where the longest case of the figure
/// so far would still fit.
#[derive(Debug)]
pub struct Turns {
    figures: Vec<Cases>,
    /// The figure whose turn it is, and since when.
    at: usize,
    since: Duration,
    /// The figure of the last case, and when that was begun.
    last: Option<(usize, Duration)>,
    /// True once all figures had their time.
    is_second_round: bool,
    has_limits: bool,
}

/// Of one figure.
#[derive(Debug)]
struct Cases {
    /// Not begun yet.
    left: Range<usize>,
    /// None of the first round is begun after this long.
    limit: Duration,
    /// What the longest so far took.
    longest: Duration,
}

/// A case to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextCase {
    pub figure: usize,
    pub case: usize,
    /// It is in time that others left.
    pub is_second_round: bool,
}

impl Turns {
    /// `figures`: how many cases each has, and its time; `has_limits`: the time counts.
    pub fn new(figures: impl IntoIterator<Item = (usize, Duration)>, has_limits: bool) -> Turns {
        let of = |(count, limit)| Cases { left: 0..count, limit, longest: Duration::ZERO };
        Turns {
            figures: figures.into_iter().map(of).collect(),
            at: 0,
            since: Duration::ZERO,
            last: None,
            is_second_round: false,
            has_limits,
        }
    }

    /// The case to begin `now`, which is how long it has been since the first; none: all are done, or there is no more time.
    pub fn next(&mut self, now: Duration) -> Option<NextCase> {
        if let Some((figure, begun)) = self.last.take() {
            let longest = &mut self.figures[figure].longest;
            *longest = (*longest).max(now.saturating_sub(begun));
        }
        let turn = match self.next_in_first_round(now) {
            Some(turn) => turn,
            None => self.next_in_second_round(now)?,
        };
        self.last = Some((turn.figure, now));
        Some(turn)
    }

    fn next_in_first_round(&mut self, now: Duration) -> Option<NextCase> {
        while !self.is_second_round && self.at < self.figures.len() {
            let cases = &mut self.figures[self.at];
            let has_time = !self.has_limits || now.saturating_sub(self.since) <= cases.limit;
            if let Some(case) = has_time.then(|| cases.left.next()).flatten() {
                return Some(NextCase { figure: self.at, case, is_second_round: false });
            }
            self.at += 1;
            self.since = now;
        }
        None
    }

    fn next_in_second_round(&mut self, now: Duration) -> Option<NextCase> {
        if !self.is_second_round {
            self.is_second_round = true;
            self.at = 0;
        }
        let time_left = self.time_left(now);
        let count = self.figures.len();
        let fits = |at: &usize| {
            let Cases { left, longest, .. } = &self.figures[*at];
            !left.is_empty() && !time_left.is_zero() && *longest <= time_left
        };
        let figure = (0..count).map(|step| (self.at + step) % count).find(fits)?;
        let case = self.figures[figure].left.next()?;
        self.at = (figure + 1) % count;
        Some(NextCase { figure, case, is_second_round: true })
    }

    /// What is left of all figures' time.
    pub fn time_left(&self, now: Duration) -> Duration {
        let all: Duration = self.figures.iter().map(|cases| cases.limit).sum();
        all.saturating_sub(now)
    }

    /// Cases of a figure that were not begun.
    pub fn left(&self, figure: usize) -> usize {
        self.figures.get(figure).map_or(0, |cases| cases.left.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done of figures with so many cases of so many seconds, and so much time; and when all of it ends.
    fn done(figures: &[(usize, u64, u64)], has_limits: bool) -> (Vec<(usize, usize)>, u64) {
        let seconds = Duration::from_secs;
        let of = figures.iter().map(|(cases, _, limit)| (*cases, seconds(*limit)));
        let mut turns = Turns::new(of, has_limits);
        let (mut order, mut now) = (Vec::new(), Duration::ZERO);
        while let Some(NextCase { figure, case, .. }) = turns.next(now) {
            order.push((figure, case));
            now += seconds(figures[figure].1);
        }
        for (figure, (cases, ..)) in figures.iter().enumerate() {
            let begun = order.iter().filter(|(of, _)| *of == figure).count();
            assert_eq!(turns.left(figure), cases - begun, "{figure}");
        }
        (order, now.as_secs())
    }

    #[test]
    fn without_limits_all_cases_are_done_in_order() {
        let all = vec![(0, 0), (0, 1), (1, 0), (2, 0)];
        assert_eq!(done(&[(2, 100, 1), (1, 100, 1), (1, 100, 1)], false), (all, 400));
    }

    #[test]
    fn time_that_figures_leave_goes_to_those_that_had_too_little() {
        // of the first and the third 2 cases are late each, and the second leaves 40 s
        let figures = [(4, 10, 15), (1, 5, 45), (4, 10, 15)];
        let first = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)];
        let second = [(0, 2), (2, 2), (0, 3)];
        assert_eq!(done(&figures, true), ([&first[..], &second].concat(), 75));
    }

    #[test]
    fn no_case_is_begun_that_would_not_fit() {
        // each may be one case late; what that takes is nobody's
        let (order, ends) = done(&[(9, 10, 10), (9, 10, 10)], true);
        assert_eq!((order, ends), (vec![(0, 0), (0, 1), (1, 0), (1, 1)], 40));
        // too little is left for any
        let figures = [(3, 20, 10), (1, 1, 20), (3, 9, 10)];
        let first = vec![(0, 0), (1, 0), (2, 0), (2, 1)];
        assert_eq!(done(&figures, true), (first, 39));
        // 19 s are left: too few for another of the first, enough for one of the last
        let figures = [(3, 20, 10), (1, 1, 38), (3, 9, 10)];
        let all = vec![(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)];
        assert_eq!(done(&figures, true), (all, 48));
        assert_eq!(done(&[(0, 1, 5)], true), (Vec::new(), 0));
        assert_eq!(done(&[], true), (Vec::new(), 0));
    }
}
