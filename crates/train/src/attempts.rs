//! What becomes of a job that ended before its time: it goes on with other workers, is started again, or has failed.

use crate::resizing::Resizing;
use crate::run::JobFailure;

/// How often a job was launched, and what came of it.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// How often it may be started again.
    pub(crate) most: u64,
    pub(crate) restarts: u64,
    pub(crate) resizes: u64,
    /// Why it ended the time before.
    pub(crate) earlier: Option<JobFailure>,
}

/// What comes after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on with other workers, for this reason.
    Resize(String),
    Restart,
    /// It has failed.
    Fails,
    /// It has failed: by the same error in the same step as the time before.
    Repeats,
    /// It has failed: it was started as often as it may be.
    WasLast,
}

impl Attempts {
    /// Of a job that may be started again so often.
    pub(crate) fn of(most: u64) -> Attempts {
        Attempts { most, restarts: 0, resizes: 0, earlier: None }
    }

    /// Returns what comes after an attempt that ended so; nobody has interrupted it. `resizing`: its number of workers may change.
    pub(crate) fn after(&self, failure: &JobFailure, resizing: Option<&Resizing<'_>>) -> Next {
        let paused = resizing.and_then(Resizing::paused);
        match (paused, resizing) {
            (Some(why), _) if failure.is_interrupted() => Next::Resize(why),
            _ if !failure.may_pass() => Next::Fails,
            // it failed before it came to pause
            (Some(why), Some(resizing)) => {
                let lost = resizing.lost_host(failure);
                Next::Resize(lost.unwrap_or_else(|| format!("{failure}; {why}")))
            }
            _ if self.earlier.as_ref().is_some_and(|earlier| failure.repeats(earlier)) => {
                Next::Repeats
            }
            (_, Some(resizing)) => {
                let is_last = self.restarts == self.most;
                let shrunk = || is_last.then(|| resizing.without(failure)).flatten();
                let why = resizing.lost_host(failure).or_else(shrunk);
                why.map_or_else(|| self.restart(), Next::Resize)
            }
            (_, None) => self.restart(),
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
    use crate::run::tests::failed;
    use tensorwire_launch::JobError;

    #[test]
    fn it_is_started_again_as_often_as_it_may_be_and_not_for_what_would_only_fail_again() {
        let killed = || failed(3, "killed", false, false);
        let attempts = |most, restarts| Attempts { restarts, ..Attempts::of(most) };
        assert_eq!(attempts(0, 0).after(&killed(), None), Next::Fails);
        assert_eq!(attempts(2, 1).after(&killed(), None), Next::Restart);
        assert_eq!(attempts(2, 2).after(&killed(), None), Next::WasLast);
        let by_user = failed(3, "no such file", true, true);
        assert_eq!(attempts(2, 0).after(&by_user, None), Next::Fails);
        assert_eq!(attempts(2, 0).after(&JobError::Interrupted.into(), None), Next::Fails);
        let diverged = || failed(3, "diverged", true, false);
        let twice = Attempts { earlier: Some(diverged()), ..attempts(2, 1) };
        assert_eq!(twice.after(&diverged(), None), Next::Repeats);
        assert_eq!(twice.after(&killed(), None), Next::Restart);
    }
}
