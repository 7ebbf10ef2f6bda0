//! How jobs of this process hear Ctrl-C, each from its own beginning on, and what is said last when a second one ends the process at
//! once: what is kept of its jobs, or lost with them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorwire_train::{FinishedStep, Kept, Left, Prepared};

use super::Remedies;
use crate::program::{self, ProgramError};

static JOBS: Mutex<Jobs> = Mutex::new(Jobs { hears: false, under_way: Vec::new() });

/// The jobs of a process.
struct Jobs {
    /// A thread hears Ctrl-C, since the first job.
    hears: bool,
    under_way: Vec<Arc<Job>>,
}

/// A job that runs.
struct Job {
    /// What the first Ctrl-C sets.
    interrupt: Arc<AtomicBool>,
    kept: Kept,
    remedies: Remedies,
    /// The last step that all have finished.
    finished: AtomicU64,
}

/// A job that runs, as long as this is there.
pub(super) struct UnderWay(Arc<Job>);

/// What a signal means.
enum Heard {
    /// It is the first one of a job.
    First,
    /// It is the second one of a job: the process ends, and these jobs with it.
    Second(Vec<Arc<Job>>),
    /// No job runs.
    Idle,
}

impl UnderWay {
    pub(super) fn new(prepared: &Prepared, remedies: Remedies) -> UnderWay {
        let job = Job {
            interrupt: Arc::default(),
            kept: Kept::new(prepared),
            remedies,
            finished: AtomicU64::new(prepared.steps_done()),
        };
        UnderWay(jobs().begin(job))
    }

    /// Returns what the first Ctrl-C sets from here on. The second one ends this process at once, with a last line.
    pub(super) fn interrupt(&self) -> Result<Arc<AtomicBool>, ProgramError> {
        let mut jobs = jobs();
        if !jobs.hears {
            program::hear_each(heard)?;
            jobs.hears = true;
        }
        Ok(self.0.interrupt.clone())
    }

    /// All workers have finished a step.
    pub(super) fn did(&self, step: &FinishedStep) {
        self.0.finished.store(step.step, Ordering::Relaxed);
    }

    /// Says of a job that failed, or was interrupted, which checkpoint there is to go on from.
    pub(super) fn say_what_is_kept(&self) {
        if let (Left::Checkpoint(_), Some(told)) = self.0.left() {
            program::say(&told);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        jobs().end(&self.0);
    }
}

fn jobs() -> MutexGuard<'static, Jobs> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A signal came. `is_default`: without a job it would have ended this process.
fn heard(is_default: bool) {
    let heard = jobs().heard();
    match heard {
        Heard::First => {}
        Heard::Second(jobs) => {
            // neither a terminal nor a disk keeps it
            program::in_time(move || program::say(&last_words(&jobs)));
            program::end_at_once();
        }
        Heard::Idle if is_default => program::end_at_once(),
        // whoever else handles it does
        Heard::Idle => {}
    }
}

fn last_words(jobs: &[Arc<Job>]) -> String {
    let told = jobs.iter().filter_map(|job| job.left().1);
    let ended = "error: interrupted, and ended at once".to_string();
    told.fold(ended, |said, told| format!("{said}; {told}"))
}

impl Jobs {
    fn begin(&mut self, job: Job) -> Arc<Job> {
        let job = Arc::new(job);
        self.under_way.push(job.clone());
        job
    }

    fn end(&mut self, job: &Arc<Job>) {
        self.under_way.retain(|other| !Arc::ptr_eq(other, job));
    }

    /// Takes in a signal, which is for all jobs.
    fn heard(&self) -> Heard {
        let mut is_second = false;
        for job in &self.under_way {
            is_second |= job.interrupt.swap(true, Ordering::SeqCst);
        }
        match self.under_way.is_empty() {
            true => Heard::Idle,
            false if is_second => Heard::Second(self.under_way.clone()),
            false => Heard::First,
        }
    }
}

impl Job {
    /// What is kept, or lost, and how that is said.
    fn left(&self) -> (Left, Option<String>) {
        let Remedies { resume, checkpoint, .. } = self.remedies;
        let left = self.kept.left(self.finished.load(Ordering::Relaxed));
        (left, left.told(resume, checkpoint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_for_all_jobs_and_a_second_one_of_any_ends_them() {
        let prepared = super::super::tests::prepared();
        let job = |finished| Job {
            interrupt: Arc::default(),
            kept: Kept::new(&prepared),
            remedies: Remedies::default(),
            finished: AtomicU64::new(finished),
        };
        let mut jobs = Jobs { hears: false, under_way: Vec::new() };
        assert!(matches!(jobs.heard(), Heard::Idle));
        let is_set = |job: &Job| job.interrupt.load(Ordering::SeqCst);
        let [short, long] = [1, 2].map(|finished| jobs.begin(job(finished)));
        assert!(!is_set(&short), "what came before is not for it");
        jobs.end(&short);
        assert!(matches!(jobs.heard(), Heard::First));
        assert_eq!([&short, &long].map(|job| is_set(job)), [false, true]);
        let later = jobs.begin(job(1));
        let Heard::Second(ended) = jobs.heard() else { panic!("the second of one of them") };
        assert!(is_set(&later));
        let [long, later] = ["2 steps are", "1 step is"]
            .map(|lost| format!("{lost} lost, which Training::checkpoint would have kept"));
        let last = format!("error: interrupted, and ended at once; {long}; {later}");
        assert_eq!(last_words(&ended), last);
        ended.iter().for_each(|job| jobs.end(job));
        assert!(matches!(jobs.heard(), Heard::Idle));
    }
}
