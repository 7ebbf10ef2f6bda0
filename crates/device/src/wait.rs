//! Waiting for a GPU by asking: at once, then less and less often, until a deadline.

use std::time::Duration;

use tensorwire_base::{Clock, Deadline};

/// So long a wait asks without pause: a kernel or a small copy takes no longer.
const SPIN_NS: u64 = 20_000;
/// So long it lets others run between two questions.
const YIELD_NS: u64 = 200_000;
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Asks until the answer is yes, and returns false if the deadline comes first.
pub(crate) fn wait<E>(
    deadline: Deadline,
    mut is_done: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    let start = Clock::now_ns();
    loop {
        if is_done()? {
            return Ok(true);
        }
        if deadline.passed() {
            return Ok(false);
        }
        match Clock::now_ns().saturating_sub(start) {
            ..SPIN_NS => std::hint::spin_loop(),
            SPIN_NS..YIELD_NS => std::thread::yield_now(),
            // an eighth of what was waited so far: the end is seen that much late at most
            waited => {
                let pause = Duration::from_nanos(waited / 8).min(PAUSE_MAX);
                std::thread::sleep(pause.min(deadline.remaining()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_answer_an_error_or_the_deadline() {
        let mut asked = 0;
        let far = Deadline::after(Duration::from_secs(60));
        let third = wait(far, || {
            asked += 1;
            Ok::<bool, ()>(asked == 3)
        });
        assert_eq!((third, asked), (Ok(true), 3));
        assert_eq!(wait(far, || Err::<bool, &str>("broken")), Err("broken"));
        let near = Deadline::after(Duration::from_millis(2));
        assert_eq!(wait(near, || Ok::<bool, ()>(false)), Ok(false));
        assert!(near.passed());
        // what is done is done, also when it is late
        assert_eq!(wait(near, || Ok::<bool, ()>(true)), Ok(true));
    }
}
