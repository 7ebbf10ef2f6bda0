//! Where a process that trains stands, for the thread that watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_fabric::pulse;
use tensorwire_kvstore::{ServerStanding, Serving};
use tensorwire_launch::{Stand, Whereabouts};
use tensorwire_runtime::{Doing, Session, Standing};

use crate::config::TrainConfig;

/// What a process does around its sessions' runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It builds its model, reads its data and takes its memory.
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
    /// It waits for a batch of the test.
    AwaitsTestBatch,
    /// It tells whoever listens of a step: in a process that trains alone, code of the user's, which may take any time.
    Tells,
    /// It serves what the others ask of its store.
    Serves,
    /// Its steps are made: it writes what is to be kept.
    Ends,
    /// It says goodbye.
    Leaves,
}

/// Where a process stands.
#[derive(Debug)]
pub(super) struct ProcessStanding {
    /// Longest that it may compute one operator.
    step_patience: Duration,
    /// Longest that it may read its data, or write what is to be kept.
    disk_patience: Duration,
    /// Counted with the sessions' own turns.
    turns: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    sessions: Vec<Arc<Standing>>,
    /// That of the store's server that it is.
    served: Option<Arc<ServerStanding>>,
}

impl ProcessStanding {
    /// Of a process of such a job.
    pub(super) fn new(config: &TrainConfig) -> Arc<ProcessStanding> {
        let inner = Mutex::new(Inner { phase: Phase::Begins, sessions: Vec::new(), served: None });
        let (step_patience, disk_patience) = (config.step_deadline(), config.disk_deadline());
        let turns = AtomicU64::new(0);
        Arc::new(ProcessStanding { step_patience, disk_patience, turns, inner })
    }

    pub(super) fn enters(&self, phase: Phase) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.inner.lock().phase = phase;
    }

    /// Returns what `telling` does, which may take any time.
    pub(super) fn tells<T>(&self, telling: impl FnOnce() -> T) -> T {
        self.enters(Phase::Tells);
        pulse::rest(telling)
    }

    /// It serves a store from now on, and stands there as this says.
    pub(super) fn serves(&self, server: Arc<ServerStanding>) {
        self.inner.lock().served = Some(server);
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
        let served = inner.served.as_ref().map_or(0, |server| server.turns());
        self.turns.load(Ordering::Relaxed) + sessions + served
    }

    fn stand(&self) -> Stand {
        let (phase, sessions, served) = {
            let inner = self.inner.lock();
            (inner.phase, inner.sessions.clone(), inner.served.clone())
        };
        let (step, disk) = (Some(self.step_patience), Some(self.disk_patience));
        let (what, waits, patience) = match phase {
            Phase::Begins => ("builds its model and reads its data".to_string(), false, disk),
            Phase::Meets => ("meets the others".to_string(), true, None),
            Phase::Runs => return runs(&sessions, step),
            Phase::Enters(step) => (format!("waits until step {step} may begin"), true, None),
            // the wait ends itself
            Phase::AwaitsBatch(step) => {
                (format!("waits for the batch of step {step}"), false, None)
            }
            Phase::AwaitsTestBatch => ("waits for a batch of the test".to_string(), false, None),
            Phase::Tells => ("tells of its step".to_string(), false, None),
            Phase::Keeps(step) => (format!("keeps what it has after step {step}"), false, disk),
            Phase::Evaluates => {
                let Stand { what, waits, patience } = runs(&sessions, step);
                (format!("evaluates and {what}"), waits, patience)
            }
            Phase::Serves => {
                serves(served.map_or(Serving::Waits, |server| server.look()), step, disk)
            }
            Phase::Ends => ("ends".to_string(), false, disk),
            // another launcher may have to come first
            Phase::Leaves => ("ends".to_string(), true, None),
        };
        Stand { what, waits, patience }
    }

    fn thread_patience(&self) -> Option<Duration> {
        Some(self.step_patience)
    }
}

/// Where a server of a store stands: in words, whether it waits, and how long it may.
fn serves(
    serving: Serving,
    step: Option<Duration>,
    disk: Option<Duration>,
) -> (String, bool, Option<Duration>) {
    let (what, waits, patience) = match serving {
        // it works on what came for a moment, and waits: which it was is seen by its thread, which says that it lives between both
        Serving::Works => ("does what the workers ask", true, None),
        Serving::Waits => ("waits for the workers", true, None),
        Serving::Keeps => ("reads or writes a snapshot", false, disk),
        Serving::Calls => ("runs a function that a worker calls", false, step),
    };
    (what.to_string(), waits, patience)
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

#[cfg(test)]
mod tests {
    use tensorwire_launch::JobSpec;
    use tensorwire_zoo::data::Source;
    use tensorwire_zoo::{Mlp, Shipped};

    use super::*;
    use crate::config::tests::config;
    use crate::{Prepared, Workload};

    #[test]
    fn who_waits_for_one_that_reads_is_as_patient_as_that_one() {
        let source: Source = "digits".parse().unwrap();
        let data = source.open(Mlp.samples(), 1).unwrap();
        let config = TrainConfig { step_deadline_ms: 3_600_000, ..config() };
        let reads = ProcessStanding::new(&config).stand().patience;
        let prepared = Prepared::new(config, &Workload::new(Mlp, data)).unwrap();
        let wait = prepared.job(&JobSpec::new("", "", Vec::new())).set_up;
        assert!(wait >= reads && reads.is_some(), "{wait:?} for {reads:?}");
    }
}
