//! The hidden subcommand `run-with-parent`: becomes another command that ends when the launcher does, however that
//! ends. So a connection to a host that does not answer outlives nobody.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::Failure;
use super::output::last_words;

/// What `ssh` ends with, too, when it cannot start what it is told to.
const CANNOT_START: i32 = 255;

pub(crate) fn run(command: &[String]) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Failure::other)?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::user("there is no command to become"));
    };
    // returns only if it failed
    let error = Command::new(program).args(arguments).exec();
    last_words(format!("{program}: {error}"));
    std::process::exit(CANNOT_START)
}
