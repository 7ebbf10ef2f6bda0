//! What a process says of itself while it trains: how fast it is, what it writes, and what its time goes to.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorwire_kvstore::ServerCounters;

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
    /// Of a store's server, which has neither steps nor polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreFigures>,
}

/// What workers asked of a store's server: shards that they pushed and pulled, and what these have, whether it was moved or
/// read where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreFigures {
    pub pushes: u64,
    pub pulls: u64,
    pub bytes_pushed: u64,
    pub bytes_pulled: u64,
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

    /// Of the time in which something was under way to or from this process, the share that it did not lose with polls and waits:
    /// other work hid it. None where nothing was.
    pub fn hidden(&self) -> Option<f64> {
        let Polling { poll_ns, wait_ns, under_way_ns, .. } = self.polling;
        // fits: shown to a person
        let lost = poll_ns.saturating_add(wait_ns) as f64 / under_way_ns as f64;
        (under_way_ns > 0).then(|| (1.0 - lost).max(0.0))
    }

    /// Of a count of these seconds.
    pub fn per_second(&self, count: u64) -> f64 {
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
            store: None,
        };
        *self = Gauge::new(now, polling, bytes);
        Some(figures)
    }
}

/// The same of a store's server: what was counted when it was last said.
#[derive(Debug)]
pub(crate) struct StoreGauge {
    since: Instant,
    counters: ServerCounters,
    bytes_written: u64,
}

impl StoreGauge {
    /// One that begins here, before anything was counted.
    pub(crate) fn new(now: Instant) -> StoreGauge {
        StoreGauge { since: now, counters: ServerCounters::default(), bytes_written: 0 }
    }

    /// Returns what there is to say, if it is time to. `counts` are the server's counters, and the bytes that it wrote.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        counts: impl FnOnce() -> (ServerCounters, u64),
    ) -> Option<ProcessFigures> {
        let took = now.saturating_duration_since(self.since);
        if took < INTERVAL {
            return None;
        }
        let (counters, bytes_written) = counts();
        let before = self.counters;
        let since = |of: fn(&ServerCounters) -> u64| of(&counters).saturating_sub(of(&before));
        let figures = ProcessFigures {
            seconds: took.as_secs_f64(),
            bytes_written: bytes_written.saturating_sub(self.bytes_written),
            store: Some(StoreFigures {
                pushes: since(|counters| counters.pushes),
                pulls: since(|counters| counters.pulls),
                bytes_pushed: since(|counters| counters.bytes_pushed),
                bytes_pulled: since(|counters| counters.bytes_pulled),
            }),
            ..ProcessFigures::default()
        };
        *self = StoreGauge { since: now, counters, bytes_written };
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
        assert_eq!(figures.hidden(), None, "nothing was under way");
        let under_way = |under_way_ns| ProcessFigures {
            polling: Polling { under_way_ns, ..figures.polling },
            ..figures
        };
        assert_eq!(under_way(2_000_000_000).hidden(), Some(0.75));
        assert_eq!(under_way(1000).hidden(), Some(0.0), "what was lost elsewhere is not of it");
        let next = gauge.step(begun + Duration::from_secs(3), 8, polling(3), || 1100).unwrap();
        assert_eq!((next.steps, next.bytes_written, next.polling.polls), (1, 0, 0));
        assert_eq!(ProcessFigures::default().samples_per_second(), 0.0);
    }

    #[test]
    fn a_server_says_what_was_pushed_and_pulled_since_the_last_time() {
        let begun = Instant::now();
        let mut gauge = StoreGauge::new(begun);
        let counters = |count| ServerCounters {
            pushes: count,
            pulls: 2 * count,
            bytes_pushed: 100 * count,
            bytes_pulled: 200 * count,
            ..ServerCounters::default()
        };
        let soon = begun + Duration::from_millis(10);
        assert_eq!(gauge.look(soon, || panic!("asked too early")), None);
        let figures = gauge.look(begun + Duration::from_secs(2), || (counters(4), 800)).unwrap();
        let of = |count| StoreFigures {
            pushes: count,
            pulls: 2 * count,
            bytes_pushed: 100 * count,
            bytes_pulled: 200 * count,
        };
        assert_eq!((figures.seconds, figures.store), (2.0, Some(of(4))));
        assert_eq!(figures.bytes_per_second(), 400.0);
        let next = gauge.look(begun + Duration::from_secs(3), || (counters(5), 800)).unwrap();
        assert_eq!((next.store, next.bytes_written), (Some(of(1)), 0));
        // nothing was asked of it, and it says so
        let idle = gauge.look(begun + Duration::from_secs(4), || (counters(5), 800)).unwrap();
        assert_eq!(idle.store, Some(of(0)));
    }

    /// What being watched costs a process: it says this whether anybody looks or not.
    #[test]
    fn however_short_its_steps_a_process_speaks_twice_a_second_and_little() {
        let begun = Instant::now();
        let polling = Polling { polls: u64::MAX, poll_ns: u64::MAX, ..Polling::default() };
        let mut gauge = Gauge::new(begun, Polling::default(), 0);
        let mut store = StoreGauge::new(begun);
        let (mut said, mut bytes) = (0, 0);
        for millisecond in 1..=10_000 {
            let now = begun + Duration::from_millis(millisecond);
            let of_store = store.look(now, || (ServerCounters::default(), u64::MAX));
            for figures in [gauge.step(now, 64, polling, || u64::MAX), of_store] {
                said += u64::from(figures.is_some());
                let json = figures.map(|figures| serde_json::to_vec(&figures).unwrap());
                bytes = bytes.max(json.map_or(0, |json| json.len()));
            }
        }
        assert_eq!(said, 2 * 20, "in 10 s, of 10,000 steps and 10,000 turns");
        assert!(bytes < 512, "{bytes}");
    }
}
