//! Makes the batches of the next step while the present one runs: a thread of its own, one step ahead.

use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use tensorwire_nn::{Batches, HostBatch};

use super::TrainError;

/// Batches in the order of the steps. When it is dropped, its thread ends.
pub(super) struct Loader {
    /// None while it is being dropped.
    steps: Option<Receiver<tensorwire_nn::Result<Vec<HostBatch>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Makes the batches of `workers`, in this order, for each of so many steps.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn start(
        mut batches: Batches,
        workers: Range<usize>,
        steps: u64,
    ) -> Result<Loader, TrainError> {
        // nothing is kept between: the next is begun when the one before is taken
        let (sender, receiver) = sync_channel(0);
        let make = move || {
            for step in 0..steps {
                let of_step = workers.clone().map(|worker| batches.batch(step, worker)).collect();
                let failed = tensorwire_nn::Result::is_err(&of_step);
                if sender.send(of_step).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("batches".into()).spawn(make);
        let thread = thread.map_err(TrainError::Loader)?;
        Ok(Loader { steps: Some(receiver), thread: Some(thread) })
    }

    /// The next step's batches, one a worker; `step` is for the error.
    pub(super) fn next(&self, step: u64) -> Result<Vec<HostBatch>, TrainError> {
        let made = self.steps.as_ref().and_then(|steps| steps.recv().ok());
        made.ok_or(TrainError::LoaderGone { step })?
            .map_err(|source| TrainError::Batch { step, source })
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // the thread's next send fails
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // its panic, if any, was printed and ended the batches
            let _ = thread.join();
        }
    }
}
