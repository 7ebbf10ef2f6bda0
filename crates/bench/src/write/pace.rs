//! How long a measurement goes on. Machines differ by a factor of a thousand, so time decides where no count is given.

use std::time::Duration;

use tensorwire_base::Clock;

/// Repetitions wanted if there is time for them.
const ENOUGH: u64 = 3;
/// No arrival slot is raised more often than that in one measurement, so that slot and epoch go in an
/// immediate.
const MOST: u64 = 200_000;

/// The pace of one measurement, from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    begun_ns: u64,
    until: Until,
}

#[derive(Clone, Copy, Debug)]
enum Until {
    Time { least: Duration, most: Duration },
    Count(u64),
}

impl Pace {
    /// Lasts at least so long, and at most `most` for the sake of a few repetitions.
    pub(super) fn start(least: Duration, most: Duration) -> Pace {
        Pace { begun_ns: Clock::now_ns(), until: Until::Time { least, most } }
    }

    /// Lasts for so many, as long as one slot may be raised so often.
    pub(super) fn of(count: u64) -> Pace {
        Pace { begun_ns: Clock::now_ns(), until: Until::Count(count.clamp(1, MOST)) }
    }

    /// Is there to be another one after `done`?
    pub(super) fn goes_on(self, done: u64) -> bool {
        match self.until {
            Until::Time { least, most } => {
                more(done, Duration::from_nanos(self.elapsed_ns()), least, most)
            }
            Until::Count(count) => done < count,
        }
    }

    pub(super) fn elapsed_ns(self) -> u64 {
        Clock::now_ns().saturating_sub(self.begun_ns)
    }
}

fn more(done: u64, elapsed: Duration, least: Duration, most: Duration) -> bool {
    let wanted = elapsed < least || (done < ENOUGH && elapsed < most);
    done == 0 || (wanted && done < MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_given_decides_alone() {
        let done = |count| (0..).find(|done| !Pace::of(count).goes_on(*done));
        assert_eq!([0, 1, 7, MOST + 1].map(done), [Some(1), Some(1), Some(7), Some(MOST)]);
    }

    #[test]
    fn there_is_one_and_time_ends_the_rest() {
        let (least, most) = (Duration::from_millis(300), Duration::from_secs(3));
        let more = |done, ms| more(done, Duration::from_millis(ms), least, most);
        assert!(more(0, 60_000), "one in any case");
        assert!(more(1, 2999) && !more(1, 3000), "a slow machine");
        assert!(more(10_000, 299) && !more(10_000, 300), "a fast one");
        assert!(!more(MOST, 0));
    }
}
