//! A job of several processes: what looks after them is a thread of its own, so that they live however long a program takes over what
//! it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use tensorwire_launch::JobSpec;
use tensorwire_train::{JobFailure, Prepared, Supply, TrainOutcome, TrainUpdate, launch_train};

use crate::error::{Error, Result};
use crate::program::ProgramError;

/// Launches a job as [`launch_train`] does, on another thread, and tells this one's caller what happens. What is told late is told all
/// the same: a job has ended once all is told.
///
/// # Errors
/// When the job fails, or the system has no thread to give.
pub(super) fn launch_apart(
    prepared: &Prepared,
    supply: &(dyn Supply + Sync),
    how: &JobSpec,
    tell: &mut dyn FnMut(TrainUpdate),
) -> Result<TrainOutcome> {
    let (updates, inbox) = channel();
    std::thread::scope(|scope| {
        let launch = move || -> Result<TrainOutcome, JobFailure> {
            // nobody is told any more where this thread's caller panics
            launch_train(prepared, supply, how, &mut |update| drop(updates.send(update)))
        };
        let named = std::thread::Builder::new().name("launcher".into());
        let no_thread = |source| ProgramError::System { what: "a thread", source };
        let launched = named.spawn_scoped(scope, launch).map_err(no_thread)?;
        let ends = EndsJob { interrupt: how.interrupt.clone(), at_once: how.at_once.clone() };
        inbox.iter().for_each(tell);
        drop(ends);
        match launched.join() {
            Ok(outcome) => outcome.map_err(Error::from),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Ends the job where what it tells panics, rather than have it go on untold.
struct EndsJob {
    interrupt: Arc<AtomicBool>,
    at_once: Arc<AtomicBool>,
}

impl Drop for EndsJob {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.at_once.store(true, Ordering::Relaxed);
            self.interrupt.store(true, Ordering::Relaxed);
        }
    }
}
