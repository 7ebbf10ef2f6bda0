//! The threads that move what nobody waits for. They sleep while there is nothing, and while somebody waits, who moves all.
//! One of them leads, and the others are spare: a listener that it calls may wait for another operation, and meanwhile another
//! one leads. So there are as many as there are listeners that wait at a time, and one more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_base::Deadline;
use tensorwire_fabric::pulse;

use super::{LOOK_UP, Operation, Shared};

/// The threads of a communicator. What they are doing changes under the lock of its state.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// They sleep on it.
    work: Condvar,
    is_led: AtomicBool,
    spare: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Threads of a communicator, at most: listeners beyond that wait for each other.
const THREADS_MAX: usize = 64;

impl Crew {
    /// Waits for all threads but this one, which end when the state has failed.
    pub(super) fn stop(&self) {
        self.work.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        let here = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            // it panicked, or is over
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Has a thread lead, if none does. Where the system has no thread left, whoever waits moves all.
    pub(super) fn call_crew(self: &Arc<Shared>) {
        // whoever has changed the state under its lock sees what the crew was doing then
        let crew = &self.crew;
        if !crew.is_led.load(Ordering::Relaxed) && crew.spare.load(Ordering::Relaxed) == 0 {
            let mut threads = crew.threads.lock();
            if threads.len() < THREADS_MAX {
                let named = std::thread::Builder::new().name("communicator".to_string());
                let shared = self.clone();
                threads.extend(named.spawn(move || shared.run()).ok());
            }
        }
        crew.work.notify_one();
    }

    /// Moves what nobody waits for, until the communicator is closed.
    fn run(self: Arc<Shared>) {
        let _watched = pulse::watch_service("communicator");
        let crew = &self.crew;
        let mut state = self.state.lock();
        loop {
            pulse::beat();
            if state.failed.is_some() && !state.has_over() {
                return;
            }
            let is_idle = !state.is_busy() && !state.has_over();
            if crew.is_led.load(Ordering::Relaxed) || state.waiters > 0 || is_idle {
                crew.spare.fetch_add(1, Ordering::Relaxed);
                crew.work.wait_for(&mut state, LOOK_UP);
                crew.spare.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            crew.is_led.store(true, Ordering::Relaxed);
            let moment = self.watch.now();
            let moved = state.advance_or_fail();
            state.settle_all();
            let over = state.take_over();
            if over.iter().any(Operation::is_heard) {
                crew.is_led.store(false, Ordering::Relaxed);
                if state.is_busy() {
                    self.call_crew();
                }
                MutexGuard::unlocked(&mut state, || {
                    let _resting = pulse::resting();
                    Operation::say_all(over);
                });
                continue;
            }
            if !moved && over.is_empty() {
                MutexGuard::unlocked(&mut state, || {
                    self.watch.wait(moment, Deadline::after(LOOK_UP));
                });
            }
            crew.is_led.store(false, Ordering::Relaxed);
        }
    }
}
