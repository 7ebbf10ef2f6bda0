//! What the steps of a process take once all are under way.

use std::time::Instant;

/// From the end of the first step, which waits until all processes have set up, to that of the last step that ends as
/// it did. A step that leaves what crosses for the next one ends earlier than one that waits for it: between ends of one
/// kind lies what crosses in just as many steps. The first that does waits for nothing of others, and ends when this process
/// has computed: where another of its kind follows, it counts from there.
#[derive(Debug, Default)]
pub(super) struct Pace {
    first: Option<End>,
    last: Option<End>,
    /// `first` is the end of the second step.
    is_second: bool,
    marks: Marks,
}

/// What steps took once all are under way.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Warm {
    /// Of all of them; 0 of none.
    pub(super) seconds: f64,
    pub(super) steps: u64,
    /// Seconds a step, of each or of as many in a row as make [`MARKS_MAX`] pieces at most.
    pub(super) pieces: Vec<f64>,
}

/// Behind so many, every other one is left out.
const MARKS_MAX: usize = 128;

/// Ends of one kind, evenly chosen of all that there were behind the first.
#[derive(Debug, Default)]
struct Marks {
    chosen: Vec<End>,
    /// Ends so far, and how many of them one is chosen of.
    count: usize,
    of: usize,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Instant,
    step: u64,
    left_tail: bool,
}

impl Pace {
    /// A step is over now, and left what crosses for the next one, or did not.
    pub(super) fn step(&mut self, at: Instant, step: u64, left_tail: bool) {
        let end = End { at, step, left_tail };
        let Some(first) = self.first else {
            self.first = Some(end);
            return;
        };
        let waited_for_nothing = first.left_tail && !self.is_second;
        if waited_for_nothing && left_tail && self.last.is_some_and(|last| last.left_tail) {
            // the one before was the second of its kind
            (self.first, self.is_second) = (self.last, true);
            self.marks = Marks::default();
        }
        // the second step counts in any case: better some of a tail too much than no figure
        if self.last.is_none() || left_tail == first.left_tail {
            self.last = Some(end);
        }
        if left_tail == first.left_tail {
            self.marks.add(end);
        }
    }

    /// Nothing of fewer than two steps.
    pub(super) fn warm(&self) -> Warm {
        let Some((first, last)) = self.first.zip(self.last) else {
            return Warm::default();
        };
        let mut ends = self.marks.chosen.clone();
        if ends.is_empty() {
            ends.push(last);
        }
        let from = std::iter::once(&first).chain(&ends);
        // fits: steps in a row are far fewer than 2^53
        let piece = |(from, to): (&End, &End)| from.until(to) / (to.step - from.step) as f64;
        Warm {
            seconds: first.until(&last),
            steps: last.step - first.step,
            pieces: from.zip(&ends).map(piece).collect(),
        }
    }
}

impl End {
    fn until(&self, to: &End) -> f64 {
        (to.at - self.at).as_secs_f64()
    }
}

impl Marks {
    fn add(&mut self, end: End) {
        self.count += 1;
        self.of = self.of.max(1);
        if !self.count.is_multiple_of(self.of) {
            return;
        }
        self.chosen.push(end);
        if self.chosen.len() > MARKS_MAX {
            self.of *= 2;
            let mut at = 0..;
            // the second of two, so that pieces are of equally many steps from the first end on
            self.chosen.retain(|_| at.next().is_some_and(|at: usize| at % 2 == 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pace(ends: &[(u64, bool)]) -> (f64, u64) {
        let begun = Instant::now();
        let mut pace = Pace::default();
        for (step, &(second, left_tail)) in (1..).zip(ends) {
            pace.step(begun + Duration::from_secs(second), step, left_tail);
        }
        let Warm { seconds, steps, .. } = pace.warm();
        (seconds, steps)
    }

    fn pieces(ends: impl IntoIterator<Item = (u64, bool)>) -> Vec<f64> {
        let begun = Instant::now();
        let mut pace = Pace::default();
        for (step, (second, left_tail)) in (1..).zip(ends) {
            pace.step(begun + Duration::from_secs(second), step, left_tail);
        }
        pace.warm().pieces
    }

    #[test]
    fn each_step_is_a_piece_and_of_many_as_many_in_a_row_as_make_few_pieces() {
        assert_eq!(pieces([]), [0.0; 0]);
        assert_eq!(pieces([(5, false)]), [0.0; 0]);
        assert_eq!(pieces([(5, false), (7, false), (10, false)]), [2.0, 3.0]);
        // from the second on, and not the last one, which is of the other kind
        assert_eq!(pieces([(5, true), (8, true), (10, true), (13, true), (20, false)]), [2.0, 3.0]);
        assert_eq!(pieces([(5, true), (7, false), (9, true), (13, false)]), [2.0]);
        assert_eq!(pieces([(5, true), (9, false)]), [4.0], "there is no other");
        // steps of 1 and 3 s by turns
        let ends = (0..1001).map(|step| (2 * step + step % 2, false));
        let found = pieces(ends);
        assert!((MARKS_MAX / 2..=MARKS_MAX).contains(&found.len()), "{}", found.len());
        assert!(found.iter().all(|&seconds| seconds == 2.0), "{found:?}");
    }

    #[test]
    fn steps_count_from_the_first_ones_end() {
        assert_eq!(pace(&[]), (0.0, 0));
        assert_eq!(pace(&[(5, false)]), (0.0, 0));
        assert_eq!(pace(&[(5, false), (7, false), (9, false)]), (4.0, 2));
    }

    #[test]
    fn a_last_step_that_waits_for_what_crosses_does_not_count_behind_those_that_did_not() {
        let ends = [(5, true), (8, true), (10, true), (12, true), (16, false)];
        assert_eq!(pace(&ends), (4.0, 2), "from the second on");
        assert_eq!(pace(&[(5, true), (8, true), (12, false)]), (3.0, 1), "there is no third");
        assert_eq!(pace(&[(5, true), (7, false), (9, true), (13, false)]), (4.0, 2));
        assert_eq!(pace(&[(5, true), (9, false)]), (4.0, 1), "there is no other");
    }
}
