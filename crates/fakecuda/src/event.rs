//! Events: which of their records a stream has come to.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorwire_device::sys::*;

use crate::capture::{Capture, Clocks};
use crate::state::{Context, Outcome};

/// So often a wait looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Records that streams were told, and the last one that a stream came to.
    issued: u64,
    done: u64,
    /// It was last recorded in a capture, at a point there.
    captured: Option<(Weak<Capture>, Clocks)>,
}

/// What an event stands for.
#[derive(Debug)]
pub(crate) enum Recorded {
    Never,
    /// As the record of that number.
    Outside(u64),
    Captured(Weak<Capture>, Clocks),
}

impl Event {
    pub(crate) fn new(context: Arc<Context>) -> Event {
        Event { context, state: Mutex::default(), news: Condvar::new() }
    }

    /// A stream was told to record it: returns the record's number.
    pub(crate) fn issue(&self) -> u64 {
        let mut state = self.state.lock();
        state.captured = None;
        state.issued += 1;
        state.issued
    }

    pub(crate) fn capture(&self, capture: &Arc<Capture>, clocks: Clocks) {
        self.state.lock().captured = Some((Arc::downgrade(capture), clocks));
    }

    pub(crate) fn recorded(&self) -> Recorded {
        let state = self.state.lock();
        match &state.captured {
            Some((capture, clocks)) => Recorded::Captured(capture.clone(), clocks.clone()),
            None if state.issued == 0 => Recorded::Never,
            None => Recorded::Outside(state.issued),
        }
    }

    /// A stream has come to a record.
    pub(crate) fn reach(&self, record: u64) {
        let mut state = self.state.lock();
        state.done = state.done.max(record);
        self.news.notify_all();
    }

    /// True if the last record was reached.
    pub(crate) fn query(&self) -> Outcome<bool> {
        let state = self.state.lock();
        match state.captured {
            Some(_) => Err(CUDA_ERROR_CAPTURED_EVENT),
            None => Ok(state.done >= state.issued),
        }
    }

    /// Waits until a record is reached; false if before that nobody wants it any more.
    pub(crate) fn wait(&self, record: u64, is_wanted: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while state.done < record && is_wanted() {
            self.news.wait_for(&mut state, LOOK);
        }
        state.done >= record
    }
}
