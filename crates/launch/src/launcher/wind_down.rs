//! How an interrupted job ends behind a step: all members are held, and go on up to the furthest step that one of them has
//! begun, since it waits for the others there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorwire_base::Rank;

use super::{Launcher, MemberState, OnUpdate};
use crate::control::{Behind, HELD_AT_MOST, ToMember};
use crate::job::{EndCause, JobError, JobUpdate, Resize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WindDown {
    #[default]
    Not,
    /// Members are asked where they are. One of them was seen to do something then, or they were asked.
    Held { begun: Instant, moved: Instant },
    /// They were told behind which step they end.
    Last { begun: Instant, moved: Instant, step: u64 },
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

    /// How the job is to go on, if that was asked for.
    pub(super) fn asked(&self) -> Option<Resize> {
        self.spec.control.as_ref().and_then(|control| control.pauses_for())
    }

    /// True if all are to end behind a step, as only who makes steps can.
    pub(super) fn is_to_pause(&self) -> bool {
        let can_pause = self.introduced && !self.fatal;
        can_pause && self.asked().is_some() && self.members.iter().any(|m| m.step > 0)
    }

    /// Tells a member that calls how far all may go. One that has called before, this launcher or another, may have missed it.
    pub(super) fn tell_how_far(&mut self, rank: Rank) {
        if self.interrupted.is_some() && self.spec.takeover.is_some() {
            // no other launcher comes
            self.tell(&[rank], &ToMember::EndWithLauncher);
        }
        let last = match self.wind_down {
            WindDown::Not => {
                self.tell(&[rank], &ToMember::LetGo);
                self.allowed
            }
            WindDown::Held { .. } => return self.tell(&[rank], &ToMember::Hold),
            WindDown::Last { step, .. } => Some((step, Behind::Interrupted)),
        };
        if let Some((until, behind)) = last {
            self.tell(&[rank], &ToMember::Allow { until, behind });
        }
    }

    /// Takes the next step towards the end of a job that is interrupted, or is to go on in another way. False: it is to end at once.
    pub(super) fn winds_down(&mut self, on_update: &mut OnUpdate<'_>) -> Result<bool, JobError> {
        let can_wait = self.introduced && !self.fatal && !self.spec.at_once.load(Ordering::Relaxed);
        let Some(patience) = self.spec.wind_down.filter(|_| can_wait) else {
            return Ok(false);
        };
        let now = Instant::now();
        // an evaluation, as much else that steps wait for, may take any time
        let moves = self.members.iter().any(MemberState::moves);
        let since = |moved| if moves { now } else { moved };
        let (begun, moved) = match self.wind_down {
            WindDown::Not => {
                self.tell_all(&ToMember::Hold);
                self.wind_down = WindDown::Held { begun: now, moved: now };
                (now, now)
            }
            WindDown::Held { begun, moved } => {
                let moved = since(moved);
                self.wind_down = WindDown::Held { begun, moved };
                let asked = self.members.iter().filter(|m| !m.survived && !m.done());
                let held: Option<Vec<u64>> = asked.map(|member| member.held).collect();
                if let Some(step) = held.map(|held| held.into_iter().max().unwrap_or_default()) {
                    self.wind_down = WindDown::Last { begun, moved, step };
                    self.tell_all(&ToMember::Allow { until: step, behind: Behind::Interrupted });
                    let cause = match self.interrupted {
                        None => EndCause::GoesOn,
                        Some(_) if self.spec.stopped.load(Ordering::Relaxed) => EndCause::Stopped,
                        Some(_) => EndCause::Interrupted,
                    };
                    on_update(JobUpdate::Ending { step, cause })?;
                }
                (begun, moved)
            }
            WindDown::Last { begun, moved, step } => {
                let moved = since(moved);
                self.wind_down = WindDown::Last { begun, moved, step };
                (begun, moved)
            }
        };
        let has_time = now.saturating_duration_since(begun) < HELD_AT_MOST;
        Ok(has_time && (moves || now.saturating_duration_since(moved) < patience))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::acceptor::Event;
    use super::super::process::Process;
    use super::*;
    use crate::control::tests::connection;
    use crate::control::{FromMember, Hearer};
    use crate::job::JobSpec;
    use crate::standing::Still;

    fn spec() -> JobSpec {
        let roles = ["worker 0", "worker 1"].map(str::to_string).to_vec();
        JobSpec { wind_down: Some(Duration::ZERO), ..JobSpec::new("", "", roles) }
    }

    /// One whose members have met, and call; each with what it is told.
    fn launcher(spec: &JobSpec) -> (Launcher<'_>, Vec<Hearer>) {
        let at = ([127, 0, 0, 1], 9).into();
        let mut launcher = Launcher::new(spec, at, at, VecDeque::new());
        for role in &spec.roles {
            let process = Process::Child(Command::new("sleep").arg("600").spawn().unwrap());
            launcher.members.push(MemberState::new(role.clone(), process, None));
        }
        launcher.introduced = true;
        let told = [0, 1].map(|rank| call(&mut launcher, rank, 1));
        (launcher, told.into())
    }

    fn call(launcher: &mut Launcher<'_>, rank: u32, connection_number: u64) -> Hearer {
        let (speaker, told) = connection();
        let (events, inbox) = channel();
        let (rank, connection) = (Rank(rank), connection_number);
        events.send(Event::Joined { rank, speaker, connection }).unwrap();
        launcher.hear(&inbox, &mut |_| Ok(())).unwrap();
        told
    }

    fn says(launcher: &mut Launcher<'_>, rank: u32, message: FromMember) {
        launcher.said(Rank(rank), message, &mut |_| Ok(())).unwrap();
    }

    fn winds_down(launcher: &mut Launcher<'_>) -> bool {
        launcher.winds_down(&mut |_| Ok(())).unwrap()
    }

    /// The next word, but for signs of life.
    fn word(told: &mut Hearer) -> String {
        loop {
            match told.hear().unwrap() {
                ToMember::Heartbeat { .. } => {}
                word => return format!("{word:?}"),
            }
        }
    }

    #[test]
    fn as_long_as_a_member_does_something_all_are_waited_for() {
        let spec = spec();
        let (mut launcher, _told) = launcher(&spec);
        let stands = |waits| {
            let still = Some(Still { what: "stands".to_string(), waits, for_ms: 2000 });
            FromMember::Heartbeat { step: 3, still }
        };
        assert!(winds_down(&mut launcher));
        [0, 1].into_iter().for_each(|rank| says(&mut launcher, rank, FromMember::Held { step: 3 }));
        assert!(winds_down(&mut launcher));
        assert!(matches!(launcher.wind_down, WindDown::Last { step: 3, .. }));
        // worker 0 evaluates
        says(&mut launcher, 1, stands(true));
        assert!(winds_down(&mut launcher));
        says(&mut launcher, 0, stands(false));
        assert!(!winds_down(&mut launcher));
        says(&mut launcher, 0, FromMember::Heartbeat { step: 3, still: None });
        assert!(winds_down(&mut launcher));
    }

    /// Its connection broke, and what it was told may be lost.
    #[test]
    fn a_member_that_calls_again_is_held_as_the_others_are() {
        let spec = spec();
        let (mut launcher, mut told) = launcher(&spec);
        assert_eq!(word(&mut told[1]), "LetGo");
        winds_down(&mut launcher);
        assert_eq!(word(&mut told[1]), "Hold");
        let mut again = call(&mut launcher, 1, 2);
        assert_eq!(word(&mut again), "Hold");
        [0, 1].into_iter().for_each(|rank| says(&mut launcher, rank, FromMember::Held { step: 3 }));
        winds_down(&mut launcher);
        let last = "Allow { until: 3, behind: Interrupted }";
        assert_eq!(word(&mut again), last);
        let mut again = call(&mut launcher, 1, 3);
        assert_eq!(word(&mut again), last);
    }
}
