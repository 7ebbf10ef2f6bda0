//! The thread that moves what nobody waits for. It sleeps while there is nothing, and while somebody waits, who moves all.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::MutexGuard;
use tensorwire_base::Deadline;

use super::{LOOK_UP, Operation, Shared};

/// Starts it; None where the system has no thread left: then whoever waits moves all.
pub(super) fn start(shared: Arc<Shared>) -> Option<JoinHandle<()>> {
    let named = std::thread::Builder::new().name("communicator".to_string());
    named.spawn(move || shared.run()).ok()
}

impl Shared {
    /// Moves what nobody waits for, until the communicator is closed.
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() && !state.has_over() {
                return;
            }
            if state.waiters > 0 || !state.is_busy() && !state.has_over() {
                self.work.wait_for(&mut state, LOOK_UP);
                continue;
            }
            let moment = self.watch.now();
            let moved = state.advance_or_fail();
            state.settle_all();
            let over = state.take_over();
            let is_told = !over.is_empty();
            MutexGuard::unlocked(&mut state, || {
                Operation::say_all(over);
                if !moved && !is_told {
                    self.watch.wait(moment, Deadline::after(LOOK_UP));
                }
            });
        }
    }
}
