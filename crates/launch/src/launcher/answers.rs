//! What the launcher answers to whoever asks how the job stands.

use std::time::Instant;

use super::MemberState;
use crate::job::{JobControl, JobSpec, Resize};
use crate::status::{JobStatus, MemberPhase, MemberStatus, Question, StatusSocket};

/// What is answered where the number of members is fixed.
const NOT_SCALED: &str =
    "its number of workers is fixed; start it with --workers MIN..MAX and --checkpoint DIR";

/// Answers, where somebody may ask.
#[derive(Debug)]
pub(super) struct Answers {
    socket: Option<StatusSocket>,
    title: String,
    /// In words, and what starts processes there.
    hosts: (String, String),
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
        let hosts = (spec.hosts.to_string(), spec.hosts.started_with());
        Answers { socket, title, hosts, steps, begun: Instant::now(), first: None }
    }

    /// Hears those that ask, and keeps what each is to be told.
    pub(super) fn hear(
        &mut self,
        members: &[MemberState],
        introduced: bool,
        control: Option<&dyn JobControl>,
    ) {
        let step = members.iter().map(|member| member.step).max().unwrap_or_default();
        if self.first.is_none() && step > 0 {
            self.first = Some((Instant::now(), step));
        }
        let Answers { socket, title, hosts: (hosts, rsh), steps, begun, first } = self;
        let Some(socket) = socket else { return };
        let job = socket.job.clone();
        let status = || JobStatus {
            job: job.clone(),
            launcher_pid: std::process::id(),
            title: title.clone(),
            hosts: hosts.clone(),
            rsh: rsh.clone(),
            seconds: begun.elapsed().as_secs_f64(),
            step,
            steps: *steps,
            steps_per_second: first.and_then(|(at, first)| rate(at, step - first)),
            members: (0..)
                .zip(members)
                .map(|(rank, member)| status(rank, member, introduced))
                .collect(),
        };
        let scale = |wanted: &Resize| match control {
            Some(control) => control.scale(wanted),
            None => Err(NOT_SCALED.to_string()),
        };
        socket.hear(|question| {
            let answer = match question {
                Question::Status => serde_json::to_value(status()),
                Question::Scale(wanted) => serde_json::to_value(scale(&wanted)),
            };
            answer.unwrap_or_default()
        });
    }

    /// Tells them that.
    pub(super) fn tell(&mut self) {
        self.socket.iter_mut().for_each(StatusSocket::tell);
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
        figures: member.figures.clone(),
    }
}
