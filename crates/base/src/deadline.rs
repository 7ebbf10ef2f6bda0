//! Points in time after which a wait must end. Every wait in the project takes one.

use std::time::{Duration, Instant};

/// A moment by which something must have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The moment `duration` from now, or a thousand years from now where that is further than the clock goes.
    pub fn after(duration: Duration) -> Deadline {
        const FAR: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);
        let now = Instant::now();
        Deadline(now.checked_add(duration).unwrap_or_else(|| now + FAR))
    }

    /// The earlier of two deadlines.
    pub fn min(self, other: Deadline) -> Deadline {
        Deadline(self.0.min(other.0))
    }

    /// True once the moment has come.
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// Time left; zero once passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The host's monotonic clock: stamps that all processes of one host can compare.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub fn now_ns() -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // fits: the monotonic clock is never negative, and 2^64 ns are 584 years
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_and_has_nothing_left() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(deadline.passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
        assert!(!Deadline::after(Duration::from_secs(60)).passed());
        assert!(!Deadline::after(Duration::MAX).passed());
    }

    #[test]
    fn the_earlier_deadline_wins() {
        let near = Deadline::after(Duration::from_secs(1));
        let far = Deadline::after(Duration::from_secs(9));
        assert_eq!(near.min(far), near);
        assert_eq!(far.min(near), near);
    }
}
