//! Which steps of a job may begin: as far as the launcher lets all members go. So all of them end behind the same step, where a
//! job whose state is to be kept is told to end, or has learned all there is to learn.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorwire_base::Deadline;
use tensorwire_fabric::pulse;

use super::StepWord;
use crate::control::{Behind, HELD_AT_MOST};

#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The last step that has begun.
    begun: u64,
    /// The last that may, for all that is known.
    until: u64,
    behind: Behind,
    /// What `until` was before all were held.
    held: Option<u64>,
}

impl Gate {
    /// One that lets all steps begin.
    pub(super) fn open() -> Gate {
        let state = State { begun: 0, until: u64::MAX, behind: Behind::Unknown, held: None };
        Gate { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until it is known whether `step` begins; if so, it has begun. One that is held waits as long as its launcher may, for
    /// others that do something yet; once it is let go, the time to the deadline begins anew.
    ///
    /// # Errors
    /// When nobody says so by the deadline, or for longer than a launcher waits.
    pub(super) fn begin(&self, step: u64, deadline: Deadline) -> std::io::Result<StepWord> {
        let (patience, mut deadline, mut is_held) = (deadline.remaining(), deadline, false);
        let mut state = self.state.lock();
        loop {
            if step <= state.until {
                state.begun = state.begun.max(step);
                return Ok(StepWord::Begins);
            }
            if state.held.is_some() != is_held {
                is_held = !is_held;
                let more = if is_held { HELD_AT_MOST } else { Duration::ZERO };
                deadline = Deadline::after(patience.saturating_add(more));
            }
            match state.behind {
                Behind::Unknown if deadline.passed() => {
                    let waits = format!("the launcher did not say in time if step {step} begins");
                    return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, waits));
                }
                Behind::Unknown => {
                    pulse::beat();
                    self.changed.wait_for(&mut state, deadline.remaining().min(pulse::BEAT));
                }
                Behind::Done => return Ok(StepWord::Done),
                Behind::Interrupted => return Ok(StepWord::Interrupted),
            }
        }
    }

    /// True if `step` begins now; it has then. Of whoever takes part in several steps at once, any may be asked for.
    pub(super) fn begins(&self, step: u64) -> bool {
        let mut state = self.state.lock();
        let begins = step <= state.until;
        if begins {
            state.begun = state.begun.max(step);
        }
        begins
    }

    /// Lets steps up to `until` begin, and says what is behind it. Where a job ends is said once.
    pub(super) fn allow(&self, until: u64, behind: Behind) {
        let mut state = self.state.lock();
        if state.behind == Behind::Unknown {
            (state.until, state.behind, state.held) = (until, behind, None);
            self.changed.notify_all();
        }
    }

    /// Lets no other step begin for now; returns the last that has.
    pub(super) fn hold(&self) -> u64 {
        let mut state = self.state.lock();
        if state.behind == Behind::Unknown {
            let before = state.until;
            state.held.get_or_insert(before);
            state.until = state.begun;
        }
        state.begun
    }

    /// True if all are held, or end behind a step since they were.
    pub(super) fn is_held(&self) -> bool {
        let state = self.state.lock();
        state.held.is_some() || state.behind == Behind::Interrupted
    }

    /// Goes on as before it was held: whoever held it will not say what comes.
    pub(super) fn let_go(&self) {
        let mut state = self.state.lock();
        if let Some(until) = state.held.take() {
            state.until = until;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_if_it_may_and_waits_until_that_is_said() {
        let (gate, now) = (Gate::open(), Deadline::after(Duration::ZERO));
        assert_eq!(gate.begin(1, now).unwrap(), StepWord::Begins);
        assert_eq!(gate.hold(), 1);
        assert!(gate.begins(1) && !gate.begins(2));
        std::thread::scope(|scope| {
            // however long the launcher waits for others
            let waits = scope.spawn(|| gate.begin(2, now));
            std::thread::sleep(2 * pulse::BEAT);
            assert!(!waits.is_finished());
            gate.allow(3, Behind::Interrupted);
            assert_eq!(waits.join().unwrap().unwrap(), StepWord::Begins);
        });
        assert_eq!(gate.begin(3, now).unwrap(), StepWord::Begins);
        gate.allow(u64::MAX, Behind::Unknown);
        assert_eq!(gate.begin(4, now).unwrap(), StepWord::Interrupted, "the last stays the last");
        assert!(gate.is_held());
        assert_eq!(gate.hold(), 3);
    }

    #[test]
    fn one_that_is_held_and_let_go_goes_on_as_before() {
        let gate = Gate::open();
        gate.allow(2, Behind::Unknown);
        assert!(gate.begins(1) && !gate.is_held());
        assert_eq!((gate.hold(), gate.hold()), (1, 1));
        assert!(!gate.begins(2) && gate.is_held());
        gate.let_go();
        assert!(!gate.is_held());
        assert!(gate.begins(2) && !gate.begins(3));
        let now = Deadline::after(Duration::ZERO);
        assert_eq!(gate.begin(3, now).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        gate.hold();
        gate.allow(3, Behind::Unknown);
        gate.let_go();
        assert!(gate.begins(3) && !gate.begins(4));
    }
}
