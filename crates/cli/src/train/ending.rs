//! What is said of a job that ends before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensorwire::program::{Interrupts, end_at_once};
use tensorwire_train::{Kept, Left, Prepared};

use super::watcher::Watcher;
use crate::Failure;
use crate::output::{last_words, note};
use crate::progress::Bar;

/// How often a thread looks whether it is to end the process.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a command whose processes have ended may take to end.
const ENDS: Duration = Duration::from_secs(1);

/// What there is to say of a job when it ends before its time.
#[derive(Clone)]
pub(super) struct Ending {
    kept: Kept,
    bar: Bar,
    /// The last step that all have finished.
    finished: Arc<AtomicU64>,
    /// It was told so twice.
    pub(super) at_once: Arc<AtomicBool>,
    /// There are processes to end.
    pub(super) launches: Arc<AtomicBool>,
}

impl Ending {
    pub(super) fn new(prepared: &Prepared, watcher: &Watcher) -> Ending {
        Ending {
            kept: Kept::new(prepared),
            bar: watcher.bar.clone(),
            finished: watcher.finished.clone(),
            at_once: Arc::default(),
            launches: Arc::default(),
        }
    }

    /// Begins to hear Ctrl-C. The second one ends this process, if it has not ended by itself in `patience`, and sooner where it
    /// launches nothing.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Arc<AtomicBool>, Failure> {
        let ending = self.clone();
        let Interrupts { first, second } = Interrupts::hear(move |second| {
            let (told, mut ended) = (Instant::now(), None);
            while told.elapsed() < patience {
                if !ending.launches.load(Ordering::Relaxed) {
                    let ended = *ended.get_or_insert_with(Instant::now);
                    if ended.elapsed() > ENDS {
                        break;
                    }
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            ending.leave(second);
        })?;
        self.at_once = second;
        Ok(first)
    }

    fn leave(self, at_once: Arc<AtomicBool>) {
        self.bar.clear_in_time();
        let said = Ending { at_once, ..self }.told(Failure::interrupted());
        last_words(said.to_string());
    }

    /// The same failure, with what is kept of the job, or lost.
    pub(super) fn told(&self, mut failure: Failure) -> Failure {
        let at_once = failure.interrupted && self.at_once.load(Ordering::Relaxed);
        if at_once {
            let why = if failure.stopped { "stopped" } else { "interrupted" };
            failure.message = format!("{why}, and ended at once");
        }
        // where the command itself is wrong, nothing has run
        if failure.user_error {
            return failure;
        }
        let (left, told) = self.left();
        match (left, told) {
            (Left::Checkpoint(_), Some(told)) if !failure.interrupted => {
                note(told);
                failure
            }
            (Left::Checkpoint(_) | Left::Lost(_), Some(told)) if failure.interrupted => {
                failure.with(told)
            }
            (Left::NoCheckpointYet, Some(told)) if at_once => failure.with(told),
            _ => failure,
        }
    }

    /// What is kept, or lost, and how that is said.
    fn left(&self) -> (Left, Option<String>) {
        let left = self.kept.left(self.finished.load(Ordering::Relaxed));
        let path = self.kept.folder().map(|folder| folder.path().display().to_string());
        let path = path.unwrap_or_default();
        let resume = format!("--checkpoint {path} --resume {path}");
        (left, left.told(&resume, "--checkpoint DIR"))
    }

    /// Ends this process when it is told so, without waiting for a step; only the bar is taken away before.
    pub(super) fn end_soon_after(self, told_to_end: Arc<AtomicBool>) -> Result<(), Failure> {
        let watch = move || {
            while !told_to_end.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_AGAIN);
            }
            self.bar.clear_in_time();
            last_words(self.told(Failure::interrupted()).to_string());
            end_at_once();
        };
        let watcher = std::thread::Builder::new().name("interrupt".into()).spawn(watch);
        watcher.map(drop).map_err(Failure::no_thread)
    }
}
