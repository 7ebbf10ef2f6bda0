//! The hidden subcommand `member`: one process of a job, told what to do through standard input.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use tensorwire_node::doctor::{DOCTOR, doctor_member};
use tensorwire_node::{Assignment, Ending, Member, train_member};

use super::Failure;
use super::output::note;

pub(crate) fn run() -> Result<(), Failure> {
    // Ctrl-C reaches the whole terminal; the launcher decides what it means
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, ignored).map_err(Failure::other)?;
    // even a stopped member ends with its launcher; one that runs is told why by its control connection
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Failure::other)?;
    let assignment: Assignment = serde_json::from_reader(std::io::stdin())
        .map_err(|error| Failure::user(format!("members are started by a launcher: {error}")))?;
    let kind = assignment.kind.clone();
    let rank = assignment.rank();
    let end = move |ending: Ending| {
        if let Ending::Orphaned { reason } = ending {
            note(format_args!("rank {rank} (pid {}) ends: {reason}", std::process::id()));
        }
        std::process::exit(1);
    };
    let member = Member::join(assignment, end).map_err(Failure::other)?;
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
    // the launcher has been told, and shows it
    done.map_err(|_| std::process::exit(1))
}
