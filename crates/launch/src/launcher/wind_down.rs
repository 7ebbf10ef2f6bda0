//! How an interrupted job ends behind a step: all members are held, and go on up to the furthest step that one of them has
//! begun, since it waits for the others there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Launcher, MemberState, OnUpdate};
use crate::control::{Behind, ToMember};
use crate::job::{JobError, JobUpdate};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WindDown {
    #[default]
    Not,
    /// Members are asked where they are.
    Held(Instant),
    /// They were told behind which step they end.
    Last(Instant),
}

impl Launcher<'_> {
    /// True if whoever started the members has told one of them to end, as hosts are drained: the job ends with it, and keeps what
    /// it has before. Not where it goes on without.
    pub(super) fn others_are_told(&self) -> bool {
        let goes_on = self.spec.store.is_some_and(|store| store.elastic);
        let ends_with_it =
            self.spec.gathering.is_some() && self.spec.wind_down.is_some() && !goes_on;
        let is_told = |member: &MemberState| member.told_to_end && !member.done();
        // once members are held they are to hear what comes, whoever has ended meanwhile
        let has_begun = self.wind_down != WindDown::Not;
        ends_with_it && self.introduced && (has_begun || self.members.iter().any(is_told))
    }

    /// Takes the next step towards the end of a job that is interrupted, or is to go on in another way. False: it is to end at once.
    pub(super) fn winds_down(&mut self, on_update: &mut OnUpdate<'_>) -> Result<bool, JobError> {
        let can_wait = self.introduced && !self.fatal && !self.spec.at_once.load(Ordering::Relaxed);
        let Some(patience) = self.spec.wind_down.filter(|_| can_wait) else {
            return Ok(false);
        };
        let since = match self.wind_down {
            WindDown::Not => {
                self.tell_all(&ToMember::Hold);
                let now = Instant::now();
                self.wind_down = WindDown::Held(now);
                now
            }
            WindDown::Held(since) => {
                let asked = self.members.iter().filter(|m| !m.survived && !m.done());
                let held: Option<Vec<u64>> = asked.map(|member| member.held).collect();
                if let Some(step) = held.map(|held| held.into_iter().max().unwrap_or_default()) {
                    self.wind_down = WindDown::Last(since);
                    self.tell_all(&ToMember::Allow { until: step, behind: Behind::Interrupted });
                    let goes_on = self.interrupted.is_none();
                    on_update(JobUpdate::Ending { step, goes_on })?;
                }
                since
            }
            WindDown::Last(since) => since,
        };
        Ok(since.elapsed() < patience)
    }
}
