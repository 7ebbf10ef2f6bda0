//! What a process says of itself while it trains: how fast it is, what it writes, and what its time goes to.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::report::Polling;

/// How often a process says so, at most: often enough for an eye, too seldom to cost anything.
const INTERVAL: Duration = Duration::from_millis(500);

/// What a process did in the last whole steps of half a second or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessFigures {
    pub seconds: f64,
    pub steps: u64,
    /// That it trained on; none at servers.
    pub samples: u64,
    /// Written to others: what is read where it lies is none of it.
    pub bytes_written: u64,
    pub polling: Polling,
}

impl ProcessFigures {
    pub fn samples_per_second(&self) -> f64 {
        self.per_second(self.samples)
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.per_second(self.bytes_written)
    }

    pub fn polls_per_second(&self) -> f64 {
        self.per_second(self.polling.polls)
    }

    /// The share of the time that was lost in polls that found nothing, and in waits: communication that nothing hid.
    pub fn waiting(&self) -> f64 {
        let Polling { poll_ns, wait_ns, .. } = self.polling;
        self.per_second(poll_ns.saturating_add(wait_ns)) / 1e9
    }

    fn per_second(&self, count: u64) -> f64 {
        // fits: shown to a person
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}

/// Counts since it was last said.
#[derive(Debug)]
pub(crate) struct Gauge {
    since: Instant,
    steps: u64,
    bytes_written: u64,
    polling: Polling,
}

impl Gauge {
    /// One that begins here, with what was counted before.
    pub(crate) fn new(now: Instant, polling: Polling, bytes_written: u64) -> Gauge {
        Gauge { since: now, steps: 0, bytes_written, polling }
    }

    /// A step is done. Returns what there is to say, if it is time to.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        samples_per_step: u64,
        polling: Polling,
        bytes_written: impl FnOnce() -> u64,
    ) -> Option<ProcessFigures> {
        self.steps += 1;
        let took = now.saturating_duration_since(self.since);
        if took < INTERVAL {
            return None;
        }
        let bytes = bytes_written();
        let figures = ProcessFigures {
            seconds: took.as_secs_f64(),
            steps: self.steps,
            samples: self.steps.saturating_mul(samples_per_step),
            bytes_written: bytes.saturating_sub(self.bytes_written),
            polling: polling - self.polling,
        };
        *self = Gauge::new(now, polling, bytes);
        Some(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_whole_steps_since_the_last() {
        let begun = Instant::now();
        let polling = |polls| Polling { polls, wait_ns: 250_000_000 * polls, ..Polling::default() };
        let mut gauge = Gauge::new(begun, polling(1), 100);
        let soon = begun + Duration::from_millis(10);
        assert_eq!(gauge.step(soon, 8, polling(2), || panic!("asked too early")), None);
        let figures = gauge.step(begun + Duration::from_secs(2), 8, polling(3), || 1100).unwrap();
        assert_eq!((figures.steps, figures.samples, figures.bytes_written), (2, 16, 1000));
        assert_eq!(figures.samples_per_second(), 8.0);
        assert_eq!(figures.bytes_per_second(), 500.0);
        assert_eq!(figures.waiting(), 0.25);
        let next = gauge.step(begun + Duration::from_secs(3), 8, polling(3), || 1100).unwrap();
        assert_eq!((next.steps, next.bytes_written, next.polling.polls), (1, 0, 0));
        assert_eq!(ProcessFigures::default().samples_per_second(), 0.0);
    }
}
