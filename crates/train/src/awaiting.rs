//! How a job passes the time while it is not launched: it answers whoever asks, and ends when it is told to.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_launch::{JobSpec, host_answers};

use crate::attempts::Next;
use crate::resizing::Resizing;
use crate::run::JobFailure;

/// How often a host that does not answer is asked.
pub(crate) const LOOKS_FOR_HOSTS: Duration = Duration::from_secs(20);
/// How long one may take to answer.
pub(crate) const HOST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a host is waited for without which a job cannot go on: a rack that lost its power.
pub(crate) const HOST_BOOTS: Duration = Duration::from_secs(2 * 60 * 60);
/// How often a job looks whether it is interrupted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Lets time pass; `meanwhile` says what the job does. False if it is interrupted.
pub(crate) fn wait(time: Duration, job: &JobSpec, meanwhile: &str) -> bool {
    let deadline = Deadline::after(time);
    while !answer(job, meanwhile) && !deadline.passed() {
        std::thread::sleep(LOOK_AGAIN.min(deadline.remaining()));
    }
    !is_interrupted(job)
}

/// What a job does before it is launched again, in words.
pub(crate) fn launched_within(pause: Duration) -> String {
    match pause.as_secs() {
        0 => "it is launched again".to_string(),
        seconds => format!("it is launched again within {seconds} s"),
    }
}

/// Answers whoever asks; true if the job is interrupted.
fn answer(job: &JobSpec, meanwhile: &str) -> bool {
    job.status.iter().for_each(|status| status.answer_meanwhile(job, meanwhile));
    is_interrupted(job)
}

fn is_interrupted(job: &JobSpec) -> bool {
    job.interrupt.load(Ordering::Relaxed)
}

/// The host of who failed first, if it does not answer any more.
pub(crate) fn silent_host(failure: &JobFailure, job: &JobSpec) -> Option<String> {
    let host = failure.first()?.host.clone()?;
    let meanwhile = format!("it asks whether {host} answers");
    (!asked(&host, job, &meanwhile)).then_some(host)
}

fn asked(host: &str, job: &JobSpec, meanwhile: &str) -> bool {
    host_answers(&job.hosts, host, HOST_PATIENCE, || answer(job, meanwhile))
}

/// What comes of waiting for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Answers,
    /// The job is to go on in another way, as somebody asked for.
    GoesOn,
    Interrupted,
    /// It did not answer for too long.
    Silent,
}

/// Returns how a job goes on that has waited for a host.
///
/// # Errors
/// With what came of the wait, where it does not.
pub(crate) fn behind_wait(
    awaited: Awaited,
    why: &str,
    resizing: Option<&Resizing>,
) -> Result<Next, Awaited> {
    match (awaited, resizing) {
        (Awaited::Answers, Some(_)) => Ok(Next::Resize(format!("{why}: the job goes on"))),
        (Awaited::GoesOn, Some(resizing)) => {
            Ok(resizing.paused().map_or(Next::Fails, Next::Resize))
        }
        (Awaited::Answers | Awaited::GoesOn, None) => Ok(Next::Restart),
        (Awaited::Interrupted | Awaited::Silent, _) => Err(awaited),
    }
}

/// Waits until a host answers.
pub(crate) fn await_host(host: &str, job: &JobSpec) -> Awaited {
    let deadline = Deadline::after(HOST_BOOTS);
    let meanwhile = format!("{host} does not answer, and is waited for");
    let goes_on = || job.control.as_ref().is_some_and(|control| control.pauses_for().is_some());
    loop {
        let answers = asked(host, job, &meanwhile);
        let next = Deadline::after(LOOKS_FOR_HOSTS);
        loop {
            if answer(job, &meanwhile) {
                return Awaited::Interrupted;
            }
            if goes_on() {
                return Awaited::GoesOn;
            }
            if answers {
                return Awaited::Answers;
            }
            if next.passed() {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if deadline.passed() {
            return Awaited::Silent;
        }
    }
}
