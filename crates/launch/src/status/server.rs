//! Who answers for a job, over all that it is launched as.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{JobStatus, Question, StatusSocket};
use crate::job::{JobSpec, Resize, Scaled};

/// What is answered where the number of members is fixed.
const NOT_SCALED: &str =
    "its number of workers is fixed; start it with --workers MIN..MAX and --checkpoint DIR";
/// What is answered where ending loses what was made.
const NOT_KEPT: &str = "it keeps no checkpoint, so that what it has made would be lost; with --now it ends all the same";

/// Answers whoever asks about one job, also between two times that it is launched.
#[derive(Debug)]
pub struct StatusServer {
    begun: Instant,
    /// The same, for others.
    begun_ms: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    socket: StatusSocket,
    launches: u64,
    launched_again: Option<String>,
    /// The step that its furthest member was in, the last time that it was launched.
    step: u64,
}

impl StatusServer {
    /// Returns one whose socket is in `folder`, which is this user's alone; none where none can be.
    pub fn open(folder: &Path) -> Option<Arc<StatusServer>> {
        let socket = StatusSocket::open(folder)
            .inspect_err(|error| tracing::info!("nobody can ask how this job stands: {error}"))
            .ok()?;
        let state = Mutex::new(State { socket, launches: 0, launched_again: None, step: 0 });
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // fits: milliseconds
        let begun_ms = since.as_millis() as u64;
        Some(Arc::new(StatusServer { begun: Instant::now(), begun_ms, state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the job is launched.
    pub(crate) fn note_launch(&self) {
        self.state().launches += 1;
    }

    /// Notes the step that its furthest member is in.
    pub(crate) fn note_step(&self, step: u64) {
        self.state().step = step;
    }

    /// Notes why the job is launched again.
    pub fn launches_again(&self, why: &str) {
        self.state().launched_again = Some(why.to_string());
    }

    /// Answers those that ask while the job is not launched; `meanwhile` says what it does.
    pub fn answer_meanwhile(&self, spec: &JobSpec, meanwhile: &str) {
        let step = self.state().step;
        let meanwhile =
            |status| JobStatus { meanwhile: Some(meanwhile.to_string()), step, ..status };
        self.hear(spec, false, &meanwhile);
        self.tell();
    }

    /// Hears those that ask, and keeps what each is to be told; `now` completes how the job stands, and `makes_steps` says whether it may
    /// end behind one.
    pub(crate) fn hear(
        &self,
        spec: &JobSpec,
        makes_steps: bool,
        now: &dyn Fn(JobStatus) -> JobStatus,
    ) {
        let mut state = self.state();
        let State { socket, launches, launched_again, .. } = &mut *state;
        let job = socket.job.clone();
        let standing = || JobStatus {
            job: job.clone(),
            launcher_pid: std::process::id(),
            title: spec.title.clone(),
            hosts: spec.hosts.to_string(),
            rsh: spec.hosts.started_with(),
            begun_ms: self.begun_ms,
            seconds: self.begun.elapsed().as_secs_f64(),
            launches: *launches,
            launched_again: launched_again.clone(),
            meanwhile: None,
            goes_on: spec.control.as_ref().and_then(|control| control.pauses_for()),
            step: spec.steps_done,
            steps: spec.steps,
            steps_per_second: None,
            members: Vec::new(),
        };
        socket.hear(|question| {
            let answer = match question {
                Question::Status => serde_json::to_value(now(standing())),
                Question::Scale(wanted) => serde_json::to_value(scale(spec, &wanted)),
                Question::Stop { at_once } => {
                    serde_json::to_value(stop(spec, at_once, makes_steps))
                }
            };
            answer.unwrap_or_default()
        });
    }

    /// Tells them that.
    pub(crate) fn tell(&self) {
        self.state().socket.tell();
    }
}

fn scale(spec: &JobSpec, wanted: &Resize) -> Result<Scaled, String> {
    if spec.interrupt.load(Ordering::Relaxed) {
        return Err("it is ending".to_string());
    }
    match &spec.control {
        Some(control) => control.scale(wanted),
        None => Err(NOT_SCALED.to_string()),
    }
}

fn stop(spec: &JobSpec, at_once: bool, makes_steps: bool) -> Result<String, String> {
    if !at_once && spec.wind_down.is_none() {
        return Err(NOT_KEPT.to_string());
    }
    if at_once {
        spec.at_once.store(true, Ordering::Relaxed);
    }
    spec.stopped.store(true, Ordering::Relaxed);
    spec.interrupt.store(true, Ordering::Relaxed);
    Ok(match (at_once, makes_steps) {
        (false, true) => "it is to end behind its present step, and to keep it".to_string(),
        (false, false) => {
            "it makes no steps at the moment, and ends with what it has kept".to_string()
        }
        (true, _) => "it ends now".to_string(),
    })
}
