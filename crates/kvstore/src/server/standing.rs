//! Where a server stands, for whoever watches it from another thread.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Serving {
    /// It takes what workers send, updates and answers.
    Works,
    /// It waits for workers.
    Waits,
    /// It writes or reads a file.
    Keeps,
    /// It runs a user's function, or sets an optimizer.
    Calls,
}

/// Where a server stands.
#[derive(Debug, Default)]
pub struct ServerStanding {
    turns: AtomicU64,
    doing: AtomicU8,
}

impl ServerStanding {
    /// Returns a number that is another one once the server has done something.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns what the server does at the moment.
    pub fn look(&self) -> Serving {
        let all = [Serving::Works, Serving::Waits, Serving::Keeps, Serving::Calls];
        let doing = self.doing.load(Ordering::Relaxed);
        // it is always one of them
        all.into_iter().find(|serving| *serving as u8 == doing).unwrap_or(Serving::Works)
    }

    pub(super) fn moves(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// The server does this until the guard is dropped, and works again then.
    pub(super) fn does(&self, serving: Serving) -> Until<'_> {
        if serving != Serving::Waits {
            self.moves();
        }
        self.doing.store(serving as u8, Ordering::Relaxed);
        Until(self)
    }
}

pub(super) struct Until<'a>(&'a ServerStanding);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.doing.store(Serving::Works as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_begins_is_a_turn_and_a_wait_is_none() {
        let standing = ServerStanding::default();
        assert_eq!((standing.look(), standing.turns()), (Serving::Works, 0));
        {
            let _waits = standing.does(Serving::Waits);
            assert_eq!((standing.look(), standing.turns()), (Serving::Waits, 0));
        }
        {
            let _keeps = standing.does(Serving::Keeps);
            assert_eq!((standing.look(), standing.turns()), (Serving::Keeps, 1));
        }
        assert_eq!(standing.look(), Serving::Works);
    }
}
