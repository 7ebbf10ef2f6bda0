//! What is said of a job that ends before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensorwire::program::{Interrupts, end_at_once};
use tensorwire_train::{CheckpointConfig, CheckpointFolder, FoundCheckpoint, Prepared};

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
    /// The folder of its checkpoints.
    folder: Option<CheckpointFolder>,
    keeps_any: bool,
    bar: Bar,
    /// The last step that all have finished, and the steps that an earlier job made.
    finished: Arc<AtomicU64>,
    begun: u64,
    /// It was told so twice.
    pub(super) at_once: Arc<AtomicBool>,
    /// There are processes to end.
    pub(super) launches: Arc<AtomicBool>,
}

impl Ending {
    pub(super) fn new(prepared: &Prepared, watcher: &Watcher) -> Ending {
        let checkpoint = prepared.config.checkpoint.as_ref();
        Ending {
            folder: checkpoint.map(|CheckpointConfig { path, .. }| CheckpointFolder::new(path)),
            keeps_any: checkpoint.is_some() || prepared.config.store.snapshot.is_some(),
            bar: watcher.bar.clone(),
            finished: watcher.finished.clone(),
            begun: prepared.steps_done(),
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

    fn steps(&self) -> u64 {
        self.finished.load(Ordering::Relaxed).saturating_sub(self.begun)
    }

    /// The same failure, with what is kept of the job, or lost.
    pub(super) fn told(&self, mut failure: Failure) -> Failure {
        let at_once = failure.interrupted && self.at_once.load(Ordering::Relaxed);
        if at_once {
            failure.message = "interrupted, and ended at once".to_string();
        }
        match self.kept() {
            // where the command itself is wrong, nothing has run
            _ if failure.user_error => failure,
            Some(kept) if failure.interrupted => failure.with(kept),
            Some(kept) => {
                note(kept);
                failure
            }
            None if failure.interrupted && !self.keeps_any => with_losses(failure, self.steps()),
            None if at_once && self.folder.is_some() => failure.with("there is no checkpoint yet"),
            None => failure,
        }
    }

    /// From where another job can go on.
    fn kept(&self) -> Option<String> {
        let folder = self.folder.as_ref()?;
        let found = folder.found().unwrap_or_default();
        let FoundCheckpoint { step, .. } = found.first()?;
        let path = folder.path().display();
        Some(format!(
            "the newest checkpoint is of step {step}: --checkpoint {path} --resume {path} goes on from there"
        ))
    }

    /// Ends this process when it is told so, without waiting for a step; only the bar is taken away before.
    pub(super) fn end_soon_after(self, told_to_end: Arc<AtomicBool>) -> Result<(), Failure> {
        let watch = move || {
            while !told_to_end.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_AGAIN);
            }
            self.bar.clear_in_time();
            last_words(with_losses(Failure::interrupted(), self.steps()).to_string());
            end_at_once();
        };
        let watcher = std::thread::Builder::new().name("interrupt".into()).spawn(watch);
        watcher.map(drop).map_err(Failure::no_thread)
    }
}

/// Of a job that keeps nothing on the way and was told to end: how many steps are lost with it, and what would have kept them.
fn with_losses(interrupted: Failure, steps: u64) -> Failure {
    match steps {
        0 => interrupted,
        1 => interrupted.with("1 step is lost, which --checkpoint DIR would have kept"),
        _ => interrupted
            .with(format_args!("{steps} steps are lost, which --checkpoint DIR would have kept")),
    }
}
