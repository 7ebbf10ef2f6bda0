//! One process of a job: the hidden subcommand `member`, told what to do through standard input, or a process
//! that has enlisted.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tensorwire_node::doctor::{DOCTOR, doctor_member};
use tensorwire_node::{Assignment, Ending, Member, train_member};

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
    take_part(assignment)
}

/// Does this process's part of a job.
pub(crate) fn take_part(assignment: Assignment) -> Result<(), Failure> {
    // Ctrl-C reaches the whole terminal; the launcher decides what it means
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, ignored).map_err(Failure::other)?;
    // before it joins: nobody else says why a process is told to end
    let enlisted = assignment.enlisted;
    let signals = enlisted.then(|| Signals::new([SIGTERM])).transpose();
    let signals = signals.map_err(Failure::other)?;
    let kind = assignment.kind.clone();
    let rank = assignment.rank();
    let end = move |ending: Ending| {
        if let Ending::Orphaned { reason } = ending {
            note(format_args!("rank {rank} (pid {}) ends: {reason}", std::process::id()));
        }
        std::process::exit(1);
    };
    let member = Member::join(assignment, end).map_err(Failure::other)?;
    if let Some(signals) = signals {
        linger_when_told(signals, &member)?;
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
        tensorwire_bench::WRITE => {
            tensorwire_bench::write_member(&member).map_err(|error| error.to_string())
        }
        _ => Err(format!("there is no job of kind '{kind}'")),
    };
    done.map_err(|_| {
        // the launcher has been told, and shows it
        if enlisted {
            std::thread::sleep(FAILED);
        }
        std::process::exit(1)
    })
}

/// When this process is told to end, says so to the launcher and stays for a moment.
fn linger_when_told(mut signals: Signals, member: &Member) -> Result<(), Failure> {
    let farewell = member.farewell();
    let wait = move || {
        if signals.forever().next().is_some() {
            farewell.told_to_end();
            std::thread::sleep(TOLD_TO_END);
            std::process::exit(1);
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(wait).map(drop).map_err(Failure::other)
}
