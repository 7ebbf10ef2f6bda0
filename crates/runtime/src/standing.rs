//! Where a session stands, for whoever watches it from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorwire_graph::{NodeId, Part};

/// No node computes.
const NONE: u32 = u32::MAX;

/// Where a session stands.
#[derive(Debug)]
pub struct Standing {
    /// By node.
    names: Vec<String>,
    turns: AtomicU64,
    node: AtomicU32,
    /// What the run waits for, once it has for some time.
    missing: Mutex<Option<(String, bool)>>,
}

/// What a session does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It computes the node of this name.
    Computes(String),
    /// It has waited for some time.
    Waits {
        /// For what, for people: `'grad/fc1' from worker 0`.
        missing: String,
        /// Nothing of others is missing, but what this process does itself.
        is_own: bool,
    },
    /// It is between two runs, or goes from one node to the next.
    Moves,
}

impl Standing {
    pub(crate) fn of(part: &Part) -> Arc<Standing> {
        let names = part.graph.nodes().map(|(_, node)| node.name.clone()).collect();
        let (turns, node, missing) = (AtomicU64::new(0), AtomicU32::new(NONE), Mutex::default());
        Arc::new(Standing { names, turns, node, missing })
    }

    /// Returns a number that is another one once the session has done something.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns what the session does at the moment.
    pub fn look(&self) -> Doing {
        let node = self.node.load(Ordering::Relaxed);
        match self.names.get(node as usize) {
            Some(name) => Doing::Computes(name.clone()),
            None => match self.missing.lock().clone() {
                Some((missing, is_own)) => Doing::Waits { missing, is_own },
                None => Doing::Moves,
            },
        }
    }

    pub(crate) fn computes(&self, node: NodeId) {
        self.node.store(node.0, Ordering::Relaxed);
    }

    pub(crate) fn has_computed(&self) {
        self.node.store(NONE, Ordering::Relaxed);
    }

    pub(crate) fn moves(&self) {
        // one thread writes it
        self.turns.store(self.turns() + 1, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self, missing: String, is_own: bool) {
        *self.missing.lock() = Some((missing, is_own));
    }

    pub(crate) fn goes_on(&self) {
        *self.missing.lock() = None;
    }
}
