//! What the launcher answers to whoever asks how the job stands.

use std::sync::Arc;
use std::time::Instant;

use super::MemberState;
use crate::job::JobSpec;
use crate::status::{JobStatus, MemberPhase, MemberStatus, StatusServer};

/// Answers, where somebody may ask.
#[derive(Debug)]
pub(super) struct Answers {
    server: Option<Arc<StatusServer>>,
    /// When the first step was seen, and which.
    first: Option<(Instant, u64)>,
}

impl Answers {
    /// Of a job that is launched.
    pub(super) fn open(spec: &JobSpec) -> Answers {
        let own = || spec.status_folder.as_deref().and_then(StatusServer::open);
        let server = spec.status.clone().or_else(own);
        server.iter().for_each(|server| server.note_launch());
        Answers { server, first: None }
    }

    /// Hears those that ask, and keeps what each is to be told.
    pub(super) fn hear(
        &mut self,
        spec: &JobSpec,
        members: &[MemberState],
        introduced: bool,
        fails: bool,
    ) {
        let step = members.iter().map(|member| member.step).max().unwrap_or_default();
        if self.first.is_none() && step > 0 {
            self.first = Some((Instant::now(), step));
        }
        let Some(server) = &self.server else { return };
        let furthest = step.max(spec.steps_done);
        server.note_step(furthest);
        let steps_per_second = self.first.and_then(|(at, first)| rate(at, step - first));
        server.hear(spec, introduced && !fails, &|status| JobStatus {
            step: furthest,
            steps_per_second,
            members: (0..)
                .zip(members)
                .map(|(rank, member)| status_of(rank, member, introduced))
                .collect(),
            ..status
        });
    }

    /// Tells them that.
    pub(super) fn tell(&self) {
        self.server.iter().for_each(|server| server.tell());
    }
}

fn rate(since: Instant, steps: u64) -> Option<f64> {
    let seconds = since.elapsed().as_secs_f64();
    // fits: steps are fewer than 2^53
    (steps > 0 && seconds > 0.0).then(|| steps as f64 / seconds)
}

fn status_of(rank: u32, member: &MemberState, introduced: bool) -> MemberStatus {
    let phase = match member {
        member if member.survived => MemberPhase::Lost,
        member if member.report.is_some() => MemberPhase::Done,
        member if member.control.is_none() => MemberPhase::Starting,
        _ if !introduced => MemberPhase::Meeting,
        _ => MemberPhase::Running,
    };
    MemberStatus {
        rank,
        role: member.role.clone(),
        host: member.host.clone(),
        pid: member.process.pid(),
        phase,
        step: member.step,
        still: member.still.clone(),
        silent_s: member.last_heard.elapsed().as_secs_f64(),
        progress: member.progress.clone(),
        figures: member.figures.clone(),
    }
}
