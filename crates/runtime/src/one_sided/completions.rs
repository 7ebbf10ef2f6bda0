//! The completions of one fabric, told apart by session: several exchanges of a process may share it.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_fabric::{Completion, Fabric};
use tensorwire_graph::EdgeId;

/// One session's end of what all sessions of a fabric share.
#[derive(Debug)]
pub(super) struct Completions {
    session: usize,
    /// By session: what was polled and not yet taken.
    queues: Arc<Mutex<Vec<Vec<Completion>>>>,
}

impl Completions {
    /// The ends of `count` sessions.
    pub(super) fn of_sessions(count: usize) -> impl Iterator<Item = Completions> {
        let queues = Arc::new(Mutex::new(vec![Vec::new(); count]));
        (0..count).map(move |session| Completions { session, queues: queues.clone() })
    }

    /// What to post a memcpy of this session with.
    pub(super) fn token(&self, edge: EdgeId) -> u64 {
        // fits: a session is a peer, and peers fit u32
        (self.session as u64) << 32 | u64::from(edge.0)
    }

    /// Takes this session's completions, in the order in which they came.
    pub(super) fn poll(&mut self, fabric: &Fabric) -> Vec<(EdgeId, Completion)> {
        let mut queues = self.queues.lock();
        let mut fresh = Vec::new();
        fabric.poll(&mut fresh);
        for completion in fresh {
            // fits: tokens are made above
            queues[(completion.token >> 32) as usize].push(completion);
        }
        let mine = std::mem::take(&mut queues[self.session]);
        // fits: the lower half is the edge
        mine.into_iter().map(|completion| (EdgeId(completion.token as u32), completion)).collect()
    }
}
