//! What becomes of a job that ended before its time: it goes on with other workers, is started again, or has failed.

use std::time::Duration;

use crate::resizing::Resizing;
use crate::run::JobFailure;

/// Longest pause before a restart.
const PAUSE_MAX_S: u64 = 60;

/// How often a job was launched, and what came of it.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// How often it may be started again.
    pub(crate) most: u64,
    pub(crate) restarts: u64,
    pub(crate) resizes: u64,
    /// All members of one of them have met.
    pub(crate) has_met: bool,
    /// Those since there was a newer checkpoint.
    vain: u32,
    /// Why it ended the time before.
    pub(crate) earlier: Option<JobFailure>,
}

/// What comes after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on with other workers, for this reason.
    Resize(String),
    /// It waits for a host that does not answer, and goes on with it.
    Await(String),
    Restart,
    /// It has failed.
    Fails,
    /// It has failed: by the same error in the same step as the time before.
    Repeats,
    /// It has failed: it was started as often as it may be.
    WasLast,
    /// The same, and it has as few workers as it may have.
    IsFewest,
}

impl Attempts {
    /// Of a job that may be started again so often.
    pub(crate) fn of(most: u64) -> Attempts {
        let (restarts, resizes, has_met, vain, earlier) = (0, 0, false, 0, None);
        Attempts { most, restarts, resizes, has_met, vain, earlier }
    }

    /// It is launched once more, from a newer checkpoint than the one before or not; returns in how long. A host boots in minutes.
    pub(crate) fn pause(&mut self, is_newer: bool) -> Duration {
        self.vain = if is_newer { 0 } else { self.vain };
        let seconds = match self.vain {
            0 => 0,
            before => 2u64.saturating_pow(before).min(PAUSE_MAX_S),
        };
        self.vain += 1;
        Duration::from_secs(seconds)
    }

    /// True if there is no other restart.
    pub(crate) fn was_last(&self) -> bool {
        self.restarts >= self.most
    }

    /// Returns what comes after an attempt that ended so; nobody has interrupted it. `resizing`: its number of workers may change;
    /// `silent`: the host of who failed does not answer any more.
    pub(crate) fn after(
        &self,
        failure: &JobFailure,
        resizing: Option<&Resizing<'_>>,
        silent: Option<&str>,
    ) -> Next {
        // whatever it is that it lacks there, it had it here
        let back = || resizing.and_then(|resizing| resizing.goes_back(failure));
        if let Some(back) = (!failure.is_interrupted()).then(back).flatten() {
            return Next::Resize(back);
        }
        let paused = resizing.and_then(Resizing::paused);
        match (paused, resizing) {
            (Some(why), _) if failure.is_interrupted() => Next::Resize(why),
            _ if !failure.may_pass(self.has_met) => Next::Fails,
            // it failed before it came to pause
            (Some(why), Some(resizing)) => {
                let lost = silent.and_then(|host| resizing.lost_host(host, failure));
                Next::Resize(lost.unwrap_or_else(|| format!("{failure}; {why}")))
            }
            _ if self.earlier.as_ref().is_some_and(|earlier| failure.repeats(earlier)) => {
                Next::Repeats
            }
            (_, Some(resizing)) => {
                if let Some(host) = silent {
                    match resizing.lost_host(host, failure) {
                        Some(why) => return Next::Resize(why),
                        None if self.has_met => return Next::Await(host.to_string()),
                        None => {}
                    }
                }
                let is_last = self.restarts == self.most;
                match is_last.then(|| resizing.without(failure)) {
                    Some(Some(why)) => Next::Resize(why),
                    Some(None) => Next::IsFewest,
                    None => self.restart(),
                }
            }
            (_, None) => match (self.restart(), silent) {
                (Next::Restart, Some(host)) if self.has_met => Next::Await(host.to_string()),
                (next, _) => next,
            },
        }
    }

    fn restart(&self) -> Next {
        match self.most {
            0 => Next::Fails,
            most if self.restarts == most => Next::WasLast,
            _ => Next::Restart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{UNREAD, failed};
    use tensorwire_launch::JobError;

    #[test]
    fn it_is_started_again_as_often_as_it_may_be_and_not_for_what_would_only_fail_again() {
        let killed = || failed(3, "killed", false, false);
        let attempts = |most, restarts| Attempts { restarts, ..Attempts::of(most) };
        assert_eq!(attempts(0, 0).after(&killed(), None, None), Next::Fails);
        assert_eq!(attempts(2, 1).after(&killed(), None, None), Next::Restart);
        assert_eq!(attempts(2, 2).after(&killed(), None, None), Next::WasLast);
        let by_user = failed(3, "no such file", true, true);
        assert_eq!(attempts(2, 0).after(&by_user, None, None), Next::Fails);
        assert_eq!(attempts(2, 0).after(&JobError::Interrupted.into(), None, None), Next::Fails);
        let disk = || failed(3, UNREAD, true, true);
        assert_eq!(attempts(2, 0).after(&disk(), None, None), Next::Fails, "the path may be wrong");
        let twice = Attempts { has_met: true, earlier: Some(disk()), ..attempts(2, 1) };
        assert_eq!(twice.after(&disk(), None, None), Next::Restart, "it was read before");
        assert_eq!(twice.after(&by_user, None, None), Next::Fails);
        let diverged = || failed(3, "diverged", true, false);
        let twice = Attempts { earlier: Some(diverged()), ..attempts(2, 1) };
        assert_eq!(twice.after(&diverged(), None, None), Next::Repeats);
        assert_eq!(twice.after(&killed(), None, None), Next::Restart);
    }

    #[test]
    fn restarts_that_come_to_nothing_come_ever_later_up_to_a_minute() {
        let mut attempts = Attempts::of(20);
        let mut pauses = |newer: &[bool]| -> Vec<u64> {
            newer.iter().map(|is_newer| attempts.pause(*is_newer).as_secs()).collect()
        };
        assert_eq!(pauses(&[false; 8]), [0, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses(&[true, false, false]), [0, 2, 4]);
    }
}
