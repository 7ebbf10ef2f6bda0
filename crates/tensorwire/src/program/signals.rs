//! What Ctrl-C, and being told to end, mean to a program that launches a job. SIGUSR1 is what schedulers send before the time is over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use super::ProgramError;

/// What shells add to a signal's number, where it ended a program.
const BY_SIGNAL: i32 = 128;

/// The signal that told this process to end; 0: none has.
static HEARD: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the exit status of a program that a signal has told to end, if one has: 128 and the signal's number, as shells have it.
pub fn status_by_signal() -> Option<u8> {
    // fits: signals are at most 64
    match HEARD.load(Ordering::SeqCst) {
        0 => None,
        signal => u8::try_from(BY_SIGNAL as usize + signal).ok(),
    }
}

/// Ends this process as the second Ctrl-C does, of which it has heard the first.
pub fn end_at_once() -> ! {
    signal_hook::low_level::exit(status_by_signal().map_or(1, i32::from))
}

/// Has a signal set `flag`, once it is known which one came. `meanwhile` is called when it ends nothing any more, and sets no flag yet.
fn register(
    signal: i32,
    flag: &Arc<AtomicBool>,
    meanwhile: impl FnOnce(),
) -> Result<(), ProgramError> {
    // fits: a signal's number is positive
    let number = signal as usize;
    signal_hook::flag::register_usize(signal, HEARD.clone(), number).map_err(refused)?;
    meanwhile();
    signal_hook::flag::register(signal, flag.clone()).map_err(refused)?;
    if HEARD.load(Ordering::SeqCst) == number {
        flag.store(true, Ordering::SeqCst);
    }
    Ok(())
}

/// What tells a program to end: Ctrl-C, whoever started it, a scheduler whose time is over, and a terminal that hangs up, unless nohup has that ignored.
fn ending() -> impl Iterator<Item = i32> {
    let hears_hang_up = own_mask("SigIgn:") >> (SIGHUP - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hears_hang_up.then_some(SIGHUP))
}

/// Returns the signals of a line of this process's status, a bit each.
fn own_mask(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn refused(source: std::io::Error) -> ProgramError {
    ProgramError::System { what: "to handle a signal", source }
}

/// Returns what the first Ctrl-C sets; the second one ends this process at once: members end when they see their launcher
/// gone.
///
/// # Errors
/// When the system refuses.
pub fn interrupt() -> Result<Arc<AtomicBool>, ProgramError> {
    let signals: Vec<i32> = ending().collect();
    interrupt_by(&signals, || {})
}

/// What the first Ctrl-C sets, and what the second.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    pub first: Arc<AtomicBool>,
    pub second: Arc<AtomicBool>,
}

impl Interrupts {
    /// Begins to hear. The second Ctrl-C has `end` called, too, by another thread, with the flag that is set: it says what is to be
    /// said last, and this process ends when it returns. A third one does not wait for it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn hear(
        end: impl FnOnce(Arc<AtomicBool>) + Send + 'static,
    ) -> Result<Interrupts, ProgramError> {
        let signals: Vec<i32> = ending().collect();
        let interrupts = Interrupts::default();
        let Interrupts { first, second } = interrupts.clone();
        end_by(&signals, &second)?;
        // each that comes counts, where a flag would not tell two from one
        let heard = SignalsInfo::<WithRawSiginfo>::new(&signals).map_err(refused)?;
        for signal in &signals {
            register(*signal, &first, || {})?;
        }
        let listen = move || {
            let mut heard = heard;
            let mut heard = heard.forever();
            if let Some(signal) = heard.next() {
                // it may have come before a flag heard it
                let number = usize::try_from(signal.si_signo).unwrap_or_default();
                let _ = HEARD.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
                first.store(true, Ordering::SeqCst);
            }
            if heard.next().is_some() {
                second.store(true, Ordering::SeqCst);
                end(second);
                end_at_once();
            }
        };
        let thread = std::thread::Builder::new().name("interrupts".into()).spawn(listen);
        let no_thread = |source| ProgramError::System { what: "a thread", source };
        thread.map(|_| interrupts).map_err(no_thread)
    }
}

/// The same of these signals. `meanwhile` is called when they end nothing any more, and do not set what is returned yet.
fn interrupt_by(
    signals: &[i32],
    meanwhile: impl FnOnce(),
) -> Result<Arc<AtomicBool>, ProgramError> {
    let [early, interrupt] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    // what comes while the rest is registered is heard, too
    for signal in signals {
        register(*signal, &early, || {})?;
    }
    end_by(signals, &interrupt)?;
    meanwhile();
    for signal in signals {
        signal_hook::flag::register(*signal, interrupt.clone()).map_err(refused)?;
    }
    if early.load(Ordering::SeqCst) {
        interrupt.store(true, Ordering::SeqCst);
    }
    Ok(interrupt)
}

/// Has `told` called by another thread each time that a signal tells this process to end, which it does not by itself any more;
/// with whether it would have ended this process: nobody else handled it.
///
/// # Errors
/// When the system refuses.
pub(crate) fn hear_each(told: impl Fn(bool) + Send + 'static) -> Result<(), ProgramError> {
    let signals: Vec<i32> = ending().collect();
    let handled = own_mask("SigCgt:") | own_mask("SigIgn:");
    // each that comes counts, where a flag would not tell two from one
    let mut heard = SignalsInfo::<WithRawSiginfo>::new(&signals).map_err(refused)?;
    let listen = move || {
        for signal in heard.forever() {
            // fits: a signal's number is positive
            HEARD.store(signal.si_signo as usize, Ordering::SeqCst);
            told(handled >> (signal.si_signo - 1) & 1 == 0);
        }
    };
    let thread = std::thread::Builder::new().name("interrupts".into()).spawn(listen);
    let no_thread = |source| ProgramError::System { what: "a thread", source };
    thread.map(drop).map_err(no_thread)
}

/// Returns what is set by Ctrl-C, and when whoever started this process tells it to end, which they may say twice: what ended the
/// job is to be said first. They end it by force soon.
///
/// # Errors
/// When the system refuses.
pub fn told_to_end() -> Result<Arc<AtomicBool>, ProgramError> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        register(signal, &told, || {})?;
    }
    Ok(told)
}

/// Ctrl-C ends this process at once, with the status of one that a signal ended, whenever `condition` is true: there is nothing
/// to clean up then.
///
/// # Errors
/// When the system refuses.
pub fn end_at_once_while(condition: &Arc<AtomicBool>) -> Result<(), ProgramError> {
    let signals: Vec<i32> = ending().collect();
    end_by(&signals, condition)
}

fn end_by(signals: &[i32], condition: &Arc<AtomicBool>) -> Result<(), ProgramError> {
    for signal in signals {
        let status = BY_SIGNAL + signal;
        signal_hook::flag::register_conditional_shutdown(*signal, status, condition.clone())
            .map_err(refused)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Waits for what a signal does, which comes to some thread of this process soon.
    fn wait_until(is_there: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !is_there() {
            assert!(start.elapsed() < std::time::Duration::from_secs(20), "the signal was lost");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn a_signal_that_comes_while_it_is_registered_is_not_lost() {
        // two that nobody else here takes
        let [signal, other] = [Signal::USR2, Signal::URG];
        let status = |of: Signal| u8::try_from(128 + of.as_raw()).ok();
        let send = || kill_process(getpid(), signal).unwrap();
        let interrupt = interrupt_by(&[signal.as_raw()], send).unwrap();
        wait_until(|| interrupt.load(Ordering::SeqCst));
        assert_eq!(status_by_signal(), status(signal));

        let flag = Arc::new(AtomicBool::new(false));
        let send = || {
            kill_process(getpid(), other).unwrap();
            wait_until(|| status_by_signal() == status(other));
        };
        register(other.as_raw(), &flag, send).unwrap();
        assert!(flag.load(Ordering::SeqCst));
    }
}
