//! A thread that moves what is under way in a group or over a store while kernels run. Whoever waits for news moves it himself;
//! between two kernels of a tenth of a second each a wire would stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_collectives::{Collectives, Group, GroupError};
use tensorwire_fabric::pulse;
use tensorwire_kvstore::{KvWorker, StoreError};

/// How often the thread looks for what it can move. In half a millisecond 10 Gb/s carry 625 KB, less than what a group has under
/// way at a time.
const EVERY: Duration = Duration::from_micros(500);

/// What moves when somebody calls it.
pub(crate) trait Moves: Send + 'static {
    type Error: std::fmt::Debug + Send;
    /// Of its thread.
    const NAME: &'static str;

    /// Does what can be done now, and waits for nothing; true if something was.
    ///
    /// # Errors
    /// When a peer is lost, or does what it may not.
    fn progress(&mut self) -> Result<bool, Self::Error>;

    /// Keeps what the thread met for whoever moves it next; returns what is to be asked of the thread.
    fn keep(&mut self, failed: Self::Error) -> Option<Self::Error> {
        Some(failed)
    }
}

impl Moves for Group {
    type Error = GroupError;
    const NAME: &'static str = "group";

    fn progress(&mut self) -> Result<bool, GroupError> {
        Collectives::progress(self)
    }
}

impl Moves for KvWorker {
    type Error = StoreError;
    const NAME: &'static str = "store";

    fn progress(&mut self) -> Result<bool, StoreError> {
        // it may connect to a server that took another's place
        pulse::rest(|| KvWorker::progress(self))
    }

    /// Not its session alone moves it.
    fn keep(&mut self, failed: StoreError) -> Option<StoreError> {
        self.fail_with(failed);
        None
    }
}

/// Set in place of how often things were moved by who could not look.
const UNKNOWN: u64 = u64::MAX;

/// What is under way, moved by a thread of its own until this is dropped.
#[derive(Debug)]
pub(crate) struct Mover<M: Moves> {
    moving: Arc<Moving<M>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the session know of each other.
#[derive(Debug)]
pub(crate) struct Moving<M: Moves> {
    moved: Arc<Mutex<M>>,
    /// How often the thread has moved anything, and how often it had when the session last looked. Both change while what it
    /// moves is locked.
    moves: AtomicU64,
    seen: AtomicU64,
    state: Mutex<State<M::Error>>,
    called: Condvar,
}

#[derive(Debug)]
struct State<E> {
    has_work: bool,
    is_over: bool,
    /// What the thread met, for the session.
    failed: Option<E>,
}

impl<M: Moves> Mover<M> {
    /// Has a thread move what is under way. Where the system has no thread left the session moves it alone.
    pub(crate) fn new(moved: Arc<Mutex<M>>) -> Mover<M> {
        let moving = Arc::new(Moving {
            moved,
            moves: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            state: Mutex::new(State { has_work: false, is_over: false, failed: None }),
            called: Condvar::new(),
        });
        let named = std::thread::Builder::new().name(M::NAME.to_string());
        let there = moving.clone();
        let thread = named.spawn(move || there.run()).ok();
        Mover { moving, thread }
    }

    /// True if there is a thread: it moves though its session does not look.
    pub(crate) fn is_there(&self) -> bool {
        self.thread.is_some()
    }

    /// What a session's events ask.
    pub(crate) fn moving(&self) -> Arc<Moving<M>> {
        self.moving.clone()
    }

    /// Says whether anything is under way.
    pub(crate) fn has_work(&self, has_work: bool) {
        let mut state = self.moving.state.lock();
        if state.has_work != has_work {
            state.has_work = has_work;
            self.moving.called.notify_one();
        }
    }

    /// What is moved, as far as it goes, unless the thread moves it at this moment.
    ///
    /// # Errors
    /// Those that the thread met, and those of [`Moves::progress`].
    pub(crate) fn moved(&self) -> Result<Option<MutexGuard<'_, M>>, M::Error> {
        let moving = &*self.moving;
        let Some(mut moved) = moving.moved.try_lock() else {
            moving.seen.store(UNKNOWN, Ordering::Relaxed);
            return Ok(None);
        };
        if let Some(failed) = moving.state.lock().failed.take() {
            return Err(failed);
        }
        moved.progress()?;
        moving.seen.store(moving.moves.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Some(moved))
    }
}

impl<M: Moves> Drop for Mover<M> {
    fn drop(&mut self) {
        self.moving.state.lock().is_over = true;
        self.moving.called.notify_one();
        if let Some(thread) = self.thread.take() {
            // it ends at once; one that panicked is over
            let _ = thread.join();
        }
    }
}

impl<M: Moves> Moving<M> {
    /// True if the thread has moved what the session does not know of; it is told so once. Whoever asks has locked
    /// what is moved.
    pub(crate) fn take_news(&self) -> bool {
        let moves = self.moves.load(Ordering::Relaxed);
        self.seen.swap(moves, Ordering::Relaxed) != moves
    }

    fn run(&self) {
        let _watched = pulse::watch_service(M::NAME);
        let mut state = self.state.lock();
        while !state.is_over {
            pulse::beat();
            if !state.has_work || state.failed.is_some() {
                self.called.wait_for(&mut state, pulse::BEAT);
                continue;
            }
            // whoever has locked it moves it himself
            MutexGuard::unlocked(&mut state, || {
                let Some(mut under_way) = self.moved.try_lock() else { return };
                let moved = under_way.progress();
                if !matches!(moved, Ok(false)) {
                    self.moves.fetch_add(1, Ordering::Relaxed);
                }
                // before the session may look
                if let Err(failed) = moved {
                    let failed = under_way.keep(failed);
                    let mut state = self.state.lock();
                    state.is_over |= failed.is_none();
                    state.failed = failed;
                }
            });
            if !state.is_over {
                self.called.wait_for(&mut state, EVERY);
            }
        }
    }
}
