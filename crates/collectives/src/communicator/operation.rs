//! An operation as whoever started it sees it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::CommunicatorError;
use crate::mail::Received;

/// What an operation that is over has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of a receive.
    pub received: Option<Received>,
}

type Listener = Box<dyn FnOnce(&Result<Outcome, CommunicatorError>) + Send>;

/// An operation that was started. Clones are the same one.
#[derive(Clone)]
pub struct Operation {
    shared: Arc<Shared>,
}

struct Shared {
    is_over: AtomicBool,
    outcome: Mutex<Option<Result<Outcome, CommunicatorError>>>,
    listener: Mutex<Option<Listener>>,
}

impl Operation {
    pub(super) fn new() -> Operation {
        let shared = Shared {
            is_over: AtomicBool::new(false),
            outcome: Mutex::default(),
            listener: Mutex::default(),
        };
        Operation { shared: Arc::new(shared) }
    }

    /// True once it is over, well or not.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// Returns what it made, or why it failed; None while it is under way.
    pub fn outcome(&self) -> Option<Result<Outcome, CommunicatorError>> {
        if self.is_over() { self.shared.outcome.lock().clone() } else { None }
    }

    /// Has `listener` called once, when it is over: at once if it is, else by whoever moves operations, which go on
    /// behind it.
    pub fn on_over(
        &self,
        listener: impl FnOnce(&Result<Outcome, CommunicatorError>) + Send + 'static,
    ) {
        *self.shared.listener.lock() = Some(Box::new(listener));
        if self.is_over() {
            self.tell();
        }
    }

    /// True if somebody listens.
    pub(super) fn is_heard(&self) -> bool {
        self.shared.listener.lock().is_some()
    }

    /// It is over; whoever asks is told, and the listener by [`Operation::say_all`].
    pub(super) fn end(&self, outcome: Result<Outcome, CommunicatorError>) {
        *self.shared.outcome.lock() = Some(outcome);
        self.shared.is_over.store(true, Ordering::Release);
    }

    /// Calls the listeners of operations that are over. No lock of the communicator is held.
    pub(super) fn say_all(over: VecDeque<Operation>) {
        over.iter().for_each(Operation::tell);
    }

    fn tell(&self) {
        let outcome = self.shared.outcome.lock().clone();
        let listener = self.shared.listener.lock().take();
        if let (Some(listener), Some(outcome)) = (listener, outcome) {
            listener(&outcome);
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}
