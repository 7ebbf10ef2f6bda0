//! An event count on a futex: ring it after something happened, wait on it after having looked.
//! Does not know what happened.
//!
//! **Why no wake-up is lost.** The waiter takes a ticket (the sequence), looks, announces itself in
//! `waiters`, and has the kernel sleep only if the sequence still equals its ticket. The ringer raises
//! the sequence first and looks at `waiters` second. Both are sequentially consistent: either the
//! ringer sees the waiter and wakes it, or the waiter's announcement came after the ringer's look and
//! thus after the new sequence, and the kernel refuses to sleep.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use tensorwire_base::Deadline;
use tensorwire_base::sync::atomic::{AtomicU32, Ordering};

use crate::futex;

/// A moment in the sequence of events. It is mistaken for a later one only if exactly 2^32 events
/// (or a multiple) happen between taking it and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub(crate) u32);

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something happened.
    Event,
    /// The deadline passed.
    TimedOut,
}

/// The two words. They may lie in memory that other processes ring through.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    sequence: AtomicU32,
    waiters: AtomicU32,
}

/// What a wait did, for the statistics.
pub(crate) struct Waited {
    pub(crate) wake: Wake,
    pub(crate) blocked: bool,
}

impl Doorbell {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.sequence.load(Ordering::SeqCst))
    }

    /// Makes every wait on an earlier ticket end.
    pub(crate) fn ring(&self) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            futex::wake_all(&self.sequence);
        }
    }

    /// Spins for at most `spin`, then sleeps until rung or until the deadline.
    pub(crate) fn wait(&self, ticket: Ticket, spin: Duration, deadline: Deadline) -> Waited {
        let rung = || Waited { wake: Wake::Event, blocked: false };
        if self.ticket() != ticket {
            return rung();
        }
        if !spin.is_zero() {
            // before the clock is read: what comes at once is not to wait for that
            if self.rings_soon(ticket) {
                return rung();
            }
            let spin_until = Instant::now() + spin.min(deadline.remaining());
            while Instant::now() < spin_until {
                // whoever is to ring may wait for this very core
                std::thread::yield_now();
                if self.rings_soon(ticket) {
                    return rung();
                }
            }
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let wake = self.sleep(ticket, deadline);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        Waited { wake, blocked: true }
    }

    /// Looks a few times.
    fn rings_soon(&self, ticket: Ticket) -> bool {
        (0..64).any(|_| {
            std::hint::spin_loop();
            self.ticket() != ticket
        })
    }

    fn sleep(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        while self.ticket() == ticket {
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                return Wake::TimedOut;
            }
            match futex::wait(&self.sequence, ticket.0, remaining) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                // no futex here: a bounded sleep keeps the promise to come back, more slowly
                Err(_) => std::thread::sleep(remaining.min(Duration::from_millis(1))),
            }
        }
        Wake::Event
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use tensorwire_base::sync::atomic::AtomicBool;
    use tensorwire_base::sync::{model, thread};

    const NEVER: Duration = Duration::from_secs(1 << 20);

    /// A bell, and something that may have happened.
    fn bell() -> Arc<(Doorbell, AtomicBool)> {
        Arc::new((Doorbell::default(), AtomicBool::new(false)))
    }

    /// As every wait in the fabric: ticket, look, wait. Loom finds it where it never ends.
    fn wait_until_it_happened((bell, happened): &(Doorbell, AtomicBool)) {
        loop {
            let ticket = bell.ticket();
            if happened.load(Ordering::Relaxed) {
                return;
            }
            let waited = bell.wait(ticket, Duration::ZERO, Deadline::after(NEVER));
            assert_eq!(waited.wake, Wake::Event);
        }
    }

    #[test]
    fn a_ring_ends_every_wait_on_a_ticket_from_before_it() {
        model(None, || {
            let shared = bell();
            let ticket = shared.0.ticket();
            let other = shared.clone();
            let ringer = thread::spawn(move || other.0.ring());
            let waited = shared.0.wait(ticket, Duration::ZERO, Deadline::after(NEVER));
            assert_eq!(waited.wake, Wake::Event);
            ringer.join().unwrap();
        });
    }

    #[test]
    fn what_happened_before_a_ring_is_seen_by_whoever_waits() {
        model(None, || {
            let shared = bell();
            let other = shared.clone();
            let ringer = thread::spawn(move || {
                other.1.store(true, Ordering::Relaxed);
                other.0.ring();
            });
            wait_until_it_happened(&shared);
            ringer.join().unwrap();
        });
    }

    #[test]
    fn one_ring_wakes_all_that_wait() {
        model(Some(3), || {
            let shared = bell();
            let waiter = shared.clone();
            let waiter = thread::spawn(move || wait_until_it_happened(&waiter));
            let ringer = shared.clone();
            let ringer = thread::spawn(move || {
                ringer.1.store(true, Ordering::Relaxed);
                ringer.0.ring();
            });
            wait_until_it_happened(&shared);
            waiter.join().unwrap();
            ringer.join().unwrap();
        });
    }

    #[test]
    fn a_ring_for_something_else_loses_none() {
        model(Some(3), || {
            let shared = bell();
            let (first, second) = (shared.clone(), shared.clone());
            let unrelated = thread::spawn(move || first.0.ring());
            let ringer = thread::spawn(move || {
                second.1.store(true, Ordering::Relaxed);
                second.0.ring();
            });
            wait_until_it_happened(&shared);
            unrelated.join().unwrap();
            ringer.join().unwrap();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_ring_between_ticket_and_wait_is_not_lost() {
        let bell = Doorbell::default();
        let ticket = bell.ticket();
        bell.ring();
        let waited = bell.wait(ticket, Duration::ZERO, Deadline::after(Duration::from_secs(60)));
        assert_eq!(waited.wake, Wake::Event);
        assert!(!waited.blocked);
    }

    #[test]
    fn a_wait_without_a_ring_times_out() {
        let bell = Doorbell::default();
        let waited =
            bell.wait(bell.ticket(), Duration::ZERO, Deadline::after(Duration::from_millis(20)));
        assert_eq!(waited.wake, Wake::TimedOut);
    }

    #[test]
    fn two_threads_hand_a_turn_back_and_forth() {
        const TURNS: u32 = if cfg!(miri) { 100 } else { 20_000 };
        let shared = Arc::new((Doorbell::default(), AtomicU32::new(0)));
        let play = |parity: u32, shared: Arc<(Doorbell, AtomicU32)>| {
            let (bell, turn) = &*shared;
            let deadline = Deadline::after(Duration::from_secs(60));
            loop {
                let ticket = bell.ticket();
                let now = turn.load(Ordering::SeqCst);
                if now >= TURNS {
                    return;
                }
                if now % 2 == parity {
                    turn.store(now + 1, Ordering::SeqCst);
                    bell.ring();
                } else {
                    let waited = bell.wait(ticket, Duration::ZERO, deadline);
                    assert_eq!(waited.wake, Wake::Event, "lost at turn {now}");
                }
            }
        };
        let other = shared.clone();
        let thread = std::thread::spawn(move || play(1, other));
        play(0, shared);
        thread.join().unwrap();
    }
}
