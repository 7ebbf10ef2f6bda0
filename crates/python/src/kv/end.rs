//! A worker's end of a store, for the threads of the process that opened it, one at a time. A fork of that process has none.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use tensorwire::base::{Clock, Deadline};
use tensorwire::kvstore::StoreError as Error;
use tensorwire::store::{StoreFailure, StoreMember};

use super::errors::StoreError;

/// How long a call waits for another thread's before it asks whether to go on.
const TURN: Duration = Duration::from_millis(100);

pub(super) struct WorkerEnd {
    /// None once it is closed.
    member: Mutex<Option<StoreMember>>,
    /// The process that opened it: a fork of it has neither its threads nor its connections.
    process: u32,
}

impl WorkerEnd {
    pub(super) fn new(member: StoreMember) -> WorkerEnd {
        WorkerEnd { member: Mutex::new(Some(member)), process: std::process::id() }
    }

    /// True if this process is a fork of the one that opened it.
    pub(super) fn is_fork(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn check_process(&self) -> PyResult<()> {
        match self.is_fork() {
            false => Ok(()),
            true => Err(StoreError::new_err(
                "this process is a fork of the one that opened the store; use the store there, or start this process by spawn",
            )),
        }
    }

    /// Does something with it, without Python's lock, once no other thread does. `work` is told whom to ask whether to go on.
    pub(super) fn with<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        work: impl FnOnce(&mut Option<StoreMember>, &mut dyn FnMut() -> bool) -> Result<T, StoreFailure>
        + Send,
    ) -> PyResult<Result<T, StoreFailure>> {
        interruptibly(py, |go_on| work(&mut *self.lock(deadline, go_on)?, go_on))
    }

    fn lock(
        &self,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<MutexGuard<'_, Option<StoreMember>>, StoreFailure> {
        let start = Clock::now_ns();
        loop {
            if let Some(member) = self.member.try_lock_for(TURN.min(deadline.remaining())) {
                return Ok(member);
            }
            if deadline.passed() {
                let what = "a call of another thread of this process".to_string();
                let waited = Duration::from_nanos(Clock::now_ns() - start);
                return Err(Error::TimedOut { waited, what }.into());
            }
            if !go_on() {
                return Err(StoreFailure::Interrupted);
            }
        }
    }
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        if self.is_fork() {
            // what it would wait for is not here, and what it would say is not for a fork to say
            std::mem::forget(self.member.get_mut().take());
        }
    }
}

/// Works without Python's lock. `work` is told whom to ask whether to go on; where Python says no, its reason is the error.
pub(super) fn interruptibly<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let mut signal = None;
    let mut go_on = || {
        let checked = Python::attach(|py| py.check_signals());
        checked.map_err(|error| signal = Some(error)).is_ok()
    };
    let done = py.detach(|| work(&mut go_on));
    signal.map_or(Ok(done), Err)
}
