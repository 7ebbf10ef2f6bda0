//! What a program says last that a second Ctrl-C ends at once: what is kept of its job, or lost with it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tensorwire_train::{CheckpointFolder, FinishedStep, Prepared};

use crate::program::{self, Interrupts, ProgramError};

/// Who hears Ctrl-C, since the first job of this process.
static HEARING: Mutex<Option<Interrupts>> = Mutex::new(None);
/// The job that this process runs.
static JOB: Mutex<Option<Kept>> = Mutex::new(None);

/// Returns what the first Ctrl-C sets. The second one ends this process at once, with a last line.
pub(super) fn interrupt() -> Result<Arc<AtomicBool>, ProgramError> {
    let mut hearing = HEARING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Interrupts { first, .. }) = &*hearing {
        return Ok(first.clone());
    }
    let Interrupts { first, .. } =
        hearing.insert(Interrupts::hear(|_| program::say(&last_words()))?);
    Ok(first.clone())
}

fn last_words() -> String {
    let job = JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = "error: interrupted, and ended at once";
    match job.as_ref().and_then(Kept::told) {
        Some(told) => format!("{ended}; {told}"),
        None => ended.to_string(),
    }
}

/// A job that runs, as long as this is there.
#[derive(Debug)]
pub(super) struct UnderWay;

impl UnderWay {
    pub(super) fn new(prepared: &Prepared) -> UnderWay {
        let checkpoint = prepared.config.checkpoint.as_ref();
        let steps = prepared.steps_done();
        set(Some(Kept {
            folder: checkpoint.map(|checkpoint| CheckpointFolder::new(&checkpoint.path)),
            keeps_any: checkpoint.is_some() || prepared.config.store.snapshot.is_some(),
            begun: steps,
            finished: steps,
        }));
        UnderWay
    }

    /// All workers have finished a step.
    pub(super) fn did(&self, step: &FinishedStep) {
        if let Some(job) = &mut *JOB.lock().unwrap_or_else(PoisonError::into_inner) {
            job.finished = step.step;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        set(None);
    }
}

fn set(job: Option<Kept>) {
    *JOB.lock().unwrap_or_else(PoisonError::into_inner) = job;
}

/// What there is of a job when it ends before its time.
struct Kept {
    /// The folder of its checkpoints.
    folder: Option<CheckpointFolder>,
    keeps_any: bool,
    /// Steps that an earlier job made, and the last one that all have finished.
    begun: u64,
    finished: u64,
}

impl Kept {
    /// None where there is nothing to say.
    fn told(&self) -> Option<String> {
        let found = self.folder.as_ref().map(|folder| folder.found().unwrap_or_default());
        let newest = found.as_ref().and_then(|found| found.first());
        let lost = self.finished.saturating_sub(self.begun);
        match (newest, lost) {
            (Some(newest), _) => Some(format!(
                "the newest checkpoint is of step {}: Training::resume goes on from there",
                newest.step
            )),
            (None, _) if self.folder.is_some() => Some("there is no checkpoint yet".to_string()),
            (None, 0) => None,
            _ if self.keeps_any => None,
            (None, 1) => Some("1 step is lost, which Training::checkpoint would have kept".into()),
            (None, lost) => {
                Some(format!("{lost} steps are lost, which Training::checkpoint would have kept"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_named_and_else_what_is_lost() {
        let empty = tempfile::tempdir().unwrap();
        let job = |folder: Option<&std::path::Path>, begun, finished| {
            Kept {
                folder: folder.map(CheckpointFolder::new),
                keeps_any: folder.is_some(),
                begun,
                finished,
            }
            .told()
        };
        assert_eq!(job(None, 0, 0), None);
        assert!(job(None, 0, 1).unwrap().starts_with("1 step is lost, "));
        assert!(job(None, 7, 9).unwrap().starts_with("2 steps are lost, "));
        assert_eq!(job(Some(empty.path()), 0, 9).unwrap(), "there is no checkpoint yet");
        std::fs::create_dir(empty.path().join("step-00000008")).unwrap();
        let kept = "the newest checkpoint is of step 8: Training::resume goes on from there";
        assert_eq!(job(Some(empty.path()), 0, 9).unwrap(), kept);
    }
}
