//! Sleeping while a word has a value, between processes too: the kernel's futex. Under loom it is what the kernel
//! promises of one: looking at the word and falling asleep are one step for whoever wakes.

#[cfg(not(loom))]
pub(crate) use kernel::{wait, wake_all};
#[cfg(loom)]
pub(crate) use modelled::{wait, wake_all};

#[cfg(not(loom))]
mod kernel {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::thread::futex;

    /// Sleeps for at most `time`, unless the word is another; may end without a cause.
    pub(crate) fn wait(word: &AtomicU32, is: u32, time: Duration) -> Result<(), Errno> {
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        // not PRIVATE here and below, because the ringer may be another process
        futex::wait(word, futex::Flags::empty(), is, Some(&timeout))
    }

    /// Wakes all that sleep on the word.
    pub(crate) fn wake_all(word: &AtomicU32) {
        // cannot fail on a valid address
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(loom)]
mod modelled {
    use std::time::Duration;

    use rustix::io::Errno;
    use tensorwire_base::sync::atomic::{AtomicU32, Ordering};
    use tensorwire_base::sync::{Condvar, Mutex};

    loom::lazy_static! {
        /// All that sleep, on any word: a wake-up that is another's ends a sleep without a cause.
        static ref SLEEPERS: (Mutex<()>, Condvar) = Default::default();
    }

    /// Time does not pass: a sleep that nobody ends is a deadlock, which loom reports.
    pub(crate) fn wait(word: &AtomicU32, is: u32, _time: Duration) -> Result<(), Errno> {
        let mut sleepers = SLEEPERS.0.lock();
        if word.load(Ordering::SeqCst) != is {
            return Err(Errno::AGAIN);
        }
        SLEEPERS.1.wait(&mut sleepers);
        Ok(())
    }

    pub(crate) fn wake_all(_word: &AtomicU32) {
        let _sleepers = SLEEPERS.0.lock();
        SLEEPERS.1.notify_all();
    }
}
