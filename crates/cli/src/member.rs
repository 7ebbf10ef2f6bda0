//! One process of a job: the hidden subcommand `member`, told what to do through standard input, or a process
//! that has joined.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tensorwire_doctor::{DOCTOR, doctor_member};
use tensorwire_launch::{Assignment, Ending, Farewell, Member};
use tensorwire_train::train_member;

use super::Failure;
use super::output::note;

/// How long a member that somebody else started and tells to end stays, so that the launcher sees first who ended
/// before. Open MPI gives processes a second.
const TOLD_TO_END: Duration = Duration::from_millis(800);
/// How long such a member stays when it has failed, if the launcher does not end it before: the first one that ends
/// may be the end of all, with nothing said.
const FAILED: Duration = Duration::from_secs(5);

pub(crate) fn run() -> Result<(), Failure> {
    // even a stopped member ends with its launcher; one that runs is told why by its control connection
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Failure::other)?;
    let assignment: Assignment = serde_json::from_reader(std::io::stdin())
        .map_err(|error| Failure::user(format!("members are started by a launcher: {error}")))?;
    let stay = if assignment.joined { Some(Stay::begin()?) } else { None };
    take_part(assignment, stay)
}

/// Does this process's part of a job.
pub(crate) fn take_part(assignment: Assignment, stay: Option<Stay>) -> Result<(), Failure> {
    // Ctrl-C reaches the whole terminal; the launcher decides what it means
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, ignored).map_err(Failure::other)?;
    let kind = assignment.kind.clone();
    let rank = assignment.rank();
    let end = move |ending: Ending| {
        if let Ending::Orphaned { reason } = ending {
            note(format_args!("rank {rank} (pid {}) ends: {reason}", std::process::id()));
        }
        std::process::exit(1);
    };
    let member = Member::join(assignment, end).map_err(Failure::other)?;
    if let Some(stay) = &stay {
        stay.says_farewell(&member);
    }
    let done = match kind.as_str() {
        "train" => train_member(&member).map_err(|error| error.to_string()),
        tensorwire_bench::TRANSFER => {
            tensorwire_bench::transfer_member(&member).map_err(|error| error.to_string())
        }
        DOCTOR => doctor_member(&member).map_err(|error| error.to_string()),
        tensorwire_bench::KVSTORE => {
            tensorwire_bench::kvstore_member(&member).map_err(|error| error.to_string())
        }
        tensorwire_bench::ALLREDUCE => {
            tensorwire_bench::allreduce_member(&member).map_err(|error| error.to_string())
        }
        tensorwire_bench::WRITE => {
            tensorwire_bench::write_member(&member).map_err(|error| error.to_string())
        }
        _ => Err(format!("there is no job of kind '{kind}'")),
    };
    done.map_err(|_| {
        // the launcher has been told, and shows it
        if stay.is_some() {
            std::thread::sleep(FAILED);
        }
        std::process::exit(1)
    })
}

/// A process that somebody else started stays for a moment when it is told to end.
pub(crate) struct Stay(Arc<OnceLock<Farewell>>);

impl Stay {
    pub(crate) fn begin() -> Result<Stay, Failure> {
        let mut signals = Signals::new([SIGTERM]).map_err(Failure::other)?;
        let farewell = Arc::<OnceLock<Farewell>>::default();
        let stay = Stay(farewell.clone());
        let wait = move || {
            if signals.forever().next().is_some() {
                if let Some(farewell) = farewell.get() {
                    farewell.told_to_end();
                }
                std::thread::sleep(TOLD_TO_END);
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(wait).map_err(Failure::other)?;
        Ok(stay)
    }

    /// From now on there is somebody to tell.
    fn says_farewell(&self, member: &Member) {
        // a process is one member
        let _ = self.0.set(member.farewell());
    }
}
