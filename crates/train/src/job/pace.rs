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
        }
        // the second step counts in any case: better some of a tail too much than no figure
        if self.last.is_none() || left_tail == first.left_tail {
            self.last = Some(end);
        }
    }

    /// Seconds, and the steps that took them; both 0 of fewer than two steps.
    pub(super) fn warm(&self) -> (f64, u64) {
        match (self.first, self.last) {
            (Some(first), Some(last)) => {
                ((last.at - first.at).as_secs_f64(), last.step - first.step)
            }
            _ => (0.0, 0),
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
        pace.warm()
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
