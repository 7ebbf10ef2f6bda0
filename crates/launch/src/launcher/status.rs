//! What the launcher answers to whoever asks how the job stands.

use std::time::Instant;

use super::MemberState;
use crate::job::JobSpec;
use crate::status::{JobStatus, MemberPhase, MemberStatus, StatusSocket};

/// Answers, where somebody may ask.
#[derive(Debug)]
pub(super) struct Answers {
    socket: Option<StatusSocket>,
    title: String,
    steps: Option<u64>,
    begun: Instant,
    /// When the first step was seen, and which.
    first: Option<(Instant, u64)>,
}

impl Answers {
    pub(super) fn open(spec: &JobSpec) -> Answers {
        let open = |folder| {
            StatusSocket::open(folder)
                .inspect_err(|error| tracing::info!("nobody can ask how this job stands: {error}"))
                .ok()
        };
        let socket = spec.status_folder.as_deref().and_then(open);
        let (title, steps) = (spec.title.clone(), spec.steps);
        Answers { socket, title, steps, begun: Instant::now(), first: None }
    }

    /// Answers one that asks, if there is one.
    pub(super) fn give(&mut self, members: &[MemberState], introduced: bool) {
        let step = members.iter().map(|member| member.step).max().unwrap_or_default();
        if self.first.is_none() && step > 0 {
            self.first = Some((Instant::now(), step));
        }
        let Some(socket) = &self.socket else { return };
        socket.answer(|| JobStatus {
            job: socket.job.clone(),
            launcher_pid: std::process::id(),
            title: self.title.clone(),
            seconds: self.begun.elapsed().as_secs_f64(),
            step,
            steps: self.steps,
            steps_per_second: self.first.and_then(|(at, first)| rate(at, step - first)),
            members: (0..)
                .zip(members)
                .map(|(rank, member)| status(rank, member, introduced))
                .collect(),
        });
    }
}

fn rate(since: Instant, steps: u64) -> Option<f64> {
    let seconds = since.elapsed().as_secs_f64();
    // fits: steps are fewer than 2^53
    (steps > 0 && seconds > 0.0).then(|| steps as f64 / seconds)
}

fn status(rank: u32, member: &MemberState, introduced: bool) -> MemberStatus {
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
    }
}
