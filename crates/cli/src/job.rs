//! What every command that starts processes does alike: how its members are started.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tensorwire::program;
use tensorwire_launch::JobSpec;

use super::{Failure, log};

pub(crate) use tensorwire::program::{end_at_once_while, interrupt};

/// How this program starts its members: as itself, with its hidden subcommands. Which job they are of is filled in by
/// whoever launches it. The first Ctrl-C ends it in good order; the second one does not wait: members end when they see
/// their launcher gone.
pub(crate) fn job_spec() -> Result<JobSpec, Failure> {
    job_spec_until(program::interrupt()?)
}

/// The same, ended by `interrupt`.
pub(crate) fn job_spec_until(interrupt: Arc<AtomicBool>) -> Result<JobSpec, Failure> {
    let program = std::env::current_exe().map_err(Failure::other)?;
    Ok(JobSpec {
        arguments: [vec!["member".to_string()], log::of_members()].concat(),
        run_with_parent: vec!["run-with-parent".to_string(), "--".to_string()],
        interrupt,
        status_folder: Some(program::status_folder()),
        ..JobSpec::new(program, "", Vec::new())
    })
}

impl From<program::ProgramError> for Failure {
    fn from(error: program::ProgramError) -> Failure {
        Failure::other(error)
    }
}
