//! A thread that moves a group's operations while kernels run. Whoever waits for news moves them himself; between two kernels
//! of a tenth of a second each a wire would stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_collectives::{Collectives, Group, GroupError};
use tensorwire_fabric::pulse;

use super::SharedGroup;

/// How often the thread looks for what it can move. In half a millisecond 10 Gb/s carry 625 KB, less than what a group has under
/// way at a time.
const EVERY: Duration = Duration::from_micros(500);

/// Set in place of how often things were moved by who could not look.
const UNKNOWN: u64 = u64::MAX;

/// A group's operations, moved by a thread of their own until this is dropped.
#[derive(Debug)]
pub(super) struct Mover {
    moving: Arc<Moving>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the session know of each other.
#[derive(Debug)]
pub(super) struct Moving {
    group: SharedGroup,
    /// How often the thread has moved anything, and how often it had when the session last looked. Both change while the
    /// group is locked.
    moves: AtomicU64,
    seen: AtomicU64,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_work: bool,
    is_over: bool,
    /// What the thread met, for the session.
    failed: Option<GroupError>,
}

impl Mover {
    /// Has a thread move what is under way in a group. Where the system has no thread left the session moves it alone.
    pub(super) fn new(group: SharedGroup) -> Mover {
        let moving = Arc::new(Moving {
            group,
            moves: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            state: Mutex::default(),
            called: Condvar::new(),
        });
        let named = std::thread::Builder::new().name("group".to_string());
        let there = moving.clone();
        let thread = named.spawn(move || there.run()).ok();
        Mover { moving, thread }
    }

    /// True if there is a thread: the group moves though its session does not look.
    pub(super) fn is_there(&self) -> bool {
        self.thread.is_some()
    }

    /// What a session's events ask.
    pub(super) fn moving(&self) -> Arc<Moving> {
        self.moving.clone()
    }

    /// Says whether anything is under way.
    pub(super) fn has_work(&self, has_work: bool) {
        let mut state = self.moving.state.lock();
        if state.has_work != has_work {
            state.has_work = has_work;
            self.moving.called.notify_one();
        }
    }

    /// The group, moved as far as it goes, unless the thread moves it at this moment.
    ///
    /// # Errors
    /// Those that the thread met, and those of [`Collectives::progress`].
    pub(super) fn moved(&self) -> Result<Option<MutexGuard<'_, Group>>, GroupError> {
        let moving = &*self.moving;
        let Some(mut group) = moving.group.try_lock() else {
            moving.seen.store(UNKNOWN, Ordering::Relaxed);
            return Ok(None);
        };
        if let Some(failed) = moving.state.lock().failed.take() {
            return Err(failed);
        }
        group.progress()?;
        moving.seen.store(moving.moves.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Some(group))
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.moving.state.lock().is_over = true;
        self.moving.called.notify_one();
        if let Some(thread) = self.thread.take() {
            // it ends at once; one that panicked is over
            let _ = thread.join();
        }
    }
}

impl Moving {
    /// True if the thread has moved what the session does not know of; it is told so once. Whoever asks has locked the group.
    pub(super) fn take_news(&self) -> bool {
        let moves = self.moves.load(Ordering::Relaxed);
        self.seen.swap(moves, Ordering::Relaxed) != moves
    }

    fn run(&self) {
        let _watched = pulse::watch_service("group");
        let mut state = self.state.lock();
        while !state.is_over {
            pulse::beat();
            if !state.has_work || state.failed.is_some() {
                self.called.wait_for(&mut state, pulse::BEAT);
                continue;
            }
            // whoever has locked the group moves it himself
            MutexGuard::unlocked(&mut state, || {
                let Some(mut group) = self.group.try_lock() else { return };
                let moved = group.progress();
                if !matches!(moved, Ok(false)) {
                    self.moves.fetch_add(1, Ordering::Relaxed);
                }
                // before the session may look
                if let Err(failed) = moved {
                    self.state.lock().failed = Some(failed);
                }
            });
            if !state.is_over {
                self.called.wait_for(&mut state, EVERY);
            }
        }
    }
}
