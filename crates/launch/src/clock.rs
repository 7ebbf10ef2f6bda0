//! The clocks of other hosts beside the launcher's, as far as what both ends of a control connection read tells (Mills 1991,
//! NTP's clock filter: of several readings the one with the shortest round trip).

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// How far two clocks of computers drift apart: no more than a thousandth, where Linux changes the rate of each by at most half of
/// that (adjtimex).
const DRIFT: u64 = 1_000;

/// A member's clock, read once between two readings of the launcher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// What the member's clock read.
    at_ns: u64,
    /// By how much it was ahead of the launcher's.
    ahead_ns: i128,
    /// Most that this may be wrong: half of the round trip.
    error_ns: u64,
    /// It is the launcher's own: nothing drifts.
    is_same: bool,
}

/// Returns a number of the clock that this process reads, which all processes have that read the same one: those of one machine, if
/// they are in one time namespace. None if the system does not say.
pub(crate) fn clock_id() -> Option<u64> {
    static ID: OnceLock<Option<u64>> = OnceLock::new();
    *ID.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        // a kernel without such namespaces has one clock
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        let digest = Sha256::new().chain_update(boot);
        let digest = digest.chain_update(namespace.as_os_str().as_encoded_bytes()).finalize();
        Some(u64::from_le_bytes(std::array::from_fn(|i| digest[i])))
    })
}

impl ClockReading {
    /// Returns what the launcher knows of a member that read `at_ns` some time between `told_ns` and `heard_ns` by its own
    /// clock; none if those are not in order.
    pub fn of(told_ns: u64, at_ns: u64, heard_ns: u64) -> Option<ClockReading> {
        let round_trip = heard_ns.checked_sub(told_ns)?;
        let middle = told_ns + round_trip / 2;
        let ahead_ns = i128::from(at_ns) - i128::from(middle);
        let error_ns = round_trip.div_ceil(2);
        Some(ClockReading { at_ns, ahead_ns, error_ns, is_same: false })
    }

    /// What it knows of a member that reads the same clock.
    pub fn same(at_ns: u64) -> ClockReading {
        ClockReading { at_ns, ahead_ns: 0, error_ns: 0, is_same: true }
    }

    /// Most that the launcher's time of a moment of the member's may be wrong.
    fn error_at(&self, at_ns: u64) -> u64 {
        let drift_ns = if self.is_same { 0 } else { self.at_ns.abs_diff(at_ns) / DRIFT };
        self.error_ns.saturating_add(drift_ns)
    }
}

/// What is known of a member's clock: readings in order, of which none tells more of another's moment than that one itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberClock {
    readings: Vec<ClockReading>,
}

impl MemberClock {
    /// Adds a reading, if it tells more than those before it.
    pub fn add(&mut self, reading: ClockReading) {
        let last = self.readings.last();
        let is_late = last.is_some_and(|last| reading.at_ns < last.at_ns);
        if is_late || last.is_some_and(|last| last.error_at(reading.at_ns) <= reading.error_ns) {
            return;
        }
        let is_worse = |last: &ClockReading| reading.error_at(last.at_ns) <= last.error_ns;
        while self.readings.last().is_some_and(is_worse) {
            self.readings.pop();
        }
        self.readings.push(reading);
    }

    /// Returns what the launcher's clock read at a moment of the member's, and most that this may be wrong; none if nothing is
    /// known of the member's clock.
    pub fn by_launcher(&self, at_ns: u64) -> Option<(u64, u64)> {
        // of those before it, and of those behind it, the nearest tells most
        let behind = self.readings.partition_point(|reading| reading.at_ns <= at_ns);
        let near = [behind.checked_sub(1), Some(behind)].into_iter().flatten();
        let near = near.filter_map(|index| self.readings.get(index));
        let best = near.min_by_key(|reading| reading.error_at(at_ns))?;
        let by_launcher = i128::from(at_ns) - best.ahead_ns;
        // a moment before the launcher's clock began is none
        let by_launcher = u64::try_from(by_launcher.max(0)).unwrap_or(u64::MAX);
        Some((by_launcher, best.error_at(at_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: u64 = 5_000_000_000_000;

    /// What a member says whose clock is ahead, where the ways there and back take so long.
    fn reading(told_ns: u64, there: u64, back: u64) -> ClockReading {
        ClockReading::of(told_ns, told_ns + there + AHEAD, told_ns + there + back).unwrap()
    }

    #[test]
    fn the_shortest_round_trip_counts_and_the_truth_is_within_its_error() {
        let mut clock = MemberClock::default();
        assert_eq!(clock.by_launcher(1), None);
        for (told, there, back) in [(1_000, 900, 100), (2_000, 30, 50), (3_000, 5_000, 2_000)] {
            clock.add(reading(told, there, back));
        }
        let (at, error) = clock.by_launcher(AHEAD + 10_000).unwrap();
        // and what the clocks may drift apart in the 7,970 ns since
        assert_eq!((error, clock.readings.len()), (47, 1));
        assert!(at.abs_diff(10_000) <= error, "{at}");
    }

    #[test]
    fn a_moment_is_put_beside_readings_of_its_time() {
        let mut clock = MemberClock::default();
        clock.add(reading(0, 10, 10));
        // a hundred seconds later the clocks may be 10 ms apart
        clock.add(reading(100_000_000_000, 1_000, 1_000));
        let (_, early) = clock.by_launcher(AHEAD + 500).unwrap();
        let (_, late) = clock.by_launcher(AHEAD + 100_000_000_000).unwrap();
        assert_eq!((early, late), (10, 1_001));
    }

    #[test]
    fn readings_that_tell_nothing_more_are_not_kept() {
        let mut clock = MemberClock::default();
        for second in 0..10_000 {
            let slow = if second % 50 == 0 { 1_000 } else { 40_000_000 };
            clock.add(reading(second * 1_000_000_000, slow, slow));
        }
        // those in between are worth less than a good one 25 s away
        assert!((200..=400).contains(&clock.readings.len()), "{}", clock.readings.len());
        let (at, error) = clock.by_launcher(AHEAD + 75_000_000_000).unwrap();
        assert!(error <= 1_000 + 25_000_000_000 / DRIFT && at.abs_diff(75_000_000_000) <= error);
    }

    #[test]
    fn a_clock_that_is_the_launchers_own_is_known_at_any_time() {
        assert!(clock_id().is_some());
        let mut clock = MemberClock::default();
        (1..9).for_each(|at| clock.add(ClockReading::same(at * 1_000_000_000)));
        assert_eq!(clock.readings.len(), 1);
        assert_eq!(clock.by_launcher(1_000_000_000_000), Some((1_000_000_000_000, 0)));
    }

    #[test]
    fn what_makes_no_sense_is_no_reading() {
        assert_eq!(ClockReading::of(7, 9, 6), None);
        let far = ClockReading::of(u64::MAX - 1, 0, u64::MAX).unwrap();
        let clock = MemberClock { readings: vec![far] };
        assert_eq!(clock.by_launcher(u64::MAX).unwrap().0, u64::MAX);
        let behind = ClockReading::of(0, u64::MAX, 0).unwrap();
        assert_eq!(MemberClock { readings: vec![behind] }.by_launcher(0).unwrap().0, 0);
    }
}
