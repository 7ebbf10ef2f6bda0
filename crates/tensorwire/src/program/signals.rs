//! What Ctrl-C, and being told to end, mean to a program that launches a job.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::ProgramError;

/// What tells a program to end: Ctrl-C, whoever started it, and a terminal that hangs up, unless nohup has that ignored.
fn ending() -> impl Iterator<Item = i32> {
    let ignored = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hears_hang_up = ignored >> (SIGHUP - 1) & 1 == 0;
    [SIGINT, SIGTERM].into_iter().chain(hears_hang_up.then_some(SIGHUP))
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
    let interrupt = Arc::new(AtomicBool::new(false));
    end_at_once_while(&interrupt)?;
    for signal in ending() {
        signal_hook::flag::register(signal, interrupt.clone()).map_err(refused)?;
    }
    Ok(interrupt)
}

/// Returns what is set by Ctrl-C, and when whoever started this process tells it to end, which they may say twice: what ended the
/// job is to be said first. They end it by force soon.
///
/// # Errors
/// When the system refuses.
pub fn told_to_end() -> Result<Arc<AtomicBool>, ProgramError> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        signal_hook::flag::register(signal, told.clone()).map_err(refused)?;
    }
    Ok(told)
}

/// Ctrl-C ends this process at once, with status 1, whenever `condition` is true: there is nothing to
/// clean up then.
///
/// # Errors
/// When the system refuses.
pub fn end_at_once_while(condition: &Arc<AtomicBool>) -> Result<(), ProgramError> {
    for signal in ending() {
        signal_hook::flag::register_conditional_shutdown(signal, 1, condition.clone())
            .map_err(refused)?;
    }
    Ok(())
}
