//! Where a process that trains stands, for the thread that watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_launch::{Stand, Whereabouts};
use tensorwire_runtime::{Doing, Session, Standing};

/// What a process does around its sessions' runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It reads its data and takes its memory.
    Begins,
    /// It meets the others.
    Meets,
    /// Whatever a session runs, for others or itself.
    Runs,
    /// It waits until a step may begin.
    Enters(u64),
    /// It waits for the batch of a step.
    AwaitsBatch(u64),
    /// It copies what a checkpoint has, once the one before is written.
    Keeps(u64),
    Evaluates,
    /// It serves what the others ask of its store.
    Serves,
    /// Its steps are made: it writes what is to be kept, and says goodbye.
    Ends,
}

/// Where a process stands.
#[derive(Debug)]
pub(super) struct ProcessStanding {
    /// Longest that it may compute one operator, where others wait for it.
    step_patience: Option<Duration>,
    /// Counted with the sessions' own turns.
    turns: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    sessions: Vec<Arc<Standing>>,
    /// Those of the store's server that it is.
    served: Option<Arc<AtomicU64>>,
}

impl ProcessStanding {
    pub(super) fn new(step_patience: Option<Duration>) -> Arc<ProcessStanding> {
        let inner = Mutex::new(Inner { phase: Phase::Begins, sessions: Vec::new(), served: None });
        Arc::new(ProcessStanding { step_patience, turns: AtomicU64::new(0), inner })
    }

    pub(super) fn enters(&self, phase: Phase) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.inner.lock().phase = phase;
    }

    /// It serves a store from now on, and does something there as often as this number grows.
    pub(super) fn serves(&self, turns: Arc<AtomicU64>) {
        self.inner.lock().served = Some(turns);
        self.enters(Phase::Serves);
    }

    /// These sessions run from now on.
    pub(super) fn has_sessions<'a>(&self, sessions: impl IntoIterator<Item = &'a Session>) {
        self.inner.lock().sessions = sessions.into_iter().map(Session::standing).collect();
    }
}

impl Whereabouts for ProcessStanding {
    fn turns(&self) -> u64 {
        let inner = self.inner.lock();
        let sessions: u64 = inner.sessions.iter().map(|session| session.turns()).sum();
        let served = inner.served.as_ref().map_or(0, |turns| turns.load(Ordering::Relaxed));
        self.turns.load(Ordering::Relaxed) + sessions + served
    }

    fn stand(&self) -> Stand {
        let (phase, sessions) = {
            let inner = self.inner.lock();
            (inner.phase, inner.sessions.clone())
        };
        let (what, waits, patience) = match phase {
            Phase::Begins => ("reads its data".to_string(), false, None),
            Phase::Meets => ("meets the others".to_string(), true, None),
            Phase::Runs => return runs(&sessions, self.step_patience),
            Phase::Enters(step) => (format!("waits until step {step} may begin"), true, None),
            // the wait ends itself
            Phase::AwaitsBatch(step) => {
                (format!("waits for the batch of step {step}"), false, None)
            }
            // a disk may take any time, and the others' waits end themselves
            Phase::Keeps(step) => (format!("keeps what it has after step {step}"), false, None),
            Phase::Evaluates => ("evaluates".to_string(), false, None),
            Phase::Serves => ("waits for the workers".to_string(), true, None),
            Phase::Ends => ("ends".to_string(), false, None),
        };
        Stand { what, waits, patience }
    }
}

/// Where a process stands whose sessions run: what one computes says more than what others wait for.
fn runs(sessions: &[Arc<Standing>], patience: Option<Duration>) -> Stand {
    let stands: Vec<Doing> = sessions.iter().map(|session| session.look()).collect();
    let computes = stands.iter().find_map(|stand| match stand {
        Doing::Computes(node) => Some(format!("computes '{node}'")),
        _ => None,
    });
    let waits = stands.iter().find_map(|stand| match stand {
        Doing::Waits { missing, is_own } => Some((format!("waits for {missing}"), !is_own)),
        _ => None,
    });
    match (computes, waits) {
        (Some(what), _) => Stand { what, waits: false, patience },
        // the run ends itself when it has waited for too long
        (None, Some((what, waits))) => Stand { what, waits, patience: None },
        (None, None) => Stand { what: "is between two operators".into(), waits: false, patience },
    }
}
