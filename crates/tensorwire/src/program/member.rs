//! One process of a job: told what to do through standard input, or by the one that it joined.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tensorwire_base::Deadline;
use tensorwire_launch::{Assignment, Ending, Farewell, Member};

use super::ProgramError;

/// How long a member that somebody else started and tells to end stays, so that the launcher sees first who ended
/// before. Open MPI gives processes a second.
const TOLD_TO_END: Duration = Duration::from_millis(800);
/// How long it stays for the launcher to say that all end behind the same step, where the job keeps what it has then.
const UNTIL_HELD: Duration = Duration::from_secs(3);
/// How long it stays for that step and for what is written behind it. Slurm, Kubernetes and torchrun give processes half a
/// minute.
const WINDS_DOWN: Duration = Duration::from_secs(25);
/// How often it looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long such a member stays when it has failed, if the launcher does not end it before: the first one that ends
/// may be the end of all, with nothing said.
const FAILED: Duration = Duration::from_secs(5);

/// How long a member waits for a word of its assignment: as long as its launcher waits for it to read that. Time in which this process is
/// stopped does not count.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// Reads the assignment of a process that a launcher started. It ends when the launcher does, however that ends, unless it may wait
/// for another.
///
/// # Errors
/// When standard input holds none, or its launcher, which may be stopped, writes none within a minute.
pub fn read_assignment() -> Result<Assignment, ProgramError> {
    // even a stopped member ends with its launcher; one that runs is told why by its control connection
    tie_to_launcher(true)?;
    let read = |source| failed("to read standard input", source);
    // without the library's buffer, whose bytes nobody can be asked for
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(read)?;
    let input = BufReader::new(InTime { input: File::from(input), patience: TOLD_WITHIN });
    let assignment: Assignment =
        serde_json::from_reader(input).map_err(ProgramError::Assignment)?;
    if assignment.takeover_ms.is_some() {
        tie_to_launcher(false)?;
    }
    Ok(assignment)
}

/// What is read from there, where something comes within this time.
struct InTime<T> {
    input: T,
    patience: Duration,
}

impl<T: Read + AsFd> Read for InTime<T> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let patience = Timespec::try_from(self.patience).map_err(std::io::Error::other)?;
        let mut input = [PollFd::new(&self.input, PollFlags::IN)];
        // it has come, or its end has
        if poll(&mut input, Some(&patience))? > 0 {
            return self.input.read(into);
        }
        let why =
            format!("nothing came for {} s; is its launcher stopped?", self.patience.as_secs_f64());
        Err(std::io::Error::new(ErrorKind::TimedOut, why))
    }
}

fn tie_to_launcher(ends: bool) -> Result<(), ProgramError> {
    let signal = ends.then_some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal)
        .map_err(|source| failed("to end a member with its launcher", source.into()))
}

fn failed(what: &'static str, source: std::io::Error) -> ProgramError {
    ProgramError::System { what, source }
}

/// Does this process's part of a job.
///
/// `stay` is of a process that somebody else started; `run` does the work, and has told the launcher if it fails: then this
/// function does not return.
///
/// # Errors
/// When the launcher cannot be reached.
pub fn take_part<E>(
    assignment: Assignment,
    stay: Option<Stay>,
    run: impl FnOnce(&Member) -> Result<(), E>,
) -> Result<(), ProgramError> {
    let stay = match (stay, assignment.joined) {
        (None, true) => Some(Stay::begin()?),
        (stay, _) => stay,
    };
    // the launcher's own: where it is told to end, too, it needs them for a last step
    let own = match (&stay, assignment.winds_down) {
        (None, true) => Some(Stay::minding(&[SIGTERM])?),
        _ => None,
    };
    // Ctrl-C and a hang-up reach the whole terminal, and what a scheduler sends all processes; the launcher decides what they mean
    for signal in [SIGINT, SIGHUP, SIGUSR1] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored)
            .map_err(|source| failed("to handle a signal", source))?;
    }
    let (rank, winds_down) = (assignment.rank(), assignment.winds_down);
    let stays = stay.is_some();
    let end = move |ending: Ending| {
        let pid = std::process::id();
        match ending {
            // the launcher shows it
            Ending::Told { .. } => {}
            Ending::StandsStill { .. } if stays => std::thread::sleep(FAILED),
            Ending::StandsStill { .. } => {}
            Ending::Orphaned { reason } => {
                super::say(&format!("rank {rank} (pid {pid}) ends: {reason}"));
            }
        }
        std::process::exit(1);
    };
    let member = Member::join(assignment, end)?;
    if let Some(stay) = stay.as_ref().or(own.as_ref()) {
        stay.says_farewell(&member, winds_down);
    }
    run(&member).map_err(|_| {
        // the launcher has been told, and shows it
        if stay.is_some() {
            std::thread::sleep(FAILED);
        }
        std::process::exit(1)
    })
}

/// A process that is told to end stays for a moment, and longer if the job ends behind a step. One that somebody else started and that
/// is asked to (SIGINT, SIGUSR1), as by a host that is to go, has the launcher end all behind a step.
#[derive(Debug)]
pub struct Stay(Arc<OnceLock<(Farewell, bool)>>);

impl Stay {
    /// Begins to mind the signals that tell it to end.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin() -> Result<Stay, ProgramError> {
        Stay::minding(&[SIGTERM, SIGINT, SIGUSR1])
    }

    fn minding(signals: &[i32]) -> Result<Stay, ProgramError> {
        let mut signals =
            Signals::new(signals).map_err(|source| failed("to handle a signal", source))?;
        let farewell = Arc::<OnceLock<(Farewell, bool)>>::default();
        let stay = Stay(farewell.clone());
        let wait = move || {
            for signal in signals.forever() {
                match farewell.get() {
                    Some((farewell, _)) if signal != SIGTERM => {
                        farewell.asked_to_end();
                        continue;
                    }
                    farewell => stay_for_a_moment(farewell),
                }
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(wait).map_err(|source| failed("a thread", source))?;
        Ok(stay)
    }

    /// From now on there is somebody to tell.
    fn says_farewell(&self, member: &Member, winds_down: bool) {
        // a process is one member
        let _ = self.0.set((member.farewell(), winds_down));
    }
}

/// Says that it was told to end, and returns when it is to. It ends before where its part is done, or the launcher is gone.
fn stay_for_a_moment(farewell: Option<&(Farewell, bool)>) {
    let Some((farewell, winds_down)) = farewell else {
        return std::thread::sleep(TOLD_TO_END);
    };
    farewell.told_to_end();
    if !winds_down {
        return std::thread::sleep(TOLD_TO_END);
    }
    let until = |longest: Duration, is_over: &dyn Fn() -> bool| {
        let deadline = Deadline::after(longest);
        while !is_over() && !deadline.passed() {
            std::thread::sleep(LOOK_AGAIN);
        }
    };
    until(UNTIL_HELD, &|| farewell.is_winding_down());
    until(WINDS_DOWN, &|| !farewell.is_winding_down());
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_a_stopped_launcher_does_not_write_is_not_waited_for_for_ever() {
        let (input, mut launcher) = std::io::pipe().unwrap();
        let mut input = InTime { input, patience: Duration::from_millis(20) };
        launcher.write_all(b"{").unwrap();
        let mut told = String::new();
        let error = input.read_to_string(&mut told).unwrap_err();
        assert_eq!((error.kind(), told.as_str()), (ErrorKind::TimedOut, "{"));
        assert!(error.to_string().contains("is its launcher stopped?"), "{error}");
        launcher.write_all(b"}").unwrap();
        drop(launcher);
        assert_eq!((input.read_to_string(&mut told).unwrap(), told.as_str()), (1, "{}"));
    }
}
