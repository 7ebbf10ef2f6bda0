//! What the steps of a process take once all are under way.

use std::time::Instant;

/// From the end of the first step, which waits until all processes have set up, to that of the last step that ends as
/// it did. A step that leaves what crosses for the next one ends earlier than one that waits for it: between ends of one
/// kind lies what crosses in just as many steps.
#[derive(Debug, Default)]
pub(super) struct Pace {
    first: Option<End>,
    last: Option<End>,
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
        assert_eq!(pace(&[(5, true), (7, true), (9, true), (13, false)]), (4.0, 2));
        assert_eq!(pace(&[(5, true), (7, false), (9, true), (13, false)]), (4.0, 2));
        assert_eq!(pace(&[(5, true), (9, false)]), (4.0, 1), "there is no other");
    }
}
