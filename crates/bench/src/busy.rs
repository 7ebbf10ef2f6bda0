//! How busy the cores of this machine are between two moments, whoever has them.

use std::fs;

/// A tenth of a second of two cores: ticks are hundredths.
const TICKS_MIN: u64 = 20;

/// Ticks of all cores since the system began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreTicks {
    all: u64,
    /// With nothing to do.
    idle: u64,
}

impl CoreTicks {
    /// None where the system does not say.
    pub(crate) fn now() -> Option<CoreTicks> {
        CoreTicks::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn of(stat: &str) -> Option<CoreTicks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, waiting for a disk, interrupts, soft ones, and what another machine took; guests are in user
        let ticks = line.split_whitespace().take(8).map(|ticks| ticks.parse().ok());
        let ticks: Vec<u64> = ticks.collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(CoreTicks { all: ticks.iter().sum(), idle })
    }

    /// The share of all cores' time since `before` in which they had something to do (0 to 1); none of less time than
    /// [`TICKS_MIN`], which says little.
    pub(crate) fn busy_since(self, before: CoreTicks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all >= TICKS_MIN)?;
        // what is waited for a disk may be counted back a little
        let idle = self.idle.saturating_sub(before.idle).min(all);
        // fits: ticks of a benchmark
        Some(1.0 - idle as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_ticks_between() {
        let stat = |user: u64, idle: u64, disk: u64| {
            let text =
                format!("cpu  {user} 0 10 {idle} {disk} 1 2 3 400 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
            CoreTicks::of(&text).unwrap()
        };
        let before = stat(100, 1000, 10);
        assert_eq!(stat(150, 1040, 20).busy_since(before), Some(0.5));
        assert_eq!(stat(150, 1000, 10).busy_since(before), Some(1.0));
        assert_eq!(stat(150, 1000, 5).busy_since(before), Some(1.0), "counted back");
        assert_eq!(stat(110, 1005, 10).busy_since(before), None, "too short");
        assert_eq!(before.busy_since(stat(200, 1000, 10)), None, "it is no later");
        assert_eq!(CoreTicks::of("intr 1 2 3\n"), None);
        assert_eq!(CoreTicks::of("cpu  1 2\n"), None);
        // the system's own
        assert!(CoreTicks::now().unwrap().all > 0);
    }
}
