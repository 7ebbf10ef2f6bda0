//! One process of a job: told what to do through standard input, or by the one that it joined.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tensorwire_launch::{Assignment, Ending, Farewell, Member};

use super::ProgramError;

/// How long a member that somebody else started and tells to end stays, so that the launcher sees first who ended
/// before. Open MPI gives processes a second.
const TOLD_TO_END: Duration = Duration::from_millis(800);
/// How long such a member stays when it has failed, if the launcher does not end it before: the first one that ends
/// may be the end of all, with nothing said.
const FAILED: Duration = Duration::from_secs(5);

/// Reads the assignment of a process that a launcher started. It ends when the launcher does, however that ends, unless it may wait
/// for another.
///
/// # Errors
/// When standard input holds none.
pub fn read_assignment() -> Result<Assignment, ProgramError> {
    // even a stopped member ends with its launcher; one that runs is told why by its control connection
    tie_to_launcher(true)?;
    let assignment: Assignment =
        serde_json::from_reader(std::io::stdin()).map_err(ProgramError::Assignment)?;
    if assignment.takeover_ms.is_some() {
        tie_to_launcher(false)?;
    }
    Ok(assignment)
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
    // Ctrl-C and a hang-up reach the whole terminal, and what a scheduler sends all processes; the launcher decides what they mean
    for signal in [SIGINT, SIGHUP, SIGUSR1] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored)
            .map_err(|source| failed("to handle a signal", source))?;
    }
    let rank = assignment.rank();
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
    if let Some(stay) = &stay {
        stay.says_farewell(&member);
    }
    run(&member).map_err(|_| {
        // the launcher has been told, and shows it
        if stay.is_some() {
            std::thread::sleep(FAILED);
        }
        std::process::exit(1)
    })
}

/// A process that somebody else started stays for a moment when it is told to end. Where it is asked to (SIGINT, SIGUSR1), as by a
/// host that is to go, it has the launcher end all behind a step.
#[derive(Debug)]
pub struct Stay(Arc<OnceLock<Farewell>>);

impl Stay {
    /// Begins to mind the signals that tell it to end.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin() -> Result<Stay, ProgramError> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])
            .map_err(|source| failed("to handle a signal", source))?;
        let farewell = Arc::<OnceLock<Farewell>>::default();
        let stay = Stay(farewell.clone());
        let wait = move || {
            for signal in signals.forever() {
                match farewell.get() {
                    Some(farewell) if signal != SIGTERM => {
                        farewell.asked_to_end();
                        continue;
                    }
                    Some(farewell) => farewell.told_to_end(),
                    None => {}
                }
                std::thread::sleep(TOLD_TO_END);
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(wait).map_err(|source| failed("a thread", source))?;
        Ok(stay)
    }

    /// From now on there is somebody to tell.
    fn says_farewell(&self, member: &Member) {
        // a process is one member
        let _ = self.0.set(member.farewell());
    }
}
